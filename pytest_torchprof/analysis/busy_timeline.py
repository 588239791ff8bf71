"""What each device was busy with over time: the breakdown of its span, in equal shares of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.breakdown import IDLE, OUTSIDE, device_work
from pytest_torchprof.analysis.gaps import device_time_gap
from pytest_torchprof.analysis.idle import Idle, spans_of
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.work.categories import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_torchprof.trace.events import Events


class BusyTimeline(Frozen, frozen=True):
    """One device's span in shares of equal length, and what each was busy with, in ns.

    ``edges`` are the beginnings of the shares and the end of the last, since the trace's first
    event. ``ns_by_category`` has a number for each share; a category's sum is its ``time_ms`` in
    `BreakdownRow`, to the ns. `IDLE` is missing where the trace has only a part of the device's
    work. ``device`` is None if unknown.
    """

    device: int | None
    edges: list[int]
    ns_by_category: Mapping[str, list[int]]


def busy_timelines(trace: Events, shares: int) -> list[BusyTimeline]:
    """A timeline of each device, by number; none for a trace without device events.

    As in `breakdown`, each moment belongs to one category, the first that runs then. A span of
    fewer ns than ``shares`` has a share for each ns.

    Raises:
        ValueError: ``shares`` is less than 1.
    """
    if shares < 1:
        raise ValueError(f"a timeline of {shares} shares: give 1 or more")
    return trace.once(_busy_timelines, shares)


def _busy_timelines(trace: Events, shares: int) -> list[BusyTimeline]:
    whole = trace.once(device_time_gap) is None
    spans, found = spans_of(trace), []
    for device, (start, end, category) in device_work(trace).items():
        since, until = spans[device]
        count = max(min(shares, until - since), 1)
        edges = since + (until - since) * np.arange(count + 1) // count
        before = np.zeros(count, np.int64)
        parts = {}
        for rank, name in enumerate((*CATEGORIES, OUTSIDE)):
            if not (category == rank).any():
                continue
            up_to = category <= rank
            spans_busy, _ = Idle.around(start[up_to], end[up_to])
            busy = spans_busy.busy_between(edges[:-1], edges[1:])
            parts[name] = (busy - before).tolist()
            before = busy
        if whole:
            parts[IDLE] = (np.diff(edges) - before).tolist()
        number = device if device >= 0 else None
        found.append(BusyTimeline(number, (edges - int(trace.ts[0])).tolist(), parts))
    return found
