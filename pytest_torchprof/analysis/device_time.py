"""When the accelerator was busy, and whether the trace is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.known_names import LAUNCH_CALL

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_BEGIN_CAPTURE = late(r"StreamBeginCapture")
_END_CAPTURE = late(r"StreamEndCapture")


class DeviceTime(Frozen, frozen=True):
    """Nanoseconds over the selected device events.

    ``self_ns`` is their sum, ``busy_ns`` the length of the union of their intervals, ``idle_ns``
    the span from the first start to the last end, less that union. Union and span cover all streams
    of a device together, and are summed over devices.
    """

    self_ns: int
    busy_ns: int
    idle_ns: int


def device_time(trace: Events) -> DeviceTime:
    """Sum, union and gaps of kernels, copies and memsets."""
    return trace.once(_device_time)


def _device_time(trace: Events) -> DeviceTime:
    events = trace.device_rows[trace.selection[trace.device_rows]]
    busy = idle = 0
    for device in nesting.distinct(trace.device[events]):
        mine = events[trace.device[events] == device]  # in time order, as all events
        start, end = trace.ts[mine], trace.ts[mine] + trace.dur[mine]
        reach = np.maximum.accumulate(end)
        gaps = int(np.maximum(start[1:] - reach[:-1], 0).sum())
        idle += gaps
        busy += int(reach[-1] - start[0]) - gaps
    return DeviceTime(int(trace.dur[events].sum()), busy, idle)


def launched_ns(trace: Events) -> Ints:
    """The device time of all that each host event launched; 0 for other events."""
    below, device = np.zeros(len(trace), np.int64), trace.device_rows
    if not len(device):
        return below
    device = device[trace.selection[device] & (trace.launch[device] >= 0)]
    np.add.at(below, trace.launch[device], trace.dur[device])
    for level in reversed([*nesting.levels(trace.depth)]):
        np.add.at(below, trace.parent[level], below[level])
    return below


def launched_in(trace: Events, events: Ints) -> tuple[Ints, Ints]:
    """For each of these host events: a kernel that it launched, -1 for none; their time."""
    first, below = np.full(len(events), -1, np.int64), np.zeros(len(events), np.int64)
    if not trace.has(Kind.KERNEL):
        return first, below
    kernels = np.flatnonzero(trace.selection & trace.is_kind(Kind.KERNEL) & (trace.launch >= 0))
    kernels = kernels[np.argsort(trace.launch[kernels], kind="stable")]
    thread, called = trace.thread[trace.launch[kernels]], trace.ts[trace.launch[kernels]]
    start, end = trace.ts[events], trace.ts[events] + trace.dur[events]
    for one in nesting.distinct(trace.thread[events]):
        asked, mine = np.flatnonzero(trace.thread[events] == one), kernels[thread == one]
        when = called[thread == one]
        since, until = np.searchsorted(when, start[asked]), np.searchsorted(when, end[asked])
        total = np.concatenate([[0], np.cumsum(trace.dur[mine])])
        below[asked] = total[until] - total[since]
        some = until > since
        first[asked[some]] = mine[since[some]]
    return first, below


def lost_launches(trace: Events) -> tuple[int, int]:
    """How many launch calls the region has, and how many of them lack a kernel record.

    A launch nested in another one is part of it. One that a stream captures into a graph only runs
    when the graph is launched.
    """
    if not trace.has(Kind.RUNTIME):
        return 0, 0
    calls = trace.is_kind(Kind.RUNTIME)
    is_launch = calls & trace.names_where(LAUNCH_CALL.search)
    launches = np.flatnonzero(is_launch & trace.in_region)
    launches = launches[~_captured(trace, launches)]
    answered = np.isin(trace.correlation[launches], trace.correlation[trace.device_rows])
    outer = trace.parent[launches]
    inner = (outer >= 0) & is_launch[outer]
    answered |= np.isin(launches, outer[inner & answered])
    return int((~inner).sum()), int((~inner & ~answered).sum())


def _captured(trace: Events, launches: Ints) -> Bools:
    """Those made while their thread captures a graph."""
    calls = trace.is_kind(Kind.RUNTIME)
    begins = np.flatnonzero(calls & trace.names_where(_BEGIN_CAPTURE.search))
    ends = np.flatnonzero(calls & trace.names_where(_END_CAPTURE.search))
    captured = np.zeros(len(launches), bool)
    for thread in nesting.distinct(trace.thread[begins]):
        began, ended = (
            np.searchsorted(trace.ts[marks[trace.thread[marks] == thread]], trace.ts[launches])
            for marks in (begins, ends)
        )
        captured |= (trace.thread[launches] == thread) & (began > ended)
    return captured
