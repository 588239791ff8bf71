"""The peak that a device's caching allocator would have, from the allocations on the host.

Each block is as large as the allocator makes it. Source: c10/cuda/CUDACachingAllocator.cpp,
``round_size``, ``get_allocation_size`` and ``should_split``, and c10/core/AllocatorConfig.h:
sizes are multiples of 512 B; blocks of up to 1 MiB are cut from buffers of 2 MiB, those below
10 MiB from buffers of 20 MiB, larger ones from one that is a multiple of 2 MiB; and what is left of
a large buffer becomes part of the block unless it is more than 1 MiB. It is the best case: every
block is cut from a buffer of its own size, none from an old one that is larger.

What an operator that a device runs in its own way allocates and frees before it returns is left
out: it is scratch of the CPU's libraries, some of it per thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_forms import ATTENTION, forms
from pytest_torchprof.analysis.estimated_launches import on_host, units_of
from pytest_torchprof.analysis.live_bytes import changes_of, selected
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.known_names import REGION
from pytest_torchprof.trace.nesting import distinct
from pytest_torchprof.trace.tree import operators_around, outermost

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_SMALLEST: Final = 512
_MIB: Final = 2**20
_LARGE: Final = 10 * _MIB
_STEP: Final = 2 * _MIB


def block_bytes(size: Ints) -> Ints:
    """Bytes of the block that an allocation of this size gets.

    >>> block_bytes(np.array([0, 1, 512, 513, 10 * 2**20, 11 * 2**20 + 1])).tolist()
    [0, 512, 512, 1024, 10485760, 12582912]
    """
    rounded = -(-size // _SMALLEST) * _SMALLEST
    buffer = -(-rounded // _STEP) * _STEP
    whole = (rounded >= _LARGE) & (buffer - rounded <= _MIB)
    return np.where(whole, buffer, rounded)


def estimated_peak(trace: Events) -> int:
    """The highest live bytes above the start, in blocks, of the selected allocations."""
    return int(max(trace.once(_changes)[1].cumsum().max(initial=0), 0))


def blocks_at_peak(trace: Events) -> tuple[Ints, Ints]:
    """Operators that allocated what is live at this peak, each as a device would run it, and the
    bytes of their blocks.
    """
    owner, blocks = trace.once(_changes)
    if not len(blocks):
        return owner, blocks
    until = int(blocks.cumsum().argmax()) + 1
    known = owner[:until] >= 0
    return owner[:until][known], blocks[:until][known]


def _changes(trace: Events) -> tuple[Ints, Ints]:
    """In order, each change of the live bytes in blocks, and the operator whose block changes."""
    memory = trace.memory.device(on_device=False)
    if not len(memory.bytes):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    inside = selected(trace, memory)
    around = trace.enclosing(memory.event)
    inside &= ~((around >= 0) & on_host(trace)[around])
    row, block, change = changes_of(memory, inside, on_device=False)
    kept = ~_is_scratch(trace, around, row, block)
    blocks = np.sign(change[kept]) * block_bytes(np.abs(change[kept]))
    made = np.where(block[kept] >= 0, around[block[kept]], -1)
    whole = _outermost(trace, units_of(trace).covers, made)
    return np.where(whole >= 0, whole, operators_around(trace, made)), blocks


def others_only_help(trace: Events) -> bool:
    """Whether other threads than the region's run operators only while it is within one itself.

    Threads among which torch divides the work of an operator do: their blocks are scratch of it.
    """
    marks = trace.named(REGION).nonzero()[0]
    if not len(marks):
        return False
    calls = outermost(trace)
    calls = calls[trace.selection[calls]]
    main = trace.thread[calls] == trace.thread[marks[0]]
    mine, others = calls[main], calls[~main]
    if not len(mine):
        return not len(others)
    at = mine[np.maximum(np.searchsorted(trace.ts[mine], trace.ts[others], side="right") - 1, 0)]
    starts = trace.ts[at] <= trace.ts[others]
    ends = trace.ts[others] + trace.dur[others] <= trace.ts[at] + trace.dur[at]
    return bool((starts & ends).all())


def kept_for_backward(trace: Events) -> tuple[str, ...]:
    """Operators of which the CPU keeps blocks that a device does not make: parts of wholes.

    They are those with steps in the backward pass, and attention from which more than its result
    is left.
    """
    whole = forms(trace)
    found = distinct(whole.of[trace.selection[whole.of]])
    memory = trace.memory.device(on_device=False)
    math = whole.whole & trace.named(ATTENTION)
    if len(memory.bytes) and math.any():
        around = trace.enclosing(memory.event)
        row, block, _ = changes_of(memory, selected(trace, memory), on_device=False)
        outer = nesting.nearest(math, trace.parent, around)
        freed = (row != block) & (block >= 0)
        left = np.zeros(len(around), np.int64)
        left[row[row == block]] = 1
        left[block[freed][outer[row[freed]] == outer[block[freed]]]] = 0
        left = np.bincount(outer[outer >= 0], left[outer >= 0], len(trace))
        found = distinct(np.append(found, np.flatnonzero(left > 1)))
    return tuple(dict.fromkeys(trace.names[n] for n in trace.name[found].tolist()))


def _is_scratch(trace: Events, around: Ints, row: Ints, block: Ints) -> Bools:
    """Changes by blocks that the call which allocated them frees, too, below a unit of launches.

    ``around`` has the event around each allocation and free, ``row`` and ``block`` those that
    change, and that allocated what changes.
    """
    outermost = _outermost(trace, units_of(trace).covers, around)
    freed = (row != block) & (block >= 0)
    owner = outermost[row[freed]]
    mine = (owner >= 0) & (owner == outermost[block[freed]])
    scratch = np.zeros(len(around), bool)
    scratch[block[freed][mine]] = True
    # An address that is used again without a free has a row that is both.
    return scratch[block] & (block >= 0)


def _outermost(trace: Events, roots: Bools, events: Ints) -> Ints:
    """The outermost root around each of these, or -1."""
    found = nesting.nearest(roots, trace.parent, events)
    while True:
        above = np.where(found >= 0, trace.parent[found], -1)
        above = nesting.nearest(roots, trace.parent, above)
        if not (above >= 0).any():
            return found
        found = np.where(above >= 0, above, found)
