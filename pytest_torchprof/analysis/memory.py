"""Live bytes over time, from ``[memory]`` events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.events import Kind, Memory, Trace

if TYPE_CHECKING:
    from pytest_torchprof.nesting import Bools, Ints

#: Operators that only allocate: their bytes belong to the operator that called them.
ALLOCATORS = frozenset(
    {
        "aten::empty",
        "aten::empty_like",
        "aten::empty_strided",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::resize_",
        "aten::empty_quantized",
    }
)


OUTSIDE = "(outside operators)"
BEFORE = "(before the region)"


@dataclass(frozen=True)
class Usage:
    """Bytes of one kind of device over the selected part of a trace, and by allocating operator.

    ``peak_bytes`` is the highest live amount above the start of the region, ``leaked_bytes`` what
    was allocated in it and is still live at the end of the capture (after a garbage collection).
    The ``*_by`` maps split the same numbers by the operator that allocated; what was freed of
    before the region counts as negative.
    """

    allocated_bytes: int
    peak_bytes: int
    leaked_bytes: int
    allocated_by: dict[str, int]
    peak_by: dict[str, int]
    leaked_by: dict[str, int]


def usage(trace: Trace, *, on_device: bool) -> Usage:
    """Allocated, peak and leaked bytes of the host, or of all accelerators together.

    On the host only frees of blocks allocated inside the region count: torch.profiler drops the
    frees of blocks it has not seen being allocated, except of those that an earlier session saw, so
    counting them would make the numbers depend on the order of tests. The accelerator's allocator
    reports every free, and its running sum is what ``torch.cuda.max_memory_allocated`` follows.
    """
    return trace.once(_usage, on_device)


def _usage(trace: Trace, on_device: bool) -> Usage:
    memory = trace.memory.device(on_device)
    block, size = _changes(memory, _selected(trace, memory), on_device)
    owner = np.append(_owners(trace, memory.event), -2)[block]  # block -1 is the last one, -2
    live = np.cumsum(size)
    top = int(np.argmax(live)) if len(live) else 0
    peak = max(int(live[top]), 0) if len(live) else 0
    until_peak = slice(0, top + 1 if peak else 0)
    allocation = size > 0
    return Usage(
        allocated_bytes=int(size[allocation].sum()),
        peak_bytes=peak,
        leaked_bytes=int(size.sum()),
        allocated_by=_by_owner(trace, owner[allocation], size[allocation]),
        peak_by=_by_owner(trace, owner[until_peak], size[until_peak]),
        leaked_by=_by_owner(trace, owner, size),
    )


def _changes(memory: Memory, inside: Bools, on_device: bool) -> tuple[Ints, Ints]:
    """What changes the live bytes, in order, as (row that allocated the block or -1, bytes).

    What happens next at a block's address ends it: its free, or another block, in which case its
    free was not seen.
    """
    rows, size = np.arange(len(memory.bytes)), memory.bytes
    fresh = inside & (size > 0)
    if memory.addr is None:  # then a free does not say of what
        changed = np.flatnonzero(inside & (size != 0))
        return np.where(fresh, rows, -1)[changed], size[changed]
    order = np.argsort(memory.addr, kind="stable")
    order = order[size[order] != 0]
    follows = np.diff(memory.addr[order]) == 0
    before = np.full(len(rows), -1, np.int64)
    before[order[1:][follows]] = order[:-1][follows]
    ends = (before >= 0) & fresh[before]
    older = inside & (size < 0) & ~ends & on_device
    row = np.concatenate([rows[ends], rows[older], rows[fresh]])
    block = np.concatenate([before[ends], np.full(older.sum(), -1), rows[fresh]])
    change = np.concatenate([-size[before[ends]], size[older], size[fresh]])
    in_time = np.argsort(row, kind="stable")  # an address is free before it is given out again
    return block[in_time], change[in_time]


def _selected(trace: Trace, memory: Memory) -> Bools:
    if trace.scope is None:
        return trace.in_region[memory.event]
    around = trace.enclosing(memory.event)
    return (around >= 0) & trace.selection[around] & trace.in_region[memory.event]


def _owners(trace: Trace, events: Ints) -> Ints:
    """Name of the innermost operator around each event that is more than an allocation, or -1."""
    ops = trace.is_kind(Kind.OP)
    more = ops & ~trace.names_where(ALLOCATORS.__contains__)
    owner = np.full(len(events), -1, np.int64)
    around = trace.enclosing(events)
    todo = np.flatnonzero(around >= 0)
    while len(todo):
        at = around[todo]
        owner[todo[ops[at]]] = trace.name[at[ops[at]]]
        todo = todo[~more[at]]
        around[todo] = trace.parent[around[todo]]
        todo = todo[around[todo] >= 0]
    return owner


def _by_owner(trace: Trace, owner: Ints, size: Ints) -> dict[str, int]:
    names = [*trace.names, BEFORE, OUTSIDE]  # -2 and -1
    total = np.zeros(len(names), np.int64)
    np.add.at(total, owner, size)
    return {names[i]: int(total[i]) for i in np.flatnonzero(total)}
