"""Where the time of each device goes: a partition of its span into categories and idle time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from pytest_torchprof.analysis.attribution import attribute, launched_at
from pytest_torchprof.analysis.device_time import Idle, spans_of
from pytest_torchprof.analysis.missing import (
    cpu_time_gap,
    device_gap,
    device_time_gap,
    slowdown_share,
)
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import Kind, once_per_trace
from pytest_torchprof.work.kernels import CATEGORIES, kernel_category, operator_category

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

IDLE: Final = "idle"
#: What the device ran that is not selected, such as work of other steps.
OUTSIDE: Final = "outside"
NAMES: Final = (*CATEGORIES, OUTSIDE, IDLE)
#: Their time counts only where nothing is computed.
EXPOSED: Final = frozenset({"communication", "copy"})


@dataclass(frozen=True)
class BreakdownRow:
    """One category of one device's time, or of the CPU's if there is no device.

    ``time_ms`` is the time that belongs to this category alone: the rows of a device add up to its
    span, from its first event to the end of its last, and those of the CPU to the self time of all
    operators. Where events of several categories overlap, the first of `CATEGORIES` takes the time,
    so that of communication and copies is what computation does not hide. ``share`` is relative to
    the sum. ``total_ms`` is the time of all events of the category, one after the other; ``calls``
    is their number. Both are None for idle time. If the trace has only a part of the device's work,
    idle time and shares are unknown: None. So are times of events without durations.

    In a part of a trace, such as one step, the row `OUTSIDE` is the time in which the device ran
    only what is not selected.
    """

    ADDS_UP: ClassVar = ("time_ms", "total_ms", "calls")

    device: int | None
    category: str
    time_ms: float | None
    share: float | None
    total_ms: float | None
    calls: int | None


@once_per_trace
def breakdown(trace: Events) -> list[BreakdownRow]:
    """The rows of each device, in the order of `CATEGORIES`, then its idle time.

    In a trace without device events: the self time of operators on the CPU. Categories without
    events are left out.
    """
    timelines = busy_timelines(trace, 1)
    if not timelines:
        return _of_operators(trace)
    whole = trace.once(device_time_gap) is None
    rows = []
    for one, (start, end, category) in zip(timelines, device_work(trace).values(), strict=True):
        span = one.edges[1] - one.edges[0]
        for name, (own,) in one.ns_by_category.items():
            mine = category == NAMES.index(name)
            total, count = int((end[mine] - start[mine]).sum()), int(mine.sum())
            timed, apart = bool(whole or total), name in (OUTSIDE, IDLE)
            rows.append(
                BreakdownRow(
                    one.device,
                    name,
                    own / 1e6 if timed else None,
                    _share(own, span) if whole else None,
                    total / 1e6 if timed and not apart else None,
                    None if apart else count,
                )
            )
        if not whole:
            rows.append(BreakdownRow(one.device, IDLE, None, None, None, None))
    return rows


def _share(ns: int, of_ns: int) -> float:
    return ns / of_ns if of_ns else 0.0


@once_per_trace
def device_work(trace: Events) -> dict[int, tuple[Ints, Ints, Ints]]:
    """By device, -1 if unknown: start, end and category of each event, in order of the starts.

    The category is an index in `CATEGORIES`, or its length for `OUTSIDE`. Events that are not
    selected are cut to the span of those that are.
    """
    every = trace.device_rows
    chosen, category = trace.selection[every], categories(trace, every)
    category[~chosen] = NAMES.index(OUTSIDE)
    out = {}
    for device, (since, until) in spans_of(trace).items():
        mine = trace.device[every] == device
        rows = every[mine]
        start = np.clip(trace.ts[rows], since, until)
        end = np.clip(trace.ts[rows] + trace.dur[rows], since, until)
        kept = chosen[mine] | (end > start)
        out[device] = start[kept], end[kept], category[mine][kept]
    return out


def categories(trace: Events, event: Ints) -> Ints:
    """The index in `CATEGORIES` of each of these device events."""
    work = attribute(trace)
    owner = np.full(len(trace), -1, np.int64)
    owner[work.event] = work.owner
    copied = trace.kind[event] != Kind.KERNEL
    width = len(trace.shown_names[0]) + 1
    name = trace.name[event].astype(np.int64)
    pairs, at = np.unique(name * width + owner[event] + 1, return_inverse=True)
    shown = trace.shown_names[0]
    found = [
        NAMES.index(
            kernel_category(
                trace.names[pair // width], shown[pair % width - 1] if pair % width else ""
            )
        )
        for pair in pairs.tolist()
    ]
    return np.where(copied, NAMES.index("copy"), np.array(found, np.int64)[at])


def _of_operators(trace: Events) -> list[BreakdownRow]:
    """Self time of the CPU's operators by category."""
    rows = np.flatnonzero(trace.selection & trace.is_kind(Kind.OP))
    if not len(rows):
        return []
    whole = trace.once(cpu_time_gap) is None
    names, at = np.unique(trace.name[rows], return_inverse=True)
    of_name = [NAMES.index(operator_category(trace.names[name])) for name in names.tolist()]
    category, own = np.array(of_name, np.int64)[at], trace.self_ns[rows]
    calls = np.bincount(category, minlength=len(CATEGORIES)).tolist()
    total = int(own.sum())
    out = []
    for rank, name in enumerate(CATEGORIES):
        ns = int(own[category == rank].sum())
        time, share = (ns / 1e6, _share(ns, total)) if whole else (None, None)
        if calls[rank]:
            out.append(BreakdownRow(None, name, time, share, time, calls[rank]))
    return out


