"""Chains of elementwise kernels, each of which reads what the one before it wrote."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.attribution import attribute
from pytest_torchprof.analysis.launches import followed
from pytest_torchprof.analysis.passed_tensors import kinds_of, numbered, passed_bytes, repeats
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.levels import engine_steps
from pytest_torchprof.trace.name_index import Names, are_named, named
from pytest_torchprof.trace.nesting import among, distinct
from pytest_torchprof.trace.tree import outermost, within, within_named
from pytest_torchprof.work.pointwise import REDUCTIONS, is_elementwise

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.trace.tensors import Taken

#: torch's own elementwise kernels, on CUDA and ROCm.
POINTWISE_KERNEL: Final = late(r"elementwise_kernel|fused_dropout_kernel")
_INDEXES: Final = late(r"index_elementwise_kernel")
_OPTIMIZER: Final = Names(r"Optimizer\.")
_COMPILED: Final = Names(r"Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction")
_DROPOUT: Final = frozenset({"aten::native_dropout", "aten::native_dropout_backward"})
_ADDS: Final = frozenset({"aten::add", "aten::add_"})


class PointwiseChains(Frozen, frozen=True):
    """Chains as parts of arrays: ``kernel`` and its operator ``call``, in order, and the number of
    the ``chain`` that each belongs to, from 0.

    ``saved`` are the bytes between a kernel and the next one of its chain that a fused kernel would
    not move: the result is written and read, or only read if it may be needed later. ``bytes`` are
    all that it moves, -1 if unknown. ``shape`` are the results' shapes.
    """

    kernel: Ints
    call: Ints
    chain: Ints
    saved: Ints
    bytes: Ints
    shape: Sequence[tuple[int, ...] | None]


def pointwise_chains(trace: Events, least_bytes: float) -> PointwiseChains:
    """All chains of two or more kernels, in which each result takes ``least_bytes`` or more.

    Two kernels belong together if they are consecutive on their stream, their operators are on one
    thread, and the second operator reads a tensor of the shape and dtype that the first one writes,
    the same tensor where the trace identifies them. The last one may be a reduction. A call like an
    earlier one of a chain begins the next chain.
    """
    return trace.once(_pointwise_chains, least_bytes)


def _pointwise_chains(trace: Events, least_bytes: float) -> PointwiseChains:
    work = attribute(trace)
    order = np.lexsort((trace.ts[work.event], trace.thread[work.event]))
    event, call, moved = work.event[order], work.call[order], work.bytes[order]
    at = _pairs(trace, event, call)
    calls, place = np.unique(call[np.concatenate([at, at + 1])], return_inverse=True)
    first, second = place[: len(at)], place[len(at) :]
    kinds, kind = kinds_of(trace, calls)
    pairs, pair = np.unique(kind[first] * len(kinds) + kind[second], return_inverse=True)
    size_of = [
        passed_bytes(kinds[one // len(kinds)], kinds[one % len(kinds)]) for one in pairs.tolist()
    ]
    size = np.array(size_of, np.int64)[pair]
    linked = (size >= max(least_bytes, 1)) & followed(trace, event[at]).delays
    same, shared = _identified(trace, calls, first, second)
    kept = (
        shared
        | _keeps(trace, calls[first])
        | np.array([k.is_sum for k in kinds], bool)[kind[first]]
    )
    kept |= are_named(trace, calls[second], *REDUCTIONS)
    linked &= same
    alike = numbered([k.alike for k in kinds])[kind]
    at, size, kept, first, second = (c[linked] for c in (at, size, kept, first, second))
    linked = ~repeats(at, alike[first], alike[second])
    at, size, kept = at[linked], size[linked], kept[linked]

    # Runs of pairs that follow on each other, each with one kernel more than pairs.
    chain = np.cumsum(np.diff(at, prepend=-2) > 1) - 1
    members = distinct(np.concatenate([at, at + 1]))
    number = chain[np.maximum(np.searchsorted(at, members, side="right") - 1, 0)]
    saved = np.zeros(len(members), np.int64)
    saved[np.searchsorted(members, at)] = np.where(kept, size, 2 * size)
    shapes = dict(zip(calls.tolist(), (kinds[k].shape for k in kind.tolist()), strict=True))
    found = PointwiseChains(
        event[members],
        call[members],
        number,
        saved,
        moved[members],
        [shapes.get(one) for one in call[members].tolist()],
    )
    return _without_dropout_and_add(trace, found)


def _pairs(trace: Events, event: Ints, call: Ints) -> Ints:
    """Positions of kernels that, with the next one on their stream, may be of a chain."""
    pointwise = trace.is_kind(Kind.KERNEL) & trace.names_where(
        lambda name: POINTWISE_KERNEL.search(name) and not _INDEXES.search(name)
    )
    writes = trace.names_where(is_elementwise)
    reduces = trace.names_where(REDUCTIONS.__contains__)
    a, b = event[:-1], event[1:]
    first, second = call[:-1], call[1:]
    fine = (first >= 0) & (second >= 0) & (first != second)
    fine &= pointwise[a] & writes[first] & (trace.thread[a] == trace.thread[b])
    fine &= (pointwise[b] & writes[second]) | ((trace.kind[b] == Kind.KERNEL) & reduces[second])
    fine &= trace.thread[first] == trace.thread[second]
    at = np.flatnonzero(fine)
    inside = within_named(trace, call[at], _OPTIMIZER, _COMPILED)
    return at[~inside]


def _identified(trace: Events, calls: Ints, first: Ints, second: Ints) -> tuple[Bools, Bools]:
    """Which of these pairs pass a tensor on, as far as known; and whether others take it, too."""
    fine, shared = np.ones(len(first), bool), np.zeros(len(first), bool)
    taken, made = trace.taken(calls), trace.made(calls)
    if taken is None or made is None:
        return fine, shared
    uses = Counter(number for one in trace.taken(outermost(trace)) or () for number in _flat(one))
    for i, (a, b) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
        in_place = trace.names[trace.name[calls[a]]].endswith("_")
        results = set(taken[a][:1]) if in_place else set(made[a])
        passed = results & _flat(taken[b])
        fine[i] = len(passed) > 0
        # The second call, and an in-place one itself, are no other uses.
        shared[i] = any(uses[number] > 1 + in_place for number in passed)
    return fine, shared


def _flat(taken: Iterable[Taken]) -> set[Taken]:
    """The tensors among a call's arguments."""
    flat = (one if isinstance(one, tuple) else (one,) for one in taken)
    return {number for one in flat for number in one if number >= 0}


def _keeps(trace: Events, calls: Ints) -> Bools:
    """Whether a backward pass may need the results of these calls: then they are written anyway."""
    steps = engine_steps(trace)
    if not len(steps):
        return np.zeros(len(calls), bool)
    return ~within(trace, calls, lambda events: among(events, steps))


def _without_dropout_and_add(trace: Events, found: PointwiseChains) -> PointwiseChains:
    """Without chains of a dropout and the sum of its result with something, as around a layer."""
    dropout, adds = (named(trace, *names)[found.call] for names in (_DROPOUT, _ADDS))
    count = np.bincount(found.chain)
    alone = (count == 2) & (np.bincount(found.chain, dropout | adds) == 2)
    alone &= np.bincount(found.chain, dropout) == 1
    keep = ~alone[found.chain]
    number = np.cumsum(~alone) - 1
    return PointwiseChains(
        found.kernel[keep],
        found.call[keep],
        number[found.chain[keep]],
        found.saved[keep],
        found.bytes[keep],
        [shape for shape, one in zip(found.shape, keep.tolist(), strict=True) if one],
    )
