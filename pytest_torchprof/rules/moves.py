"""Copies between host and device: who makes them, what they cost, and which move a model."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.attribution import launched_at
from pytest_torchprof.analysis.device_time import idle_by_waits
from pytest_torchprof.core.process import late
from pytest_torchprof.rules.chip import on_cpu
from pytest_torchprof.rules.rule import around
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import D2H, H2D, Kind, Names, are_named, events_named
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.tree import called, parents
from pytest_torchprof.work.dataflow import dataflow
from pytest_torchprof.work.operands import ELEMENT_BYTES

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Operators that create or overwrite a tensor without reading data.
_FILLED: Final = Names(
    r"aten::((zeros|ones|full|rand|randn|randint)(_like)?|new_(zeros|ones|full)|arange|eye|linspace"
    r"|logspace|randperm|normal|scalar_tensor|tril_indices|triu_indices|(fill|zero|normal|uniform"
    r"|random|bernoulli|exponential|log_normal|cauchy|geometric)_)$"
)
_MOVES: Final = Names(r"aten::(to|_to_copy|copy_|cuda)$")
#: At most so many calls are between the one that fills a tensor and the one that moves it.
_NEAR: Final = 4
_SIZED: Final = Names(r"aten::(arange|eye|randperm|tril_indices|triu_indices)$")
_PAGEABLE = late(r"Pageable")
#: Only ``torch.nn.Module.to`` calls this, after it has moved a parameter.
_OF_A_MODULE: Final = Names(r"aten::_has_compatible_shallow_copy_type$")
_COPY: Final = "aten::copy_"
#: A series of at least this many tensors, of this many sizes, is more than a batch.
_MANY, _SIZES = 6, 4


class FilledCopy(NamedTuple):
    """A copy to the device of what was just filled on the host."""

    call: int  # that copies
    maker: int  # the call that filled it
    copy: int  # on the device
    dtype: str
    shape: tuple[int, ...]


def copy_callers(trace: Events, copies: Ints) -> Ints:
    """The host event to report for each copy: the operator that made it, or else its call."""
    call = trace.launch[copies]
    above = parents(trace, call)
    return np.where(above >= 0, above, call)


def costs_of(trace: Events, copies: Ints, events: Ints) -> tuple[Ints, Ints, Ints]:
    """What each copy costs in ns, and begin and end of the host event if any, else of the copy.

    It costs its time on the device, and the time that the device was idle because the copy delayed
    the host: while the host waits for work that the device still has, nothing is lost.
    """
    begin, end = around(trace, np.where(events >= 0, events, copies))
    held = np.where(events >= 0, end - begin, 0)
    idle = np.where(events >= 0, idle_by_waits(trace, begin, begin + held), 0)
    cost = np.minimum(trace.dur[copies] + idle, np.maximum(trace.dur[copies], held))
    return cost, begin, end


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


def filled_copies(trace: Events) -> list[FilledCopy]:
    """The copies to the device of what was just filled on the host, but not of a model."""
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & trace.selection & (trace.launch >= 0))
    copies = copies[trace.names_where(H2D.search)[copies]]
    graph, outer = dataflow(trace), called(trace)
    events = copy_callers(trace, copies)
    call = nesting.nearest(outer, trace.parent, events)
    moves = are_named(trace, call, _MOVES)
    copies, events, call = copies[moves], events[moves], call[moves]
    values = np.where(trace.named(_COPY)[call], graph.values(call, 1), graph.values(call))
    for _ in range(2):
        source = np.where(values >= 0, graph.writer_of(values), -1)
        # What is pinned is copied, too.
        values = np.where(are_named(trace, source, _COPY), graph.values(source, 1), values)
    guessed = (source < 0) & (not graph.exact)
    if guessed.any():  # of what sets its own size, a trace does not record which
        sized = events_named(trace, _SIZED)
        sized = sized[outer[sized] & on_cpu(trace, sized)]
        before = np.append(sized, -1)[np.searchsorted(sized, events) - 1]
        source = np.where(guessed, before, source)
    maker = nesting.nearest(outer, trace.parent, source)
    number = np.cumsum(outer)
    fits = (maker >= 0) & (number[call] - number[maker] <= np.where(guessed, 2, _NEAR + 1))
    fits &= are_named(trace, maker, _FILLED) & ~among(copies, trace.once(model_moves))
    found = list[FilledCopy]()
    for at in np.flatnonzero(fits).tolist():
        made, moved = int(maker[at]), what_is_copied(trace, int(events[at]))
        types = trace.input_types(np.arange(made, made + 3))
        if moved is not None and (not guessed[at] or any(moved[1] in one for one in types)):
            found.append(FilledCopy(int(call[at]), made, int(copies[at]), moved[1], moved[0]))
    return found


def of_pageable_memory(trace: Events, bytes: float) -> tuple[Ints, Bools]:  # noqa: A002
    """Copies of more than so many bytes that the profiler calls pageable, in either direction; and
    which of them go to the device.
    """
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & trace.selection)
    up = trace.names_where(H2D.search)[copies]
    large = trace.bytes[copies] > bytes
    large &= trace.names_where(_PAGEABLE.search)[copies]
    large &= up | trace.names_where(D2H.search)[copies]
    return copies[large], up[large]


def are_explained(trace: Events, copies: Ints) -> Bools:
    """Which of these copies `extra-cuda-copy` finds, or move a model."""
    if not len(copies):
        return np.zeros(0, bool)
    filled = [one.copy for one in trace.once(filled_copies)] if trace.records_shapes else []
    return among(copies, filled) | among(copies, trace.once(model_moves))


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
