"""What each thread of the host did at each time, and why a device would wait for it."""

from __future__ import annotations

from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.host_timeline import Timeline, nested_ends
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import HOST_KINDS, Kind
from pytest_torchprof.trace.known_names import (
    ALLOCATION_CALL,
    D2H,
    H2D,
    LAUNCH_CALL,
    LOOK_UP_CALL,
    SYNC_CALL,
)
from pytest_torchprof.trace.levels import COMPILING, FETCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: From this duration on, an operator that launches nothing computes on the CPU.
_CPU_WORK_NS: Final = 100_000
#: A call of the driver that takes this long while the device is idle initializes something on first
#: use, or loads kernels: in 12 public traces, launches and calls that create streams or events took
#: 6 ms to 4 s.
FIRST_USE_NS: Final = 5_000_000
#: How many events get their cause at once.
_AT_ONCE: Final = 2**12
#: How many are put in the order of their depth at once.
_IN_ORDER: Final = 2**15

#: Collections of garbage as functions and annotations are named. Other objects have methods called
#: ``collect``, but a function of this name is the module's.
COLLECT: Final = r"<built-in function collect>|.*gc[.:]?collect"
_COLLECTS: Final = late(COLLECT)
_COLLECTIVE: Final = late(r"_?c10d::|nccl:|gloo:|mpi:|record_param_comms|_c10d_functional::wait")
_COPY: Final = late(r"Memcpy")


class Cause(IntEnum):
    """What the host did; the later ones name less."""

    LOADING = 0
    COMPILING = 1
    COLLECTING = 2
    COMMUNICATING = 3
    WAITING = 4
    COPYING = 5
    ALLOCATING = 6
    CPU_WORK = 7
    LAUNCHING = 8
    PYTHON = 9
    QUEUED = 10
    STALLED = 11
    UNKNOWN = 12


