"""What a metric is: a row of the metric table, or one of a user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from pytest_torchprof.core.own_metrics import Better, OwnMetric
    from pytest_torchprof.core.results import Value
    from pytest_torchprof.core.settings import Tolerance
    from pytest_torchprof.trace.events import Events

Klass = Literal["exact", "near", "time", "never"]
MetricNeed = Literal[
    "rounds", "shapes", "memory", "device", "device_memory", "calls", "operators", "host"
]


class Metric(NamedTuple):
    """One row of the table. (A plain pytest run loads it for the markers, so it is a light type.)

    Attributes:
        name: report key, baseline key, column; the marker is ``max_<name>``.
        unit: unit of the value: ``ms``, ``1``, ``FLOP`` or ``B``; of a user's own metric, any.
        klass: ``exact`` must not exceed the baseline, ``near`` not by more than the tolerance,
            ``time`` follows ``--torchprof-time``; ``never``: only limits apply, to a user's own
            metric.
        needs: what the capture must hold; without it, the metric is not measured.
        extract: the value from a trace; pure.
        help: one line for tables and ``--markers``.
        tolerance: by which share it may differ from the baseline, and still be as accepted.
        margin: the same in its unit; the larger of the two counts.
        scopable: whether a limit may name an operator or a module.
        depends_on_order: whether it has a value depends on what ran earlier in the process.
        adds_up: whether more work can only increase it, so that a part of the work gives a lower
            bound. A peak does not: a free lowers it. Nor self time: a nested call lowers it.
        largest: whether the value of a region entered repeatedly is its largest lap's, not the sum.
        compared: whether it is compared with a baseline. Not if something outside the test decides
            it: a cache on disk, or what other tests have left in memory.
        on_request: whether it is measured only for tests that ask for it.
        of_chip: whether it is of the chip of ``--torchprof-device``, so that bounds on two chips do
            not compare.
        timed_by_region: whether rounds measure it in the named regions of a test, too.
        better: whether a lower or a higher value is an improvement.
        own: what the user has declared, of a metric of his own.
    """

    name: str
    unit: str
    klass: Klass
    needs: frozenset[MetricNeed]
    extract: Callable[[Events], Value]
    help: str
    tolerance: float = 0.0
    scopable: bool = True
    depends_on_order: bool = False
    adds_up: bool = False
    largest: bool = False
    compared: bool = True
    timed_by_region: bool = False
    of_chip: bool = False
    on_request: bool = False
    better: Better = "lower"
    own: OwnMetric | None = None
    margin: float = 0.0

    @property
    def stored(self) -> bool:
        """Whether baselines keep it among ``metrics``; times are kept apart, with their machine."""
        return self.compared and self.klass != "time"

    @property
    def of_region(self) -> bool:
        """Whether it comes from the profiled run's events, not from rounds or the first run."""
        told = self.own is not None and self.own.recorded
        return "rounds" not in self.needs and not self.depends_on_order and not told

    @property
    def of_device(self) -> bool:
        """Whether it measures an accelerator, or waiting for one."""
        return not self.needs.isdisjoint({"device", "device_memory", "calls"})


def tolerant(metric: Metric, tolerances: Iterable[Tolerance]) -> Metric:
    """The metric with the last share and the last amount given for it; its own, of neither."""
    for one in tolerances:
        if one.is_for(metric.name, metric.unit):
            if one.share is not None:
                metric = metric._replace(tolerance=one.share)
            if one.amount is not None:
                metric = metric._replace(margin=one.amount)
    return metric
