"""Copies between host and device: who makes them, what they cost, and which move a model."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.attribution import launched_at
from pytest_torchprof.analysis.device_time import idle_by_waits
from pytest_torchprof.trace.names import D2H, H2D, Kind, Names, events_named
from pytest_torchprof.trace.tree import parents
from pytest_torchprof.work.dataflow import dataflow
from pytest_torchprof.work.operands import ELEMENT_BYTES

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: Only ``torch.nn.Module.to`` calls this, after it has moved a parameter.
_OF_A_MODULE: Final = Names(r"aten::_has_compatible_shallow_copy_type$")
_COPY: Final = "aten::copy_"
#: A series of at least this many tensors, of this many sizes, is more than a batch.
_MANY, _SIZES = 6, 4


def copy_callers(trace: Events, copies: Ints) -> Ints:
    """The host event to report for each copy: the operator that made it, or else its call."""
    call = trace.launch[copies]
    around = parents(trace, call)
    return np.where(around >= 0, around, call)


def copy_costs(trace: Events, copies: Ints, events: Ints) -> Ints:
    """Time of each copy on the device, plus the time that the device was idle because the copy
    delayed the host: while the host waits for work that the device still has, nothing is lost.
    """
    begin = trace.ts[np.maximum(events, 0)]
    held = np.where(events >= 0, trace.dur[events], 0)
    idle = np.where(events >= 0, idle_by_waits(trace, begin, begin + held), 0)
    return np.minimum(trace.dur[copies] + idle, np.maximum(trace.dur[copies], held))


def copy_spans(trace: Events, copies: Ints, events: Ints) -> tuple[Ints, Ints]:
    """Begin and end of the host event, if any, else of the call that copies, else of the copy."""
    calls = np.where(trace.launch[copies] >= 0, trace.launch[copies], copies)
    rows = np.where(events >= 0, events, calls)
    return trace.ts[rows], trace.ts[rows] + trace.dur[rows]


def what_is_copied(trace: Events, row: int) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of what a ``copy_`` copies from; None for other events, or if unknown."""
    return operand(trace, row, 1) if row >= 0 and trace.names[trace.name[row]] == _COPY else None


def operand(trace: Events, row: int, at: int) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of an argument of an operator; None if it is no tensor, or unknown."""
    rows = np.array([row])
    (shapes,), (types,) = trace.input_shapes(rows), trace.input_types(rows)
    if at >= min(len(shapes), len(types)) or types[at] not in ELEMENT_BYTES:
        return None
    return tuple(shapes[at]), types[at]


def source_of(trace: Events, row: int) -> int:
    """The argument that ``x.to(…)`` or ``y.copy_(x)`` copies from."""
    return int(trace.names[trace.name[row]] == _COPY)


def comes_from(trace: Events, first: int, last: int) -> bool | None:
    """Whether one call copies what another made, or what was computed from that; None if nothing
    tells who made it, as of NumPy's, or in a trace that does not identify tensors.
    """
    graph = dataflow(trace)
    if not graph.exact or graph.depends(last, on=first):
        return True if graph.exact else None
    source = graph.values(np.array([last]), source_of(trace, last))
    return False if source[0] >= 0 and graph.writer_of(source)[0] >= 0 else None


def model_moves(trace: Events) -> Ints:
    """Copies by which a model is moved to the device, or back to the host, once.

    They are a series between kernels, unlike any other: of parameters of a module, or of many
    tensors of several sizes. Batches, or a model that each step offloads, are alike.
    """
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & trace.selection)
    up = trace.names_where(H2D.search)
    copies = copies[(up | trace.names_where(D2H.search))[copies]]
    if not len(copies):
        return copies
    when = launched_at(trace, copies)
    order = np.argsort(when, kind="stable")
    copies, when = copies[order], when[order]
    kernels = np.sort(launched_at(trace, np.flatnonzero(trace.is_kind(Kind.KERNEL))))
    breaks = np.diff(np.searchsorted(kernels, when)) != 0
    breaks |= np.diff(up[copies]) != 0
    series = np.split(np.arange(len(copies)), np.flatnonzero(breaks) + 1)
    alike = [(up[copies[one[0]]], *trace.bytes[copies[one]].tolist()) for one in series]
    times = Counter(alike)
    marks = np.sort(trace.ts[events_named(trace, _OF_A_MODULE)])
    found = [copies[:0]]
    for one, kind in zip(series, alike, strict=True):
        if times[kind] > 1:
            continue
        end = when[one[-1] + 1] if one[-1] + 1 < len(when) else np.iinfo(np.int64).max
        mine = marks[np.searchsorted(marks, when[one[0]]) : np.searchsorted(marks, end)]
        if len(mine):  # buffers are moved between parameters, without a mark
            since, until = np.searchsorted(when[one], [mine[0], mine[-1]])
            found.append(copies[one[max(since - 1, 0) : until]])
        elif len(one) >= _MANY and len({*kind[1:]}) >= _SIZES:
            found.append(copies[one])
    return np.sort(np.concatenate(found))
