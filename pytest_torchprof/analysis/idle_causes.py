"""What the host did while a device was idle: each part of each gap is given to one cause."""

from __future__ import annotations

from enum import IntEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.device_time import idle as idle_spans
from pytest_torchprof.analysis.device_time import launched_in, spans_of
from pytest_torchprof.analysis.missing import captured
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import (
    ALLOCATION_CALL,
    D2H,
    DEVICE_KINDS,
    FREE_CALL,
    H2D,
    HOST_KINDS,
    LAUNCH_CALL,
    LOADING_CALL,
    LOOK_UP_CALL,
    REGION,
    SYNC_CALL,
    Kind,
    Names,
    are_named,
    events_named,
    marks_named,
    once_per_trace,
    operators_named,
)
from pytest_torchprof.trace.tree import COMPILING, FETCH, marked, operators_around, within_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- What each thread of the host did at each time, and why a device would wait for it.

#: From this duration on, an operator that launches nothing computes on the CPU.
_CPU_WORK_NS: Final = 100_000
#: A call of the driver that takes this long while the device is idle initializes something on first
#: use, or loads kernels: in 12 public traces, launches and calls that create streams or events took
#: 6 ms to 4 s.
FIRST_USE_NS: Final = 5_000_000
#: Before and after all times.
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max

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
        times, state = self.timeline(thread)
        first = times.searchsorted(begin, side="right") - 1
        count = times.searchsorted(end, side="left") - first
        gap = np.repeat(np.arange(len(begin)), count)
        at = np.arange(len(gap)) - np.repeat(np.cumsum(count) - count, count) + first[gap]
        since, until = np.maximum(times[at], begin[gap]), np.minimum(times[at + 1], end[gap])
        keep = until > since
        return gap[keep], state[at[keep]], since[keep], until[keep]

    def timeline(self, thread: int) -> tuple[Ints, npt.NDArray[np.int32]]:
        """Times at which the innermost event of a thread changes, and the event from then on, -1
        for none; from before the first event until after the last one.
        """
        if thread not in self._timelines:
            trace, region = self.trace, self.trace.named(REGION)
            rows = np.flatnonzero((trace.thread == thread) & (self.depth >= 0) & ~region)
            end = nested_ends(trace)[rows]
            lasts = end > trace.ts[rows]
            rows, end = rows[lasts], end[lasts]
            above = self.parent[rows]
            above[(above >= 0) & region[above]] = -1
            times = np.concatenate([[_FIRST], trace.ts[rows], end])
            state = np.concatenate([[-1], rows, above]).astype(np.int32)
            # At one time, ends come first, from the inside out; then begins, from the outside in.
            depth = self.depth[rows]
            order = np.lexsort((np.concatenate([[0], depth + 1, -depth - 1]), times))
            self._timelines[thread] = np.append(times[order], _LAST), state[order]
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


def nested_ends(trace: Events) -> Ints:
    """When each event ends, at the latest with what encloses it."""
    parent, depth = trace.frames
    end: Ints = trace.ts + trace.dur
    if ((parent >= 0) & (end > end[parent])).any():
        for level in nesting.levels(depth):
            end[level] = np.minimum(end[level], end[parent[level]])
    return end


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
    for level in chain([np.flatnonzero(depth == 0)], nesting.levels(depth)):
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


# ---- What the host did while a device was idle: each part of each gap is given to one cause.
#
# A gap ends when the device begins an event. Until the call that launched this event returned,
# the host was late, and what its thread did is the cause; from then on the work was queued.

#: A device that has work starts it within this time, unless something holds it up: in 96 public
#: traces with gaps, 99 % of such delays are below 10 us, and only five have any of 100 us or more.
_STALL_NS: Final = 100_000
#: How many gaps are explained at once, and with how many events in their time if there are more.
_CAUSES_AT_ONCE: Final = 1024
_EVENTS_AT_ONCE: Final = 2**13
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
    cause: npt.NDArray[np.int8]
    event: Ints
    ns: Ints


@once_per_trace
def idle_parts(trace: Events) -> IdleParts:
    """All idle time of the devices, between the first event of each and its last."""
    gaps, host = _gaps(trace), Host(trace)
    columns: list[list[npt.NDArray[Any]]] = [[np.zeros(0, np.int8)] for _ in range(5)]
    # Some at a time: most of what the host did is soon summed up.
    for at, stop in _pieces(trace, *gaps[:2]):
        some = _merged(_parts_of(trace, host, [column[at:stop] for column in gaps], at))
        for column, name in zip(columns, IdleParts.__struct_fields__, strict=True):
            column.append(getattr(some, name))
    return IdleParts(*[nesting.narrow(np.concatenate(column)) for column in columns])


