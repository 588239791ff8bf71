"""What a test's named regions measured: each has a profile like the whole test's."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.core.cached import cached
from pytest_torchprof.core.reasons import Why, because
from pytest_torchprof.core.results import MissingValue
from pytest_torchprof.core.scopes import is_of_name
from pytest_torchprof.trace.known_names import region_mark
from pytest_torchprof.trace.regions import laps_of, named_regions
from pytest_torchprof.verdict.metrics import METRICS, measure
from pytest_torchprof.verdict.scopes import did_not_run

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pytest_torchprof.core.reasons import Reason
    from pytest_torchprof.core.results import Budget, Value
    from pytest_torchprof.rules.engine.check import Checked
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.facts import Quantity
    from pytest_torchprof.verdict.metric import Metric
    from pytest_torchprof.verdict.recorded import Recorded

_NOT_TIMED = because(Why.REGION_NOT_TIMED)
_OF_TEST = because(Why.ONLY_OF_TEST)
_NOT_OF_LAPS = because(Why.NOT_RECORDED_BY_LAP)
#: The order of a lap's times in `RegionTimes.laps`.
_LAP_FIELDS = ("wall_ms", "cpu_ms")


def view_of(trace: Events, name: str, lap: int | None = None) -> Events:
    """The trace, counting only what ran in this region of the test, or in one lap of it."""
    return trace.once(_view, name, lap)


def _view(trace: Events, name: str, lap: int | None) -> Events:
    region = region_mark(name)
    return trace.within(region=region) if lap is None else trace.lap(region, lap)


def region_time(trace: Events, metric: Metric, name: str, lap: int | None = None) -> Value:
    """A metric of the timed rounds in a named region or a lap of it: medians over the rounds."""
    if not metric.timed_by_region:
        return MissingValue(_NOT_TIMED)
    whole: Quantity | None = getattr(trace.facts, metric.name)
    if whole is None or whole.median is None:
        return MissingValue((whole and whole.reason) or because(Why.ONLY_LIVE))
    times = (trace.facts.regions or {}).get(name)
    noted: Quantity | None = getattr(times, metric.name, None)
    if noted is not None and noted.reason is not None:
        return MissingValue(noted.reason)
    if times is None or noted is None or times.count != named_regions(trace).get(name):
        return MissingValue(because(Why.LAPS_DIFFER, name=name))
    if noted.median is None:
        return MissingValue(because(Why.ONLY_LIVE))
    if lap is None:
        return noted.median
    if lap >= len(times.laps):
        return MissingValue(because(Why.LAPS_NOT_TIMED, name=name))
    return times.laps[lap][_LAP_FIELDS.index(metric.name)]


def time_within(trace: Events, metric: Metric, budget: Budget) -> Value:
    """The time of the named regions of the budget's name or glob, added up."""
    what = budget.region or ""
    names = [name for name in named_regions(trace) if is_of_name(what, name)]
    if not names and trace.within(region=what).selection.any():
        return MissingValue(because(Why.LABEL_NOT_TIMED, name=what))
    if not names:
        return MissingValue(did_not_run(trace, "region", what))
    total = 0.0
    for name in names:
        value = region_time(trace, metric, name)
        if isinstance(value, MissingValue):
            return value
        total += value
    laps = np.concatenate([laps_of(trace, region_mark(name)) for name in names])
    laps = laps[np.argsort(trace.ts[laps], kind="stable")]
    if (trace.ts[laps[1:]] < (trace.ts[laps] + trace.dur[laps])[:-1]).any():
        return MissingValue(because(Why.TIMES_OVERLAP, names=tuple(sorted(names))))
    return total


class RegionValues(Mapping[str, "Value"]):
    """Every metric within a region: the sum over its laps, or the largest; or those of one lap.

    ``gap``: why they are unknown. ``own`` are the user's own functions of a trace, and ``recorded``
    is what the test records there.
    """

    def __init__(
        self,
        checked: Checked,
        allowed: Collection[str],
        name: str,
        lap: int | None = None,
        gap: Reason | None = None,
        own: Iterable[Metric] = (),
        recorded: Mapping[str, Recorded] | None = None,
    ) -> None:
        self._checked, self._allowed = checked, allowed
        self._name, self._lap = name, lap
        laps = named_regions(checked.trace).get(name, 0)
        if gap is None and not laps:
            gap = because(Why.SCOPE_DID_NOT_RUN, scope="region", name=name)
        self._gap, self._laps = gap, laps
        self._recorded = recorded or {}
        self._rows = {**METRICS, **{one.name: one for one in own}}

    def __iter__(self) -> Iterator[str]:
        asked = self._checked.trace.facts.asked or ()
        rows = (name for name, row in self._rows.items() if not row.on_request or name in asked)
        return chain(rows, self._recorded)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Value:
        """The metric's value, or why there is none."""
        if name in self._recorded:
            whole = self._lap is None
            return self._recorded[name].value if whole else MissingValue(_NOT_OF_LAPS)
        metric = self._rows[name]
        if self._gap is not None:
            return MissingValue(self._gap)
        if "rounds" in metric.needs:
            return region_time(self._checked.trace, metric, self._name, self._lap)
        if metric.depends_on_order:
            return MissingValue(_OF_TEST)
        if name == "findings":
            return self._findings()
        if not metric.largest or self._lap is not None or self._laps == 1:
            return measure(metric, self._view(self._lap))
        values: list[float] = []
        for lap in range(self._laps):
            value = measure(metric, self._view(lap))
            if isinstance(value, MissingValue):
                return value
            values.append(value)
        return max(values)

    def _view(self, lap: int | None) -> Events:
        return view_of(self._checked.trace, self._name, lap)

    @cached
    def counts(self) -> Mapping[str, int]:
        """Findings by rule."""
        return self._checked.of_part(self._view(self._lap)).counts

    def _findings(self) -> Value:
        if self._checked.unsettled is not None:
            return MissingValue(self._checked.unsettled)
        total = self._checked.of_part(self._view(self._lap)).total
        return sum(count for rule, count in total.items() if rule not in self._allowed)
