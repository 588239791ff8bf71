"""How long the test takes without the profiler, from its timed rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.facts import Quantity

#: The profiler slows operators down by a factor of 1.3 to this.
SLOWDOWN: Final = 5


def wall_ns(trace: Events) -> float | None:
    """The median of the rounds; None if none were timed, and for traces of other tools."""
    return _median_ns(trace.facts.wall_ms) or None


def cpu_ns(trace: Events) -> float | None:
    """The CPU time of the test's process, likewise. A test that only waits may have 0."""
    return _median_ns(trace.facts.cpu_ms)


def slowdown_share(trace: Events) -> float:
    """The region's time without the profiler, as a share of its profiled time, at most 1."""
    wall, region = wall_ns(trace), trace.region
    if wall is None or region is None:
        return 1.0
    return min(wall / max(region[1] - region[0], 1), 1.0)


def _median_ns(quantity: Quantity | None) -> float | None:
    if quantity is None or quantity.median is None or quantity.median < 0:
        return None
    return quantity.median * 1e6