class Host:
    """What each thread of the host did at each time."""

    def __init__(self, trace: Events) -> None:
        self.trace = trace
        self._timelines: dict[int, Timeline] = {}
        self._end, self._begin = nested_ends(trace), 0
        self.parent, self.depth = trace.frames
        self.cause, self.shown = self._causes()
        launch = trace.launch[trace.device_rows]
        calls = np.bincount(trace.thread[launch[launch >= 0]], minlength=len(trace.threads) or 1)
        self.threads = [int(t) for t in np.argsort(-calls, kind="stable") if calls[t]]

    def begin_at(self, begin: int) -> None:
        """Earlier times are not asked for from now on."""
        self._begin = begin
        for timeline in self._timelines.values():
            timeline.begin_at(begin)

    def did(self, thread: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Parts of these gaps in order: the gap, the innermost event (-1 for none), from, until.

        What the launching thread did; while it did nothing, or only ran Python, that of another
        one that launches.
        """
        found = []
        for number in nesting.distinct(thread[end > begin]).tolist():
            mine = np.flatnonzero((thread == number) & (end > begin))
            gap, event, since, until = self._on(number, begin[mine], end[mine])
            gap = mine[gap]
            for other in self.threads:
                rest = (event < 0) | (self.cause[event] == int(Cause.PYTHON))
                if other == number or not rest.any():
                    continue
                part, there, a, b = self._on(other, since[rest], until[rest])
                left = np.flatnonzero(rest)[part]
                there = np.where((there >= 0) & (self.cause[there] != int(Cause.PYTHON)),
                                 there, event[left])  # fmt: skip
                gap = np.concatenate([gap[~rest], gap[left]])
                event = np.concatenate([event[~rest], there])
                since, until = np.concatenate([since[~rest], a]), np.concatenate([until[~rest], b])
            found.append((gap, event, since, until))
        if not found:
            none = np.zeros(0, np.int64)
            return none, none, none, none
        gap, event, since, until = (np.concatenate(column) for column in zip(*found, strict=True))
        order = np.lexsort((since, gap))
        return gap[order], event[order], since[order], until[order]

    def _on(self, thread: int, begin: Ints, end: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """The same for disjoint gaps in order, on one thread; gaps by position."""
        times, state = self._timeline(thread).until(int(end[-1]))
        first = times.searchsorted(begin, side="right") - 1
        count = times.searchsorted(end, side="left") - first
        gap = np.repeat(np.arange(len(begin)), count)
        at = np.arange(len(gap)) - np.repeat(np.cumsum(count) - count, count) + first[gap]
        since, until = np.maximum(times[at], begin[gap]), np.minimum(times[at + 1], end[gap])
        keep = until > since
        return gap[keep], state[at[keep]], since[keep], until[keep]

    def _timeline(self, thread: int) -> Timeline:
        if thread not in self._timelines:
            self._timelines[thread] = Timeline(self.trace, thread, self._end)
            self._timelines[thread].begin_at(self._begin)
        return self._timelines[thread]

    def _causes(self) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int32]]:
        """For each event: the cause if it is the innermost one, and the event to show for it."""
        trace, parent, depth = self.trace, self.parent, self.depth
        host = trace.is_kind(*HOST_KINDS, Kind.PYTHON)
        own = np.full(len(trace), -1, np.int8)
        own[trace.is_kind(Kind.RUNTIME) & (trace.dur >= FIRST_USE_NS)] = int(Cause.COMPILING)
        for cause, named in (
            (Cause.ALLOCATING, ALLOCATION_CALL.search),
            (Cause.COMPILING, LOOK_UP_CALL.search),
            (Cause.WAITING, SYNC_CALL.search),
            (Cause.COLLECTING, _COLLECTS.match),
            (Cause.COMPILING, COMPILING.match),
            (Cause.LOADING, lambda name: name.startswith(FETCH)),
        ):
            own[trace.names_where(named) & host] = int(cause)
        del host
        self._copies(own)
        return _inherited(trace, own, parent, depth)

    def _copies(self, own: npt.NDArray[np.int8]) -> None:
        """Calls that copy pageable memory, or wait for their copy, by direction."""
        trace = self.trace
        copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY))
        call = trace.launch[copies]
        copies, call = copies[call >= 0], call[call >= 0]
        blocks = trace.names_where(lambda name: "Pageable" in name)[copies]
        blocks |= trace.names_where(SYNC_CALL.search)[call]
        for cause, direction in ((Cause.WAITING, D2H), (Cause.COPYING, H2D)):
            own[call[blocks & trace.names_where(direction.search)[copies]]] = int(cause)


def _outside_in(depth: Ints) -> Iterator[Ints]:
    """Host events in pieces, parents before their children, which come after them in the trace."""
    for first in range(0, len(depth), _IN_ORDER):
        some = depth[first : first + _IN_ORDER]
        for level in chain([np.flatnonzero(some == 0)], nesting.levels(some)):
            for at in range(0, len(level), _AT_ONCE):
                yield level[at : at + _AT_ONCE] + first


def _inherited(
    trace: Events, own: npt.NDArray[np.int8], parent: Ints, depth: Ints
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int32]]:
    """Causes of events by what they are nested in, and the events that these causes are named by.

    Loading, compiling and collecting explain all that they contain. An operator that launches
    nothing works itself, if it takes long enough. Other operators and calls launch.
    """
    contexts = (Cause.LOADING, Cause.COMPILING, Cause.COLLECTING)
    operators = trace.is_kind(Kind.OP)
    works = operators | trace.is_kind(Kind.RUNTIME)
    launches = trace.names_where(LAUNCH_CALL.search) | trace.names_where(_COPY.search)
    launching = nesting.above(np.flatnonzero(launches & trace.is_kind(Kind.RUNTIME)), parent)
    collective = trace.names_where(_COLLECTIVE.match) & works
    computes = operators & ~launching & (trace.dur >= _CPU_WORK_NS)
    del operators, launches, launching

    # Small numbers: beside the timelines, these are the most that explaining idle time needs.
    cause = np.full(len(trace), int(Cause.PYTHON), np.int8)
    shown = np.arange(len(trace), dtype=np.int32)
    fixed = np.zeros(len(trace), bool)  # whether a context decides
    outer = np.full(len(trace), -1, np.int32)  # the outermost operator or call
    for level in _outside_in(depth):
        above = parent[level]
        inner = above >= 0
        outer[level] = np.where(inner, outer[above], -1)
        starts = works[level] & (outer[level] < 0)
        outer[level[starts]] = level[starts]
        collective[level] |= inner & collective[above]

        mine = own[level]
        named = mine >= 0
        decided = inner & fixed[above]
        inherits = inner & ~named & (own[above] >= 0) & ~decided
        own[level[inherits]] = own[above[inherits]]
        context = nesting.among(mine, contexts) & ~decided
        waits = named & (mine == int(Cause.WAITING)) & collective[level]
        soft = np.where(outer[level] >= 0, int(Cause.LAUNCHING), int(Cause.PYTHON))
        soft = np.where((outer[level] >= 0) & computes[outer[level]], int(Cause.CPU_WORK), soft)
        new = np.where(named, mine, soft)
        new = np.where(waits, int(Cause.COMMUNICATING), new)
        new = np.where(inherits, cause[above], new)
        cause[level] = np.where(decided, cause[above], new)
        show = np.where(named | (outer[level] < 0), level, outer[level])
        show = np.where(inherits | decided, shown[above], show)
        shown[level] = show
        fixed[level] = decided | context
    return cause, shown
