"""What each step of a trace did: time, calls, device work and memory, and what no step did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.idle import idle_of
from pytest_torchprof.analysis.live_bytes import changes_of
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import intervals, nesting
from pytest_torchprof.trace.kinds import HOST_KINDS, Kind
from pytest_torchprof.trace.steps import step_of, steps_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: Columns whose values of all steps, and of the rest, add up to the whole trace's.
ADDS_UP: Final = ("self_cpu_ns", "self_cuda_ns", "ops", "kernels", "copies", "copied_bytes")


class StepNumbers(Frozen, frozen=True):
    """For each step, see `trace.steps`, its numbers by column; of a trace or some of its steps.

    ``step`` are the indices of the steps. ``columns`` are arrays of one length, in ns, bytes and
    counts; those of `ADDS_UP` have one more entry: what the measured region did outside of steps.
    """

    step: Ints
    columns: Mapping[str, Ints]
    #: Whether the size of each copy is known.
    sized: bool


def step_numbers(trace: Events, name: str = "") -> StepNumbers:
    """Numbers of the selected steps; ``name`` is that of their annotations, see `steps_of`."""
    return trace.once(_step_numbers, name)


def _step_numbers(trace: Events, name: str) -> StepNumbers:
    steps, step = steps_of(trace, name), step_of(trace, name)
    count = len(steps)
    chosen = np.flatnonzero(trace.selection[steps.event])
    step = np.where((step < 0) & trace.in_region, count, step)
    host = (trace.is_kind(*HOST_KINDS) & (step >= 0)).nonzero()[0]
    device = trace.device_rows[step[trace.device_rows] >= 0]
    copied = device[trace.kind[device] == Kind.MEMCPY]
    sizes = trace.bytes[copied]

    def total(events: Ints, values: Ints | None = None) -> Ints:
        out = np.zeros(count + 1, np.int64)
        np.add.at(out, step[events], 1 if values is None else values)
        return np.append(out[chosen], out[-1])

    busy, idle = _busy(trace, device, step[device], count)
    columns = {
        "start_ns": (steps.begin - (trace.ts[0] if len(trace) else 0))[chosen],
        "duration_ns": (steps.end - steps.begin)[chosen],
        "self_cpu_ns": total(host, trace.self_ns[host]),
        "self_cuda_ns": total(device, trace.dur[device]),
        "cuda_busy_ns": busy[chosen],
        "cuda_idle_ns": idle[chosen],
        "ops": total(host[trace.kind[host] == Kind.OP]),
        "kernels": total(device[trace.kind[device] == Kind.KERNEL]),
        "copies": total(copied),
        "copied_bytes": total(copied, np.maximum(sizes, 0)),
        "peak_cpu_bytes": _peaks(trace, step, count, on_device=False)[chosen],
        "peak_cuda_bytes": _peaks(trace, step, count, on_device=True)[chosen],
    }
    return StepNumbers(chosen, columns, bool((sizes >= 0).all()))


def _busy(trace: Events, device: Ints, step: Ints, count: int) -> tuple[Ints, Ints]:
    """As `device_time`: union of each step's device events, and when the device ran nothing."""
    busy, idle = np.zeros((2, count + 1), np.int64)
    if len(device):
        width = int(trace.device[device].max()) + 2
        group = step * width + trace.device[device] + 1
        found = intervals.covered(group, trace.ts[device], trace.ts[device] + trace.dur[device])
        np.add.at(busy, found.group // width, found.busy_ns)
        for one in nesting.distinct(found.group % width).tolist():
            mine = found.group % width == one
            begin, end = found.begin[mine], found.begin[mine] + found.span_ns[mine]
            ran, step_ = idle_of(trace, one - 1), found.group[mine] // width
            # What the device waits for until it begins a step belongs to that step.
            begin = np.where(step_ < count, ran.since(begin), begin)
            np.add.at(idle, step_, ran.between(begin, end))
    return busy, idle


def _peaks(trace: Events, step: Ints, count: int, *, on_device: bool) -> Ints:
    """The highest live amount of each step above its start, as `usage` of the step has it."""
    memory = trace.memory.device(on_device)
    at = np.where(step < count, step, -1)[memory.event]
    row, block, size = changes_of(memory, np.ones(len(at), bool), on_device)
    allocated = np.where(block >= 0, at[block], -1)
    own = (size > 0) | (allocated == at[row])
    if on_device or memory.addr is None:  # every free counts
        own |= memory.bytes[row] < 0
    keep = own & (at[row] >= 0)
    return _highest(at[row[keep]], size[keep], count)


def _highest(step: Ints, size: Ints, count: int) -> Ints:
    """The highest running sum of each step, at least 0; changes are in the order of steps."""
    out = np.zeros(count, np.int64)
    if len(step):
        live = size.cumsum()
        first = np.flatnonzero(np.concatenate([[True], step[1:] != step[:-1]]))
        before = live[first] - size[first]
        out[step[first]] = np.maximum(np.maximum.reduceat(live, first) - before, 0)
    return out
