"""The level of live memory over time, by what it is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.block_categories import (
    Category,
    categories_of,
    lives_of,
    parameters_before,
)
from pytest_torchprof.analysis.live_bytes import (
    changes_of,
    live_at_start,
    memory_of_devices,
    selected,
)
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace.arguments import MemoryTotals, decode, int64_column

if TYPE_CHECKING:
    from pytest_torchprof.trace.allocations import Memory
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


@dataclass(frozen=True)
class MemoryPoint:
    """The live bytes of one device at a moment; the parts add up to ``live_bytes``.

    ``at_ms`` counts from the trace's first event. ``live_bytes`` is all that the allocator had
    given out, if the trace has its totals; otherwise what was live above the start, and
    ``before_bytes`` is what was freed of blocks from before, as a negative number.
    """

    device: str
    at_ms: float
    live_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    activations_bytes: int
    temporaries_bytes: int
    unknown_bytes: int
    before_bytes: int


@dataclass(frozen=True)
class DeviceMemory:
    """One device's memory at its peak, and what its allocator recorded; None where it did not.

    ``live_bytes`` and its parts are as in `MemoryPoint`, at the moment of the peak.
    ``max_allocated_bytes`` and ``max_reserved_bytes`` are absolute peaks, as
    ``torch.cuda.max_memory_allocated`` and ``max_memory_reserved`` have them.
    ``fragmentation_bytes`` is reserved less allocated memory when most is allocated,
    ``max_fragmentation_bytes`` the most at any moment: blocks that the allocator keeps but has not
    given out. The host's allocator records no totals since the process began, and reserves nothing.
    """

    device: str
    live_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    activations_bytes: int
    temporaries_bytes: int
    unknown_bytes: int
    before_bytes: int
    max_allocated_bytes: int | None = None
    max_reserved_bytes: int | None = None
    fragmentation_bytes: int | None = None
    max_fragmentation_bytes: int | None = None


class Series(Frozen, frozen=True):
    """All changes of a device's live bytes in time order: when (ns), the bytes, what they are for.

    ``start`` has the bytes of each `Category` before the first change.
    """

    device: str
    ts: Ints
    size: Ints
    category: Ints
    start: Ints
    memory: Memory

    @property
    def top(self) -> int:
        """How many changes there are up to the first highest level; 0 for the start."""
        level = self.size.cumsum()
        top = int(level.argmax()) if len(level) else 0
        return top + 1 if len(level) and level[top] > 0 else 0

    def after(self, count: int) -> list[int]:
        """The bytes of each category after this many changes."""
        total = self.start.copy()
        np.add.at(total, self.category[:count], self.size[:count])
        return total.tolist()  # type: ignore[no-any-return]


def series_of(trace: Events) -> list[Series]:
    """One for each device: the host first, then each accelerator by index."""
    return trace.once(_all_series)


def _all_series(trace: Events) -> list[Series]:
    starts = live_at_start(trace)
    return [_series(trace, *one, starts.get(one[0])) for one in memory_of_devices(trace)]


def _series(trace: Events, device: str, memory: Memory, start: int | None) -> Series:
    inside = selected(trace, memory)
    row, block, size = changes_of(memory, inside, bool(memory.on_device[0]))
    first = np.zeros(len(Category), np.int64)
    first[Category.BEFORE] = start or 0
    ts = trace.ts[memory.event[row]]
    if memory.addr is None:
        unknown = np.full(len(row), Category.UNKNOWN, np.int64)
        return Series(device, ts, size, unknown, first, memory)
    lives = lives_of(trace, memory, row, block, size)
    blocks, older = categories_of(trace, lives)
    if start is None:
        older = np.full(len(older), Category.BEFORE)
    of_row = np.full(len(memory.bytes), Category.BEFORE, np.int64)
    of_row[row[size > 0]] = blocks
    category = of_row[np.where(block >= 0, block, row)]
    freed = (size < 0) & (block < 0)
    category[freed] = older
    if start is not None:
        np.subtract.at(first, older, size[freed])
        first[Category.BEFORE] = start + size[freed][older != Category.BEFORE].sum()
        kept = first[Category.BEFORE] + size[freed][older == Category.BEFORE].sum()
        parameters = parameters_before(trace, lives, blocks)
        if parameters <= kept:
            first[Category.PARAMETERS] = parameters
            first[Category.BEFORE] -= parameters
    return Series(device, ts, size, category, first, memory)


def memory_timeline(trace: Events, points: int = 0) -> list[MemoryPoint]:
    """The level of each device after each change, or at this many moments.

    A moment stands for an equal share of the time between a device's first and last change: it is
    that of the highest level there, the first of several. Shares without a change have none. Of a
    part of the trace, only the time from its first allocation or free to its last one counts.

    Raises:
        ValueError: ``points`` is negative.
    """
    if points < 0:
        raise ValueError(f"a timeline of {points} moments: give 0 for all changes, or a number")
    found = []
    for series in series_of(trace):
        begin = int(trace.ts[0])
        rows = _moments(series, _changes_in(trace, series), points)
        for at, parts in zip(series.ts[rows].tolist(), _levels(series, rows), strict=True):
            found.append(MemoryPoint(series.device, (at - begin) / 1e6, sum(parts), *parts))
    return found


def _levels(series: Series, rows: Ints) -> list[list[int]]:
    """The bytes of each category after each of these changes."""
    columns = [
        start + np.where(series.category == category, series.size, 0).cumsum()[rows]
        for category, start in enumerate(series.start.tolist())
    ]
    return np.stack(columns, 1).tolist()  # type: ignore[no-any-return]


def _changes_in(trace: Events, series: Series) -> Ints:
    """The changes while the selected part ran: what it allocated may be freed after it."""
    events = series.memory.event[selected(trace, series.memory)]
    if not len(events):
        return np.zeros(0, np.int64)
    times = trace.ts[events]
    inside: Ints = ((series.ts >= times.min()) & (series.ts <= times.max())).nonzero()[0]
    return inside


def _moments(series: Series, rows: Ints, points: int) -> Ints:
    if not points or len(rows) <= points:
        return rows
    ts = series.ts[rows]
    span = max(int(ts[-1] - ts[0]), 1)
    share = np.minimum((ts - ts[0]) * points // span, points - 1)
    order = np.lexsort((rows, -series.size.cumsum()[rows], share))
    first = np.diff(share[order], prepend=-1) > 0
    return np.sort(rows[order[first]])


def device_memory(trace: Events) -> list[DeviceMemory]:
    """Each device at its peak, the host first; none for a trace without memory events."""
    found = []
    for series in series_of(trace):
        parts = series.after(series.top)
        totals = _totals(trace, series.memory)
        found.append(DeviceMemory(series.device, sum(parts), *parts, *totals))
    return found


def _totals(trace: Events, memory: Memory) -> tuple[int | None, ...]:
    """Highest allocated and reserved memory; the difference at the former, and at most."""
    inside = selected(trace, memory).nonzero()[0]
    if not memory.on_device[0] or not len(inside):
        return None, None, None, None
    rows = np.arange(max(int(inside[0]) - 1, 0), len(memory.event))
    args = decode(MemoryTotals, trace.args[memory.event[rows]])
    allocated, reserved = (
        int64_column([getattr(a, name) for a in args]) for name in ("allocated", "reserved")
    )
    rest = inside - rows[0]
    most = None
    if (allocated[rest] >= 0).all():
        before = int(allocated[rest[0]] - memory.bytes[inside[0]])
        most = max(before, int(allocated[rest].max()))
    known = rest if rows[0] == inside[0] else np.append(0, rest)  # the level before counts, too
    if (reserved[known] < 0).any() or not reserved[known].any():
        return most, None, None, None
    highest = int(reserved[known].max())
    free = reserved[rest] - allocated[rest]
    if most is None or (free < 0).any():
        return most, highest, None, None
    return most, highest, int(free[allocated[rest].argmax()]), int(free.max())
