"""Compulsory bytes of everything that ran, on the host and on devices.

An operator's bytes are those of `work.bytes`, which `torchprof kernels` shows as rates. Of nested
operators one counts, as for FLOPs (`work.counting`): usually the outermost with a number, whose
parts exchange temporary tensors. An operator without a number counts by its parts, if it is known
to be made of them or if they take as many bytes of tensors as it does; else it moves some itself,
and the sum is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pytest_torchprof.analysis.attribution import is_replayed, item_bytes
from pytest_torchprof.analysis.uncounted import (
    COMPILED,
    REGION,
    UncountedPart,
    by_name,
    in_script,
    named,
    nothing_ran,
    packages,
    reason_of,
    runs_compiled_code,
)
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import Reason, Why
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import OpArgs, decode_part, int64_column
from pytest_torchprof.trace.names import Kind, once_per_trace
from pytest_torchprof.trace.steps import holds_whole_operators
from pytest_torchprof.trace.tree import operators_around, parents
from pytest_torchprof.work.bytes import TRAFFIC, compulsory_bytes
from pytest_torchprof.work.counting import (
    called_graphs,
    dispatched,
    distinct_calls,
    formula_calls,
    ran,
    sums,
)
from pytest_torchprof.work.flops import FORMULAS, work_of
from pytest_torchprof.work.launches import is_composed, may_move
from pytest_torchprof.work.operands import (
    ELEMENT_BYTES,
    Operands,
    UnknownOperandError,
    UnreadValues,
)

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.work.counting import Call, Ran

_LIST: Final = b"TensorList"


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
    rows, amounts = trace.whole.once(_amounts)
    total = int(amounts[counted.counts[rows]].sum())
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
    rows, amounts = trace.whole.once(_amounts)
    bytes_ = np.full(len(trace), -1, np.int64)
    bytes_[rows] = np.where(trace.selection[rows], amounts, -1)
    return bytes_


def _amounts(trace: Events) -> tuple[Ints, Ints]:
    """Operators with a formula or a rule, and their bytes (nested or not), or -1."""
    others = distinct_calls(trace, trace.names_where(_BYTES_ONLY.__contains__))
    parts = [_of_calls(trace, *calls) for calls in (formula_calls(trace), others)]
    rows, amounts = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return rows, amounts


def _of_calls(trace: Events, rows: Ints, number: Ints, calls: Sequence[Call]) -> tuple[Ints, Ints]:
    """These operators, and the bytes of each, by the numbers of their calls."""
    if not len(rows):
        return rows, rows
    names, lists = trace.names, [_LIST in types for _, _, types, _, _ in calls]
    # The size of a list's elements is another one each time.
    found = [
        -1 if is_list else _bytes_of(names[name], *parts)
        for is_list, (name, *parts) in zip(lists, calls, strict=True)
    ]
    amounts = int64_column(found)[number]
    if True in lists:
        at = np.array(lists)[number].nonzero()[0]
        those = [calls[one] for one in number[at].tolist()]
        sizes = _item_sizes(trace, rows[at], [dims for _, dims, *_ in those])
        for i, (name, *parts), size in zip(at.tolist(), those, sizes, strict=True):
            amounts[i] = _bytes_with_values(names[name], *parts, item=size) if size else -1
    return rows, amounts


#: Operators whose bytes are known, and which have no formula for FLOPs.
_BYTES_ONLY: Final = TRAFFIC.keys() - FORMULAS.keys()
_MOST_KNOWN: Final = 10_000


def _bytes_of(name: str, dims: bytes, types: bytes, concrete: bytes, strides: bytes) -> int:
    """The bytes of a call from its recorded operands, -1 if unknown."""
    count = _bytes_by_tensors(name, dims, types, strides)
    return _bytes_with_values(name, dims, types, concrete, strides) if count is None else count


@lru_cache(maxsize=_MOST_KNOWN)
def _bytes_by_tensors(name: str, dims: bytes, types: bytes, strides: bytes) -> int | None:
    """The same if its tensors tell; None if values do.

    Cached, as tests repeat calls; their values change, like those of an optimizer's steps.
    """
    values = UnreadValues()
    shapes, kinds, steps = map(decode_part, (dims, types, strides))
    count = compulsory_bytes(name, shapes, kinds, steps, values)
    if values.asked:
        return None
    return -1 if count is None else count


@lru_cache(maxsize=_MOST_KNOWN)
def _bytes_with_values(
    name: str, dims: bytes, types: bytes, concrete: bytes, strides: bytes, item: int | None = None
) -> int:
    """The same where values tell; ``item`` is the size of a list's elements."""
    shapes, kinds, steps, values = map(decode_part, (dims, types, strides, concrete))
    count = compulsory_bytes(name, shapes, kinds, steps, values, item)
    return -1 if count is None else count


