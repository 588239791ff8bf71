"""The least time of a trace's operators on a chip, operator by operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from pytest_torchprof.analysis.device_bound import LIMITS, bound

if TYPE_CHECKING:
    from pytest_torchprof.analysis.device_bound import Limit
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.work.devices.device import Device


@dataclass(frozen=True)
class BoundRow:
    """All calls of an operator on a chip.

    ``flops`` and ``bytes`` are None if those of some call are unknown: its part of ``bound_ms`` is
    then that of what is known, such as its launches. ``limit`` is what takes most of ``bound_ms``;
    ``share`` is its share of the bound of all.
    """

    device: str
    operator: str
    calls: int
    flops: int | None
    bytes: int | None
    bound_ms: float
    limit: Limit
    share: float | None

    ADDS_UP: ClassVar = ("calls", "flops", "bytes", "bound_ms")


def bound_rows(trace: Events, chip: Device) -> list[BoundRow]:
    """A row for each operator, the largest bound first."""
    found = bound(trace, chip)
    work, total = found.work, found.total_ms
    names, at = np.unique(trace.name[work.event], return_inverse=True)
    count = len(names)
    ns = np.bincount(at, found.ns, count)
    by_limit = np.stack([np.bincount(at, found.ns * (found.limit == i), count) for i in range(3)])
    flops = np.zeros(count, np.int64)
    np.add.at(flops, at, np.maximum(work.all_flops, 0))
    unsaid = np.bincount(at, work.all_flops < 0, count) > 0
    moved = np.zeros(count, np.int64)
    np.add.at(moved, at, np.maximum(work.bytes, 0))
    unknown = np.bincount(at, work.bytes < 0, count) > 0
    calls = np.bincount(at, minlength=count)
    idle = ns == 0
    rows = [
        BoundRow(
            chip.name,
            trace.names[name],
            int(calls[i]),
            None if unsaid[i] else int(flops[i]),
            None if unknown[i] else int(moved[i]),
            float(ns[i]) / 1e6,
            LIMITS[int(by_limit[:, i].argmax())],
            float(ns[i]) / 1e6 / total if total else None,
        )
        for i, name in enumerate(names.tolist())
        if not idle[i]
    ]
    return sorted(rows, key=lambda row: (-row.bound_ms, row.operator))