def _pieces(trace: Events, device: Ints, begin: Ints) -> Iterator[tuple[int, int]]:
    """From which gap to which, of one device and not too many events."""
    place = trace.ts.searchsorted(begin)
    at = 0
    while at < len(place):
        stop = min(at + _CAUSES_AT_ONCE, int(device.searchsorted(device[at], side="right")))
        stop = at + max(1, int(place[at:stop].searchsorted(place[at] + _EVENTS_AT_ONCE)))
        yield at, stop
        at = stop


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


def _parts_of(trace: Events, host: Host, gaps: Sequence[Ints], number: int) -> IdleParts:
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
    cause = np.concatenate([cause, later]).astype(np.int8)
    shown = np.where(known[queued], host.shown[launch[queued]], -1)
    stalled = np.flatnonzero(later == int(Cause.STALLED))
    mine = queued[stalled]
    waited = _waited(host, thread[mine], ready[mine], end[mine])
    shown[stalled] = np.where(waited >= 0, waited, shown[stalled])
    event = np.concatenate([event, shown]).astype(np.int64)
    return IdleParts(device[gap], gap + number, cause, event, ns)


def _waited(host: Host, thread: Ints, begin: Ints, end: Ints) -> Ints:
    """The call in which the host waited for half of these times or more, -1 for none."""
    gap, event, since, until = host.did(thread, begin, end)
    waits = (event >= 0) & nesting.among(host.cause[event], _WAITS)
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
    trace: Events, gap: Ints, cause: npt.NDArray[np.int8], event: Ints, since: Ints, until: Ints
) -> tuple[npt.NDArray[Any], Ints, Ints, Ints]:
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


