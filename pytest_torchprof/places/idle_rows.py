"""Idle time of devices by cause and place: the rows of `torchprof idle`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias

import numpy as np

from pytest_torchprof.analysis.idle_causes import Cause, idle_parts
from pytest_torchprof.analysis.missing import device_time_gap
from pytest_torchprof.places.place import by_frames
from pytest_torchprof.trace.names import once_per_trace
from pytest_torchprof.trace.nesting import distinct, summed

if TYPE_CHECKING:
    from pytest_torchprof.places.place import Place
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

By: TypeAlias = Literal["place", "cause"]

#: How many events are located at once.
_AT_ONCE: Final = 200_000
#: The causes as users read them.
CAUSES: Final = {
    Cause.LOADING: "data loading",
    Cause.COMPILING: "compiling or loading kernels",
    Cause.COLLECTING: "garbage collection",
    Cause.COMMUNICATING: "waiting for other ranks",
    Cause.WAITING: "waiting for the device",
    Cause.COPYING: "copying to the device",
    Cause.ALLOCATING: "allocating",
    Cause.CPU_WORK: "computing on the CPU",
    Cause.LAUNCHING: "launching",
    Cause.PYTHON: "Python between operators",
    Cause.QUEUED: "queued",
    Cause.STALLED: "launched, not started",
    Cause.UNKNOWN: "unknown",
}


@dataclass(frozen=True)
class IdleRow:
    """Idle time of one device with one cause, at one place; the rows add up to all idle time.

    ``what`` is what the host did: the call, the fetch, the outermost operator, the Python function;
    if nothing was recorded, the operator that came next. ``share`` is of the device's idle time;
    ``gaps`` is the number of gaps with such time, ``longest_ms`` the most in one of them.
    ``location`` is ``file:line`` where the trace has stacks, ``path`` the operators around it. By
    cause, these and ``what`` are None.
    """

    ADDS_UP: ClassVar = ("time_ms",)

    device: int | None
    cause: str
    what: str | None
    time_ms: float
    share: float
    gaps: int
    longest_ms: float
    location: str | None
    path: str | None


@once_per_trace
def idle_rows(trace: Events, by: By = "place") -> list[IdleRow]:
    """Idle time by cause, or by cause and place, the most first."""
    parts = idle_parts(trace)
    if not len(parts.ns) or trace.once(device_time_gap) is not None:
        return []
    places, place = (
        _places(trace, parts.event)
        if by == "place"
        else ([None], np.zeros(len(parts.ns), np.int64))
    )
    names, named = trace.shown_names
    said = (parts.event >= 0) & (by == "place")
    name = np.where(said, named[trace.name[parts.event]], -1)
    # The lines of one location differ in what encloses them, such as the module.
    numbers: dict[object, int] = {}
    spot = np.array([numbers.setdefault(_spot(p), len(numbers)) for p in places], np.int64)[place]
    # One number for all columns: sorting rows takes ten times as long.
    columns = parts.device + 1, parts.cause, spot, name + 1
    widths = [int(column.max()) + 1 for column in columns]
    keys, group = np.unique(np.ravel_multi_index(columns, widths), return_inverse=True)
    groups = np.stack(np.unravel_index(keys, widths), axis=1) - np.array([1, 0, 0, 1])
    total = summed(group, parts.ns, len(groups))
    width = int(parts.gap.max()) + 1
    pairs, pair = np.unique(group * width + parts.gap, return_inverse=True)
    of_gap, of_group = summed(pair, parts.ns, len(pairs)), pairs // width
    longest = np.zeros(len(groups), np.int64)
    np.maximum.at(longest, of_group, of_gap)
    gaps = np.bincount(of_group[of_gap > 0], minlength=len(groups))
    most = np.full(len(groups), -1, np.int64)
    by_time = np.argsort(parts.ns, kind="stable")
    most[group[by_time]] = by_time  # the last one is kept: the longest part
    idle = {d: int(total[groups[:, 0] == d].sum()) for d in distinct(groups[:, 0]).tolist()}
    rows = []
    for g in np.lexsort((most, -total)).tolist():
        device, cause, _, number = groups[g].tolist()
        if not total[g]:
            continue
        where = places[int(place[most[g]])]
        rows.append(
            IdleRow(
                device if device >= 0 else None,
                CAUSES[Cause(cause)],
                names[number] if number >= 0 else None,
                int(total[g]) / 1e6,
                int(total[g]) / idle[device],
                int(gaps[g]),
                int(longest[g]) / 1e6,
                where.location if where else None,
                where.path if where else None,
            )
        )
    return rows


def _places(trace: Events, event: Ints) -> tuple[list[Place | None], Ints]:
    events, at = np.unique(event, return_inverse=True)
    places: list[Place | None] = [None]
    place = np.zeros(len(events), np.int64)
    # Some at a time: what is known of all frames around them takes much memory.
    for first in range(0, len(events), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        found, number = by_frames(trace, events[some])
        place[some] = np.where(events[some] >= 0, number + len(places), 0)
        places += found
    return places, place[at]


def _spot(place: Place | None) -> object:
    return place and (place.location or place.path)
