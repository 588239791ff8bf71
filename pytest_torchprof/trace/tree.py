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
    are_named,
    are_operators,
    events_named,
)

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
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
    return trace.once(_outermost)


def are_outermost(trace: Events, rows: Ints) -> Bools:
    """Which of these events are `outermost`."""
    return trace.once(_are_outermost)[rows]


def are_free(trace: Events, rows: Ints) -> Bools:
    """Which of these events are operators that no other encloses, nor an optimizer of torch."""
    return trace.once(_are_free)[rows]


def free(trace: Events) -> Ints:
    """All such operators, in time order."""
    return trace.once(_free)


def outermost_named(trace: Events, names: Names) -> Ints:
    """All operators with such a name that are `outermost`, in time order."""
    return trace.once(_outermost_named, names)


def _outermost_named(trace: Events, names: Names) -> Ints:
    rows = outermost(trace)
    found: Ints = rows[are_named(trace, rows, names)]
    return found


def _outermost(trace: Events) -> Ints:
    return _on_top(are_operators(trace), trace.parent)


def _are_outermost(trace: Events) -> Bools:
    return marked(trace, outermost(trace))


def _free(trace: Events) -> Ints:
    operators = are_operators(trace)
    marks = events_named(trace, _OPTIMIZER)
    if not len(marks):
        return outermost(trace)
    hide = operators.copy()
    hide[marks] = True
    rows = _on_top(hide, trace.parent)
    return rows[operators[rows]]


def _are_free(trace: Events) -> Bools:
    return marked(trace, free(trace))


def _on_top(hide: Bools, parent: Ints) -> Ints:
    """Which of these events are not nested in others of them; ``hide`` is as from `marked`."""
    # Mostly the parent is one already, so few are looked at.
    rows = (hide[:-1] > hide[parent]).nonzero()[0]
    found: Ints = rows[~nesting.below(hide, parent, rows)]
    return found


def has_frames(trace: Events) -> bool:
    """Whether the trace has Python functions."""
    return trace.once(_has_frames)


def _has_frames(trace: Events) -> bool:
    return bool((trace.kind == Kind.PYTHON).any())
