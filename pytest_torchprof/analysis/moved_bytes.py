"""Compulsory bytes of everything that ran, on the host and on devices.

An operator's bytes are those of `work.bytes`, which `torchprof kernels` shows as rates. Of nested
operators one counts, as for FLOPs (`work.counting`): usually the outermost with a number, whose
parts exchange temporary tensors. An operator without a number counts by its parts, if it is known
to be made of them or if they take as many bytes of tensors as it does; else it moves some itself,
and the sum is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.attribution import call_bytes, is_replayed
from pytest_torchprof.analysis.uncounted import (
    COMPILED,
    UncountedPart,
    by_name,
    compiled_calls,
    in_script,
    named,
    nothing_ran,
    packages,
    reason_of,
    replayed_parts,
    runs_compiled_code,
)
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import Reason, Why
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import Kind, once_per_trace
from pytest_torchprof.trace.steps import holds_whole_operators
from pytest_torchprof.trace.tree import marked, operators_around, parents
from pytest_torchprof.work.counting import by_call, dispatched, ran, sums
from pytest_torchprof.work.flops import work_of
from pytest_torchprof.work.launches import is_composed, may_move
from pytest_torchprof.work.operands import Operands, UnknownOperandError

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.work.counting import Ran


class Moved(Frozen, frozen=True):
    """The bytes of the selection that are known, and why they are not all; None if they are."""

    total: int
    gap: Reason | None


@once_per_trace
def moved_bytes(trace: Events) -> Moved:
    """Compulsory bytes of the selected operators."""
    if nothing_ran(trace):
        return Moved(0, None)
    counted = trace.once(_counted)
    total = int(call_bytes(trace)[counted.counts].sum())
    if holds_whole_operators(trace) and moved_bytes(trace.whole).gap is None:
        return Moved(total, None)
    silent = _silent(trace, counted)
    parts = [
        *by_name(trace, silent, lambda _: Why.NO_BYTES),
        *_without_operators(trace),
        *_loops(trace, counted.counts),
        *in_script(trace),
        *packages(trace),
    ]
    parts.sort(key=lambda part: (-part.share, part.name))
    return Moved(total, reason_of(parts, total, "B") if parts else None)


def counted_bytes(trace: Events) -> Ints:
    """Compulsory bytes of each selected operator that counts; -1 elsewhere."""
    return np.where(trace.once(_counted).counts, _bytes(trace), -1)


def moved_by_operator(trace: Events) -> dict[str, int]:
    """Compulsory bytes of the selected operators that count, in bytes, by name."""
    bytes_ = _bytes(trace)
    found: dict[str, int] = {}
    for row in np.flatnonzero(trace.once(_counted).counts).tolist():
        name = trace.names[trace.name[row]]
        found[name] = found.get(name, 0) + int(bytes_[row])
    return found


# -------------------------------------------------------------------- numbers


def _counted(trace: Events) -> Ran:
    """Which of the selected operators with bytes count."""
    if holds_whole_operators(trace):
        return trace.whole.once(_counted).part(trace.selection)
    return ran(_bytes(trace), trace.name, trace.names, dispatched(trace))


def _bytes(trace: Events) -> Ints:
    """The bytes of each selected operator, -1 for none."""
    return np.where(trace.selection, call_bytes(trace), -1)


# -------------------------------------------------------------------- what has no number


def _silent(trace: Events, which: Ran) -> Ints:
    """Operators that move more than is counted within them; of nested ones, the innermost."""
    counts, parent = which.counts, which.parent
    ops = trace.selection & trace.is_kind(Kind.OP) & ~(counts | which.fake)
    rows = (ops & trace.names_where(may_move)).nonzero()[0]
    if not len(rows):
        return rows
    rows = rows[~nesting.below(counts, parent, rows)]
    rows = rows[~nesting.above(rows, parent)[rows]]
    known = nesting.above(counts.nonzero()[0], parent)[rows]
    doubted = known & ~trace.names_where(is_composed)[rows]
    if doubted.any():
        calls = rows[doubted]
        known[doubted] = _parts_take(trace, calls, counts, parent) >= _taken(trace, calls)
    return rows[~known]


def _parts_take(trace: Events, calls: Ints, counts: Bools, parent: Ints) -> Ints:
    """Bytes of the tensors that the counted operators within each of these calls take."""
    parts = counts.nonzero()[0]
    parts = parts[nesting.below(marked(trace, calls), parent, parts)]
    taken = np.zeros(len(trace), np.int64)
    taken[parts] = _taken(trace, parts)
    return sums(calls, counts, taken, parent)


def _taken(trace: Events, calls: Ints) -> Ints:
    """Bytes of the tensors that each call takes, as far as they are known."""
    return by_call(trace, calls, _reads)


def _reads(_: str, call: Operands) -> int:
    total = 0
    for at in range(len(call.dims) if isinstance(call.dims, list) else 0):
        try:
            total += call.read(at, at + 1)
        except (UnknownOperandError, LookupError, TypeError):
            continue
    return total


def _without_operators(trace: Events) -> Iterable[UncountedPart]:
    """Kernels that no operator launched: a graph, or code of the test's own."""
    if not trace.has(Kind.KERNEL):
        return
    device = trace.device_rows
    kernels = device[trace.selection[device] & (trace.kind[device] == Kind.KERNEL)]
    call = operators_around(trace, parents(trace, trace.launch[kernels]))
    known = trace.names_where(lambda name: work_of(name) != "around")
    alone = ~((call >= 0) & known[call])
    graph = is_replayed(trace, trace.launch[kernels])
    yield from by_name(trace, kernels[alone & ~graph], lambda _: Why.LAUNCHED_ALONE)
    yield from replayed_parts(trace)


def _loops(trace: Events, counts: Bools) -> Iterable[UncountedPart]:
    """What inductor compiled to loops of its own, which are no operators."""
    if not runs_compiled_code(trace):
        return
    calls = compiled_calls(trace, counts, trace.parent)
    yield from named(trace, calls.nonzero()[0], (COMPILED,), Why.LOOPS)
