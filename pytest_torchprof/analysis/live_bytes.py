"""Live bytes over time, from ``[memory]`` events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.parts import selects_by_time

if TYPE_CHECKING:
    from pytest_torchprof.trace.allocations import Memory
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

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
UNKNOWN_OWNER = "(unknown: the trace has no addresses)"

#: Names of c10's device types by number. Source: c10/core/DeviceType.h.
DEVICE_TYPES = (
    *("cpu", "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip", "fpga", "maia", "xla", "vulkan"),
    *("metal", "xpu", "mps", "meta", "hpu", "ve", "lazy", "ipu", "mtia", "privateuseone"),
)


class Usage(Frozen, frozen=True):
    """Bytes of one kind of device over the selected part of a trace, and by allocating operator.

    ``peak_bytes`` is the highest live amount above the start of the region. ``leaked_bytes`` is
    how much more is live at its end (after a garbage collection) than at its start; of operators
    and modules, whose results outlive them, what of theirs is live at the end of the capture. The
    ``*_by`` maps split these numbers by the operator that allocated; frees of earlier blocks count
    as negative.
    """

    allocated_bytes: int
    peak_bytes: int
    leaked_bytes: int
    allocated_by: dict[str, int]
    peak_by: dict[str, int]
    leaked_by: dict[str, int]


def usage(trace: Events, *, on_device: bool) -> Usage:
    """Allocated, peak and leaked bytes of the host, or of all accelerators together.

    On the host only frees of blocks allocated inside the region count. torch.profiler drops the
    frees of blocks whose allocation it has not seen, except of those that an earlier session saw,
    so counting them would make the numbers depend on the order of tests. The accelerator's
    allocator reports every free, and its running sum is what ``torch.cuda.max_memory_allocated``
    follows.
    """
    return trace.once(_usage, on_device)


def _usage(trace: Events, on_device: bool) -> Usage:
    memory = trace.memory
    if not len(memory.bytes) or (on_device and not memory.on_device.any()):
        return Usage(0, 0, 0, {}, {}, {})
    memory = memory.device(on_device)
    if not len(memory.bytes):
        return Usage(0, 0, 0, {}, {}, {})
    inside, owners = selected(trace, memory), trace.whole.once(_owner_of_block, on_device)
    _, block, size = changes_of(memory, inside, on_device)
    owner = owners[block]
    left_owner, left = owner, size
    if trace.scope is not None and selects_by_time(trace):  # it ends before the capture does
        row, block, left = changes_of(memory, selected(trace.whole, memory), on_device)
        left_owner, left = owners[block[inside[row]]], left[inside[row]]
    peak, until_peak = _peak(size)
    allocation = size > 0
    return Usage(
        allocated_bytes=int(size[allocation].sum()),
        peak_bytes=peak,
        leaked_bytes=int(left.sum()),
        allocated_by=_by_owner(trace, owner[allocation], size[allocation]),
        peak_by=_by_owner(trace, owner[until_peak], size[until_peak]),
        leaked_by=_by_owner(trace, left_owner, left),
    )


def _owner_of_block(whole: Events, on_device: bool) -> Ints:
    """The owner of each block; that of block -1, the last one, is -2."""
    return np.append(owners_of(whole, whole.memory.device(on_device).event), -2)


def _peak(size: Ints) -> tuple[int, slice]:
    """The highest running sum above 0, and the slice up to where it is first reached."""
    live = size.cumsum()
    top = int(live.argmax()) if len(live) else 0
    peak = max(int(live[top]), 0) if len(live) else 0
    return peak, slice(0, top + 1 if peak else 0)


def changes_of(memory: Memory, inside: Bools, on_device: bool) -> tuple[Ints, Ints, Ints]:
    """The changes of the live bytes: (row, row that allocated the block or -1, bytes), in order.

    The next event at a block's address ends it: its free, or another allocation if the free was
    not seen.
    """
    rows, size = np.arange(len(memory.bytes)), memory.bytes
    fresh = inside & (size > 0)
    if memory.addr is None:  # then a free does not identify its block
        changed = (inside & (size != 0)).nonzero()[0]
        return changed, np.where(fresh, rows, -1)[changed], size[changed]
    order = memory.addr.argsort(kind="stable")
    order = order[size[order] != 0]
    follows = memory.addr[order[1:]] == memory.addr[order[:-1]]
    before = np.full(len(rows), -1, np.int64)
    before[order[1:][follows]] = order[:-1][follows]
    ends = (before >= 0) & fresh[before]
    older = inside & (size < 0) & ~ends & on_device
    row = np.concatenate([rows[ends], rows[older], rows[fresh]])
    freed = before[ends]
    block = np.concatenate([freed, np.full(older.sum(), -1), rows[fresh]])
    change = np.concatenate([-size[freed], size[older], size[fresh]])
    in_time = row.argsort(kind="stable")  # an address is freed before it is reused
    return row[in_time], block[in_time], change[in_time]


def selected(trace: Events, memory: Memory) -> Bools:
    """Which of these allocations and frees are in the selected part of the trace."""
    if selects_by_time(trace):
        return trace.selection[memory.event]
    around = trace.enclosing(memory.event)
    return (around >= 0) & trace.selection[around] & trace.in_region[memory.event]


def owners_of(trace: Events, events: Ints) -> Ints:
    """Name of the innermost operator around each event that does not just allocate, or -1."""
    ops = trace.is_kind(Kind.OP)
    more = ops & ~trace.names_where(ALLOCATORS.__contains__)
    owner = np.full(len(events), -1, np.int64)
    around = trace.enclosing(events)
    todo = (around >= 0).nonzero()[0]
    at = around[todo]
    while len(todo):
        is_op = ops[at]
        owner[todo[is_op]] = trace.name[at[is_op]]
        up = trace.parent[at]
        left = (up >= 0) & ~more[at]
        todo, at = todo[left], up[left]
    return owner


def _by_owner(trace: Events, owner: Ints, size: Ints) -> dict[str, int]:
    names = [*trace.names, BEFORE, OUTSIDE]  # -2 and -1
    total = np.zeros(len(names), np.int64)
    np.add.at(total, owner, size)
    some = total.nonzero()[0]
    return {names[i]: size for i, size in zip(some.tolist(), total[some].tolist(), strict=True)}


# -------------------------------------------------------------------- peaks, device by device


@dataclass(frozen=True)
class LiveRow:
    """An operator's blocks that were live at the peak; ``count`` is None where unknown."""

    operator: str
    bytes: int
    count: int | None


