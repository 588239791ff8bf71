"""Map operators of the backward pass to their forward operators."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import AutogradArgs, decode
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.nesting import distinct

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: The engine's annotation around a node of the graph, and the nodes themselves in older traces.
ENGINE = "autograd::engine::evaluate_function: "
_NODE = late(rf"{ENGINE}|\w*Backward\d*$")


def forward_of(trace: Events, events: Ints) -> Ints:
    """For events of a backward pass, the forward operator that made their node of the graph.

    -1 for other events, for the accumulation of gradients, and if the trace does not tell. Both
    have the same ``Sequence number``. Operators before the one that makes a node have the number of
    that node too, so it is the last one with its number before the backward pass. If a reentrant
    checkpoint runs forward and backward again, both are within its own node.
    """
    out = np.full(len(events), -1, np.int64)
    node = node_around(trace, events)
    back = np.flatnonzero(node >= 0)
    if not len(back):
        return out
    nodes, at = np.unique(node[back], return_inverse=True)
    wanted = _sequence(trace, nodes)[0]
    inner = np.flatnonzero(wanted < 0)  # only the engine's annotation may have its number
    outer = node_around(trace, trace.parent[nodes[inner]])
    inner, outer = inner[outer >= 0], outer[outer >= 0]
    wanted[inner] = _sequence(trace, outer)[0]
    again = _recomputed(trace, nodes, wanted)
    rows, sequence = trace.once(_forward_numbers)
    if not len(rows):
        return out
    # Sorted by number, then by time: the last one that does not start after the node.
    key = np.searchsorted(sequence, wanted, side="left")
    end = np.searchsorted(sequence, wanted, side="right")
    found = np.full(len(nodes), -1, np.int64)
    for i in np.flatnonzero((wanted >= 0) & (end > key)).tolist():
        before = int(np.searchsorted(rows[key[i] : end[i]], nodes[i]))
        found[i] = rows[key[i] + before - 1] if before else -1
    out[back] = np.where(again >= 0, again, found)[at]
    return out


def _recomputed(trace: Events, nodes: Ints, wanted: Ints) -> Ints:
    """The operators that made these nodes, if another node contains both; -1 for none."""
    found = np.full(len(nodes), -1, np.int64)
    mark = trace.parent[nodes]
    own = (mark >= 0) & trace.once(_is_mark)[mark]
    around = node_around(trace, trace.parent[np.where(own, mark, nodes)])
    for holder in distinct(around[around >= 0]).tolist():
        end = np.searchsorted(trace.ts, trace.ts[holder] + trace.dur[holder])
        rows = np.arange(holder + 1, end)
        rows = rows[trace.kind[rows] == Kind.OP]
        rows = rows[node_around(trace, rows) == holder]
        number, backward = _sequence(trace, rows)
        for i in np.flatnonzero(around == holder).tolist():
            before = rows[(number == wanted[i]) & ~backward & (rows < nodes[i])]
            if wanted[i] >= 0 and len(before):
                found[i] = before[-1]
    return found


def _is_mark(trace: Events) -> Bools:
    return trace.names_where(re.compile(re.escape(ENGINE)).match)


def _is_node(trace: Events) -> Bools:
    return trace.is_kind(Kind.OP) & trace.names_where(_NODE.match)


def node_around(trace: Events, events: Ints) -> Ints:
    """The innermost node of the graph around each event, or the event itself; -1 for none."""
    return nesting.nearest(trace.once(_is_node), trace.parent, events)


def _sequence(trace: Events, rows: Ints) -> tuple[Ints, Bools]:
    """Sequence numbers of operators, -1 for none, and which of them belong to a backward pass."""
    args = decode(AutogradArgs, trace.args[rows])
    number = np.fromiter((a.sequence for a in args), np.int64, len(args))
    return number, np.fromiter((a.forward_thread > 0 for a in args), bool, len(args))


def _forward_numbers(trace: Events) -> tuple[Ints, Ints]:
    """Forward operators that have a sequence number, by number and then by time."""
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & ~trace.once(_is_node))
    ops = ops[~nesting.below(trace.once(_is_node), trace.parent, ops)]
    number, backward = _sequence(trace, ops)
    known = (number >= 0) & ~backward
    ops, number = ops[known], number[known]
    order = np.lexsort((ops, number))
    return ops[order], number[order]
