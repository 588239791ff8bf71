"""What happens on one level of a thread: operators as the user's code called them, one by one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof import nesting
from pytest_torchprof.events import Kind
from pytest_torchprof.rules.tree import outermost

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Bools, Ints

#: A step of the autograd engine, with the node that it runs; before torch 1.9 just the node.
BACKWARD = r"autograd::engine::evaluate_function: |torch::autograd::\w+$|\w+Backward\d*$"
_ENGINE = re.compile(BACKWARD)
#: torch's annotation around a fetch of a DataLoader, with workers or without.
FETCH = "enumerate(DataLoader)#"
#: torch.compile at work: it runs operators on tensors that hold nothing.
_COMPILING = re.compile(r"dynamo$|entire_(frame|backward)_compile|.*\(dynamo_timed\)")


#: Whether a name begins with a match, by expression, for all traces of the process.
_VERDICTS: dict[re.Pattern[str], dict[str, bool]] = {}
_MOST_NAMES = 100_000


def named(trace: Trace, pattern: re.Pattern[str]) -> Bools:
    """Events whose name begins with a match; each name is looked at once in a process."""
    known = _VERDICTS.setdefault(pattern, {})
    if len(known) > _MOST_NAMES:
        known.clear()
    try:
        verdicts = [known[name] for name in trace.names]
    except KeyError:
        known.update((name, pattern.match(name) is not None) for name in trace.names)
        verdicts = [known[name] for name in trace.names]
    return np.array(verdicts, bool)[trace.name]


def calls(trace: Trace) -> Ints:
    """Operators that the user's code called, thread by thread, each in time order.

    Annotations may enclose them. Not what runs while torch compiles; the autograd engine's steps
    are among them.
    """
    return trace.once(_calls)


def _calls(trace: Trace) -> Ints:
    rows = np.flatnonzero(outermost(trace))
    rows = rows[~compiled(trace, rows)]
    return rows[np.argsort(trace.thread[rows], kind="stable")]


def compiled(trace: Trace, rows: Ints) -> Bools:
    """Which of these events happened while torch compiled something."""
    compiling = trace.is_kind(Kind.ANNOTATION) & named(trace, _COMPILING)
    if not compiling.any():
        return np.zeros(len(rows), bool)
    return nesting.below(compiling, trace.parent, rows)


def marked(trace: Trace, pattern: re.Pattern[str]) -> Bools:
    """Annotations whose name begins with a match; some versions write them as operators."""
    return trace.is_kind(Kind.ANNOTATION, Kind.OP) & named(trace, pattern)


def engine_steps(trace: Trace) -> Bools:
    """The autograd engine's steps."""
    return trace.once(_engine_steps)


def _engine_steps(trace: Trace) -> Bools:
    return trace.is_kind(Kind.OP) & named(trace, _ENGINE)


def frames_around(trace: Trace, frame: re.Pattern[str], rows: Ints) -> Ints:
    """The innermost Python function of such a name around each of these events, or -1."""
    found = np.full(len(rows), -1, np.int64)
    marked = trace.is_kind(Kind.PYTHON)
    if not len(rows) or not marked.any():
        return found
    marked &= trace.names_where(frame.search)
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
