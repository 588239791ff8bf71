"""Which operators a user's code called, and in which step: the basis for counting repetition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.known_names import STEP
from pytest_torchprof.trace.name_index import (
    OPERATOR,
    Names,
    are_named,
    marks_named,
    named,
    operators_marked,
    operators_named,
)
from pytest_torchprof.trace.same_calls import once_nested
from pytest_torchprof.trace.tree import within

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Annotations around torch's own code: loading a batch, and the optimizers.
_LIBRARY = Names(r"enumerate\(DataLoader\)|Optimizer\.")
_STEP_ENDS = Names(r"Optimizer\.step#")
_STEP_BEGINS = Names(rf"{STEP.pattern}|enumerate\(DataLoader\)#")
_BACKWARD = Names(r"(?s:.*)Backward\d+$")
_CLOSED = Names(r"(?s:.*)(::|Backward\d+$)")
_AUTOGRAD = Names(r"autograd::")
_CALLED = Names(r"(?!autograd::|torch::)(?s:.*)::")


def called(trace: Events) -> Bools:
    """Operators called by code outside torch: not nested in an operator, nor in a backward.

    Operators in a `torch.autograd.Function`, a compiled region or an annotation count as called
    from outside; those in a DataLoader's fetch or an optimizer's step do not.
    """
    return once_nested(trace, _called)


def _called(trace: Events) -> Bools:
    found = np.zeros(len(trace), bool)
    rows = operators_named(trace, _CALLED)
    found[rows] = ~nesting.below(once_nested(trace, _closed), trace.parent, rows)
    return found


def may_be_called(trace: Events) -> Ints:
    """All of these operators, and some others: those not directly in torch's own, in time order."""
    return once_nested(trace, _may_be_called)


def _may_be_called(trace: Events) -> Ints:
    rows = operators_named(trace, _CALLED)
    found: Ints = rows[~are_closed(trace, trace.parent[rows])]
    return found


def are_called(trace: Events, rows: Ints) -> Bools:
    """The same for these events only."""
    found = are_named(trace, rows, _CALLED)
    found &= trace.kind[rows] == OPERATOR
    found[found] = ~nesting.below(once_nested(trace, _closed), trace.parent, rows[found])
    return found


def _closed(trace: Events) -> Bools:
    """For each event, whether nothing nested in it was called by code outside torch; the extra last
    entry, index -1, is false.
    """
    closed = operators_marked(trace, _CLOSED)
    closed[:-1] |= named(trace, _LIBRARY)
    return closed


def are_closed(trace: Events, rows: Ints) -> Bools:
    """Which of these events contain nothing called by code outside torch."""
    return once_nested(trace, _closed)[rows]


def in_backward(trace: Events, rows: Ints) -> Bools:
    """Which of these events belong to an autograd node, an optimizer, or a DataLoader."""

    def is_own(events: Ints) -> Bools:
        node = are_named(trace, events, _AUTOGRAD, _BACKWARD)
        node &= trace.kind[events] == OPERATOR
        return node | are_named(trace, events, _LIBRARY)

    return within(trace, rows, is_own)


def passes(trace: Events) -> Ints:
    """When nodes of backward passes began, in order."""
    return np.sort(trace.ts[marks_named(trace, _AUTOGRAD)])


def step_of(trace: Events, rows: Ints) -> Ints:
    """The number of the step in which each event begins.

    A step begins with torch's annotation of one, or with a fetch of a DataLoader, and ends with an
    optimizer's step; without any of these everything is one step.
    """
    return np.searchsorted(trace.once(step_bounds), trace.ts[rows], side="right")


def step_bounds(trace: Events) -> Ints:
    """When these steps begin or end, in order; empty if everything is one step."""
    begins, ends = marks_named(trace, _STEP_BEGINS), marks_named(trace, _STEP_ENDS)
    return np.sort(np.concatenate([trace.ts[begins], trace.ts[ends] + trace.dur[ends]]))


def sizes(dims: object) -> tuple[int, ...] | None:
    """A decoded shape, or None if it is not a shape."""
    if not isinstance(dims, list):
        return None
    for n in dims:
        if type(n) is not int or n < 0:
            return None
    return tuple(dims)
