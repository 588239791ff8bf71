"""Which launches lack the kernels that they ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.known_names import LAUNCH_CALL

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_BEGIN_CAPTURE = late(r"StreamBeginCapture")
_END_CAPTURE = late(r"StreamEndCapture")
_GRAPH = late(r"Graph(Launch|Instantiate)")
_GRAPH_LAUNCH = late(r"GraphLaunch")
_WAIT_FOR_ALL = late(r"(Device|Ctx)Synchronize")


def lost_launches(trace: Events) -> tuple[int, int]:
    """How many launch calls the region has, and how many of them lost their kernel records.

    A launch nested in another one is part of it. One that a stream captures into a graph only runs
    when the graph is launched. Of a stored trace, whose recording may have ended before a kernel
    ran, only those launches are lost that must have run before its end, see `_had_run`.
    """
    if not trace.has(Kind.RUNTIME):
        return 0, 0
    is_launch = _calls(trace, LAUNCH_CALL.search)
    launches = np.flatnonzero(is_launch & trace.in_region)
    correlation = trace.correlation
    answered = nesting.among(correlation[launches], correlation[trace.device_rows])
    mine = answered | ~_captured(trace, launches)
    launches, answered = launches[mine], answered[mine]
    outer = trace.parent[launches]
    inner = (outer >= 0) & is_launch[outer]
    answered |= nesting.among(launches, outer[inner & answered])
    lost = launches[~inner & ~answered]
    if trace.region is None and len(lost) and len(trace.device_rows):
        return int((~inner).sum()), _had_run(trace, lost, launches[answered])
    return int((~inner).sum()), len(lost)


def _calls(trace: Events, named: Callable[[str], object]) -> Bools:
    return trace.is_kind(Kind.RUNTIME) & trace.names_where(named)


def _captured(trace: Events, launches: Ints) -> Bools:
    """Those made during a capture: on any thread, as backward passes launch from their own.

    A capture that ends without a beginning began before the recording.
    """
    begins, ends = (
        trace.ts[_calls(trace, named.search)] for named in (_BEGIN_CAPTURE, _END_CAPTURE)
    )
    if not (len(begins) or len(ends)):
        return np.zeros(len(launches), bool)
    at_ends = np.searchsorted(begins, ends) - np.arange(1, len(ends) + 1)
    before = -min(0, at_ends.min(initial=0))
    when = trace.ts[launches]
    found: Bools = before + np.searchsorted(begins, when) > np.searchsorted(ends, when)
    return found


def _had_run(trace: Events, lost: Ints, answered: Ints) -> int:
    """How many of these launches of a stored trace had run before the recording ended.

    If the trace has graphs but no captures, any launch may be a captured one.
    """
    if not _has_captures(trace) and _calls(trace, _GRAPH.search).any():
        lost = lost[trace.names_where(_GRAPH_LAUNCH.search)[lost]]
    if not trace.has(Kind.KERNEL):
        return len(lost)
    if not len(answered):
        return 0  # nothing links kernels to their launches
    known = trace.correlation[lost] > 0
    over = (trace.ts[lost] < trace.ts[answered].max()) | (
        trace.ts[lost] + trace.dur[lost] <= _last_wait(trace)
    )
    # A kernel without an id may be that of any launch.
    unlinked = int((trace.correlation[trace.is_kind(Kind.KERNEL)] <= 0).sum())
    return max(int((known & over).sum()) - unlinked, 0)


def _has_captures(trace: Events) -> bool:
    return any(_calls(trace, named.search).any() for named in (_BEGIN_CAPTURE, _END_CAPTURE))


def _last_wait(trace: Events) -> int:
    """When the last wait for the whole device began; -1 if there is none.

    It waits for one device only, so if several are in use, there is none.
    """
    if len(nesting.distinct(trace.device[trace.device_rows])) > 1:
        return -1
    return int(trace.ts[_calls(trace, _WAIT_FOR_ALL.search)].max(initial=-1))
