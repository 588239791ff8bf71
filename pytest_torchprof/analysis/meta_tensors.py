"""Operators on meta and fake tensors, which have no values, so that nothing is computed.

A trace does not say which tensors have none. But where it has memory events, an allocation that
allocates nothing gives them away: then so does every operator that makes no tensor and writes into
none. Of those that write into a tensor, nobody knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_forms import ran_on_host
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import alike, decode_part
from pytest_torchprof.trace.name_index import operators_named
from pytest_torchprof.trace.tree import outermost
from pytest_torchprof.work.movers import may_move
from pytest_torchprof.work.operands import Operands

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: They allocate memory for all of the size that is their first argument.
_ALLOCATORS: Final = ("aten::empty", "aten::empty_strided")
_PINNED: Final = {"aten::empty": 4, "aten::empty_strided": 5}


class MetaCalls(Frozen, frozen=True):
    """Outermost operators: ``idle`` are on tensors without values, ``unclear`` perhaps."""

    idle: Ints
    unclear: Ints


def meta_calls(trace: Events) -> MetaCalls:
    """The calls of the whole trace."""
    return trace.whole.once(_meta_calls)


def _meta_calls(trace: Events) -> MetaCalls:
    none = np.zeros(0, np.int64)
    memory = trace.memory
    made = memory.event[memory.bytes > 0]
    evidence = _without_memory(trace, made)
    if not len(evidence):
        return MetaCalls(none, none)
    calls = outermost(trace)
    allocates, empty = (_holding(trace, rows) for rows in (trace.enclosing(made), evidence))
    moves = calls[trace.names_where(may_move)[calls]]
    writes = trace.names_where(_writes)[moves]
    idle = nesting.distinct(np.append(moves[~writes & ~allocates[moves]], calls[empty[calls]]))
    writing = moves[writes & ~allocates[moves]]
    return MetaCalls(idle, nesting.distinct(writing[~nesting.among(writing, idle)]))


def _holding(trace: Events, rows: Ints) -> nesting.Bools:
    """Everything that is, or has nested in it, one of these events."""
    rows = rows[rows >= 0]
    found = nesting.above(rows, trace.parent)
    found[rows] = True
    return found


def _without_memory(trace: Events, made: Ints) -> Ints:
    """Allocators of a size that have no allocation within, on threads that record any."""
    rows = operators_named(trace, *_ALLOCATORS)
    # Some builds of torch set the flag and record nothing; our captures were tried.
    records = len(made) or (trace.region is not None and trace.metadata.get("profile_memory"))
    if not records or trace.facts.no_memory is not None or not ran_on_host(trace):
        return rows[:0]
    rows = rows[~_holding(trace, trace.enclosing(made))[rows]]
    if len(made):
        rows = rows[nesting.among(trace.thread[rows], trace.thread[made])]
    if not len(rows):
        return rows
    kinds, firsts, _ = alike(trace.name[rows], trace.args[rows])
    first = rows[firsts]
    sized = [
        _allocates(trace.names[name], Operands(None, None, decode_part(bytes(args.concrete))))
        for name, args in zip(trace.name[first].tolist(), trace.operands(first), strict=True)
    ]
    found: Ints = rows[np.array(sized, bool)[kinds]]
    return found


def _allocates(name: str, call: Operands) -> bool:
    """Whether this has a size of its own in memory that the profiler sees."""
    try:
        return 0 not in call.integers(0) and call.text(_PINNED[name]) != "True"
    except (LookupError, TypeError, ValueError):
        return False


def _writes(name: str) -> bool:
    return name.endswith("_") or name.startswith(("aten::_foreach_", "aten::_fused_", "aten::_amp"))
