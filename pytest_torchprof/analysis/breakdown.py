"""Where the time of each device goes: a partition of its span into categories and idle time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from pytest_torchprof.analysis.attribution import attribute
from pytest_torchprof.analysis.gaps import device_time_gap
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import DEVICE_KINDS, Kind
from pytest_torchprof.work.categories import CATEGORIES, kernel_category, operator_category

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

IDLE: Final = "idle"
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
    idle time and shares are unknown: None.
    """

    ADDS_UP: ClassVar = ("time_ms", "share", "total_ms", "calls")

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


def spans(trace: Events) -> dict[int, tuple[int, int]]:
    """By device, -1 if unknown: when its first event begins and its last one ends, in ns."""
    found = trace.once(_by_device).items()
    return {device: (int(start.min()), int(end.max())) for device, (start, end, _) in found}


def _breakdown(trace: Events) -> list[BreakdownRow]:
    by_device = trace.once(_by_device)
    if not by_device:
        return _of_operators(trace)
    whole = trace.once(device_time_gap) is None
    rows = []
    for device, (start, end, category) in by_device.items():
        span, before = int(end.max() - start.min()), 0
        number = device if device >= 0 else None
        for rank, name in enumerate(CATEGORIES):
            mine = category == rank
            if not mine.any():
                continue
            up_to = category <= rank
            busy = _union_ns(start[up_to], end[up_to])
            total = int((end[mine] - start[mine]).sum())
            own = busy - before
            share = _share(own, span) if whole else None
            rows.append(BreakdownRow(number, name, own / 1e6, share, total / 1e6, int(mine.sum())))
            before = busy
        idle = span - before
        idle_ms, share = (idle / 1e6, _share(idle, span)) if whole else (None, None)
        rows.append(BreakdownRow(number, IDLE, idle_ms, share, None, None))
    return rows


def _share(ns: int, of_ns: int) -> float:
    return ns / of_ns if of_ns else 0.0


def _by_device(trace: Events) -> dict[int, tuple[Ints, Ints, Ints]]:
    """By device: start and end of each event, in order of the starts, and its category."""
    event = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS))
    category = categories(trace, event)
    start = trace.ts[event]
    end = start + trace.dur[event]
    device = trace.device[event]
    out = {}
    for number in nesting.distinct(device).tolist():
        mine = device == number
        out[number] = start[mine], end[mine], category[mine]
    return out


def categories(trace: Events, event: Ints) -> Ints:
    """The index in `CATEGORIES` of each of these device events."""
    work = attribute(trace)
    owner = np.full(len(trace), -1, np.int64)
    owner[work.event] = work.owner
    copied = trace.kind[event] != Kind.KERNEL
    width = len(trace.shown_names[0]) + 1
    pairs, at = np.unique(trace.name[event] * width + owner[event] + 1, return_inverse=True)
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
    number = {name: i for i, name in enumerate(CATEGORIES)}
    names, at = np.unique(trace.name[rows], return_inverse=True)
    of_name = np.array([number[operator_category(trace.names[name])] for name in names.tolist()])
    category, own = of_name[at], trace.self_ns[rows]
    calls = np.bincount(category, minlength=len(CATEGORIES)).tolist()
    total = int(own.sum())
    return [
        BreakdownRow(
            None,
            name,
            (ns := int(own[category == rank].sum())) / 1e6,
            _share(ns, total),
            ns / 1e6,
            calls[rank],
        )
        for rank, name in enumerate(CATEGORIES)
        if calls[rank]
    ]
