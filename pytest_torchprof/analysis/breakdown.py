"""Where the time of each device goes: a partition of its span into categories and idle time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from pytest_torchprof.analysis.attribution import attribute
from pytest_torchprof.analysis.gaps import cpu_time_gap, device_time_gap
from pytest_torchprof.analysis.idle import spans_of
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import DEVICE_KINDS, Kind
from pytest_torchprof.work.categories import CATEGORIES, kernel_category, operator_category

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

IDLE: Final = "idle"
#: What the device ran that is not selected, such as work of other steps.
OUTSIDE: Final = "outside"
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


def breakdown(trace: Events) -> list[BreakdownRow]:
    """The rows of each device, in the order of `CATEGORIES`, then its idle time.

    In a trace without device events: the self time of operators on the CPU. Categories without
    events are left out.
    """
    return trace.once(_breakdown)


def _breakdown(trace: Events) -> list[BreakdownRow]:
    by_device = device_work(trace)
    if not by_device:
        return _of_operators(trace)
    whole = trace.once(device_time_gap) is None
    spans = spans_of(trace)
    rows = []
    for device, (start, end, category) in by_device.items():
        span, before = spans[device][1] - spans[device][0], 0
        number = device if device >= 0 else None
        for rank, name in enumerate((*CATEGORIES, OUTSIDE)):
            mine = category == rank
            if not mine.any():
                continue
            up_to = category <= rank
            busy = _union_ns(start[up_to], end[up_to])
            own, total = busy - before, int((end[mine] - start[mine]).sum())
            share, count = (_share(own, span) if whole else None), int(mine.sum())
            if name == OUTSIDE:
                rows.append(BreakdownRow(number, name, own / 1e6, share, None, None))
            elif total or whole:
                rows.append(BreakdownRow(number, name, own / 1e6, share, total / 1e6, count))
            else:
                rows.append(BreakdownRow(number, name, None, None, None, count))
            before = busy
        idle = span - before
        idle_ms, share = (idle / 1e6, _share(idle, span)) if whole else (None, None)
        rows.append(BreakdownRow(number, IDLE, idle_ms, share, None, None))
    return rows


def _share(ns: int, of_ns: int) -> float:
    return ns / of_ns if of_ns else 0.0


def device_work(trace: Events) -> dict[int, tuple[Ints, Ints, Ints]]:
    """By device, -1 if unknown: start, end and category of each event, in order of the starts.

    The category is an index in `CATEGORIES`, or its length for `OUTSIDE`. Events that are not
    selected are cut to the span of those that are.
    """
    return trace.once(_device_work)


def _device_work(trace: Events) -> dict[int, tuple[Ints, Ints, Ints]]:
    event = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS))
    category = categories(trace, event)
    start = trace.ts[event]
    end = start + trace.dur[event]
    device = trace.device[event]
    others = trace.device_rows[~trace.selection[trace.device_rows]]
    out, spans = {}, spans_of(trace)
    for number in nesting.distinct(device).tolist():
        mine = device == number
        own = start[mine], end[mine], category[mine]
        more = others[trace.device[others] == number]
        if len(more):
            since, until = spans[number]
            begin = np.clip(trace.ts[more], since, until)
            stop = np.clip(trace.ts[more] + trace.dur[more], since, until)
            inside = stop > begin
            begin, stop = begin[inside], stop[inside]
            other = np.full(len(begin), len(CATEGORIES), np.int64)
            order = np.argsort(np.concatenate([own[0], begin]), kind="stable")
            started, ended, what = (
                np.concatenate(pair)[order] for pair in zip(own, (begin, stop, other), strict=True)
            )
            own = started, ended, what
        out[number] = own
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
    number = {name: i for i, name in enumerate(CATEGORIES)}
    found = [
        number[kernel_category(trace.names[pair // width], shown[pair % width - 1] if pair % width
               else "")]
        for pair in pairs.tolist()
    ]  # fmt: skip
    return np.where(copied, number["copy"], np.array(found, np.int64)[at])


def _union_ns(start: Ints, end: Ints) -> int:
    """How long at least one of these intervals, in order of their starts, is open."""
    reach = np.maximum.accumulate(end)
    before = np.concatenate([start[:1], reach[:-1]])
    return int(np.maximum(reach - np.maximum(before, start), 0).sum())


def _of_operators(trace: Events) -> list[BreakdownRow]:
    """Self time of the CPU's operators by category."""
    rows = np.flatnonzero(trace.selection & trace.is_kind(Kind.OP))
    if not len(rows):
        return []
    whole = trace.once(cpu_time_gap) is None
    number = {name: i for i, name in enumerate(CATEGORIES)}
    names, at = np.unique(trace.name[rows], return_inverse=True)
    of_name = np.array([number[operator_category(trace.names[name])] for name in names.tolist()])
    category, own = of_name[at], trace.self_ns[rows]
    calls = np.bincount(category, minlength=len(CATEGORIES)).tolist()
    total = int(own.sum())
    out = []
    for rank, name in enumerate(CATEGORIES):
        ns = int(own[category == rank].sum())
        if calls[rank] and whole:
            row = BreakdownRow(None, name, ns / 1e6, _share(ns, total), ns / 1e6, calls[rank])
            out.append(row)
        elif calls[rank]:
            out.append(BreakdownRow(None, name, None, None, None, calls[rank]))
    return out
