"""Gradients that a backward pass leaves to someone else than ``.grad``: what hooks do with them.

A hook runs in a step of the engine, beside the step's node. Its operators show it; where it only
stores the gradient itself, the gradient's memory does, which is not released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.rules.evidence.calls import sizes
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import decode_list, decode_part
from pytest_torchprof.trace.name_index import OPERATOR, Names, are_named, operators_named
from pytest_torchprof.trace.tensors import addresses
from pytest_torchprof.trace.tree import marked

if TYPE_CHECKING:
    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_OPERATOR: Final = Names(r"(?!autograd::|torch::)(?s:.*)::")
#: What the engine itself runs beside a node: it adds gradients up, and reduces one that was
#: expanded, or casts it, to what the node takes.
_ENGINES: Final = Names(r"aten::(add_?|sum|view|to|_to_copy|real|view_as_real|select)$")
#: The engine's check for NaNs, if anomaly detection is on.
_ANOMALY: Final = Names(r"aten::(isnan|any|_is_any_true|item)$")
_NAN: Final = Names(r"aten::isnan$")
#: What a node runs to store a gradient: it takes it as it is, copies it, or adds it.
_STORES: Final = Names(
    r"aten::(detach|add_?|clone|copy_|new_empty\w*|empty\w*|coalesce|_?indices|_?values|to"
    r"|_to_copy|sparse_\w+|_sparse_\w+|_coalesced_)$"
)
#: What copies a gradient.
_COPY: Final = Names(r"aten::(copy_|clone)$")
#: Changes of a gradient after which the gradient of a sum is still the sum of the gradients, if
#: the other operand is a number.
_LINEAR: Final = Names(r"aten::(neg_?|mul_?|div_?)$")


def hooks_read(trace: Events, steps: Ints, puts: Ints) -> bool:
    """Whether hooks take the gradients of these steps of the engine, other than to scale them.

    ``puts``: those of their nodes that store gradients, in which other hooks run.
    """
    rows = np.flatnonzero(trace.kind == OPERATOR)
    above = trace.parent[rows]
    inside = marked(trace, puts)[above]
    foreign = rows[inside & ~are_named(trace, rows, _STORES)]
    if len(foreign):
        return True
    rows = rows[marked(trace, steps)[above]]
    rows = rows[are_named(trace, rows, _OPERATOR) & ~are_named(trace, rows, _ENGINES)]
    checked = trace.parent[rows[are_named(trace, rows, _NAN)]]
    rows = rows[~(are_named(trace, rows, _ANOMALY) & marked(trace, checked)[trace.parent[rows]])]
    scales = are_named(trace, rows, _LINEAR)
    return bool((~scales).any()) or not _by_numbers(trace, rows[scales])


def _by_numbers(trace: Events, rows: Ints) -> bool:
    """Whether all of these take one tensor with dimensions at most."""
    dims = (decode_part(args.dims) for args in trace.operands(rows))
    return all(isinstance(one, list) and sum(map(bool, map(sizes, one))) <= 1 for one in dims)


def outlive(trace: Events, steps: Ints, puts: Ints, adding: Bools, until: int) -> bool:
    """Whether memory that these steps allocated exists at a time, and holds no ``.grad``.

    ``puts``: the nodes of these steps that store gradients; ``adding``: those that add to one.
    Without memory events, whether one stores a copy, as it does if something else holds the
    gradient, among other reasons. False where gradients are sparse: their parts are unknown.
    A trace that does not identify tensors only tells whether there is more memory than that.
    """
    memory = trace.memory
    if not len(memory.event) or memory.addr is None:
        copies = operators_named(trace, _COPY)
        return bool(marked(trace, puts)[trace.parent[copies]].any())
    if any(map(_is_sparse, trace.operands(puts))):
        return False
    at = trace.ts[memory.event]
    during = np.flatnonzero((at >= trace.ts[steps[0]]) & (at < until))
    # An address is allocated and freed in turn: the last event says which.
    _, last = np.unique(memory.addr[during][::-1], return_index=True)
    alive = during[::-1][last]
    alive = np.sort(alive[memory.bytes[alive] > 0])
    around = trace.enclosing(memory.event[alive])
    alive, around = (one[_nearest(trace, steps, around) >= 0] for one in (alive, around))
    if not len(alive):
        return False
    # A node stores a copy, the sum of both, or else the gradient that it takes.
    within = _nearest(trace, puts, around)
    stored = nesting.distinct(within[within >= 0])
    if np.count_nonzero(within >= 0) > len(stored):
        return True
    moved = ~adding & ~nesting.among(puts, stored)
    rest, begins = alive[within < 0], addresses(trace, puts)
    if begins is None:
        return len(rest) > int(np.count_nonzero(moved))
    return bool((~nesting.among(memory.addr[rest], np.array(begins)[moved])).any())


def _is_sparse(args: OpArgs) -> bool:
    """Whether the first tensor has dimensions, but no strides."""
    dims, strides = decode_list(args.dims), decode_list(args.strides)
    return bool(dims and dims[0]) and strides[:1] == [[]]


def _nearest(trace: Events, marks: Ints, events: Ints) -> Ints:
    return nesting.nearest(marked(trace, marks), trace.parent, events)
