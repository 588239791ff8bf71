"""Graphs of autograd: which calls recorded nodes, which a backward pass ran, and what joins them.

An operator's sequence number is the one that its thread's next node will have. torch records it
whenever grad mode is on, whether or not the operator makes a node, so an operator has made nodes if
the next operator's number is larger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import AutogradArgs, decode, decode_texts
from pytest_torchprof.trace.names import (
    OPERATOR,
    Names,
    are_named,
    marks_named,
    numbers_of,
    once_per_trace,
    operators_named,
)
from pytest_torchprof.trace.tree import are_engine_steps, calls, compiled, outermost_named, within

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.trace.tensors import Taken

#: A function compiled by torch.compile, recorded as an operator around what it calls.
_REGION: Final = Names(r"Torch-Compiled Region")
#: A step of the engine; each, except for accumulating gradients, runs an operator's node.
_RUNS: Final = Names(r"autograd::engine::evaluate_function: ")
_GRADIENT: Final = Names(r".*::AccumulateGrad$")
OPTIMIZER_STEP: Final = Names(r"Optimizer\.step#")
_DETACH: Final = "aten::detach"


class Recorded(NamedTuple):
    """Calls that recorded nodes, with the numbers of their first node and of the next one."""

    rows: Ints
    first: Ints
    after: Ints

    def where(self, chosen: Bools | Ints) -> Recorded:
        """Select some of them."""
        return Recorded(self.rows[chosen], self.first[chosen], self.after[chosen])


def has_regions(trace: Events) -> bool:
    """Whether compiled code ran, whose operators are nested in others but count as called."""
    return bool(len(operators_named(trace, _REGION)))


@once_per_trace
def forward_calls(trace: Events) -> Ints:
    """Like `tree.calls`, without the engine's steps, but with what compiled regions call."""
    rows = calls(trace)
    rows = rows[~are_engine_steps(trace, rows)]
    regions = operators_named(trace, _REGION)
    if not len(regions):
        return rows
    opened = np.zeros(len(trace), bool)
    opened[regions] = True
    operators = np.flatnonzero((trace.kind == OPERATOR) & ~opened)
    inside = operators[within(trace, operators, lambda at: opened[at])]
    inside = inside[~within(trace, inside, lambda at: (trace.kind[at] == OPERATOR) & ~opened[at])]
    inside = inside[~compiled(trace, inside)]
    rows = np.sort(np.concatenate([rows[~opened[rows]], inside]))
    return rows[np.argsort(trace.thread[rows], kind="stable")]


@once_per_trace
def recorded(trace: Events) -> Recorded:
    """All calls that recorded nodes of a graph, in time order."""
    rows = forward_calls(trace)
    first = numbers(trace, rows)
    rows, first = rows[first >= 0], first[first >= 0]
    last = np.diff(trace.thread[rows], append=-1) != 0
    after = np.append(first[1:], -1)
    for at in np.flatnonzero(last).tolist():  # the numbers of nodes before it are used up
        end = trace.ts[rows[at]] + trace.dur[rows[at]]
        inside = np.arange(rows[at], np.searchsorted(trace.ts, end))
        inside = inside[trace.thread[inside] == trace.thread[rows[at]]]
        after[at] = numbers(trace, inside[trace.kind[inside] == OPERATOR]).max(initial=-1)
    made = after > first
    # Nothing tells if the last call made one node: assume what calls of its name did before.
    name = trace.name[rows]
    alike = ~made & last & nesting.among(name, name[made])
    after[alike] = first[alike] + 1
    order = np.argsort(rows)
    return Recorded(rows, first, after).where(order[(made | alike)[order]])


def numbers(trace: Events, rows: Ints) -> Ints:
    """Sequence numbers, -1 for none."""
    # Operators that are called without a graph have none: to look for the word is quicker.
    raws = [
        raw if raw is not None and b"Sequence number" in raw else None
        for raw in trace.args[rows].tolist()
    ]
    return np.array([args.sequence for args in decode_texts(AutogradArgs, raws)], np.int64)


