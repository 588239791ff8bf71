"""The highest totals of the accelerators' allocators, from ``[memory]`` events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from pytest_torchprof.analysis.live_bytes import selected
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import MemoryTotals, decode, int64_column

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


def highest_total(trace: Events, what: Literal["allocated", "reserved"]) -> int | None:
    """The highest ``Total Allocated`` or ``Total Reserved`` in the selection, in bytes.

    It is what `torch.cuda.max_memory_allocated` and `torch.cuda.max_memory_reserved` say after a
    reset at the region's start; with several devices, of all together. None if no event in the
    whole trace has a total: then nothing was allocated or freed, and the level is not recorded.
    Before a device's first event in the selection its level is that after its last earlier event,
    else that before its next one. Of reserved memory only the level after that one is recorded.
    """
    return trace.once(_highest, what)


def _begin(trace: Events) -> int:
    """When the selection begins, in ns: with the region, or with its first event."""
    if trace.scope is None and trace.region is not None:
        return trace.region[0]
    chosen = trace.selection.nonzero()[0]
    return int(trace.ts[chosen].min()) if len(chosen) else 0


def _totals(trace: Events) -> dict[str, Ints]:
    """What the accelerators' allocators recorded at each event."""
    memory = trace.memory
    found = decode(MemoryTotals, trace.args[memory.event[memory.on_device]])
    return {
        "allocated": int64_column([totals.allocated for totals in found]),
        "reserved": int64_column([totals.reserved for totals in found]),
    }


def _by_place(kind: Ints, index: Ints) -> Iterator[Ints]:
    """Positions of each device's rows. Sorting pairs of numbers takes much longer."""
    for one in nesting.distinct(kind).tolist():
        for device in nesting.distinct(index[kind == one]).tolist():
            yield ((kind == one) & (index == device)).nonzero()[0]


def _highest(trace: Events, what: str) -> int | None:
    memory = trace.memory
    rows = memory.on_device.nonzero()[0]
    if not len(rows):
        return None
    events = memory.event[rows]
    total = trace.whole.once(_totals)[what]
    if (total < 0).any():
        return None
    counts = selected(trace, memory.where(memory.on_device))
    begin = _begin(trace)
    start, change = 0, np.zeros(len(rows), np.int64)
    for mine in _by_place(*memory.place[rows].T):
        inside = mine[counts[mine]]
        earlier = mine[trace.ts[events[mine]] < begin]
        if len(earlier):
            level = int(total[earlier[-1]])
        else:
            own = int(memory.bytes[rows[mine[0]]]) if what == "allocated" else 0
            level = max(int(total[mine[0]]) - own, 0)
        start += level
        change[inside] = np.diff(total[inside], prepend=level)
    return start + max(int(change.cumsum().max()), 0)
