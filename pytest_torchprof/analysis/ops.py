"""Operators by name: how often, how long, how many FLOPs and bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.memory import usage
from pytest_torchprof.analysis.uncounted import uncounted_operators
from pytest_torchprof.core.structs import Mutable
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.event_names import REGION
from pytest_torchprof.trace.kinds import HOST_KINDS, Kind
from pytest_torchprof.trace.tree import operators_around, parents
from pytest_torchprof.work.counting import op_flops, unknown_flops

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Trace
    from pytest_torchprof.trace.nesting import Bools, Ints


class OpRow(Mutable):
    """One operator's share of a trace; ``self_`` excludes operators nested in it."""

    name: str
    calls: int = 0
    self_cpu_ns: int = 0
    cpu_ns: int = 0
    self_cuda_ns: int = 0
    #: None where the FLOPs of any call are unknown.
    flops: int | None = 0
    allocated_cpu_bytes: int = 0
    allocated_cuda_bytes: int = 0
    peak_cpu_bytes: int = 0
    peak_cuda_bytes: int = 0
    leaked_cpu_bytes: int = 0
    leaked_cuda_bytes: int = 0
    kernels: int = 0
    #: Calls that add a gradient to an existing one, see `ACCUMULATE`.
    accumulations: int = 0


#: The autograd node that stores a gradient: it keeps the first one and adds any further one.
ACCUMULATE = "torch::autograd::AccumulateGrad"
_ADDS = frozenset({"aten::add", "aten::add_"})

NO_OPERATOR = "(no operator)"


def ops(trace: Trace) -> dict[str, OpRow]:
    """A row for each operator and annotation of the selected part of the trace, by name."""
    rows: dict[str, OpRow] = {}

    def row(name: str) -> OpRow:
        if (found := rows.get(name)) is None:
            found = rows[name] = OpRow(name)
        return found

    chosen = (trace.selection & trace.is_kind(Kind.OP, Kind.ANNOTATION)).nonzero()[0]
    if len(chosen):
        _fill(trace, chosen, row)
    unknown = (unknown_flops(trace) | uncounted_operators(trace)).nonzero()[0]
    for name in sorted(set(trace.name[unknown].tolist())):
        row(trace.names[name]).flops = None
    if len(device := selected_on_device(trace)):
        owners = launching_operators(trace, device)
        names = [*trace.names, NO_OPERATOR]  # -1
        for name, total in _sum_by(owners, trace.dur[device]):
            row(names[name]).self_cuda_ns = total
        for name, total in _sum_by(owners, (trace.kind[device] == Kind.KERNEL).astype(np.int64)):
            row(names[name]).kernels = total
    for where, on_device in (("cpu", False), ("cuda", True)):
        used = usage(trace, on_device=on_device)
        for what in ("allocated", "peak", "leaked"):
            by_owner = getattr(used, f"{what}_by")
            column = f"{what}_{where}_bytes"
            for owner, size in by_owner.items():
                setattr(row(owner), column, size)
    return rows


def selected_on_device(trace: Trace) -> Ints:
    """Kernels, copies and memsets of the selected part."""
    device = trace.device_rows
    return device[trace.selection[device]]


def _fill(trace: Trace, chosen: Ints, row: Callable[[str], OpRow]) -> None:
    """Calls, host time and FLOPs of these operators and annotations, into their rows."""
    # A recursive operator must not add its inner time to its outer one.
    outermost = ~inside_itself(trace, chosen, trace.name[chosen])
    parent = trace.parent[chosen]
    columns: dict[str, Ints] = {
        "self_cpu_ns": trace.self_ns[chosen],
        "cpu_ns": np.where(outermost, trace.dur[chosen], 0),
        "flops": op_flops(trace)[chosen],
    }
    if ACCUMULATE in trace.names:
        accumulates = (parent >= 0) & trace.named(ACCUMULATE)[parent]
        accumulates &= trace.names_where(_ADDS.__contains__)[chosen]
        columns["accumulations"] = accumulates.astype(np.int64)
    names = trace.name[chosen]
    calls = np.bincount(names)
    distinct = calls.nonzero()[0]
    own = [row(trace.names[name]) for name in distinct.tolist()]
    for one, count in zip(own, calls[distinct].tolist(), strict=True):
        one.calls = count
    for column, values in columns.items():
        if values.any():
            for one, total in zip(own, _sums(len(calls), names, values, distinct), strict=True):
                setattr(one, column, total)


def kernels(trace: Trace) -> dict[str, tuple[int, int]]:
    """(calls, total ns) of each kernel, copy and memset of the selected part, by name."""
    if not len(device := selected_on_device(trace)):
        return {}
    name = trace.name[device]
    calls = _sum_by(name, np.ones(len(device), np.int64))
    times = _sum_by(name, trace.dur[device])
    return {
        trace.names[i]: (count, total) for (i, count), (_, total) in zip(calls, times, strict=True)
    }


def launching_operators(trace: Trace, device: Ints) -> Ints:
    """Name of the innermost operator (else annotation) that launched each device event, or -1."""
    event = launchers(trace, device)
    return np.where(event >= 0, trace.name[event], -1)


def launchers(trace: Trace, device: Ints) -> Ints:
    """The innermost operator (else annotation) around the call behind each device event, or -1."""
    annotations = trace.is_kind(Kind.ANNOTATION) & ~trace.named(REGION)
    above = parents(trace, trace.launch[device])
    operators = operators_around(trace, above)
    notes = nesting.nearest(annotations, trace.parent, above)
    owners: Ints = np.where(operators >= 0, operators, notes)
    return owners


def _sum_by(key: npt.NDArray[np.signedinteger[Any]], values: Ints) -> list[tuple[int, int]]:
    """(key, sum of its values) by ascending key."""
    if not len(key):
        return []
    distinct, at = np.unique(key, return_inverse=True)
    wanted = np.arange(len(distinct))
    return list(zip(distinct.tolist(), _sums(len(distinct), at, values, wanted), strict=True))


def _sums(
    count: int, at: npt.NDArray[np.signedinteger[Any]], values: Ints, wanted: Ints
) -> list[int]:
    """The sum of the values of the wanted groups, out of ``count``."""
    total = np.zeros(count, np.int64)
    np.add.at(total, at, values)
    found: list[int] = total[wanted].tolist()
    return found


def inside_itself(trace: Trace, events: Ints, group: npt.NDArray[np.signedinteger[Any]]) -> Bools:
    """Which of these host events run inside another of their group, whose time includes theirs."""
    groups, parent = np.full(len(trace), -1, np.int64), trace.parent
    groups[events] = group
    found = np.zeros(len(events), bool)
    above = parent[events]
    todo = (above >= 0).nonzero()[0]
    at, own = above[todo], group[todo]
    while len(todo):
        same = groups[at] == own
        found[todo[same]] = True
        up = parent[at]
        left = (up >= 0) & ~same
        todo, at, own = todo[left], up[left], own[left]
    return found


def self_cpu_ns(trace: Trace) -> int:
    """Self time of all host events of the selected part, except our own annotation.

    torch's "Self CPU time total" (``_build_table`` in ``torch/autograd/profiler_util.py``):
    operators, annotations and runtime calls, each without nested events.
    """
    chosen = trace.selection & trace.is_kind(*HOST_KINDS)
    return int(trace.self_ns[chosen].sum())