@dataclass(frozen=True)
class PeakMemory:
    """The highest live amount of one device above its start, and its parts.

    ``at_ms`` is the time from the trace's first event to the peak, None if the amount was never
    above the start. ``rows`` add up to ``peak_bytes``, largest first. On an accelerator, freeing
    blocks from before the trace (or before a live capture's region) lowers the amount: the row
    `BEFORE` has negative bytes and counts those blocks.
    """

    device: str
    peak_bytes: int
    at_ms: float | None
    rows: list[LiveRow]


def memory_of_devices(trace: Events) -> Iterator[tuple[str, Memory]]:
    """The name and the events of the host, if it has any, then of each accelerator by index."""
    for place in trace.memory.places:
        memory = trace.memory.where((trace.memory.place == place).all(axis=1))
        if memory.bytes.any():
            yield device_name(*place), memory


def memory_peaks(trace: Events) -> list[PeakMemory]:
    """The host first, then each accelerator by index; none for a trace without memory events.

    Blocks are followed as in `usage`. Where the events have no addresses, as in 2021, the amount
    is known, but not its parts.
    """
    return [_peak_of(trace, memory, device) for device, memory in memory_of_devices(trace)]


def live_at_start(trace: Events) -> dict[str, int | None]:
    """Bytes that were live on each device before the first change in the selected part.

    This is the count of the accelerator's allocator: ``Total Allocated`` of the first event less
    its ``Bytes``. None where the trace lacks it, and for the host, whose allocator counts only
    from the start of a profiler (c10/core/CPUAllocator.cpp).
    """
    found: dict[str, int | None] = {}
    for place in trace.memory.places:
        device_type, device_id = place
        memory = trace.memory.where((trace.memory.place == place).all(axis=1))
        events = memory.event[selected(trace, memory)]
        if not len(events):
            continue
        start = None
        if device_type:
            args = decode_part(trace.args[events[0]] or b"null")
            counts = [_integer(args, key) for key in ("Total Allocated", "Bytes")]
            if counts[0] is not None and counts[1] is not None and counts[0] >= counts[1]:
                start = counts[0] - counts[1]
        found[device_name(device_type, device_id)] = start
    return found


def _integer(args: object, key: str) -> int | None:
    value = args.get(key) if isinstance(args, dict) else None
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value if type(value) is int else None


def device_name(device_type: int, device_id: int) -> str:
    """The device as torch names it, from c10's number of its type and its index."""
    known = 0 <= device_type < len(DEVICE_TYPES)
    name = DEVICE_TYPES[device_type] if known else f"device type {device_type}"
    return f"{name}:{device_id}" if device_type and device_id >= 0 else name


def _peak_of(trace: Events, memory: Memory, device: str) -> PeakMemory:
    on_device = bool(memory.on_device[0])
    row, block, size = changes_of(memory, selected(trace, memory), on_device)
    peak, until = _peak(size)
    if not peak:
        return PeakMemory(device, 0, None, [])
    at = int(trace.ts[memory.event[row[until][-1]]] - trace.ts[0])
    if memory.addr is None:
        return PeakMemory(device, peak, at / 1e6, [LiveRow(UNKNOWN_OWNER, peak, None)])
    owner = np.append(owners_of(trace, memory.event), -2)[block[until]]
    amount = _by_owner(trace, owner, size[until])
    blocks = _by_owner(trace, owner, np.sign(size[until]))
    rows = [LiveRow(name, amount[name], abs(blocks.get(name, 0))) for name in amount]
    return PeakMemory(device, peak, at / 1e6, sorted(rows, key=lambda r: (-r.bytes, r.operator)))
