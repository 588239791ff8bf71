"""Live bytes over time, from ``[memory]`` events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_torchprof.events import Ints, Kind, Memory, Trace

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


@dataclass(frozen=True)
class Usage:
    """Bytes of one device over the selected part of a trace, and by allocating operator.

    ``peak_bytes`` is the highest live amount above the start of the region, ``leaked_bytes`` what
    was allocated in it and is still live at the end of the capture (after a garbage collection).
    The ``*_by`` maps split the same numbers by the operator that allocated.
    """

    allocated_bytes: int
    peak_bytes: int
    leaked_bytes: int
    allocated_by: dict[str, int]
    peak_by: dict[str, int]
    leaked_by: dict[str, int]


def usage(trace: Trace, *, on_device: bool) -> Usage:
    """Allocated, peak and leaked bytes of the host or of the accelerator.

    On the host only frees of blocks allocated inside the region count, by address and size:
    torch.profiler drops the frees of blocks it has not seen being allocated, except of those that an
    earlier session saw, so counting them would make the numbers depend on the order of tests. The accelerator's allocator
    reports every free, and its running sum is what ``torch.cuda.max_memory_allocated`` follows.
    """
    memory = trace.memory.device(on_device)
    inside = _selected(trace, memory)
    known: dict[int, tuple[int, int]] = {}  # address → (bytes, row) of blocks of this region
    deltas: list[tuple[int, int, int]] = []  # (row of the allocation or -1, bytes, row)
    for row, (addr, size, here) in enumerate(
        zip(memory.addr.tolist(), memory.bytes.tolist(), inside.tolist(), strict=True)
    ):
        held, born = known.get(addr, (0, -1))
        if size > 0:
            if born >= 0:  # an address that is given out again was freed, seen or not
                deltas.append((born, -held, row))
                del known[addr]
            if here:
                known[addr] = (size, row)
                deltas.append((row, size, row))
        elif held == -size:
            del known[addr]
            deltas.append((born, size, row))
        elif on_device and here:
            deltas.append((-1, size, row))
    live = peak = peak_row = 0
    for _, size, row in deltas:
        live += size
        if live > peak:
            peak, peak_row = live, row
    owners = _owners(trace, memory.event)
    allocated_by: dict[str, int] = {}
    peak_by: dict[str, int] = {}
    leaked_by: dict[str, int] = {}
    for born, size, row in deltas:
        owner = owners[born] if born >= 0 else "(before the region)"
        if size > 0:
            allocated_by[owner] = allocated_by.get(owner, 0) + size
        if row <= peak_row and peak:
            peak_by[owner] = peak_by.get(owner, 0) + size
        leaked_by[owner] = leaked_by.get(owner, 0) + size
    return Usage(
        allocated_bytes=sum(allocated_by.values()),
        peak_bytes=peak,
        leaked_bytes=live,
        allocated_by=allocated_by,
        peak_by={k: v for k, v in peak_by.items() if v},
        leaked_by={k: v for k, v in leaked_by.items() if v},
    )


def _selected(trace: Trace, memory: Memory) -> np.typing.NDArray[np.bool_]:
    if trace.scope is None:
        return trace.in_region[memory.event]
    around = trace.enclosing(memory.event)
    return (around >= 0) & trace.selection[around] & trace.in_region[memory.event]


def _owners(trace: Trace, events: Ints) -> list[str]:
    """The innermost operator around each event that is more than an allocation."""
    ops = trace.is_kind(Kind.OP)
    owners: list[str] = []
    for at in trace.enclosing(events).tolist():
        found, name = at, ""
        while found >= 0:
            if ops[found]:
                name = trace.names[trace.name[found]]
                if name not in ALLOCATORS:
                    break
            found = int(trace.parent[found])
        owners.append(name or "(outside operators)")
    return owners
