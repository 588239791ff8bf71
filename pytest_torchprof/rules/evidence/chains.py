"""Tensors that grow: each was joined from the previous one and something new."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.rules.evidence.loop_bodies import BodyCall, call_of
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.levels import calls
from pytest_torchprof.trace.name_index import Names, are_named
from pytest_torchprof.trace.tensors import LONGEST_LIST, listed

if TYPE_CHECKING:
    from pytest_torchprof.rules.evidence.loop_bodies import Shape
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.trace.tensors import Taken

JOIN: Final = Names(
    r"aten::(cat|concat|concatenate|hstack|vstack|row_stack|column_stack|stack|pad|constant_pad_nd)$"
)

_Key: TypeAlias = tuple["Shape", ...]


class Link(Frozen, frozen=True):
    """A join: its event, which tensor is the previous one, and the result.

    ``old``: the elements that were copied before, those of the growing tensor.
    """

    row: int
    call: BodyCall
    out: Shape
    old: int
    axis: int


@dataclass
class Chain:
    """Joins that each take the previous one's result; ``listed``: a growing list of tensors."""

    links: list[Link] = field(default_factory=list)
    listed: bool = False

    @property
    def rows(self) -> list[int]:
        """The events of the joins."""
        return [link.row for link in self.links]

    @property
    def is_cut(self) -> bool:
        """Whether its last list is as long as a trace records, so that longer ones may follow."""
        last = self.links[-1].call.shapes
        return self.listed and bool(last) and len(last[0]) == LONGEST_LIST


def chains(trace: Events, least: int) -> list[Chain]:
    """All chains with at least ``least`` links, by their end."""
    return [one for one in trace.once(_chains) if len(one.links) >= least]


def may_have_more(trace: Events, least: int, bytes: float) -> bool:  # noqa: A002
    """Whether lists longer than a trace records may grow in ``least`` joins, of at least these
    ``bytes`` in total; tensors are not identified, and only the results' sizes are known, if any.
    """
    long = [row for row, call in trace.once(_joins) if _is_long(call)]
    if not long:
        return False
    known = max((one.rows for one in trace.once(_chains) if one.is_cut), key=len, default=[])
    sizes = _allocated(trace, np.array([*known, *long], np.int64))
    if sizes is None:
        return len(known) + len(long) >= least
    return len(known) + len({*sizes[len(known) :]}) >= least and sum(sizes) >= bytes


def _allocated(trace: Events, rows: Ints) -> list[int] | None:
    """The largest block that each call allocated; None if the trace has no memory events."""
    memory = trace.memory
    if not len(memory.event):
        return None
    at, sizes = trace.ts[memory.event].tolist(), memory.bytes.tolist()
    begins, ends = trace.ts[rows].tolist(), (trace.ts[rows] + trace.dur[rows]).tolist()
    return [
        max(sizes[bisect_left(at, begin) : bisect_right(at, end)], default=0)
        for begin, end in zip(begins, ends, strict=True)
    ]


def _is_long(call: BodyCall) -> bool:
    """Whether it takes a list of which the trace has no shapes."""
    return call.types[:1] == ("TensorList",) and not call.shapes[0]


def _joins(trace: Events) -> list[tuple[int, BodyCall]]:
    rows = calls(trace)
    rows = rows[trace.selection[rows] & are_named(trace, rows, JOIN)]
    found = [
        (row, call_of(trace.names[trace.name[row]], args))
        for row, args in zip(rows.tolist(), trace.operands(rows), strict=True)
    ]
    long = [at for at, (_, call) in enumerate(found) if _is_long(call)]
    for at, known in zip(long, listed(trace, rows[long]) or (), strict=False):
        row, call = found[at]
        if known is not None:
            found[at] = row, replace(call, shapes=(known.shapes, *call.shapes[1:]))
    return found


def _chains(trace: Events) -> list[Chain]:
    joins = trace.once(_joins)
    rows = np.array([row for row, _ in joins], np.int64)
    taken, made = trace.taken(rows), trace.made(rows)
    waiting: dict[_Key, deque[tuple[Chain, int]]] = defaultdict(deque)
    out = []
    for at, (row, call) in enumerate(joins):
        joined = _joined(call)
        if joined is None:
            continue
        shape, axis = joined
        chain, old, listed = _before(call, shape, waiting, (at, taken, made))
        if chain is None:
            chain = Chain()
            out.append(chain)
            old = max(map(prod, call.shapes[0]))
        chain.listed |= listed
        chain.links.append(Link(row, call, shape, old, axis))
        waiting[(shape,)].append((chain, at))
        if call.shapes and len(call.shapes[0]) > 1:
            waiting[call.shapes[0]].append((chain, at))
    return out


