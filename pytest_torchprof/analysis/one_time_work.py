"""Work that a process does once, on first use: while a capture lasts, it distorts all its times.

That is initializing the device and its libraries, loading kernels, compiling, and searching for the
fastest kernel. It is told from a hiccup of the machine by what is new: a call that was slow because
of first use launches a kernel for the first time, or is not slow again in the same place.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import launched_in
from pytest_torchprof.analysis.host_causes import FIRST_USE_NS, Cause
from pytest_torchprof.analysis.idle import idle as idle_spans
from pytest_torchprof.analysis.idle_causes import idle_parts
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import HOST_KINDS, Kind
from pytest_torchprof.trace.known_names import FREE_CALL, LAUNCH_CALL, LOADING_CALL
from pytest_torchprof.trace.levels import COMPILING
from pytest_torchprof.trace.name_index import (
    Names,
    are_named,
    events_named,
    marks_named,
    operators_named,
)
from pytest_torchprof.trace.tree import marked, operators_around, within_named

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

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
_BEGINS: Final = Names(r"(cuda|hip)StreamBeginCapture")
_ENDS: Final = Names(r"(cuda|hip)StreamEndCapture")
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


def one_time_work(trace: Events) -> OneTimeWork:
    """All such work in the selection, in time order."""
    return trace.once(_one_time_work)


def _one_time_work(trace: Events) -> OneTimeWork:
    compiles = _compilations(trace)
    searches, timed = _searches(trace)
    calls, what = _calls(trace)
    # Idle time is given to the outermost annotation of a compilation, whatever it calls.
    outside = ~within_named(trace, calls, COMPILING) & ~_in_capture(trace, calls)
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


def _in_capture(trace: Events, calls: Ints) -> Bools:
    """Which of these calls are made while their thread captures a graph."""
    begins, ends = events_named(trace, _BEGINS), events_named(trace, _ENDS)
    inside = np.zeros(len(calls), bool)
    for thread in nesting.distinct(trace.thread[begins]).tolist():
        mine = trace.thread[calls] == thread
        begun, ended = (
            np.searchsorted(trace.ts[rows[trace.thread[rows] == thread]], trace.ts[calls])
            for rows in (begins, ends)
        )
        inside |= mine & (begun > ended)
    return inside


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
    order = np.lexsort((end, name))
    end, name = end[order], name[order]
    first, last = (np.searchsorted(name, own, side=side) for side in ("left", "right"))
    runs = [
        stop - start - int(np.searchsorted(end[start:stop], since, side="right"))
        for start, stop, since in zip(
            first.tolist(), last.tolist(), trace.ts[rows].tolist(), strict=True
        )
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