# ---- What each device was busy with over time: the breakdown of its span, in equal shares of
# time.


class BusyTimeline(Frozen, frozen=True):
    """One device's span in shares of equal length, and what each was busy with, in ns.

    ``edges`` are the beginnings of the shares and the end of the last, since the trace's first
    event. ``ns_by_category`` has a number for each share; a category's sum is its ``time_ms`` in
    `BreakdownRow`, to the ns. `IDLE` is missing where the trace has only a part of the device's
    work. ``device`` is None if unknown.
    """

    device: int | None
    edges: list[int]
    ns_by_category: Mapping[str, list[int]]


@once_per_trace
def busy_timelines(trace: Events, shares: int) -> list[BusyTimeline]:
    """A timeline of each device, by number; none for a trace without device events.

    As in `breakdown`, each moment belongs to one category, the first that runs then. A span of
    fewer ns than ``shares`` has a share for each ns.

    Raises:
        ValueError: ``shares`` is less than 1.
    """
    if shares < 1:
        raise ValueError(f"a timeline of {shares} shares: give 1 or more")
    whole = trace.once(device_time_gap) is None
    spans, found = spans_of(trace), []
    for device, (start, end, category) in device_work(trace).items():
        since, until = spans[device]
        count = max(min(shares, until - since), 1)
        edges = since + (until - since) * np.arange(count + 1) // count
        before = np.zeros(count, np.int64)
        parts = {}
        for rank, name in enumerate(NAMES):
            if not (category == rank).any():
                continue
            up_to = category <= rank
            busy = Idle.around(start[up_to], end[up_to]).busy_between(edges[:-1], edges[1:])
            parts[name] = (busy - before).tolist()
            before = busy
        if whole:
            parts[IDLE] = (np.diff(edges) - before).tolist()
        number = device if device >= 0 else None
        found.append(BusyTimeline(number, (edges - int(trace.ts[0])).tolist(), parts))
    return found


# ---- What a device would gain if the host did not do something: its exposed work, and its idle
# time.
#
# Waits, launches and copies cost a device only what nothing hides. So a stretch of the host's
# time is worth the exposed time of what was launched in it, and the time in it in which no device
# ran anything because the host was late.


