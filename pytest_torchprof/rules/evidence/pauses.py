"""How long the host held up what computes: the devices, or in a trace without any the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.device_time import spans_of
from pytest_torchprof.analysis.idle_causes import Cause, idle_parts
from pytest_torchprof.analysis.missing import device_gap
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.trace.names import DEVICE_KINDS
from pytest_torchprof.trace.nesting import among

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


def knows_pauses(trace: Events) -> Reason | None:
    """All work of the device, if there is one: else nothing tells when it is idle."""
    gap = trace.once(device_gap)
    if gap is None or gap.code != Why.NO_DEVICE.code:
        return gap
    return because(*Why.NO_DEVICE_RECORDS) if trace.metadata.get("deviceProperties") else None


def paused_ns(trace: Events, events: Ints, *causes: Cause) -> Ints:
    """For each of these host events: ns for which it kept devices idle by such a cause, at most
    its duration; of several devices the mean. Without a device, its duration.
    """
    if not trace.has(*DEVICE_KINDS):
        return trace.dur[events]
    parts = idle_parts(trace)
    chosen = among(parts.cause, causes) & (parts.event >= 0)
    kept = np.zeros(len(trace), np.int64)
    np.add.at(kept, parts.event[chosen], parts.ns[chosen])
    return np.minimum(kept[events] // max(len(spans_of(trace)), 1), trace.dur[events])


def measured_ns(trace: Events) -> int:
    """The span of the devices' events, or without a device of all events, in ns, at least 1.

    That of several devices is their mean.
    """
    spans = list(spans_of(trace).values())
    if not spans:
        rows = np.flatnonzero(trace.selection)
        ends = trace.ts[rows] + trace.dur[rows]
        spans = [(int(trace.ts[rows].min()), int(ends.max()))] if len(rows) else [(0, 0)]
    return max(sum(end - begin for begin, end in spans) // len(spans), 1)
