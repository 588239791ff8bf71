"""What the host did while a device was idle: each part of each gap is given to one cause.

A gap ends when the device begins an event. Until the call that launched this event returned, the
host was late, and what its thread did is the cause; from then on the work was queued.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.idle import spans_of
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import HOST_KINDS, Kind
from pytest_torchprof.trace.known_names import (
    ALLOCATION_CALL,
    D2H,
    H2D,
    LAUNCH_CALL,
    LOOK_UP_CALL,
    REGION,
    SYNC_CALL,
)
from pytest_torchprof.trace.levels import COMPILING, FETCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: From this duration on, an operator that launches nothing computes on the CPU.
_CPU_WORK_NS: Final = 100_000
#: A call of the driver that takes this long while the device is idle initializes something on first
#: use, or loads kernels: in 12 public traces, launches and calls that create streams or events took
#: 6 ms to 4 s.
FIRST_USE_NS: Final = 5_000_000
#: A device that has work starts it within this time, unless something holds it up: in 96 public
#: traces with gaps, 99 % of such delays are below 10 us, and only five have any of 100 us or more.
_STALL_NS: Final = 100_000
#: How many gaps are explained at once.
_AT_ONCE: Final = 4096

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


_WAITS: Final = (int(Cause.COMMUNICATING), int(Cause.WAITING), int(Cause.COPYING))


class IdleParts(Frozen, frozen=True):
    """Parts of gaps, as arrays of one length: ``ns`` of each ``gap`` (numbered from 0) of a
    ``device`` are given to a ``cause`` (a number of `Cause`), in order of gaps, then causes.

    ``event`` is what the host did: the wait, the fetch, the outermost operator, the innermost
    Python function; or, where it did nothing that the trace shows, the outermost operator that came
    next, and -1 for none. Of work that was launched and not started, it is the call in which the
    host waited meanwhile, or else the operator that launched the work.
    """

    device: Ints
    gap: Ints
    cause: Ints
    event: Ints
    ns: Ints


def idle_parts(trace: Events, *, causes_only: bool = False) -> IdleParts:
    """All idle time of the devices, between the first event of each and its last.

    ``causes_only``: without events, which takes far less memory.
    """
    return trace.once(_idle_parts, causes_only)


def _idle_parts(trace: Events, causes_only: bool) -> IdleParts:
    gaps, host = _gaps(trace), _Host(trace)
    merged = _of_causes if causes_only else _merged
    columns: list[list[Ints]] = [[np.zeros(0, np.int64)] for _ in range(5)]
    # Some at a time: most of what the host did is soon summed up.
    for at in range(0, len(gaps[0]), _AT_ONCE):
        some = merged(_parts_of(trace, host, [column[at : at + _AT_ONCE] for column in gaps], at))
        parts = some.device, some.gap, some.cause, some.event, some.ns
        for column, part in zip(columns, parts, strict=True):
            column.append(part)
    del host
    whole = []
    while columns:  # each is released once it is joined
        whole.append(np.concatenate(columns.pop(0)))
    return IdleParts(*whole)


def _merged(parts: IdleParts) -> IdleParts:
    """Parts of one gap with the same cause and event become one."""
    if not len(parts.ns):
        return parts
    # One number for all columns: sorting by several takes much longer.
    width = int(parts.event.max()) + 2
    key = (parts.gap * len(Cause) + parts.cause) * width + parts.event + 1
    order = key.argsort(kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(key[order]) != 0))
    ns = np.add.reduceat(parts.ns[order], first)
    mine = order[first]
    return IdleParts(parts.device[mine], parts.gap[mine], parts.cause[mine], parts.event[mine], ns)


def _of_causes(parts: IdleParts) -> IdleParts:
    nothing = np.full(len(parts.ns), -1, np.int64)
    return _merged(IdleParts(parts.device, parts.gap, parts.cause, nothing, parts.ns))


def _parts_of(trace: Events, host: _Host, gaps: Sequence[Ints], number: int) -> IdleParts:
    """The parts of these gaps, of which the first one has this number."""
    device, begin, end, first = gaps
    launch = trace.launch[first]
    known = launch >= 0
    # When the host had launched the event that ends the gap.
    ready = np.where(known, trace.ts[launch] + trace.dur[launch], begin)
    ready = np.clip(ready, begin, end)
    thread = np.where(known, trace.thread[launch], -1).astype(np.int64)

    gap, event, since, until = host.did(thread, begin, ready)
    # Without operators in the trace, nothing tells what the host did between calls.
    silent = int(Cause.PYTHON if trace.has(Kind.OP) else Cause.UNKNOWN)
    cause = np.where(event >= 0, host.cause[event], silent)
    event = np.where(event >= 0, host.shown[event], host.shown[launch[gap]])
    cause, event, ns, part = _with_waits(trace, gap, cause, event, since, until)
    gap = gap[part]

    queued = np.flatnonzero(end > ready)
    gap = np.concatenate([gap, queued])
    ns_queued = end[queued] - ready[queued]
    ns = np.concatenate([ns, ns_queued])
    late_ = np.where(ns_queued >= _STALL_NS, int(Cause.STALLED), int(Cause.QUEUED))
    later = np.where(known[queued], late_, int(Cause.UNKNOWN))
    cause = np.concatenate([cause, later])
    shown = np.where(known[queued], host.shown[launch[queued]], -1)
    stalled = np.flatnonzero(later == int(Cause.STALLED))
    mine = queued[stalled]
    waited = _waited(host, thread[mine], ready[mine], end[mine])
    shown[stalled] = np.where(waited >= 0, waited, shown[stalled])
    return IdleParts(device[gap], gap + number, cause, np.concatenate([event, shown]), ns)


def _waited(host: _Host, thread: Ints, begin: Ints, end: Ints) -> Ints:
    """The call in which the host waited for half of these times or more, -1 for none."""
    gap, event, since, until = host.did(thread, begin, end)
    waits = (event >= 0) & np.isin(host.cause[event], _WAITS)
    waits &= 2 * (until - since) >= (end - begin)[gap]
    found = np.full(len(begin), -1, np.int64)
    found[gap[waits]] = host.shown[event[waits]]
    return found


def _gaps(trace: Events) -> tuple[Ints, Ints, Ints, Ints]:
    """Of each gap: the device, begin and end in ns, and the event that ends it.

    Gaps are between the first selected event of a device and its last, and in them the device runs
    nothing, selected or not.
    """
    every = trace.device_rows
    chosen = trace.selection[every]
    parts = []
    for device in nesting.distinct(trace.device[every[chosen]]).tolist():
        mine = trace.device[every] == device
        event = every[mine]
        since, until = spans_of(trace)[device]
        reach = np.maximum.accumulate(trace.ts[event] + trace.dur[event])
        begin, end = reach[:-1], trace.ts[event[1:]]
        gap = np.flatnonzero((end > begin) & (begin >= since) & (end <= until))
        first = event[gap + 1]
        parts.append((np.full(len(gap), device, np.int64), begin[gap], end[gap], first))
    if not parts:
        none = np.zeros(0, np.int64)
        return none, none, none, none
    device_, begin, end, first_ = (np.concatenate(column) for column in zip(*parts, strict=True))
    return device_, begin, end, first_


def _with_waits(
    trace: Events, gap: Ints, cause: Ints, event: Ints, since: Ints, until: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """Cause, event and ns of each part, and which of the given ones it is of.

    While the host waited, it could not run ahead: what it then needs to launch more counts as the
    wait's, up to the time that it waited.
    """
    ns = until - since
    waits = cause == int(Cause.WAITING)
    everything = np.arange(len(gap))
    if not waits.any():
        return cause, event, ns, everything
    # Parts are in order of gaps and time.
    last = np.maximum.accumulate(np.where(waits, everything, -1))
    soft = (cause == int(Cause.LAUNCHING)) | (cause == int(Cause.PYTHON))
    after = soft & (last >= 0) & (gap[last] == gap)
    spent = np.cumsum(np.where(after, ns, 0))
    earlier = spent - np.where(after, ns, 0) - spent[np.maximum(last, 0)]
    waited = trace.dur[np.where(waits, event, 0)[np.maximum(last, 0)]]
    taken = np.where(after, np.clip(waited - earlier, 0, ns), 0)
    more = np.flatnonzero(taken)
    return (
        np.concatenate([cause, np.full(len(more), int(Cause.WAITING))]),
        np.concatenate([event, event[last[more]]]),
        np.concatenate([ns - taken, taken[more]]),
        np.concatenate([everything, more]),
    )


class _Host:
    """What each thread of the host did at each time."""

    def __init__(self, trace: Events) -> None:
        self.trace = trace
        # Not kept with the trace: they are as large as all of it.
        self._timelines: dict[int, tuple[Ints, npt.NDArray[np.int32]]] = {}
        self.parent, self.depth = trace.frames
        self.cause, self.shown = self._causes()
        launch = trace.launch[trace.device_rows]
        calls = np.bincount(trace.thread[launch[launch >= 0]], minlength=len(trace.threads) or 1)
        self.threads = [int(t) for t in np.argsort(-calls, kind="stable") if calls[t]]

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
        times, state = self._timeline(thread)
        first = times.searchsorted(begin, side="right") - 1
        count = times.searchsorted(end, side="left") - first
        gap = np.repeat(np.arange(len(begin)), count)
        at = np.arange(len(gap)) - np.repeat(np.cumsum(count) - count, count) + first[gap]
        since, until = np.maximum(times[at], begin[gap]), np.minimum(times[at + 1], end[gap])
        keep = until > since
        return gap[keep], state[at[keep]], since[keep], until[keep]

    def _timeline(self, thread: int) -> tuple[Ints, npt.NDArray[np.int32]]:
        """Times at which the innermost event of a thread changes, and the event from then on."""
        if thread not in self._timelines:
            self._timelines[thread] = _timeline(self.trace, thread)
        return self._timelines[thread]

    def _causes(self) -> tuple[Ints, Ints]:
        """For each event: the cause if it is the innermost one, and the event to show for it."""
        trace, parent, depth = self.trace, self.parent, self.depth
        host = trace.is_kind(*HOST_KINDS, Kind.PYTHON)
        own = np.full(len(trace), -1, np.int64)
        for cause, events in (
            (Cause.COMPILING, trace.is_kind(Kind.RUNTIME) & (trace.dur >= FIRST_USE_NS)),
            (Cause.ALLOCATING, trace.names_where(ALLOCATION_CALL.search)),
            (Cause.COMPILING, trace.names_where(LOOK_UP_CALL.search)),
            (Cause.WAITING, trace.names_where(SYNC_CALL.search)),
            (Cause.COLLECTING, trace.names_where(_COLLECTS.match)),
            (Cause.COMPILING, trace.names_where(COMPILING.match)),
            (Cause.LOADING, trace.names_where(lambda name: name.startswith(FETCH))),
        ):
            own[events & host] = int(cause)
        self._copies(own)
        return _inherited(trace, own, parent, depth)

    def _copies(self, own: Ints) -> None:
        """Calls that copy pageable memory, or wait for their copy, by direction."""
        trace = self.trace
        copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY))
        call = trace.launch[copies]
        copies, call = copies[call >= 0], call[call >= 0]
        blocks = trace.names_where(lambda name: "Pageable" in name)[copies]
        blocks |= trace.names_where(SYNC_CALL.search)[call]
        for cause, direction in ((Cause.WAITING, D2H), (Cause.COPYING, H2D)):
            own[call[blocks & trace.names_where(direction.search)[copies]]] = int(cause)


def _timeline(trace: Events, thread: int) -> tuple[Ints, npt.NDArray[np.int32]]:
    parent, depth = trace.frames
    rows = np.flatnonzero((trace.thread == thread) & (depth >= 0) & (trace.dur > 0))
    rows = rows[~trace.named(REGION)[rows]]
    end = _ends(trace)[rows]
    solid = end > trace.ts[rows]
    rows, end = rows[solid], end[solid]
    far = np.iinfo(np.int64)
    times = np.concatenate([[far.min], trace.ts[rows], end, [far.max]])
    above = parent[rows]
    above[(above >= 0) & trace.named(REGION)[above]] = -1
    # Numbers of 32 bits: a trace has fewer events, and this is as large as all of it.
    state = np.concatenate([[-1], rows, above, [-1]]).astype(np.int32)
    level = depth[rows].astype(np.int32)
    del end, above, solid
    # At one time, ends come first, from the inside out; then begins, from the outside in.
    level = np.concatenate([[0], level + 1, -level - 1, [0]])
    order = np.lexsort((level, times)).astype(np.int32)
    return times[order], state[order]


def _ends(trace: Events) -> Ints:
    """When each event ends, at the latest with what encloses it."""
    parent, depth = trace.frames
    end: Ints = trace.ts + trace.dur
    for level in nesting.levels(depth):
        end[level] = np.minimum(end[level], end[parent[level]])
    return end


def _inherited(trace: Events, own: Ints, parent: Ints, depth: Ints) -> tuple[Ints, Ints]:
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

    cause = np.full(len(trace), int(Cause.PYTHON))
    shown = np.arange(len(trace))
    fixed = np.zeros(len(trace), bool)  # whether a context decides
    outer = np.full(len(trace), -1, np.int64)  # the outermost operator or call
    for level in (np.flatnonzero(depth == 0), *nesting.levels(depth)):
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
        context = np.isin(mine, contexts) & ~decided
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