class Gain(Frozen, frozen=True):
    """What stretches of the host's time are worth to the devices.

    ``at``: when device events were launched (their own start if that is unknown), in order;
    ``before``: the exposed time in ns of all that were launched earlier, one more than of ``at``,
    of several devices the mean; ``late``: when some device was busy or had work queued. Idle time
    counts from ``since`` to ``until``, and the share ``slowed`` of it: the profiler slows the host.
    """

    at: Ints
    before: Ints
    late: Idle
    since: int
    until: int
    slowed: float

    def between(self, begin: Ints, end: Ints) -> Ints:
        """Nanoseconds for each stretch from ``begin`` up to ``end``; 0 for stretches that end
        before they begin.

        Those of disjoint stretches add up to at most the devices' busy and idle time.
        """
        exposed = self.before[self.at.searchsorted(end)] - self.before[self.at.searchsorted(begin)]
        idle = self.late.between(*(np.clip(t, self.since, self.until) for t in (begin, end)))
        worth: Ints = np.maximum(exposed + (idle * self.slowed).astype(np.int64), 0)
        return worth


class Elapsed:
    """What stretches of time are worth where the host's time counts: their lengths."""

    def between(self, begin: Ints, end: Ints) -> Ints:
        """Nanoseconds for each stretch."""
        length: Ints = np.maximum(end - begin, 0)
        return length


@once_per_trace
def gain(trace: Events) -> Gain | Elapsed:
    """What the device would gain where all of its work is known, else the time that elapsed."""
    event = trace.device_rows[trace.selection[trace.device_rows]]
    if not trace.dur[event].any() or trace.once(device_gap):
        return Elapsed()
    devices = spans_of(trace)
    at = launched_at(trace, event)
    order = np.argsort(at, kind="stable")
    exposed = exposed_ns(trace, event)[order]
    before = np.concatenate([[0], np.cumsum(exposed)]) // len(devices)
    part = trace.scope is not None
    times = [time for span in devices.values() for time in span]
    far = np.iinfo(np.int64)
    return Gain(
        at[order],
        before,
        trace.whole.once(_late),
        min(times) if part else int(far.min),
        max(times) if part else int(far.max),
        slowdown_share(trace),
    )


def exposed_ns(trace: Events, event: Ints) -> Ints:
    """How long each of these device events, in order of time, ran while none of them that takes
    precedence did: computation before communication and copies, then the earlier one.

    For all events of a device, they add up to its busy time.
    """
    exposed = np.zeros(len(event), np.int64)
    hidden = nesting.among(categories(trace, event), [CATEGORIES.index(name) for name in EXPOSED])
    device = trace.device[event]
    for one in nesting.distinct(device).tolist():
        first, second = ((device == one) & (hidden == later) for later in (False, True))
        begin, end = trace.ts[event], trace.ts[event] + trace.dur[event]
        exposed[first] = nesting.uncovered(begin[first], end[first])
        exposed[second] = nesting.uncovered(begin[second], end[second])
        if first.any() and second.any():
            computing = Idle.around(begin[first], end[first])
            begin = np.maximum(begin[second], end[second] - exposed[second])
            exposed[second] -= computing.busy_between(begin, end[second])
    return exposed


def _late(trace: Events) -> Idle:
    """When some device was busy, or would have been if it had begun its next event when the host
    had launched it.
    """
    rows = trace.device_rows
    busy = Idle.of_events(trace, rows)
    launch = trace.launch[rows[busy.begins.searchsorted(busy.start)]]
    ready = np.where(launch >= 0, trace.ts[launch] + trace.dur[launch], busy.start)
    ready = np.minimum(ready, busy.start)
    ready[1:] = np.maximum(ready[1:], busy.end[:-1])
    ready[:1] = busy.start[:1]
    return Idle.of_spans(ready, busy.end, busy.begins)
