"""Questions about the order of operators that several rules ask."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.events import Kind

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Bools, Ints


#: torch's own annotations, which it wrote as operators in 2021.
_ANNOTATION = re.compile(r"ProfilerStep\*?#|Optimizer\.\w+#|enumerate\(DataLoader\)#")


def rows_of(trace: Trace, *names: str) -> Ints:
    """Selected operators of any of these names, in time order."""
    wanted = trace.once(_number_of)
    numbers = [wanted[name] for name in names if name in wanted]
    if not numbers:
        return np.zeros(0, np.int64)
    found = np.isin(trace.name, np.array(numbers, trace.name.dtype))
    return np.flatnonzero(found & trace.selection & trace.is_kind(Kind.OP))


def _number_of(trace: Trace) -> dict[str, int]:
    return {name: number for number, name in enumerate(trace.names)}


def outermost(trace: Trace) -> Bools:
    """Operators that no other operator encloses; annotations may."""
    return trace.once(_outermost)


def _outermost(trace: Trace) -> Bools:
    ops = trace.is_kind(Kind.OP) & ~trace.names_where(_ANNOTATION.match)
    inside = np.zeros(len(trace), bool)
    above = trace.parent.copy()
    todo = np.flatnonzero(ops & (above >= 0))
    while len(todo):
        at = above[todo]
        inside[todo] = ops[at]
        todo = todo[~ops[at]]
        above[todo] = trace.parent[above[todo]]
        todo = todo[above[todo] >= 0]
    return ops & ~inside


def next_sibling(trace: Trace) -> Ints:
    """The next operator of the same thread and parent after each operator, or -1."""
    return trace.once(_next_sibling)


def _next_sibling(trace: Trace) -> Ints:
    rows = np.flatnonzero(trace.is_kind(Kind.OP))
    parent, thread = trace.parent[rows], trace.thread[rows]
    order = np.lexsort((rows, parent, thread))
    a, b = order[:-1], order[1:]
    same = (parent[a] == parent[b]) & (thread[a] == thread[b])
    out = np.full(len(trace), -1, np.int64)
    out[rows[a[same]]] = rows[b[same]]
    return out