def node_steps(trace: Events) -> Ints:
    """The autograd engine's steps that ran a node made by an operator."""
    rows = calls(trace)
    return rows[are_engine_steps(trace, rows) & ~are_named(trace, rows, _GRADIENT)]


def are_used(trace: Events, found: Recorded) -> Bools:
    """Which of these calls made a node that a backward pass ran."""
    ran = nesting.distinct(numbers(trace, node_steps(trace)))
    used: Bools = np.searchsorted(ran, found.first) < np.searchsorted(ran, found.after)
    return used


def hides_backward(trace: Events) -> bool:
    """Whether an optimizer steps without a backward pass: its thread was not recorded."""
    ran = numbers(trace, node_steps(trace))
    return ran.max(initial=-1) < 0 and bool(len(marks_named(trace, OPTIMIZER_STEP)))


def all_used(trace: Events, named: Names) -> bool:
    """Whether each outermost operator with such a name has the number of a node that ran.

    A quick check that usually settles the matter in training. False settles nothing.
    """
    ran = trace.once(_ran)
    if len(ran) < 2 or has_regions(trace):
        return False
    layers = trace.args[outermost_named(trace, named)]
    return ran.issuperset([args.sequence for args in decode(AutogradArgs, layers)])


def _ran(trace: Events) -> set[int]:
    rows, args = engine_nodes(trace)
    ends = frozenset(numbers_of(trace, _GRADIENT))
    names = trace.name[rows].tolist()
    return {-1, *[one.sequence for one, name in zip(args, names, strict=True) if name not in ends]}


@once_per_trace
def engine_nodes(trace: Events) -> tuple[Ints, list[AutogradArgs]]:
    """The autograd engine's steps that run nodes, and the node that each one runs."""
    rows = operators_named(trace, _RUNS)
    return rows, decode(AutogradArgs, trace.args[rows])


@once_per_trace
def graphs(trace: Events, layer: Names) -> Ints | None:
    """For each call of `recorded`, the number of the pass that it is of; None without tensors.

    A layer belongs to the passes whose results it takes. What only joins results, such as a sum of
    losses, joins no passes; what is detached is of none.
    """
    found = recorded(trace)
    detached = operators_named(trace, _DETACH)
    rows = np.sort(np.concatenate([found.rows, detached[~nesting.among(detached, found.rows)]]))
    taken, made = trace.taken(rows), trace.made(rows)
    if taken is None or made is None:
        return None
    above, maker = dict[int, int](), dict[int, int]()
    sources = dict[int, set[int]]()  # of what no layer took so far

    def root(row: int) -> int:
        while above[row] != row:
            above[row] = row = above[above[row]]
        return row

    layers = are_named(trace, rows, layer).tolist()
    nodes = nesting.among(rows, found.rows).tolist()
    for row, node, is_layer, arguments, new in zip(
        rows.tolist(), nodes, layers, taken, made, strict=True
    ):
        operands = flat([arguments])
        if not node:
            for one in operands:
                maker.pop(one, None)
            continue
        above[row] = row
        sources[row] = {maker[one] for one in operands if one in maker}
        todo = [row] if is_layer else []
        while todo:
            one = todo.pop()
            above[root(one)] = root(row)
            todo += sources.pop(one, ())
        written = operands[:1] if trace.names[trace.name[row]].endswith("_") else []
        maker.update(dict.fromkeys([*new, *written], row))
    return np.array([root(row) for row in found.rows.tolist()], np.int64)


def flat(taken: Iterable[tuple[Taken, ...]]) -> list[int]:
    """The numbers of all tensors among the arguments of operators."""
    every = (one for arguments in taken for one in arguments)
    return [n for one in every for n in (one if isinstance(one, tuple) else (one,)) if n >= 0]
