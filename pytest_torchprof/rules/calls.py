"""Which operators a user's code called, and in which step: what repetition is counted in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.events import STEP, Kind

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Bools, Ints

#: Annotations of torch whose insides are torch's own: loading a batch, and the optimizers.
_LIBRARY = re.compile(r"^(enumerate\(DataLoader\)|Optimizer\.)")
_STEP_ENDS = re.compile(r"^Optimizer\.step#")
_BATCH = re.compile(r"^enumerate\(DataLoader\)#")
_BACKWARD = re.compile(r"Backward\d+$")


def called(trace: Trace) -> Bools:
    """Operators that code outside torch called: those in no other operator, nor in a backward.

    What `torch.autograd.Function`, compiled regions and annotations hold counts as outside; the
    inside of a DataLoader's fetch and of an optimizer's step does not.
    """
    return trace.once(_called)


def _called(trace: Trace) -> Bools:
    ops = trace.is_kind(Kind.OP)
    dispatched = ops & trace.names_where(lambda n: "::" in n)
    closed = dispatched | (ops & trace.names_where(_BACKWARD.search))
    closed |= trace.names_where(_LIBRARY.match)
    outside = dispatched & ~trace.names_where(lambda n: n.startswith(("autograd::", "torch::")))
    rows = np.flatnonzero(outside)
    above = trace.parent[rows]
    keep = np.ones(len(rows), bool)
    todo = np.flatnonzero(above >= 0)
    while len(todo):
        hit = closed[above[todo]]
        keep[todo[hit]] = False
        todo = todo[~hit]
        above[todo] = trace.parent[above[todo]]
        todo = todo[above[todo] >= 0]
    outside[rows[~keep]] = False
    return outside


def in_backward(trace: Trace, rows: Ints) -> Bools:
    """Which of these events an autograd node made, or an optimizer, or a DataLoader."""
    inside = trace.is_kind(Kind.OP) & trace.names_where(
        lambda n: n.startswith("autograd::") or _BACKWARD.search(n) is not None
    )
    inside |= trace.names_where(_LIBRARY.match)
    found = np.zeros(len(rows), bool)
    above = trace.parent[rows]
    todo = np.flatnonzero(above >= 0)
    while len(todo):
        found[todo] = inside[above[todo]]
        todo = todo[~found[todo]]
        above[todo] = trace.parent[above[todo]]
        todo = todo[above[todo] >= 0]
    return found


def step_of(trace: Trace, rows: Ints) -> Ints:
    """The number of the step that each event begins in.

    A step begins with torch's annotation of one, or with a fetch of a DataLoader, and ends with
    an optimizer's step; without any of these all is one step.
    """
    return np.searchsorted(trace.once(_bounds), trace.ts[rows], side="right")


def _bounds(trace: Trace) -> Ints:
    marks = trace.is_kind(Kind.ANNOTATION, Kind.OP)
    begins = marks & trace.names_where(lambda n: STEP.match(n) or _BATCH.match(n))
    ends = np.flatnonzero(marks & trace.names_where(_STEP_ENDS.match))
    return np.sort(np.concatenate([trace.ts[begins], trace.ts[ends] + trace.dur[ends]]))


def sizes(dims: object) -> tuple[int, ...] | None:
    """A decoded shape, or None where that is none."""
    if not isinstance(dims, list) or any(type(n) is not int or n < 0 for n in dims):
        return None
    return tuple(dims)


#: C++ types as torch calls them, where their own name says less.
_SHOWN = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long": "int64",
    "long int": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
}


def shown(dtype: str) -> str:
    """A dtype as people write it."""
    return _SHOWN.get(dtype, dtype.removeprefix("c10::"))
