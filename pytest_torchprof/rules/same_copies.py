"""Copies of one tensor again and again, for the rules about casts and about layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.rules.calls import is_trifle, shapes
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, around
from pytest_torchprof.trace.arguments import alike
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    Names,
    are_named,
    count,
    selected_operators,
)
from pytest_torchprof.trace.tree import step_of
from pytest_torchprof.work.counting import operands_of
from pytest_torchprof.work.dataflow import ACCUMULATE, dataflow
from pytest_torchprof.work.operands import ELEMENT_BYTES, UnknownOperandError

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: In-place operators that are as fast when they make a new tensor: these need no copy. Without
#: ``relu_``: nn.ReLU(inplace=True) at the start of a model that gets a copy for it.
_ELEMENTWISE: Final = Names(
    r"aten::(add|sub|mul|div|pow|sqrt|rsqrt|exp|log|neg|abs|tanh|sigmoid|clamp|clamp_min|"
    r"clamp_max|square|round|floor|ceil|reciprocal|remainder|lerp|addcmul|addcdiv)_$"
)
#: How many copies of one tensor are too many.
REPEATS: Final = 5


def unidentified(trace: Events, names: Names) -> Reason | None:
    """Why enough such copies may be of one tensor: only a live test tells."""
    if trace.tensors is not None or trace.could_know_tensors or count(trace, names) < REPEATS:
        return None
    return because(
        "tensors_unidentified", "which of them are of one tensor, only a live test can tell"
    )


class Copies(NamedTuple):
    """Calls that copy the same part of the same tensor, in order; ``fix``: if it is another one.

    ``kind``: shape, and the C++ types of the tensor and of the copy.
    """

    rows: Ints
    kind: tuple[tuple[int, ...], str, str]
    fix: str


def again(trace: Events, rows: Ints, least: float, elements: float, fix: str) -> Iterator[Copies]:
    """Copies of one tensor in one step, while nothing writes to it and no gradient is stored.

    Only of tensors of so many elements.
    Where tensors are not identified, those that look alike, whatever happens in between.
    """
    large = [bool(dims) and prod(dims[0] or ()) >= elements for dims in shapes(trace, rows)]
    rows = rows[np.array(large, bool)]
    source = [one[:1] for one in trace.taken(rows) or ()]
    if source:  # else the graph is not needed
        times = Counter(source)
        rows = rows[np.array([times[one] >= least for one in source], bool)]
    if len(rows) < least:
        return
    stored = selected_operators(trace, ACCUMULATE)
    if trace.tensors is None:
        same, stored = alike(trace.name[rows], trace.args[rows])[0], stored[:0]
    else:
        same = dataflow(trace).again(rows)
    era = np.sort(trace.ts[stored]).searchsorted(trace.ts[rows])
    keys = np.stack([same, trace.thread[rows], step_of(trace, rows), era])
    _, group, sizes = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    for number in np.flatnonzero(sizes >= least).tolist():
        mine = rows[group.reshape(-1) == number]
        if same[rows.searchsorted(mine[0])] >= 0 and (kind := _kind(trace, int(mine[0]))):
            yield Copies(mine, kind, fix)


def _kind(trace: Events, row: int) -> tuple[tuple[int, ...], str, str] | None:
    """What a copy is of, from the ``copy_`` in it; None if there is none, or it is unknown."""
    inside = np.arange(row + 1, min(row + 8, len(trace)))
    inside = inside[(trace.parent[inside] == row) & are_named(trace, inside, "aten::copy_")]
    for args in trace.operands(inside):
        with suppress(UnknownOperandError, LookupError, TypeError):
            copy, source = map(operands_of(args).tensor, (0, 1))
            return source.shape, source.dtype, copy.dtype
    return None


def outermost_of(trace: Events, rows: Ints, names: Names) -> tuple[Ints, Ints]:
    """The outermost operator of these names around each row, and what encloses that, or -1."""
    top, above = rows.copy(), trace.parent[rows].astype(np.int64)
    while (inside := are_named(trace, above, names)).any():
        top[inside] = above[inside]
        above[inside] = trace.parent[above[inside]]
    return top, above


def without_needed(trace: Events, copies: Copies, fix: str, *, unwritten: bool = False) -> Copies:
    """Without copies that are written to, unless the very next operator does so as a whole.

    ``fix`` is what to do about these. ``unwritten``: also without those that nothing writes to.
    """
    graph = dataflow(trace)
    kept, anew = list[int](), False
    for row in copies.rows.tolist():
        made = graph.left(row)
        if not len(made.value):  # on fake tensors
            continue
        (write,) = graph.next_write(made.value[:1]).tolist()
        if write < 0:
            kept += [row] * (not unwritten)
            continue
        node = int(graph.node_of(np.array([write]))[0])
        then = graph.next_write(graph.left(write).value)
        near = node == made.node[-1] + 1 and are_named(trace, np.array([write]), _ELEMENTWISE)[0]
        if near and (then < 0).all() and not _is_part(trace, write, copies.kind[0]):
            kept.append(row)
            anew = True
    return Copies(np.array(kept, np.int64), copies.kind, fix if anew else copies.fix)


def _is_part(trace: Events, row: int, shape: tuple[int, ...]) -> bool:
    """Whether a call takes another number of elements than this first."""
    (dims,) = trace.input_shapes(np.array([row]))
    return not dims or prod(dims[0]) != prod(shape)


def matches(
    trace: Events,
    found: Sequence[tuple[str, Copies]],
    *,
    outermost: Ints,
    rows: Ints,
    share: float,
) -> Matches:
    """A match for each copy after the first, unless they are few of a test's calls on a CPU."""
    if not found:
        return NO_MATCHES
    event = outermost[rows.searchsorted(np.concatenate([one.rows[1:] for _, one in found]))]
    if is_trifle(trace, len(event), share):
        return NO_MATCHES
    messages, moved, fixes = list[str](), list[int](), list[str]()
    for message, copies in found:
        shape, source, target = copies.kind
        each = prod(shape) * sum(ELEMENT_BYTES[one] for one in (source, target))
        more = len(copies.rows) - 1
        messages += [message] * more
        moved += [each] * more
        fixes += [copies.fix] * more
    cost = trace.dur[event] + (trace.once(launched_ns)[event] if trace.has(*DEVICE_KINDS) else 0)
    span = around(trace, event)
    return Matches(event, messages, None, cost, np.array(moved, np.int64), None, fixes, span)
