"""Which operators a user's code called, and in which step: what repetition is counted in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.event_names import STEP
from pytest_torchprof.trace.names import (
    OPERATOR,
    Names,
    are_named,
    marks_named,
    named,
)
from pytest_torchprof.trace.tree import within

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Trace
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Annotations of torch whose insides are torch's own: loading a batch, and the optimizers.
_LIBRARY = Names(r"enumerate\(DataLoader\)|Optimizer\.")
_STEP_ENDS = Names(r"Optimizer\.step#")
_STEP_BEGINS = Names(rf"{STEP.pattern}|enumerate\(DataLoader\)#")
_BACKWARD = Names(r"(?s:.*)Backward\d+$")
_CLOSED = Names(r"(?s:.*)(::|Backward\d+$)")
_AUTOGRAD = Names(r"autograd::")
_CALLED = Names(r"(?!autograd::|torch::)(?s:.*)::")


def called(trace: Trace) -> Bools:
    """Operators that code outside torch called: those in no other operator, nor in a backward.

    What `torch.autograd.Function`, compiled regions and annotations hold counts as outside; the
    inside of a DataLoader's fetch and of an optimizer's step does not.
    """
    return trace.once(_called)


def _called(trace: Trace) -> Bools:
    found = named(trace, _CALLED)
    found &= trace.kind == OPERATOR
    rows = found.nonzero()[0]
    found[rows] = ~nesting.below(trace.once(_closed), trace.parent, rows)
    return found


def are_called(trace: Trace, rows: Ints) -> Bools:
    """The same of these events alone."""
    found = are_named(trace, rows, _CALLED)
    found &= trace.kind[rows] == OPERATOR
    found[found] = ~nesting.below(trace.once(_closed), trace.parent, rows[found])
    return found


def _closed(trace: Trace) -> Bools:
    """Of each event, whether it holds nothing that code outside torch called."""
    closed = named(trace, _CLOSED)
    closed &= trace.kind == OPERATOR
    return closed | named(trace, _LIBRARY)


def are_closed(trace: Trace, rows: Ints) -> Bools:
    """Which of these events hold nothing that code outside torch called."""
    return trace.once(_closed)[rows] & (rows >= 0)


def in_backward(trace: Trace, rows: Ints) -> Bools:
    """Which of these events an autograd node made, or an optimizer, or a DataLoader."""

    def is_own(events: Ints) -> Bools:
        node = are_named(trace, events, _AUTOGRAD, _BACKWARD)
        node &= trace.kind[events] == OPERATOR
        return node | are_named(trace, events, _LIBRARY)

    return within(trace, rows, is_own)


def passes(trace: Trace) -> Ints:
    """When nodes of backward passes began, in order."""
    return np.sort(trace.ts[marks_named(trace, _AUTOGRAD)])


def step_of(trace: Trace, rows: Ints) -> Ints:
    """The number of the step that each event begins in.

    A step begins with torch's annotation of one, or with a fetch of a DataLoader, and ends with
    an optimizer's step; without any of these all is one step.
    """
    return np.searchsorted(trace.once(_bounds), trace.ts[rows], side="right")


def _bounds(trace: Trace) -> Ints:
    begins, ends = marks_named(trace, _STEP_BEGINS), marks_named(trace, _STEP_ENDS)
    return np.sort(np.concatenate([trace.ts[begins], trace.ts[ends] + trace.dur[ends]]))


def sizes(dims: object) -> tuple[int, ...] | None:
    """A decoded shape, or None where that is none."""
    if not isinstance(dims, list) or any(type(n) is not int or n < 0 for n in dims):
        return None
    return tuple(dims)
