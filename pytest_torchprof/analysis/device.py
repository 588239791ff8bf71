"""When the accelerator was busy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_torchprof.events import DEVICE_KINDS, Trace


@dataclass(frozen=True)
class DeviceTime:
    """Nanoseconds over the selected device events.

    ``self_ns`` is their sum, ``busy_ns`` the length of the union of their intervals, ``idle_ns``
    the span from the first start to the last end, less that union; summed over devices.
    """

    self_ns: int
    busy_ns: int
    idle_ns: int


def device_time(trace: Trace) -> DeviceTime:
    """Sum, union and gaps of kernels, copies and memsets, all streams of all devices as one."""
    events = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS))
    if not len(events):
        return DeviceTime(0, 0, 0)
    start, dur = trace.ts[events], trace.dur[events]
    order = np.argsort(start, kind="stable")
    start, end = start[order], (start + dur)[order]
    reach = np.maximum.accumulate(end)
    gaps = np.maximum(start[1:] - reach[:-1], 0)
    span = int(reach[-1] - start[0])
    idle = int(gaps.sum())
    return DeviceTime(int(dur.sum()), span - idle, idle)
