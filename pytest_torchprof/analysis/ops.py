"""Operators by name: how often, how long, how many FLOPs and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pytest_torchprof.analysis.memory import usage
from pytest_torchprof.events import DEVICE_KINDS, HOST_KINDS, REGION, Ints, Kind, Trace


@dataclass
class OpRow:
    """One operator's share of a trace; ``self_`` excludes what ran in operators below it."""

    name: str
    calls: int = 0
    self_cpu_ns: int = 0
    cpu_ns: int = 0
    self_cuda_ns: int = 0
    flops: int = 0
    allocated_cpu_bytes: int = 0
    allocated_cuda_bytes: int = 0
    peak_cpu_bytes: int = 0
    peak_cuda_bytes: int = 0
    leaked_cpu_bytes: int = 0
    leaked_cuda_bytes: int = 0
    kernels: int = 0
    #: Calls that add a gradient to one that is there already, see `ACCUMULATE`.
    accumulations: int = 0


#: The autograd node that stores a gradient: it keeps the first, and adds to it any further one.
ACCUMULATE = "torch::autograd::AccumulateGrad"


_ADDS = frozenset({"aten::add", "aten::add_"})


def ops(trace: Trace) -> dict[str, OpRow]:
    """A row for each operator and annotation of the selected part of the trace, by name."""
    rows: dict[str, OpRow] = {}

    def row(name: str) -> OpRow:
        return rows.setdefault(name, OpRow(name))

    chosen = np.flatnonzero(trace.selection & trace.is_kind(Kind.OP, Kind.ANNOTATION))
    # A recursive operator must not add its inner time to its outer one.
    outermost = ~_below_same_name(trace, chosen)
    parent = trace.parent[chosen]
    accumulates = (parent >= 0) & trace.named(ACCUMULATE)[parent]
    accumulates &= trace.names_where(_ADDS.__contains__)[chosen]
    columns: dict[str, Ints] = {
        "accumulations": accumulates.astype(np.int64),
        "calls": np.ones(len(chosen), np.int64),
        "self_cpu_ns": trace.self_ns[chosen],
        "cpu_ns": np.where(outermost, trace.dur[chosen], 0),
        "flops": trace.op_flops[chosen],
    }
    for column, values in columns.items():
        sums = np.zeros(len(trace.names), np.int64)
        np.add.at(sums, trace.name[chosen], values)
        for name in np.unique(trace.name[chosen]):
            setattr(row(trace.names[name]), column, int(sums[name]))
    device = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS))
    for i, owner in zip(device, launching_operators(trace, device), strict=True):
        entry = row(owner)
        entry.self_cuda_ns += int(trace.dur[i])
        entry.kernels += trace.kind[i] == Kind.KERNEL
    for where, on_device in (("cpu", False), ("cuda", True)):
        used = usage(trace, on_device=on_device)
        for what in ("allocated", "peak", "leaked"):
            for name, size in getattr(used, f"{what}_by").items():
                setattr(row(name), f"{what}_{where}_bytes", size)
    return rows


def kernels(trace: Trace) -> dict[str, tuple[int, int]]:
    """(calls, total ns) of each kernel, copy and memset of the selected part, by name."""
    out: dict[str, tuple[int, int]] = {}
    for i in np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS)):
        name = trace.names[trace.name[i]]
        calls, total = out.get(name, (0, 0))
        out[name] = calls + 1, total + int(trace.dur[i])
    return out


def launching_operators(trace: Trace, device: Ints) -> Iterator[str]:
    """The innermost operator (else annotation) that launched each of these device events."""
    ops = trace.is_kind(Kind.OP)
    annotations = trace.is_kind(Kind.ANNOTATION) & ~trace.named(REGION)
    for call in trace.launch[device].tolist():
        at, fallback = int(trace.parent[call]) if call >= 0 else -1, ""
        while at >= 0 and not ops[at]:
            fallback = fallback or (trace.names[trace.name[at]] if annotations[at] else "")
            at = int(trace.parent[at])
        yield trace.names[trace.name[at]] if at >= 0 else fallback or "(no operator)"


def _below_same_name(trace: Trace, events: Ints) -> np.typing.NDArray[np.bool_]:
    above = trace.parent[events]
    found = np.zeros(len(events), bool)
    while (above >= 0).any():
        open_ = above >= 0
        found[open_] |= trace.name[above[open_]] == trace.name[events[open_]]
        above = np.where(open_, trace.parent[np.maximum(above, 0)], -1)
    return found


def self_cpu_ns(trace: Trace) -> int:
    """Self time of all host events of the selected part, our own annotation excepted.

    torch's "Self CPU time total" (``torch/autograd/profiler_util.py``, ``_build_table``): operators,
    annotations and runtime calls, each without what is nested in it.
    """
    chosen = trace.selection & trace.is_kind(*HOST_KINDS)
    return int(trace.self_ns[chosen].sum())
