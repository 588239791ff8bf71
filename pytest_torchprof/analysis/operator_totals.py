"""Operators by name: how often, how long, how many FLOPs and bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.groups import Groups
from pytest_torchprof.analysis.live_bytes import usage
from pytest_torchprof.analysis.uncounted_flops import uncounted_operators
from pytest_torchprof.core.structs import Mutable
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import HOST_KINDS, Kind
from pytest_torchprof.trace.known_names import REGION
from pytest_torchprof.trace.tree import operators_around, parents
from pytest_torchprof.work.counting import unknown_flops

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


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


def op_rows(trace: Events, *, timed: bool = True) -> dict[str, OpRow]:
    """A row for each operator and annotation of the selected part of the trace, by name.

    ``timed``: with host times, which are 0 otherwise.
    """
    rows: dict[str, OpRow] = {}

    def row(name: str) -> OpRow:
        if (found := rows.get(name)) is None:
            found = rows[name] = OpRow(name)
        return found

    chosen = (trace.selection & trace.is_kind(Kind.OP, Kind.ANNOTATION)).nonzero()[0]
    if len(chosen):
        _fill(trace, chosen, row, timed=timed)
    unknown = (unknown_flops(trace) | uncounted_operators(trace)).nonzero()[0]
    for name in sorted(set(trace.name[unknown].tolist())):
        row(trace.names[name]).flops = None
    if len(device := selected_on_device(trace)):
        names = [NO_OPERATOR, *trace.names]
        by_owner = Groups(trace, device, launching_operators(trace, device) + 1)
        owners = [row(names[number]) for number in by_owner.keys.tolist()]
        is_kernel = (trace.kind[device] == Kind.KERNEL).astype(np.int64)
        _set(owners, "self_cuda_ns", by_owner.total(trace.dur[device]))
        _set(owners, "kernels", by_owner.total(is_kernel))
    for where, on_device in (("cpu", False), ("cuda", True)):
        used = usage(trace, on_device=on_device)
        for what in ("allocated", "peak", "leaked"):
            by_owner = getattr(used, f"{what}_by")
            column = f"{what}_{where}_bytes"
            for owner, size in by_owner.items():
                setattr(row(owner), column, size)
    return rows


def selected_on_device(trace: Events) -> Ints:
    """Kernels, copies and memsets of the selected part."""
    device = trace.device_rows
    return device[trace.selection[device]]


def _fill(trace: Events, chosen: Ints, row: Callable[[str], OpRow], *, timed: bool) -> None:
    """Calls, host time and FLOPs of these operators and annotations, into their rows."""
    groups = Groups(trace, chosen, trace.name[chosen])
    own = [row(trace.names[name]) for name in groups.keys.tolist()]
    _set(own, "calls", groups.calls)
    if timed:
        _set(own, "self_cpu_ns", groups.self_cpu_ns)
        _set(own, "cpu_ns", groups.cpu_ns)
    _set(own, "flops", groups.flops)
    if ACCUMULATE in trace.names:
        parent = trace.parent[chosen]
        accumulates = (parent >= 0) & trace.named(ACCUMULATE)[parent]
        accumulates &= trace.names_where(_ADDS.__contains__)[chosen]
        _set(own, "accumulations", groups.total(accumulates.astype(np.int64)))


def _set(rows: list[OpRow], column: str, values: Ints) -> None:
    for row, value in zip(rows, values.tolist(), strict=True):
        setattr(row, column, value)


def kernel_totals(trace: Events) -> dict[str, tuple[int, int]]:
    """(calls, total ns) of each kernel, copy and memset of the selected part, by name."""
    if not len(device := selected_on_device(trace)):
        return {}
    by_name = Groups(trace, device, trace.name[device])
    names = [trace.names[number] for number in by_name.keys.tolist()]
    totals = zip(by_name.calls.tolist(), by_name.total(trace.dur[device]).tolist(), strict=True)
    return dict(zip(names, totals, strict=True))


def launching_operators(trace: Events, device: Ints) -> Ints:
    """Name of the innermost operator (else annotation) that launched each device event, or -1."""
    event = callers_of(trace, device)
    return np.where(event >= 0, trace.name[event], -1)


def callers_of(trace: Events, device: Ints) -> Ints:
    """The innermost operator (else annotation) around the call behind each device event, or -1."""
    annotations = trace.is_kind(Kind.ANNOTATION) & ~trace.named(REGION)
    above = parents(trace, trace.launch[device])
    operators = operators_around(trace, above)
    notes = nesting.nearest(annotations, trace.parent, above)
    owners: Ints = np.where(operators >= 0, operators, notes)
    return owners


def own_device_ns(trace: Events) -> Ints:
    """The device time of what each operator, else annotation, launched itself; 0 elsewhere."""
    device = selected_on_device(trace)
    owner = callers_of(trace, device)
    own = np.zeros(len(trace), np.int64)
    np.add.at(own, owner[owner >= 0], trace.dur[device[owner >= 0]])
    return own


def self_cpu_ns(trace: Events) -> int:
    """Self time of all host events of the selected part, except our own annotation.

    torch's "Self CPU time total" (``_build_table`` in ``torch/autograd/profiler_util.py``):
    operators, annotations and runtime calls, each without nested events.
    """
    chosen = trace.selection & trace.is_kind(*HOST_KINDS)
    return int(trace.self_ns[chosen].sum()) if chosen.any() else 0
