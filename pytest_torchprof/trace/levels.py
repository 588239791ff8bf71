"""The operators that the user's code called directly, thread by thread."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.name_index import (
    ANNOTATION,
    Names,
    are_named,
    count,
    events_named,
    operators_between,
    operators_named,
)
from pytest_torchprof.trace.tree import has_frames, outermost, within

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: A step of the autograd engine, with the node that it runs; before torch 1.9 only the node.
BACKWARD = r"autograd::engine::evaluate_function: |torch::autograd::\w+$|\w+Backward\d*$"
_ENGINE = Names(BACKWARD)
#: torch's annotation around a fetch of a DataLoader, with workers or without.
FETCH = "enumerate(DataLoader)#"
#: torch.compile at work: it runs operators on fake tensors.
COMPILING = Names(r"dynamo$|entire_(frame|backward)_compile|.*\(dynamo_timed\)")
#: How ``torch.autograd.gradcheck`` takes a difference, after it has restored an element.
_DIFFERENCE = [f"aten::{name}" for name in ("clone", "copy_", "sub", "div", "detach", "reshape")]


def calls(trace: Events) -> Ints:
    """Operators that the user's code called, thread by thread, each in time order.

    Annotations may enclose them. Without what runs while torch compiles; the autograd engine's
    steps are included.
    """
    return trace.once(_calls)


def _calls(trace: Events) -> Ints:
    rows = outermost(trace)
    rows = rows[~compiled(trace, rows)]
    return rows[np.argsort(trace.thread[rows], kind="stable")]


def compiled(trace: Events, rows: Ints) -> Bools:
    """Which of these events happened while torch compiled something."""

    def compiles(events: Ints) -> Bools:
        annotation: Bools = trace.kind[events] == ANNOTATION
        return annotation & are_named(trace, events, COMPILING)

    if not compiles(events_named(trace, COMPILING)).any():
        return np.zeros(len(rows), bool)
    return within(trace, rows, compiles)


def engine_steps(trace: Events) -> Ints:
    """The autograd engine's steps, in time order."""
    return trace.once(operators_named, _ENGINE)


def engine_steps_between(trace: Events, start: int, stop: int) -> Ints:
    """Those of the autograd engine's steps from one event up to another one, in time order."""
    return operators_between(trace, start, stop, _ENGINE)


def are_engine_steps(trace: Events, operators: Ints) -> Bools:
    """Which of these operators are steps of the autograd engine."""
    return are_named(trace, operators, _ENGINE)


def are_gradchecked(trace: Events, rows: Ints) -> Bools:
    """Which of these calls are on elements of a type that ``torch.autograd.gradcheck`` checks here.

    It calls the checked function repeatedly, changes elements one by one in between, and fills its
    tables row by row: this is torch's own code, and intended.
    """
    checked = trace.once(_gradchecked)
    if not checked or not len(rows):
        return np.zeros(len(rows), bool)
    return np.array([one in checked for one in _elements(trace, rows)])


def _gradchecked(trace: Events) -> set[str]:
    """The types of elements that gradcheck takes differences of."""
    if not all(count(trace, name) for name in _DIFFERENCE):
        return set()
    rows = calls(trace)
    found = np.ones(max(len(rows) - len(_DIFFERENCE) + 1, 0), bool)
    for away, name in enumerate(_DIFFERENCE):
        found &= are_named(trace, rows[away : away + len(found)], name)
    return set(_elements(trace, rows[np.flatnonzero(found) + _DIFFERENCE.index("aten::sub")]))


def _elements(trace: Events, rows: Ints) -> list[str]:
    """The first operand's element type, for a complex one that of its parts; empty if unknown."""
    types = [decode_part(args.types) for args in trace.operands(rows)]
    return [re.sub(r"c10::complex<(\w+)>", r"\1", str(one[0])) if one else "" for one in types]


def frames_around(trace: Events, frame: re.Pattern[str], rows: Ints) -> Ints:
    """The innermost Python function with such a name around each of these events, or -1."""
    if len(rows) and has_frames(trace):
        marked = trace.is_kind(Kind.PYTHON) & trace.names_where(frame.search)
        if marked.any():
            above = trace.frames[0]
            return nesting.nearest(marked, above, above[rows])
    return np.full(len(rows), -1, np.int64)
