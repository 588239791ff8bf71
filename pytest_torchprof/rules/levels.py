"""What happens on one level of a thread: operators as the user's code called them, one by one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.events import Kind
from pytest_torchprof.rules.names import ANNOTATION, Names, are_named, events_named, operators_named
from pytest_torchprof.rules.tree import has_frames, outermost, within

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Bools, Ints

#: A step of the autograd engine, with the node that it runs; before torch 1.9 just the node.
BACKWARD = r"autograd::engine::evaluate_function: |torch::autograd::\w+$|\w+Backward\d*$"
_ENGINE = Names(BACKWARD)
#: torch's annotation around a fetch of a DataLoader, with workers or without.
FETCH = "enumerate(DataLoader)#"
#: torch.compile at work: it runs operators on tensors that hold nothing.
_COMPILING = Names(r"dynamo$|entire_(frame|backward)_compile|.*\(dynamo_timed\)")


def calls(trace: Trace) -> Ints:
    """Operators that the user's code called, thread by thread, each in time order.

    Annotations may enclose them. Not what runs while torch compiles; the autograd engine's steps
    are among them.
    """
    return trace.once(_calls)


def _calls(trace: Trace) -> Ints:
    rows = outermost(trace)
    rows = rows[~compiled(trace, rows)]
    return rows[np.argsort(trace.thread[rows], kind="stable")]


def compiled(trace: Trace, rows: Ints) -> Bools:
    """Which of these events happened while torch compiled something."""

    def compiles(events: Ints) -> Bools:
        annotation: Bools = trace.kind[events] == ANNOTATION
        return annotation & are_named(trace, events, _COMPILING)

    if not compiles(events_named(trace, _COMPILING)).any():
        return np.zeros(len(rows), bool)
    return within(trace, rows, compiles)


def engine_steps(trace: Trace) -> Ints:
    """The autograd engine's steps, in time order."""
    return trace.once(operators_named, _ENGINE)


def are_engine_steps(trace: Trace, operators: Ints) -> Bools:
    """Which of these operators are."""
    return are_named(trace, operators, _ENGINE)


def frames_around(trace: Trace, frame: re.Pattern[str], rows: Ints) -> Ints:
    """The innermost Python function of such a name around each of these events, or -1."""
    found = np.full(len(rows), -1, np.int64)
    if not len(rows) or not has_frames(trace):
        return found
    marked = trace.is_kind(Kind.PYTHON) & trace.names_where(frame.search)
    if not marked.any():
        return found
    above = trace.frames[0]
    at = above[rows]
    todo = np.flatnonzero(at >= 0)
    while len(todo):
        hit = marked[at[todo]]
        found[todo[hit]] = at[todo[hit]]
        todo = todo[~hit]
        at[todo] = above[at[todo]]
        todo = todo[at[todo] >= 0]
    return found
