"""What fusing elementwise operators in a row would save, whatever ran them.

A chain is of operators that follow on each other in one thread, with nothing but views in between,
each of which reads a tensor of the shape and dtype that the one before writes; the last may be a
reduction. Fused, a result within the chain is not read again, and not written unless it may be
needed later: in the forward pass if there is a backward pass, as a sum of two tensors, or by a
reduction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from pytest_torchprof.analysis.estimated_launches import is_compiled, units_of
from pytest_torchprof.analysis.moved_bytes import counted_bytes
from pytest_torchprof.analysis.passed_tensors import kinds_of, numbered, passed_bytes, repeats
from pytest_torchprof.trace.levels import engine_steps
from pytest_torchprof.trace.name_index import Names
from pytest_torchprof.trace.nesting import among, distinct
from pytest_torchprof.trace.tree import within, within_named
from pytest_torchprof.work.pointwise import REDUCTIONS, is_elementwise

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_OPTIMIZER: Final = Names(r"Optimizer\.")


@dataclass(frozen=True)
class Fusion:
    """Chains of the same operators on one shape.

    ``calls`` is how often they ran; ``bytes`` are what all of them move, ``fused_bytes`` what
    kernels of one chain each would, and ``saved_launches`` the kernels that would not start.
    """

    operators: tuple[str, ...]
    shape: tuple[int, ...] | None
    calls: int
    bytes: int
    fused_bytes: int
    saved_launches: int

    ADDS_UP: ClassVar = ("calls", "bytes", "fused_bytes", "saved_launches")


def fusions(trace: Events) -> list[Fusion]:
    """The chains of the selected operators, those that save the most bytes first."""
    return trace.once(_fusions)


def _fusions(trace: Events) -> list[Fusion]:
    call, chain, saved, shape = _chains(trace)
    if not len(call):
        return []
    moved = counted_bytes(trace.whole)
    starts = np.flatnonzero(np.diff(chain, prepend=-1)).tolist()
    found: dict[tuple[tuple[str, ...], tuple[int, ...] | None], list[int]] = {}
    for start, stop in zip(starts, [*starts[1:], len(chain)], strict=True):
        mine = call[start:stop]
        names = tuple(trace.names[n].removeprefix("aten::") for n in trace.name[mine].tolist())
        sums = found.setdefault((names, shape[start]), [0, 0, 0])
        sums[0] += 1
        sums[1] += int(np.maximum(moved[mine], 0).sum())
        sums[2] += int(saved[start:stop].sum())
    rows = [
        Fusion(names, where, calls, size, max(size - less, 0), calls * (len(names) - 1))
        for (names, where), (calls, size, less) in found.items()
    ]
    return sorted(rows, key=lambda row: (row.fused_bytes - row.bytes, row.operators))


def _chains(trace: Events) -> tuple[Ints, Ints, Ints, list[tuple[int, ...] | None]]:
    """Calls in chains, the number of each one's chain, the bytes between it and the next one that
    fusing saves, and the shape of its result.
    """
    units = units_of(trace)
    event = units.event[(units.launches > 0) & trace.selection[units.event]]
    event = event[~is_compiled(trace)[event] & ~within_named(trace, event, _OPTIMIZER)]
    event = event[np.argsort(trace.thread[event], kind="stable")]
    writes = trace.names_where(is_elementwise)[event]
    ends = writes | trace.names_where(REDUCTIONS.__contains__)[event]
    thread = trace.thread[event]
    at = np.flatnonzero(writes[:-1] & ends[1:] & (thread[:-1] == thread[1:]))
    if not len(at):
        return at, at, at, []
    kinds, kind = kinds_of(trace, event)
    alike = numbered([one.alike for one in kinds])[kind]
    size = np.array(
        [
            passed_bytes(kinds[a], kinds[b])
            for a, b in zip(kind[at].tolist(), kind[at + 1].tolist(), strict=True)
        ],
        np.int64,
    )
    kept = _keeps(trace, event[at]) | trace.names_where(REDUCTIONS.__contains__)[event[at + 1]]
    kept |= np.array([one.is_sum for one in kinds], bool)[kind[at]]
    at, size, kept = at[size > 0], size[size > 0], kept[size > 0]
    ends_chain = repeats(at, alike[at], alike[at + 1])
    at, size, kept = at[~ends_chain], size[~ends_chain], kept[~ends_chain]
    # Runs of pairs that follow on each other, each with one operator more than pairs.
    number = np.cumsum(np.diff(at, prepend=-2) > 1) - 1
    members = distinct(np.concatenate([at, at + 1]))
    chain = number[np.maximum(np.searchsorted(at, members, side="right") - 1, 0)]
    saved = np.zeros(len(members), np.int64)
    saved[np.searchsorted(members, at)] = np.where(kept, size, 2 * size)
    return event[members], chain, saved, [kinds[k].shape for k in kind[members].tolist()]


def _keeps(trace: Events, calls: Ints) -> Bools:
    """Whether a backward pass may need the results of these calls: then they are written anyway."""
    steps = engine_steps(trace)
    if not len(steps):
        return np.zeros(len(calls), bool)
    return ~within(trace, calls, lambda events: among(events, steps))
