"""What blocks of memory are for: parameters, gradients, optimizer state, activations, temporaries.

torch's own profiler (``torch/profiler/_memory_profiler.py``) follows tensors from operator to
operator. A stored trace has no tensors, only blocks: when and in which operator they were allocated
and freed. What follows from that is told, and everything else is unknown.
"""

from __future__ import annotations

from enum import IntEnum
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.training_phases import (
    NEVER,
    OPTIMIZER_STEP,
    Moments,
    accumulations,
    are_differentiated,
    are_in_modules,
    backward_passes,
    moments_of,
)
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.name_index import events_named
from pytest_torchprof.work.dtypes import ELEMENT_BYTES

if TYPE_CHECKING:
    from pytest_torchprof.trace.allocations import Memory
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


class Category(IntEnum):
    """What a block is for. ``BEFORE`` is what was live before the trace, and not told apart."""

    PARAMETERS = 0
    GRADIENTS = 1
    OPTIMIZER_STATE = 2
    ACTIVATIONS = 3
    TEMPORARIES = 4
    UNKNOWN = 5
    BEFORE = 6

    @property
    def label(self) -> str:
        """For people."""
        return _LABELS.get(self, self.name.lower().replace("_", " "))


_LABELS = {Category.BEFORE: "live before"}

#: The allocator of CUDA rounds sizes up to this, and leaves at most the other unused in a block of
#: a larger size. Source: kMinBlockSize, kSmallSize and should_split in
#: c10/cuda/CUDACachingAllocator.
_ROUNDED, _UNSPLIT = 512, 2**20
#: No block is that large.
_UNREAL = 2**60


class Lives(Frozen, frozen=True):
    """Blocks of one device, in the order of their allocation, and the frees of older ones.

    ``allocated`` and ``freed`` are events, ``born`` and ``died`` their times in ns. ``died`` is
    NEVER for what the trace does not free. ``freed`` is -1 for that, and where the free was not
    seen, only the next allocation at the address. ``older`` are events that freed a block from
    before the trace or its measured region.
    """

    allocated: Ints
    freed: Ints
    born: Ints
    died: Ints
    bytes: Ints
    older: Ints
    on_device: bool


def lives_of(trace: Events, memory: Memory, row: Ints, block: Ints, size: Ints) -> Lives:
    """The lives of one device's blocks, from its `changes_of` the live bytes."""
    end = np.full(len(memory.bytes), -1, np.int64)
    ends = (size < 0) & (block >= 0)
    end[block[ends]] = row[ends]
    born = row[size > 0]
    end = end[born]
    seen = (end >= 0) & (memory.bytes[end] < 0)
    return Lives(
        memory.event[born],
        np.where(seen, memory.event[end], -1),
        trace.ts[memory.event[born]],
        np.where(end >= 0, trace.ts[memory.event[end]], NEVER),
        memory.bytes[born],
        memory.event[row[(size < 0) & (block < 0)]],
        bool(memory.on_device[0]),
    )