def paused_ns(trace: Events, events: Ints, *causes: Cause) -> Ints:
    """For each of these host events: ns for which it kept devices idle by such a cause, at most
    its duration; of several devices the mean. Without a device, its duration.
    """
    if not trace.has(*DEVICE_KINDS):
        return trace.dur[events]
    parts = idle_parts(trace)
    chosen = nesting.among(parts.cause, causes) & (parts.event >= 0)
    kept = np.zeros(len(trace), np.int64)
    np.add.at(kept, parts.event[chosen], parts.ns[chosen])
    return np.minimum(kept[events] // max(len(spans_of(trace)), 1), trace.dur[events])


# ---- Work that a process does once, on first use: while a capture lasts, it distorts all its
# times.
#
# That is initializing the device and its libraries, loading kernels, compiling, and searching for
# the fastest kernel. It is told from a hiccup of the machine by what is new: a call that was slow
# because of first use launches a kernel for the first time, or is not slow again in the same
# place.

#: Calls that initialize the driver, a context, or the streams and events of a library.
_INITIALIZES: Final = late(
    r"^(cuda|hip|cu)(Init|SetDevice|(Stream|Event|Ctx)Create|DevicePrimaryCtx|GetDevice|DeviceGet)"
)
#: The first ``cudaFree`` of a process creates a context; libraries call it as they initialize.
#: cuDNN and cuBLAS call it twice per kind of work, no more. An allocator that frees is not new.
_MOST_FREES: Final = 2
_ALLOCATES: Final = late(r"^(cuda|hip)Malloc")
#: What an allocator does between two attempts.
_RETRIES: Final = late(r"^(cuda|hip)(Free|\w+Synchronize|EventQuery|GetLastError|MemGetInfo)")
#: torch.compile's annotations around a search for the fastest kernel, and around graph capture.
#: Source: torch/_inductor/runtime/triton_heuristics.py, select_algorithm.py, cudagraph_trees.py.
_TUNES: Final = Names(r".*(benchmark|autotun).*\(dynamo_timed\)")
_CAPTURES: Final = Names(r".*(CUDAGraph|cudagraph).*\(dynamo_timed\)")
_REGION: Final = Names(r"Torch-Compiled Region")
#: A later number is of a recompilation. Source: torch/_dynamo/convert_frame.py, ``CompileId``.
_AGAIN: Final = late(r".*/[1-9]\d*$")
#: A compilation pays off if what it made runs more than once.
_RUNS: Final = 2
_CONVOLUTION: Final = Names(r"aten::\w*convolution\w*$")
_UNSAID: Final = (int(Cause.PYTHON), int(Cause.UNKNOWN))
_TIMES: Final = Names(r"(cuda|hip)EventSynchronize$")


class OneTime(IntEnum):
    """What was done once."""

    INITIALIZING = 0
    LOADING_KERNELS = 1
    COMPILING = 2
    TUNING = 3


class OneTimeWork(Frozen, frozen=True):
    """Host events that did such work: ``what`` is a number of `OneTime`.

    ``ns`` is the time that the device lost: in which it was idle because of the event, or ran
    kernels that were only timed. ``begin`` and ``end``, in ns, are when the host did that.
    """

    event: Ints
    what: Ints
    ns: Ints
    begin: Ints
    end: Ints


@once_per_trace
def one_time_work(trace: Events) -> OneTimeWork:
    """All such work in the selection, in time order."""
    compiles = _compilations(trace)
    searches, timed = _searches(trace)
    # A compilation has all the time of a search within it.
    alone = ~within_named(trace, searches, COMPILING)
    searches, timed = searches[alone], timed[alone]
    calls, what = _calls(trace)
    # Idle time is given to the outermost annotation of a compilation, whatever it calls.
    outside = ~within_named(trace, calls, COMPILING) & ~captured(trace, calls)
    # A search first builds each kernel that it will time, and may load it; all of that is its own.
    outside &= ~nesting.below(marked(trace, searches), trace.parent, calls)
    calls, what = calls[outside], what[outside]
    event = np.concatenate([compiles, searches, calls])
    if not len(event):
        return OneTimeWork(event, event, event, event, event)

    tunes = are_named(trace, compiles, _TUNES)
    compiling = np.where(tunes, int(OneTime.TUNING), int(OneTime.COMPILING))
    what = np.concatenate([compiling, np.full(len(searches), int(OneTime.TUNING)), what])
    begin, end = trace.ts[event], trace.ts[event] + trace.dur[event]
    end[len(compiles) : len(compiles) + len(searches)] = timed
    idle, parts = np.zeros(len(trace), np.int64), idle_parts(trace)
    # Where nothing says what the host did, the event is only the launch that ended it.
    known = (parts.event >= 0) & ~nesting.among(parts.cause, _UNSAID)
    np.add.at(idle, parts.event[known], parts.ns[known])
    own = len(compiles) + len(searches)
    ns = idle[event]
    _, kernels = launched_in(trace, event[:own], end[:own])
    searching = slice(len(compiles), own)
    lost = idle_spans(trace).between(begin[searching], end[searching])
    ns[searching] = np.maximum(ns[searching], lost)
    ns[:own] += kernels
    order = np.lexsort((event, trace.ts[event]))
    order = order[ns[order] > 0]
    return OneTimeWork(event[order], what[order], ns[order], begin[order], end[order])


# -------------------------------------------------------------------- the driver and its libraries


def _calls(trace: Events) -> tuple[Ints, Ints]:
    """Calls of the driver that are slow on first use, or load kernels; and what each does."""
    slow = trace.selection & trace.is_kind(Kind.RUNTIME) & (trace.dur >= FIRST_USE_NS)
    loads = trace.selection & trace.is_kind(Kind.RUNTIME) & trace.names_where(LOADING_CALL.match)
    slow &= ~loads
    launches = np.flatnonzero(slow & trace.names_where(LAUNCH_CALL.search))
    launches = launches[_are_first(trace, launches)]
    starts = np.flatnonzero(slow & trace.names_where(_INITIALIZES.match))
    starts = starts[np.unique(trace.name[starts], return_index=True)[1]]
    frees = np.flatnonzero(slow & trace.names_where(FREE_CALL.match))
    frees = frees[_initialize(trace, frees)]
    loading = np.concatenate([np.flatnonzero(loads), launches])
    initializing = np.concatenate([starts, frees])
    what = np.repeat(
        [int(OneTime.LOADING_KERNELS), int(OneTime.INITIALIZING)],
        [len(loading), len(initializing)],
    )
    return np.concatenate([loading, initializing]), what


def _are_first(trace: Events, launches: Ints) -> Bools:
    """Which of these launches are the first of their kernels."""
    if not len(launches):
        return np.zeros(0, bool)
    device = trace.device_rows
    device = device[(trace.kind[device] == Kind.KERNEL) & (trace.launch[device] >= 0)]
    device = device[np.argsort(trace.ts[trace.launch[device]], kind="stable")]
    first = device[np.unique(trace.name[device], return_index=True)[1]]
    return nesting.among(launches, trace.launch[first])


def _initialize(trace: Events, frees: Ints) -> Bools:
    """Which of these calls are in operators of a name in which few are slow, and follow no attempt
    to allocate: an allocator that found no memory frees what it keeps, and tries again.
    """
    operator = operators_around(trace, trace.parent[frees])
    name = np.where(operator >= 0, trace.name[operator], -1)
    _, at, count = np.unique(name, return_inverse=True, return_counts=True)
    found: Bools = (count[at] <= _MOST_FREES) & (name >= 0)
    others = np.flatnonzero(trace.is_kind(Kind.RUNTIME) & ~trace.names_where(_RETRIES.search))
    allocates = trace.names_where(_ALLOCATES.match)
    for thread in nesting.distinct(trace.thread[frees]).tolist():
        mine, calls = trace.thread[frees] == thread, others[trace.thread[others] == thread]
        before = np.searchsorted(calls, frees[mine]) - 1
        found[mine] &= ~((before >= 0) & allocates[np.append(calls, 0)[before]])
    return found


# -------------------------------------------------------------------- compilation, and searches


def _compilations(trace: Events) -> Ints:
    """Outermost annotations of torch.compile at work, of what runs again later in the trace.

    Neither of a recompilation nor of the capture of a graph.
    """
    rows, own = compiled_regions(trace)
    if not len(rows):
        return rows
    regions = _regions(trace)
    runs = _runs(trace, rows, own, regions)
    again = trace.names_where(_AGAIN.match)
    numbers = np.flatnonzero(again & nesting.among(np.arange(len(trace)), regions))
    return rows[(runs >= _RUNS) & ~nesting.among(own, trace.name[numbers])]


def compiled_regions(trace: Events) -> tuple[Ints, Ints]:
    """Outermost annotations of torch.compile at work, but not those of the capture of a graph; and
    the name of the compiled region that each is for, -1 for none.
    """
    rows = events_named(trace, COMPILING)
    rows = rows[trace.selection[rows] & trace.is_kind(*HOST_KINDS)[rows]]
    rows = rows[~within_named(trace, rows, COMPILING)]
    rows = rows[~are_named(trace, rows, _CAPTURES) & ~within_named(trace, rows, _CAPTURES)]
    return rows, _region_of(trace, rows, _regions(trace))


def _regions(trace: Events) -> Ints:
    """Runs of compiled code, outside of others."""
    regions = marks_named(trace, _REGION)
    return regions[~within_named(trace, regions, _REGION)]


def _region_of(trace: Events, rows: Ints, regions: Ints) -> Ints:
    """The name of the region that each compilation is for: the one around it or the next one on its
    thread, else the last one before it on any, as for a backward pass; -1 for none.
    """
    names = np.append(trace.name[regions], -1)
    found = names[np.searchsorted(trace.ts[regions], trace.ts[rows]) - 1]
    for thread in nesting.distinct(trace.thread[rows]).tolist():
        mine = regions[trace.thread[regions] == thread]
        here = np.flatnonzero(trace.thread[rows] == thread)
        # None is within another one, so they end in their order.
        ends = trace.ts[mine] + trace.dur[mine]
        after = np.searchsorted(ends, trace.ts[rows[here]], side="right")
        here, after = here[after < len(mine)], after[after < len(mine)]
        found[here] = trace.name[mine[after]]
    return found


def _runs(trace: Events, rows: Ints, own: Ints, regions: Ints) -> Ints:
    """How many regions of each compilation's name end after it began."""
    end, name = trace.ts[regions] + trace.dur[regions], trace.name[regions]
    runs = [
        int(((name == mine) & (end > since)).sum())
        for mine, since in zip(own.tolist(), trace.ts[rows].tolist(), strict=True)
    ]
    return np.array(runs, np.int64)


def _searches(trace: Events) -> tuple[Ints, Ints]:
    """Convolutions that time several kernels (``torch.backends.cudnn.benchmark``), and until when.

    They wait for an event after each kernel, which no other convolution does.
    """
    waits = events_named(trace, _TIMES)
    if not len(waits):
        return waits, waits
    around = operators_around(trace, trace.parent[waits])
    inside = nesting.among(around, operators_named(trace, _CONVOLUTION))
    around, waits = around[inside], waits[inside]
    calls, at = np.unique(around, return_inverse=True)
    end = np.zeros(len(calls), np.int64)
    np.maximum.at(end, at, trace.ts[waits] + trace.dur[waits])
    chosen = trace.selection[calls]
    return calls[chosen], end[chosen]
