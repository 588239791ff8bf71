"""How long the host held up what computes: the devices, or in a trace without any the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import spans_of
from pytest_torchprof.analysis.idle_causes import Cause, idle_parts
from pytest_torchprof.analysis.missing import SLOWDOWN, cpu_ns, device_gap, slowdown_share, wall_ns
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.trace.names import DEVICE_KINDS
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.tree import outermost, within

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: Where no operator runs for so long, the thread waits; else it runs Python code.
_PAUSE_NS: Final = 1_000_000


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


def unprofiled_waits_ns(trace: Events, waits: Ints, late: Ints) -> tuple[Ints, Ints, Ints]:
    """For the late ones of these waits, by their index: how long they take without the profiler,
    in this run's time; the begin and end of the stretch that this is part of; all in ns.

    On a CPU, the profiler slows down what computes in between, which hides part of the waiting:
    the stretch includes as much of it. Without the profiler, a live test waits for as long as its
    process uses no processor: the wall time of its rounds less their CPU time. Subtracted are the
    waits that are not late, and other pauses of this run of 1 ms or more; and no more is added than
    the profiler makes of the operators' time. On a busy machine, the process also waits for a
    processor, so nothing is added.
    """
    waited_ns = paused_ns(trace, waits, Cause.LOADING)
    begin, end = trace.ts[waits], trace.ts[waits] + trace.dur[waits]
    profiled_ns = int(waited_ns[late].sum())
    wall, cpu, region = wall_ns(trace), cpu_ns(trace), trace.region
    busy = (trace.facts.load_per_processor or 0) > 1 or trace.has(*DEVICE_KINDS)
    if wall is not None and cpu is not None and region is not None and profiled_ns and not busy:
        outer = outermost(trace)
        outer = outer[~within(trace, outer, lambda events: among(events, waits))]
        outer = outer[among(trace.thread[outer], trace.thread[waits])]
        computed_ns = int(trace.dur[outer].sum())
        others_ns = int(trace.dur[waits].sum()) - profiled_ns
        others_ns += _between_ns(trace, np.sort(np.concatenate([outer, waits])), region)
        most_ns = profiled_ns + (1 - 1 / SLOWDOWN) * computed_ns
        total_ns = min(wall - cpu - others_ns, most_ns) / slowdown_share(trace)
        if total_ns > profiled_ns:
            hidden_ns = (waited_ns * (total_ns / profiled_ns - 1)).astype(np.int64)
            waited_ns += hidden_ns
            # As much of the step before, but not of the wait before that.
            earliest = np.append(begin[:1], np.minimum(begin[1:], end[:-1]))
            begin = np.maximum(begin - hidden_ns, earliest)
    return waited_ns[late], begin[late], end[late]


def _between_ns(trace: Events, events: Ints, region: tuple[int, int]) -> int:
    """The sum of longer pauses between these events, which are in order."""
    begin = np.append(trace.ts[events], region[1])
    end = np.maximum.accumulate(np.append(region[0], trace.ts[events] + trace.dur[events]))
    between = begin - end
    return int(between[between >= _PAUSE_NS].sum())


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
