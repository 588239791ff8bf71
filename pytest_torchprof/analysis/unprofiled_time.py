"""How long the test takes without the profiler, from its timed rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events


def wall_ns(trace: Events) -> float | None:
    """The median of the rounds; None if none were timed, and for traces of other tools."""
    wall_ms = trace.facts.wall_ms
    if wall_ms is None or wall_ms.median is None or wall_ms.median <= 0:
        return None
    return wall_ms.median * 1e6


def slowdown_share(trace: Events) -> float:
    """The region's time without the profiler, as a share of its profiled time, at most 1.

    The profiler slows operators down by a factor of 1.3 to 5.
    """
    wall, region = wall_ns(trace), trace.region
    if wall is None or region is None:
        return 1.0
    return min(wall / max(region[1] - region[0], 1), 1.0)
