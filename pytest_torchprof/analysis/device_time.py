"""When the accelerator was busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.idle import idle_of, spans_of
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import Kind

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


class DeviceTime(Frozen, frozen=True):
    """Nanoseconds over the selected device events.

    ``self_ns`` is their sum, ``busy_ns`` the length of the union of their intervals, ``idle_ns``
    the time in their span (`spans_of`) in which the device ran nothing, selected or not. Both cover
    all streams of a device together, and are summed over devices.
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
    spans = spans_of(trace)
    for device in nesting.distinct(trace.device[events]):
        mine = events[trace.device[events] == device]  # in time order, as all events
        start, end = trace.ts[mine], trace.ts[mine] + trace.dur[mine]
        reach = np.maximum.accumulate(end)
        gaps = int(np.maximum(start[1:] - reach[:-1], 0).sum())
        since, until = spans[int(device)]
        if gaps or since < start[0]:
            idle += int(idle_of(trace, int(device)).between(*np.array([[since], [until]]))[0])
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


def launched_in(
    trace: Events, events: Ints, end: Ints | None = None, kinds: tuple[Kind, ...] = (Kind.KERNEL,)
) -> tuple[Ints, Ints]:
    """For each of these host events: a kernel that it launched, -1 for none; their time.

    ``end``: until when, in ns, if not until the end of each event. ``kinds``: of device events, if
    not only kernels.
    """
    first, below = np.full(len(events), -1, np.int64), np.zeros(len(events), np.int64)
    if not trace.has(*kinds):
        return first, below
    kernels = np.flatnonzero(trace.selection & trace.is_kind(*kinds) & (trace.launch >= 0))
    kernels = kernels[np.argsort(trace.launch[kernels], kind="stable")]
    thread, called = trace.thread[trace.launch[kernels]], trace.ts[trace.launch[kernels]]
    start = trace.ts[events]
    end = start + trace.dur[events] if end is None else end
    for one in nesting.distinct(trace.thread[events]):
        asked, mine = np.flatnonzero(trace.thread[events] == one), kernels[thread == one]
        when = called[thread == one]
        since, until = np.searchsorted(when, start[asked]), np.searchsorted(when, end[asked])
        total = np.concatenate([[0], np.cumsum(trace.dur[mine])])
        below[asked] = total[until] - total[since]
        some = until > since
        first[asked[some]] = mine[since[some]]
    return first, below