def categories_of(trace: Events, lives: Lives) -> tuple[Ints, Ints]:
    """The `Category` of each block, and of each older one.

    A block that outlives the operator that allocated it is told by where it was allocated and
    freed, by the first of these that holds:

    - in a backward pass: a temporary if it is gone when the pass ends. Else a gradient if a leaf of
      the pass has this size, and no more blocks than leaves have it, or if ``zero_grad`` frees it.
    - in an optimizer's step: a temporary if it is gone when the step ends. Else optimizer state if
      it outlives the next step, too, or the trace.
    - elsewhere: a temporary if the operator that allocated it frees it. An activation if a
      backward pass frees it, or runs a node of that operator. A parameter if it is older
      than all activations, lives through all backward passes, and has the size of a leaf, as do no
      more blocks than leaves; only if there are such blocks for all leaves. An activation if an
      ``nn.Module`` allocated it.

    Older blocks are gradients if ``zero_grad`` frees them, and activations if a backward pass does.
    """
    count = len(lives.born)
    freed = (lives.freed >= 0).nonzero()[0]
    every = moments_of(trace, np.concatenate([lives.allocated, lives.freed[freed], lives.older]))
    start, older = _part(every, slice(count)), _part(every, slice(count + len(freed), None))
    end = _spread(_part(every, slice(count, count + len(freed))), freed, count)
    found = np.full(count, Category.UNKNOWN, np.int64)
    leaves = trace.once(_leaves)
    backward = start.node >= 0
    stepping = ~backward & (start.step >= 0)
    forward = ~backward & ~stepping
    _in_backward(trace, lives, end, leaves, backward.nonzero()[0], found)
    _in_steps(trace, lives, start, stepping.nonzero()[0], found)
    gone = forward & (start.root >= 0) & (end.root == start.root)
    found[gone] = Category.TEMPORARIES
    saved = forward & ~gone
    saved &= (end.node >= 0) | are_differentiated(trace, start.root)
    found[saved] = Category.ACTIVATIONS
    rest = (forward & ~gone & ~saved).nonzero()[0]
    first = lives.born[saved].min(initial=NEVER)
    found[rest[_are_parameters(trace, lives, leaves, rest, first)]] = Category.PARAMETERS
    rest = rest[found[rest] == Category.UNKNOWN]
    found[rest[are_in_modules(trace, lives.allocated[rest])]] = Category.ACTIVATIONS
    before = np.where(older.node >= 0, Category.ACTIVATIONS, Category.BEFORE)
    return found, np.where(older.zeroing >= 0, Category.GRADIENTS, before)


def _part(moments: Moments, part: slice) -> Moments:
    return Moments(*[getattr(moments, name)[part] for name in moments.__struct_fields__])


def _spread(moments: Moments, rows: Ints, count: int) -> Moments:
    """Those of some rows; -1 for the others."""
    spread = []
    for name in moments.__struct_fields__:
        column = np.full(count, -1, np.int64)
        column[rows] = getattr(moments, name)
        spread.append(column)
    return Moments(*spread)


def _in_backward(
    trace: Events, lives: Lives, end: Moments, leaves: Leaves, rows: Ints, found: Ints
) -> None:
    passes = backward_passes(trace)
    number = passes.of(lives.born[rows])
    over = lives.died[rows] <= passes.end(number)
    over &= lives.died[rows] < NEVER
    found[rows[over]] = Category.TEMPORARIES
    rows, number = rows[~over], number[~over]
    ours = _are_of_leaves(number, lives.bytes[rows], leaves, lives.on_device)
    found[rows[ours | (end.zeroing[rows] >= 0)]] = Category.GRADIENTS


def _in_steps(trace: Events, lives: Lives, start: Moments, rows: Ints, found: Ints) -> None:
    steps = events_named(trace, OPTIMIZER_STEP)
    begins, ends = trace.ts[steps], trace.ts[steps] + trace.dur[steps]
    own = start.step[rows]
    end = trace.ts[own] + trace.dur[own]
    following = np.append(ends, NEVER)[begins.searchsorted(end)]
    died = lives.died[rows]
    found[rows[died >= following]] = Category.OPTIMIZER_STATE
    found[rows[died <= end]] = Category.TEMPORARIES


# -------------------------------------------------------------------- leaves and their sizes


class Leaves(Frozen, frozen=True):
    """The leaves whose gradients backward passes have stored: a pass and a size for each.

    ``sized`` is whether the trace has shapes; otherwise all sizes are 0.
    """

    number: Ints
    bytes: Ints
    sized: bool


def _leaves(trace: Events) -> Leaves:
    rows = accumulations(trace)
    number = backward_passes(trace).of(trace.ts[rows])
    sizes = np.array([_bytes(args.dims, args.types) for args in trace.operands(rows)], np.int64)
    known = sizes > 0
    if not known.any():
        return Leaves(number, np.zeros(len(rows), np.int64), sized=False)
    return Leaves(number[known], sizes[known], sized=True)


