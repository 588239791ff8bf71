"""What encloses operators, and their order, for several rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.name_index import (
    OPERATOR,
    Names,
    are_operators,
    events_named,
    operators_named,
)
from pytest_torchprof.trace.same_calls import once_nested

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.name_index import Name
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Annotations around an optimizer's work, including ``zero_grad``.
_OPTIMIZER = Names(r"Optimizer\.")


def within(trace: Events, rows: Ints, is_root: Callable[[Ints], Bools]) -> Bools:
    """Which of these events are nested in a root, at any depth."""
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


def within_named(trace: Events, rows: Ints, *names: Names) -> Bools:
    """Which of these events are nested in an event with such a name."""
    roots = events_named(trace, *names)
    if not (len(roots) and len(rows)):
        return np.zeros(len(rows), bool)
    return nesting.below(marked(trace, roots), trace.parent, rows)


def operators_around(trace: Events, events: Ints) -> Ints:
    """The innermost operator around each of these events, itself included; -1 for none."""
    return nesting.nearest(trace.kind == OPERATOR, trace.parent, events)


def parents(trace: Events, events: Ints) -> Ints:
    """The event that encloses each of these; -1 if there is none, and for -1."""
    return np.where(events >= 0, trace.parent[events], -1)


def marked(trace: Events, rows: Ints) -> Bools:
    """For each event whether it is among these; the extra last entry, index -1, is false."""
    mark = np.zeros(len(trace) + 1, bool)
    mark[rows] = True
    return mark


def outermost(trace: Events) -> Ints:
    """All operators that no other operator encloses, in time order; annotations may."""
    return once_nested(trace, _outermost)


def _outermost(trace: Events) -> Ints:
    return once_nested(trace, _on_top).nonzero()[0]


def are_outermost(trace: Events, rows: Ints) -> Bools:
    """Which of these events are `outermost`."""
    return once_nested(trace, _on_top)[rows]


def outermost_named(trace: Events, *names: Name) -> Ints:
    """All operators of these names that are `outermost`, in time order."""
    return once_nested(trace, _outermost_named, *names)


def _outermost_named(trace: Events, *names: Name) -> Ints:
    rows = operators_named(trace, *names)
    return rows[once_nested(trace, _on_top)[rows]]


def are_free(trace: Events, rows: Ints) -> Bools:
    """Which of these events are operators that no other encloses, nor an optimizer of torch."""
    found = are_outermost(trace, rows)
    optimizers = once_nested(trace, _optimizers)
    if optimizers is not None:
        found[found] = ~nesting.below(optimizers, trace.parent, rows[found])
    return found


def _optimizers(trace: Events) -> Bools | None:
    """Annotations of optimizers, as from `marked`; None if there are none."""
    marks = events_named(trace, _OPTIMIZER)
    return marked(trace, marks) if len(marks) else None


def free_named(trace: Events, *names: Name) -> Ints:
    """All such operators of these names, in time order."""
    return once_nested(trace, _free_named, *names)


def _free_named(trace: Events, *names: Name) -> Ints:
    rows = outermost_named(trace, *names)
    optimizers = once_nested(trace, _optimizers)
    if optimizers is None or not len(rows):
        return rows
    rows = rows[~optimizers[trace.parent[rows]]]  # mostly the parent is one already
    return rows[~nesting.below(optimizers, trace.parent, rows)] if len(rows) else rows


def _on_top(trace: Events) -> Bools:
    """For each event whether it is `outermost`; the extra last entry, index -1, is false."""
    operators, parent = are_operators(trace), trace.parent
    found = operators.copy()
    found[:-1] &= ~operators[parent]
    rows = found.nonzero()[0]  # mostly the parent is one already
    found[rows[nesting.below(operators, parent, rows)]] = False
    return found


def has_frames(trace: Events) -> bool:
    """Whether the trace has Python functions."""
    return trace.once(_has_frames)


def _has_frames(trace: Events) -> bool:
    return bool((trace.kind == Kind.PYTHON).any())