def _before(
    call: BodyCall,
    out: Shape,
    waiting: dict[_Key, deque[tuple[Chain, int]]],
    known: tuple[int, list[tuple[Taken, ...]] | None, list[frozenset[int]] | None],
) -> tuple[Chain | None, int, bool]:
    """The chain that a join continues, how much of it is old, and whether it is a list."""
    at, taken, made = known
    elements = call.shapes[0] if call.shapes else ()
    for number, shape in enumerate(elements):
        if shape == out or not prod(shape):
            continue
        found = _first(waiting.get((shape,)), lambda one, n=number: _is_it(taken, made, one, at, n))
        if found is not None:
            return found, prod(shape), False
    if len(elements) > 2:
        found = _first(
            waiting.get(elements[:-1]), lambda one: taken is None or _begins(taken, one, at)
        )
        if found is not None:
            return found, sum(map(prod, elements[:-1])), True
    return None, 0, False


def _first(some: deque[tuple[Chain, int]] | None, fits: object) -> Chain | None:
    """Remove and return the longest waiting chain that fits."""
    for one in list(some or ()):
        chain, at = one
        if fits(at):  # type: ignore[operator]
            some.remove(one)  # type: ignore[union-attr]
            return chain
    return None


def _is_it(
    taken: list[tuple[Taken, ...]] | None,
    made: list[frozenset[int]] | None,
    before: int,
    at: int,
    number: int,
) -> bool:
    """Whether an operand is the result of an earlier join, as far as known."""
    if taken is None or made is None:
        return True
    first = taken[at][0] if taken[at] else -1
    one = first[number] if isinstance(first, tuple) and number < len(first) else first
    return one in made[before]


def _begins(taken: list[tuple[Taken, ...]], before: int, at: int) -> bool:
    """Whether a list of tensors begins with an earlier list."""
    old, new = taken[before][:1], taken[at][:1]
    if not old or not new or isinstance(old[0], int) or isinstance(new[0], int):
        return False
    return new[0][: len(old[0])] == old[0]


def _joined(call: BodyCall) -> tuple[Shape, int] | None:
    """The shape of a join's result, and the axis along which it is longer than its input."""
    some = [shape for shape in call.shapes[0] if shape != (0,)] if call.shapes else []
    if not some:
        return None
    concrete = decode_part(call.concrete)
    if call.base in ("pad", "constant_pad_nd"):
        return _padded(some[0], concrete)
    axis = 0
    if call.base in ("cat", "concat", "concatenate", "stack"):
        text = str(concrete[1]) if isinstance(concrete, list) and len(concrete) > 1 else "0"
        axis = int(text) if re.fullmatch(r"-?\d+", text) else 0
    elif call.base == "hstack":
        axis = 0 if len(some[0]) == 1 else 1
    elif call.base == "column_stack":
        some, axis = [(*shape, 1) if len(shape) == 1 else shape for shape in some], 1
    else:
        some = [(1, *shape) if len(shape) == 1 else shape for shape in some]
    if call.base == "stack":
        shape = list(some[0])
        axis %= len(shape) + 1
        shape.insert(axis, len(some))
        return tuple(shape), axis
    rank = len(some[0])
    if not rank or any(len(shape) != rank for shape in some) or not -rank <= axis < rank:
        return None
    axis %= rank
    total = sum(shape[axis] for shape in some)
    return (*some[0][:axis], total, *some[0][axis + 1 :]), axis


def _padded(shape: Shape, concrete: object) -> tuple[Shape, int] | None:
    text = str(concrete[1]) if isinstance(concrete, list) and len(concrete) > 1 else ""
    sizes = [int(one) for one in re.findall(r"-?\d+", text)]
    if not sizes or len(sizes) > 2 * len(shape):
        return None
    out, axes = list(shape), []
    for number in range(len(sizes) // 2):
        more = sizes[2 * number] + sizes[2 * number + 1]
        if more:
            axes.append(len(shape) - 1 - number)
            out[axes[-1]] += more
    return (tuple(out), axes[0]) if len(axes) == 1 and tuple(out) != shape else None


def between(trace: Events, first: int, last: int) -> Ints:
    """The calls between these two events on their thread."""
    rows = calls(trace)
    rows = rows[trace.thread[rows] == trace.thread[first]]
    low, high = rows.searchsorted([first, last])
    inside: Ints = rows[low + 1 : high]
    return inside