def _item_sizes(trace: Events, events: Ints, shapes: Iterable[bytes]) -> list[int]:
    """Element sizes of calls on lists of tensors, whose types a trace lacks; 0 where unknown.

    A kernel's name tells, or the one block that a call on the host allocates for its result.
    """
    sizes = np.zeros(len(trace), np.int64)
    wanted = np.zeros(len(trace), bool)
    wanted[events] = True
    device = trace.device_rows
    kernels = device[trace.kind[device] == Kind.KERNEL]
    callers = nesting.nearest(wanted, trace.parent, parents(trace, trace.launch[kernels]))
    for call, kernel in zip(callers.tolist(), kernels.tolist(), strict=True):
        if call >= 0:
            sizes[call] = item_bytes(trace.names[trace.name[kernel]])
    memory = trace.memory.device(on_device=False)
    made = (memory.bytes > 0).nonzero()[0]
    around = nesting.nearest(wanted, trace.parent, trace.enclosing(memory.event[made]))
    blocks: dict[int, list[int]] = {}
    for call, size in zip(around.tolist(), memory.bytes[made].tolist(), strict=True):
        blocks.setdefault(call, []).append(size)
    found = []
    for event, dims in zip(events.tolist(), shapes, strict=True):
        size = int(sizes[event])
        if not size and len(own := blocks.get(event, [])) == 1:
            size = _size_of(own[0], decode_part(dims))
        found.append(size)
    return found


def _size_of(block: int, dims: Any) -> int:
    """The element size if this block holds all elements of the first list and nothing else."""
    try:
        count = Operands(dims, None, None).list_elements(0)
    except (UnknownOperandError, LookupError, TypeError):
        return 0
    size, rest = divmod(block, count) if count else (0, 0)
    return size if not rest and size in ELEMENT_BYTES.values() else 0


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
    within = np.zeros(len(trace), bool)
    within[calls] = True
    parts = counts.nonzero()[0]
    parts = parts[nesting.below(within, parent, parts)]
    taken = np.zeros(len(trace), np.int64)
    taken[parts] = _taken(trace, parts)
    return sums(calls, counts, taken, parent)


def _taken(trace: Events, calls: Ints) -> Ints:
    """Bytes of the tensors that each call takes, as far as they are known."""
    return int64_column([_reads(args) for args in trace.operands(calls)])


def _reads(args: OpArgs) -> int:
    dims, types, strides = (
        decode_part(bytes(part)) for part in (args.dims, args.types, args.strides)
    )
    total = 0
    for at in range(len(dims) if isinstance(dims, list) else 0):
        try:
            total += Operands(dims, types, None, strides).read(at, at + 1)
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
    yield from by_name(trace, kernels[graph], lambda _: Why.REPLAYED)


def _loops(trace: Events, counts: Bools) -> Iterable[UncountedPart]:
    """What inductor compiled to loops of its own, which are no operators."""
    if not runs_compiled_code(trace):
        return
    calls = called_graphs(trace)
    if not (calls.any() or trace.facts.marks_graphs):  # an older torch only marks the function
        calls = trace.selection & trace.names_where(lambda name: name.startswith(REGION))
        calls[nesting.above(counts.nonzero()[0], trace.parent)] = False
    yield from named(trace, calls.nonzero()[0], (COMPILED,), Why.LOOPS)