def _bytes(dims: bytes, types: bytes) -> int:
    """Of the first operand; 0 if unknown."""
    shapes, kinds = decode_part(bytes(dims)), decode_part(bytes(types))
    if not (isinstance(shapes, list) and isinstance(kinds, list) and shapes and kinds):
        return 0
    shape, kind = shapes[0], kinds[0]
    if not (isinstance(kind, str) and isinstance(shape, list)):
        return 0
    if not all(type(size) is int and 0 < size < _UNREAL for size in shape):
        return 0
    size = prod(shape) * ELEMENT_BYTES.get(kind, 0)
    return size if size < _UNREAL else 0


def _allocated(sizes: Ints, on_device: bool) -> Ints:
    return -(-sizes // _ROUNDED) * _ROUNDED if on_device else sizes


def _are_of_leaves(number: Ints, sizes: Ints, leaves: Leaves, on_device: bool) -> Bools:
    """Which blocks have the size of a leaf of their pass, as no more blocks have than leaves."""
    return _matched(number, sizes, leaves, on_device)[0]


def _matched(number: Ints, sizes: Ints, leaves: Leaves, on_device: bool) -> tuple[Bools, Ints]:
    """The same; and for each leaf, how many more blocks than leaves have its pass and size."""
    wanted = _allocated(leaves.bytes, on_device)
    known = nesting.distinct(wanted)
    if not len(known):
        return np.zeros(len(sizes), bool), wanted
    at = known.searchsorted(sizes, side="right") - 1
    if leaves.sized:
        most = np.where(on_device & (known[at] > _UNSPLIT), _UNSPLIT, 0)
        fits = (at >= 0) & (sizes - known[at] <= most)
    else:
        fits = np.ones(len(sizes), bool)
    keys = np.concatenate([number[fits], leaves.number]) * len(known)
    keys += np.concatenate([at[fits], known.searchsorted(wanted)])
    _, group = np.unique(keys, return_inverse=True)
    there, asked = group[: fits.sum()], group[fits.sum() :]
    blocks, count = (np.bincount(part, minlength=len(keys)) for part in (there, asked))
    found = fits.copy()
    found[fits] = (blocks <= count)[there]
    return found, (blocks - count)[asked]


def _are_parameters(trace: Events, lives: Lives, leaves: Leaves, rows: Ints, first: int) -> Bools:
    """``first``: when the first activation was allocated."""
    found = np.zeros(len(rows), bool)
    if not leaves.sized:
        return found
    when = trace.ts[accumulations(trace)]
    born, died = lives.born[rows], lives.died[rows]
    through = (born < min(first, when.min())) & (died > when.max())
    sizes = lives.bytes[rows[through]]
    mine, more = _matched(np.zeros_like(sizes), sizes, _most(leaves), lives.on_device)
    if (more >= 0).all():
        found[through] = mine
    return found


def _most(leaves: Leaves) -> Leaves:
    """As many leaves of each size as the pass with most of them has."""
    keys, count = np.unique(np.stack([leaves.bytes, leaves.number]), axis=1, return_counts=True)
    sizes, at = np.unique(keys[0], return_inverse=True)
    most = np.zeros(len(sizes), np.int64)
    np.maximum.at(most, at, count)
    every = np.repeat(sizes, most)
    return Leaves(np.zeros_like(every), every, leaves.sized)


def parameters_before(trace: Events, lives: Lives, categories: Ints) -> int:
    """Bytes of parameters that were live before the trace; 0 if that cannot be told.

    A parameter is where its gradient is. If one backward pass has stored a new gradient on this
    device for each of its leaves, their sizes are those of the parameters. None are from before if
    the trace has allocated some.
    """
    leaves = trace.once(_leaves)
    if not leaves.sized or (categories == Category.PARAMETERS).any():
        return 0
    rows = (categories == Category.GRADIENTS).nonzero()[0]
    number = backward_passes(trace).of(lives.born[rows])
    _, more = _matched(number, lives.bytes[rows], leaves, lives.on_device)
    wanted = _allocated(leaves.bytes, lives.on_device)
    _, one = np.unique(leaves.number, return_inverse=True)
    total, other = (np.bincount(one, weights=of).astype(np.int64) for of in (wanted, more != 0))
    return int(total[other == 0].max(initial=0))
