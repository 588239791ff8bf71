"""FLOPs of a trace: which operators count, how many FLOPs each has, and which are unknown."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import alike, decode_part, int64_column
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.once_per_trace import once_per_trace
from pytest_torchprof.trace.parts import holds_whole_operators
from pytest_torchprof.work.compiled_graphs import key_of
from pytest_torchprof.work.flops import FORMULAS, flops
from pytest_torchprof.work.redispatch import Dispatch, broken_off, ran, sums

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.facts import Graph
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.work.redispatch import Ran

_NONE: Ints = np.zeros(0, np.int64)
_NONE.setflags(write=False)

#: Of fewer calls, decoding each takes less time than finding those with the same text.
_MANY: Final = 1000

#: A call: the number of its name; dimensions, types, values and strides of its operands as JSON.
Call: TypeAlias = tuple[int, bytes, bytes, bytes, bytes]


def has_shapes(trace: Events) -> bool:
    """Whether operators that have a formula carry ``Input Dims``; true if there are none."""
    rows, _, distinct = formula_calls(trace)
    return not len(rows) or any(dims for _, dims, *_ in distinct)


def dispatched(trace: Events) -> Dispatch:
    """How the calls of the whole trace were dispatched."""
    return trace.whole.once(_dispatched)


def _dispatched(trace: Events) -> Dispatch:
    return Dispatch.of(trace.name, trace.names, trace.parent)


@once_per_trace
def _ran(trace: Events) -> Ran:
    if holds_whole_operators(trace):
        return _ran(trace.whole).part(trace.selection)
    rows, counts = trace.whole.once(_formulas)
    flops = np.full(len(trace), -1, np.int64)
    flops[rows] = np.where(trace.selection[rows], counts, -1)
    return ran(flops, trace.name, trace.names, dispatched(trace))


def counts_flops(trace: Events) -> Bools:
    """Selected operators whose FLOPs count: of nested ones, the one that ran."""
    return _ran(trace).counts


def work_parent(trace: Events) -> Ints:
    """Like `parent`, but forward-mode derivatives are siblings of the operator they derive."""
    return _ran(trace).parent


def only_shapes(trace: Events) -> Bools:
    """Events in which a tensor subclass computes a shape with fake tensors."""
    return _ran(trace).fake


def op_flops(trace: Events) -> Ints:
    """FLOPs of the operators whose FLOPs count; 0 elsewhere."""
    if holds_whole_operators(trace):
        return op_flops(trace.whole) * trace.selection
    # A column that is made soon again is not kept.
    return trace.once(_with_graphs) if graph_calls(trace) else _of_operators(trace)


@once_per_trace
def total_flops(trace: Events) -> int:
    """FLOPs of all selected operators."""
    if not (trace.has(Kind.OP) or graphs(trace)):
        return 0
    return int(op_flops(trace)[trace.selection].sum())


def _of_operators(trace: Events) -> Ints:
    out = np.zeros(len(trace), np.int64)
    rows, counts = trace.whole.once(_formulas)
    if len(rows):
        out[rows] = np.where(counts_flops(trace)[rows], counts, 0)
    return out


def _with_graphs(trace: Events) -> Ints:
    out = _of_operators(trace)
    for graph, events in graph_calls(trace).items():
        # Library calls are nested and counted; the rest are inductor's own loops.
        inside = sums(events, counts_flops(trace), out, work_parent(trace))
        out[events] = np.maximum(graphs(trace)[graph].flops - inside, 0)
    return out


@once_per_trace
def graphs(trace: Events) -> Mapping[str, Graph]:
    """Compiled graphs with products, as a live capture recorded them, by inductor's key."""
    return trace.facts.graphs or {}


@once_per_trace
def graph_calls(trace: Events) -> dict[str, Ints]:
    """The selected calls of these graphs."""
    if not graphs(trace):
        return {}
    names = enumerate(trace.names)
    called = {key: i for i, name in names if (key := key_of(name))}
    calls = called_graphs(trace)
    return {
        key: np.flatnonzero((trace.name == called[key]) & calls)
        for key in graphs(trace)
        if key in called
    }


def called_graphs(trace: Events) -> Bools:
    """The selected calls of graphs that inductor compiled, each once.

    The range of its kernels on the device has the same name.
    """
    named = trace.names_where(lambda name: key_of(name) is not None)
    return trace.selection & named & ~trace.is_kind(Kind.GPU_ANNOTATION)


@once_per_trace
def unknown_flops(trace: Events) -> Bools:
    """Selected operators with unknown FLOPs: they have a formula, but no number.

    Excluded are operators with a counted one above them, which covers them, or below them, whose
    parts count instead. Of nested operators without a number, only the outermost is included.
    """
    rows, counts = trace.whole.once(_formulas)
    unknown = np.zeros(len(trace), bool)
    if not (counts < 0).any():
        return unknown
    known, parent = counts_flops(trace), work_parent(trace)
    found = rows[(counts < 0) & (trace.selection & ~only_shapes(trace))[rows]]
    if len(found):
        found = found[~nesting.below(known, parent, found)]
        found = found[~nesting.above(np.flatnonzero(known), parent)[found]]
        unknown[found] = True
        unknown[found] = ~nesting.below(unknown, parent, found)
    return unknown


def formula_calls(trace: Events) -> tuple[Ints, Ints, list[Call]]:
    """The calls of operators that have a formula, as in `distinct_calls`."""
    return trace.whole.once(_formula_calls)


def _formula_calls(trace: Events) -> tuple[Ints, Ints, list[Call]]:
    return distinct_calls(trace, trace.names_where(FORMULAS.__contains__))


def distinct_calls(trace: Events, named: Bools) -> tuple[Ints, Ints, list[Call]]:
    """Operators among these events, for each the number of its call, and the distinct calls."""
    rows = (trace.is_kind(Kind.OP) & named).nonzero()[0]
    if not len(rows):
        return rows, rows, []
    kinds, one = None, rows
    if len(rows) >= _MANY:
        kinds, firsts, _ = alike(trace.name[rows], trace.args[rows])
        one = rows[firsts]
    known: dict[Call, int] = {}
    found = [
        known.setdefault(
            (name, bytes(a.dims), bytes(a.types), bytes(a.concrete), bytes(a.strides)), len(known)
        )
        for name, a in zip(trace.name[one].tolist(), trace.operands(one), strict=True)
    ]
    number = np.array(found, np.int64)
    return rows, number if kinds is None else number[kinds], list(known)


def _formulas(trace: Events) -> tuple[Ints, Ints]:
    """Events that have a formula, and their FLOPs (nested or not), or -1."""
    rows, call, known = formula_calls(trace)
    if not known:
        return rows, _NONE
    found = [_flops_of(trace.names[name], *parts) for name, *parts in known]
    counts = int64_column([-1 if n is None else n for n in found])
    # In an old trace, different calls can look alike; do not share numbers between them then.
    if len(known) == len(call) or not any(key[-1] for key in known):
        return rows, counts[call]
    allocating = trace.enclosing(trace.memory.event[trace.memory.bytes > 0])
    signs = np.concatenate([allocating, trace.parent[trace.is_kind(Kind.RUNTIME)]])
    broken = broken_off(rows, call, trace.name, trace.names, trace.parent, signs[signs >= 0])
    return rows, np.where(broken & (counts[call] > 0), 0, counts[call])


@lru_cache(maxsize=10_000)
def _flops_of(name: str, *parts: bytes) -> int | None:
    """FLOPs of a call from its recorded operands; cached, as tests repeat calls."""
    return flops(name, *map(decode_part, parts))
