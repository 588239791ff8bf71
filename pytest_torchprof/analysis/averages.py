"""Key averages: host events grouped by name, shapes, call stack or module."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from pytest_torchprof.analysis.groups import Groups
from pytest_torchprof.analysis.operator_totals import NO_OPERATOR, own_device_ns
from pytest_torchprof.analysis.uncounted_flops import uncounted_events
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.kinds import DEVICE_KINDS, HOST_KINDS, Kind
from pytest_torchprof.trace.known_names import MODULE
from pytest_torchprof.trace.parts import selects_by_time

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

By = Literal["name", "shape", "stack", "module"]
GROUPINGS: tuple[By, ...] = get_args(By)

#: The field of `OpStats` that a grouping fills.
FIELD_OF: dict[By, str] = {"shape": "shapes", "stack": "stack", "module": "module"}

_IS_MODULE = re.compile(MODULE.pattern.replace(r"(\w+?)_\d+", r"(\w+_\d+)"))


@dataclass(frozen=True)
class OpStats:
    """One row of key averages: an operator, annotation or runtime call, or one group of its calls.

    ``self_`` excludes nested events; bytes are allocations less frees. ``flops`` are those of the
    calls that count, 0 where none does (it computes no products, or the operator around it or those
    within it count), None where those of a call are unknown. ``cuda`` is None without an
    accelerator, bytes without ``profile_memory``. ``share`` is the part (0 to 1) of all self device
    time, or of all self CPU time without device events.
    """

    ADDS_UP: ClassVar = (
        "calls",
        "self_cpu_ms",
        "self_cuda_ms",
        "self_cpu_bytes",
        "self_cuda_bytes",
        "flops",
        "share",
    )

    name: str
    calls: int
    self_cpu_ms: float
    cpu_ms: float
    self_cuda_ms: float | None
    cuda_ms: float | None
    self_cpu_bytes: int | None
    self_cuda_bytes: int | None
    flops: int | None
    share: float | None
    #: ``Input Dims``, where grouped by shape.
    shapes: Any = None
    #: Python functions, outermost first, joined by ``;``, where grouped by stack.
    stack: str | None = None
    #: ``nn.Module`` instances, outermost first, joined by ``.``, where grouped by module.
    module: str | None = None


def op_stats(trace: Events, by: By = "name") -> list[OpStats]:
    """Rows of the selected part of a trace, the largest share first.

    Device work counts for the innermost operator around the call that launched it, memory for the
    innermost operator or annotation. What is outside of all of them is the row ``(no operator)``,
    whose ``calls`` are 0. ``ProfilerStep#7`` is shown as ``ProfilerStep*``.
    """
    chosen = np.flatnonzero(trace.selection & trace.is_kind(*HOST_KINDS))
    group, labels = _GROUPERS[by](trace, chosen)
    names, name = trace.shown_names
    groups = Groups(trace, chosen, group * len(names) + name[trace.name[chosen]])
    device = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS))
    own, uncounted = trace.once(own_device_ns), uncounted_events(trace)
    columns = {
        "calls": groups.calls,
        "self_cpu": groups.self_cpu_ns,
        "cpu": groups.cpu_ns,
        "self_cuda": groups.total(own[chosen]),
        "cuda": groups.cuda_ns,
        "flops": groups.flops,
        "unknown": groups.total(uncounted[chosen].astype(np.int64)),
    }
    cpu_bytes, cuda_bytes = (_net_bytes(trace, groups, on) for on in (False, True))
    unlinked = int(trace.dur[device].sum() - own[chosen].sum())
    whole = int(trace.dur[device].sum()) if len(device) else int(columns["self_cpu"].sum())
    value = {name: column.tolist() for name, column in columns.items()}
    group_of, name_of = (part.tolist() for part in np.divmod(groups.keys, max(len(names), 1)))

    def part(ns: int) -> float | None:
        return ns / whole if whole else None

    field = FIELD_OF.get(by)
    rows = [
        OpStats(
            name=names[name_of[i]],
            calls=value["calls"][i],
            self_cpu_ms=value["self_cpu"][i] / 1e6,
            cpu_ms=value["cpu"][i] / 1e6,
            self_cuda_ms=value["self_cuda"][i] / 1e6 if len(device) else None,
            cuda_ms=value["cuda"][i] / 1e6 if len(device) else None,
            self_cpu_bytes=cpu_bytes[i] if cpu_bytes else None,
            self_cuda_bytes=cuda_bytes[i] if cuda_bytes else None,
            flops=None if value["unknown"][i] else value["flops"][i],
            share=part(value["self_cuda"][i] if len(device) else value["self_cpu"][i]),
            **({field: labels(group_of[i])} if field else {}),
        )
        for i in range(len(groups.keys))
    ]
    outside = cpu_bytes[-1] if cpu_bytes else None, cuda_bytes[-1] if cuda_bytes else None
    if unlinked or any(outside):
        ms = unlinked / 1e6 if len(device) else None
        flops = None if uncounted[device].any() else 0
        rows.append(OpStats(NO_OPERATOR, 0, 0, 0, ms, ms, *outside, flops, part(unlinked)))
    return sorted(rows, key=lambda row: (-(row.share or 0), -row.self_cpu_ms, row.name))


def _net_bytes(trace: Events, groups: Groups, on_device: bool) -> list[int] | None:
    """Allocated less freed bytes by group, the last outside of all; None if not recorded."""
    memory = trace.memory.device(on_device)
    if not len(memory.bytes):
        return None
    count = len(groups.keys)
    row = np.full(len(trace), count, np.int64)
    row[groups.events] = groups.at
    outside_calls = ~trace.is_kind(Kind.RUNTIME)
    around = nesting.nearest(outside_calls, trace.parent, trace.enclosing(memory.event))
    inside = trace.selection[memory.event] & selects_by_time(trace)
    # What encloses the whole part, such as the annotation of the measured region, is not in it.
    within = (around >= 0) & trace.selection[around]
    into = np.where(within, row[around], np.where(inside, count, -1))
    total = np.zeros(count + 1, np.int64)
    np.add.at(total, into[into >= 0], memory.bytes[into >= 0])
    return total.tolist()


# -------------------------------------------------------------------- groupings

_Labels = Callable[[int], Any]


def _by_name(_trace: Events, events: Ints) -> tuple[Ints, _Labels]:
    return np.zeros(len(events), np.int64), lambda _: None


def _by_shape(trace: Events, events: Ints) -> tuple[Ints, _Labels]:
    known: dict[bytes, int] = {}
    dims = (bytes(args.dims) for args in trace.operands(events))
    group = [known.setdefault(raw, len(known)) for raw in dims]
    raws = list(known)
    return np.array(group, np.int64), lambda i: decode_part(raws[i])


def _by_stack(trace: Events, events: Ints) -> tuple[Ints, _Labels]:
    return _by_path(trace, events, list(trace.names), ";")


def _by_module(trace: Events, events: Ints) -> tuple[Ints, _Labels]:
    matches = map(_IS_MODULE.match, trace.names)
    return _by_path(trace, events, [m[1] if m else None for m in matches], ".")


def _by_path(
    trace: Events, events: Ints, labels: Sequence[str | None], joint: str
) -> tuple[Ints, _Labels]:
    """Grouped by the labeled Python functions around them."""
    number = np.array([-1 if label is None else i for i, label in enumerate(labels)], np.int64)
    label = np.where(trace.is_kind(Kind.PYTHON), number[trace.name], -1)
    path, known = nesting.paths(*trace.frames, label)

    def text(group: int) -> str | None:
        parts, at = [], group - 1
        while at >= 0:
            at, last = known[at]
            parts.append(str(labels[last]))
        return joint.join(reversed(parts)) or None

    return path[events] + 1, text


_GROUPERS: dict[By, Callable[[Events, Ints], tuple[Ints, _Labels]]] = {
    "name": _by_name,
    "shape": _by_shape,
    "stack": _by_stack,
    "module": _by_module,
}
