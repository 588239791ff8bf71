"""Passes through layers that autograd records, and what joins them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import (
    Names,
    are_named,
    marks_named,
    once_per_trace,
    operators_named,
)
from pytest_torchprof.trace.tree import node_steps, numbers, recorded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.trace.tensors import Taken

OPTIMIZER_STEP: Final = Names(r"Optimizer\.step#")
_DETACH: Final = "aten::detach"


def hides_backward(trace: Events) -> bool:
    """Whether an optimizer steps without a backward pass: its thread was not recorded."""
    ran = numbers(trace, node_steps(trace))
    return ran.max(initial=-1) < 0 and bool(len(marks_named(trace, OPTIMIZER_STEP)))


class Passes(NamedTuple):
    """The pass that each call of `recorded` is of, by number; and of the calls whose results no
    layer took, whose results they took.
    """

    number: Ints
    sources: Mapping[int, set[int]]

    def joined(self, row: int, of: Mapping[int, int]) -> set[int]:
        """The passes whose results a call has taken; ``of``: the pass of each call."""
        found, seen, todo = set[int](), set[int](), [row]
        while todo:
            one = todo.pop()
            if one not in self.sources:
                found.add(of[one])
            elif one not in seen:
                seen.add(one)
                todo += self.sources[one]
        return found


@once_per_trace
def forward_passes(trace: Events, layer: Names) -> Passes | None:
    """Which recorded calls are of one pass through layers; None if tensors are not identified.

    A layer belongs to the passes whose results it takes. What only joins results, such as a sum of
    losses, joins no passes; what is detached is of none.
    """
    found = recorded(trace)
    detached = operators_named(trace, _DETACH)
    rows = np.sort(np.concatenate([found.rows, detached[~nesting.among(detached, found.rows)]]))
    taken, made = trace.taken(rows), trace.made(rows)
    if taken is None or made is None:
        return None
    above, maker, sources = dict[int, int](), dict[int, int](), dict[int, set[int]]()

    def root(row: int) -> int:
        while above[row] != row:
            above[row] = row = above[above[row]]
        return row

    layers = are_named(trace, rows, layer).tolist()
    nodes = nesting.among(rows, found.rows).tolist()
    each = zip(rows.tolist(), nodes, layers, taken, made, strict=True)
    for row, node, is_layer, arguments, new in each:
        operands = flat([arguments])
        if not node:
            for one in operands:
                maker.pop(one, None)
            continue
        above[row] = row
        sources[row] = {maker[one] for one in operands if one in maker}
        todo = [row] if is_layer else []
        while todo:
            source = todo.pop()
            above[root(source)] = root(row)
            todo += sources.pop(source, ())
        written = operands[:1] if trace.names[trace.name[row]].endswith("_") else []
        maker.update(dict.fromkeys([*new, *written], row))
    return Passes(np.array([root(row) for row in found.rows.tolist()], np.int64), sources)


def flat(taken: Iterable[tuple[Taken, ...]]) -> list[int]:
    """The numbers of all tensors among the arguments of operators."""
    every = (one for arguments in taken for one in arguments)
    return [n for one in every for n in (one if isinstance(one, tuple) else (one,)) if n >= 0]
