"""The peak that a device's caching allocator would have, from the allocations on the host.

Each block is as large as the allocator makes it. Source: c10/cuda/CUDACachingAllocator.cpp,
``round_size``, ``get_allocation_size`` and ``should_split``, and c10/core/AllocatorConfig.h:
sizes are multiples of 512 B; blocks of up to 1 MiB are cut from buffers of 2 MiB, those below
10 MiB from buffers of 20 MiB, larger ones from one that is a multiple of 2 MiB; and what is left of
a large buffer becomes part of the block unless it is more than 1 MiB. It is the best case: every
block is cut from a buffer of its own size, none from an old one that is larger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.estimated_launches import on_host
from pytest_torchprof.analysis.live_bytes import changes_of, selected

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

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
    memory = trace.memory.device(on_device=False)
    if not len(memory.bytes):
        return 0
    inside = selected(trace, memory)
    around = trace.enclosing(memory.event)
    inside &= ~((around >= 0) & on_host(trace)[around])
    _, _, change = changes_of(memory, inside, on_device=False)
    blocks = np.sign(change) * block_bytes(np.abs(change))
    return int(max(blocks.cumsum().max(initial=0), 0))
