"""Questions about what encloses operators, and their order, that several rules ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.events import Kind
from pytest_torchprof.rules.names import OPERATOR, Names, are_named, rows_of

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Bools, Ints

__all__ = ["are_outermost", "has_frames", "outermost", "rows_of", "within"]

#: torch's own annotations, which it wrote as operators in 2021.
_ANNOTATION = Names(r"ProfilerStep\*?#|Optimizer\.\w+#|enumerate\(DataLoader\)#")


def within(trace: Trace, rows: Ints, is_root: Callable[[Ints], Bools]) -> Bools:
    """Which of these events are nested in a root, at whatever distance."""
    found = np.zeros(len(rows), bool)
    parent = trace.parent
    at = parent[rows]
    todo = np.flatnonzero(at >= 0)
    while len(todo):
        above = at[todo]
        hit = is_root(above)
        found[todo[hit]] = True
        todo = todo[~hit]
        at[todo] = parent[at[todo]]
        todo = todo[at[todo] >= 0]
    return found


def are_outermost(trace: Trace, rows: Ints) -> Bools:
    """Which of these events are operators that no other operator encloses; annotations may."""

    def is_operator(events: Ints) -> Bools:
        operator: Bools = trace.kind[events] == OPERATOR
        return operator & ~are_named(trace, events, _ANNOTATION)

    return is_operator(rows) & ~within(trace, rows, is_operator)


def outermost(trace: Trace) -> Ints:
    """All operators that no other operator encloses, in time order."""
    return trace.once(_outermost)


def _outermost(trace: Trace) -> Ints:
    rows = np.flatnonzero(trace.kind == OPERATOR)
    return rows[are_outermost(trace, rows)]


def has_frames(trace: Trace) -> bool:
    """Whether the trace has Python functions."""
    return trace.once(_has_frames)


def _has_frames(trace: Trace) -> bool:
    return bool((trace.kind == Kind.PYTHON).any())
