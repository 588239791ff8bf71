"""Markers of lines, modules and steps in a trace: what is around each event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.known_names import REGION

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Prefixes of the markers' names; a number follows. The last is around an optimizer's step or a
#: loader's fetch, with the number of the line that constructed the optimizer or the loader.
LINE, MODULE, CONSTRUCTOR = "torchprof::line#", "torchprof::module#", "torchprof::constructor#"
MARKERS: Final = (LINE, MODULE, CONSTRUCTOR)

#: torch's operator around the backward of one node of the graph.
_BACKWARD = "autograd::engine::evaluate_function: "


def lines_with_events(trace: Events) -> tuple[frozenset[int], frozenset[int]]:
    """The numbers of the lines that are the innermost around some event, and of those around any.

    Markers are no events here.
    """
    line, levels = _numbered(trace, LINE), list(nesting.levels(trace.depth))
    innermost = line.copy()
    for level in levels:
        around = innermost[trace.parent[level]]
        innermost[level] = np.where(line[level] >= 0, line[level], around)
    real = trace.is_kind(Kind.OP, Kind.ANNOTATION, Kind.RUNTIME)
    inside = real & ~trace.names_where(lambda name: name.startswith(MARKERS))
    found = nesting.distinct(innermost[inside])
    for level in reversed(levels):
        inside[trace.parent[level[inside[level]]]] = True
    above = nesting.distinct(line[inside])
    return frozenset(found.tolist()), frozenset(above.tolist())


class _Node(msgspec.Struct, gc=False):
    """The number of an operator's node in the autograd graph, which its backward shares."""

    number: int = msgspec.field(name="Sequence number", default=-1)


_NODES = msgspec.json.Decoder(list[_Node | None], strict=False)


def labels(trace: Events) -> tuple[Ints, Ints]:
    """The numbers of the innermost line's and module's marker around each event, -1 for none.

    A node's backward has the place of its forward, unless it runs lines of its own.
    """
    own = [_numbered(trace, prefix) for prefix in (LINE, MODULE)]
    begun, lines = _begun_in(trace, own[0])
    own[0][begun] = lines
    found = [_spread(trace, numbers) for numbers in own]
    backward, forward = _nodes(trace)
    for numbers, known in zip(own, found, strict=True):
        numbers[backward] = np.where(found[0][forward] >= 0, known[forward], -1)
    return _spread(trace, own[0]), _spread(trace, own[1])


def _spread(trace: Events, own: Ints) -> Ints:
    """Each event's own number, else that of what is around it; -1 for none."""
    out = own.copy()
    for level in nesting.levels(trace.depth):
        out[level] = np.where(own[level] >= 0, own[level], out[trace.parent[level]])
    return out


def _begun_in(trace: Events, line: Ints) -> tuple[Ints, Ints]:
    """Annotations that begin while a line runs, and that line: they may end lines later."""
    marks = np.flatnonzero(line >= 0)
    real = ~trace.names_where(lambda name: name.startswith((*MARKERS, REGION)))
    rows = np.flatnonzero(trace.is_kind(Kind.ANNOTATION) & real)
    around = np.full(len(rows), -1, np.int64)
    above = nesting.nearest(line >= 0, trace.parent, trace.parent[marks])
    for thread in nesting.distinct(trace.thread[rows]).tolist():
        own = marks[trace.thread[marks] == thread]
        mine = np.flatnonzero(trace.thread[rows] == thread)
        at = np.searchsorted(trace.ts[own], trace.ts[rows[mine]], side="right") - 1
        around[mine] = np.append(own, -1)[at]
    ends = trace.ts + trace.dur
    while (over := (around >= 0) & (ends[around] <= trace.ts[rows])).any():
        around[over] = above[np.searchsorted(marks, around[over])]
    return rows[around >= 0], line[around[around >= 0]]


def outside_modules(trace: Events) -> tuple[Ints, list[tuple[int, int]], list[tuple[int, int]]]:
    """What is around each event outside of modules: its number; for each number the path of lines
    and the outermost module; and the paths, as from `nesting.paths`.
    """
    line, module = _numbered(trace, LINE), _numbered(trace, MODULE)
    for level in nesting.levels(trace.depth):
        above = module[trace.parent[level]]
        module[level] = np.where(above >= 0, above, module[level])
    path, chain = nesting.paths(trace.parent, trace.depth, np.where(module < 0, line, -1))
    width = int(module.max(initial=-1)) + 2
    keys, number = np.unique((path + 1) * width + module + 1, return_inverse=True)
    outer = [(key // width - 1, key % width - 1) for key in keys.tolist()]
    return number.astype(np.int64), outer, chain


def constructors(trace: Events) -> Ints:
    """The number of the line that constructed the optimizer or loader whose step or fetch is around
    each event, -1 for none.
    """
    return _spread(trace, _numbered(trace, CONSTRUCTOR))


def module_calls(trace: Events) -> Ints:
    """The outermost marker of a module around each event, -1 for none."""
    call: Ints = np.where(_numbered(trace, MODULE) >= 0, np.arange(len(trace)), -1)
    for level in nesting.levels(trace.depth):
        above = call[trace.parent[level]]
        call[level] = np.where(above >= 0, above, call[level])
    return call


class LineMarks(NamedTuple):
    """Markers of lines: the number of each one's line, and the marker around each."""

    line: Sequence[int]
    above: Sequence[int]

    def around(self, mark: int) -> list[int]:
        """This marker and those around it, from the outermost in; none of -1."""
        found = []
        while mark >= 0:
            found.append(mark)
            mark = self.above[mark]
        return found[::-1]


def line_marks(trace: Events) -> tuple[Ints, LineMarks]:
    """The number of the innermost line's marker around each event, -1 for none; and all markers."""
    line = _numbered(trace, LINE)
    rows = np.flatnonzero(line >= 0)
    own = np.full(len(trace), -1, np.int64)
    own[rows] = np.arange(len(rows))
    around = own.copy()
    for level in nesting.levels(trace.depth):
        around[level] = np.where(own[level] >= 0, own[level], around[trace.parent[level]])
    above = trace.parent[rows]
    above = np.where(above >= 0, around[above], -1)
    return around, LineMarks(line[rows].tolist(), above.tolist())


def _numbered(trace: Events, prefix: str) -> Ints:
    number = [int(n[len(prefix) :]) if n.startswith(prefix) else -1 for n in trace.names]
    return np.array(number, np.int64)[trace.name] if number else np.zeros(0, np.int64)


def _nodes(trace: Events) -> tuple[Ints, Ints]:
    """Backwards of nodes, and the operator that created each node."""
    roots = trace.is_kind(Kind.OP) & trace.names_where(lambda name: name.startswith(_BACKWARD))
    backward = np.flatnonzero(roots)
    if not len(backward):
        return backward, backward
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & ~roots)
    ops = ops[~nesting.below(roots, trace.parent, ops)]
    wanted, made = _node_numbers(trace, backward), _node_numbers(trace, ops)
    ops, made = ops[made >= 0], made[made >= 0]
    if not len(ops):
        return ops, ops
    # Operators that create no node carry the number of the next one, so the last one created it.
    numbers, last = np.unique(made[::-1], return_index=True)
    at = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    hit: Bools = numbers[at] == wanted
    return backward[hit], ops[::-1][last[at[hit]]]


def _node_numbers(trace: Events, events: Ints) -> Ints:
    nodes = _NODES.decode(trace.args[events].as_list())
    return np.array([-1 if node is None else node.number for node in nodes], np.int64)
