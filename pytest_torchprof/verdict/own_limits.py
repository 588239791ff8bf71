"""Limits on metrics of users' own, of which only a run tells the unit, and whether there is one."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_torchprof.core.own_metrics import OwnMetric
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import (
    Budget,
    MissingValue,
    Number,
    Profile,
    Value,
    Verdict,
)
from pytest_torchprof.core.scopes import is_of_name
from pytest_torchprof.core.units import converted
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Baseline

_MOST_SHOWN = 3
#: What a baseline keeps beside its times.
_BESIDE_TIMES = frozenset({"machine", "normalised"})


def in_units(
    budgets: Iterable[Budget], own: Mapping[str, OwnMetric]
) -> tuple[list[Budget], list[Verdict]]:
    """The budgets with limits in their metrics' units; for those in another unit, a verdict.

    Of several of one metric and scope, which stood in different units, the tightest limits.
    """
    fitting: dict[tuple[str, str, str | None], Budget] = {}
    refused: list[Verdict] = []
    for budget in budgets:
        unit = own[budget.metric].unit if budget.metric in own else budget.unit
        within = _converted(budget, unit)
        if within is None:
            why = because(Why.LIMIT_IN_OTHER_UNIT, limit=budget.unit, unit=unit)
            refused.append(_not_checked(budget, why))
            continue
        key = within.label, unit, within.on
        fitting[key] = fitting[key].tightened(within) if key in fitting else within
    return list(fitting.values()), refused


def _converted(budget: Budget, unit: str) -> Budget | None:
    """The budget with its limits in this unit; None if they measure something else."""
    if budget.unit in ("", unit):
        return replace(budget, unit=unit)
    given = {"limit": budget.limit, "least": budget.least}
    limits = {
        name: converted(value, budget.unit, unit)
        for name, value in given.items()
        if value is not None
    }
    return None if None in limits.values() else replace(budget, unit=unit, **limits)


def without_value(
    profile: Profile, baseline: Baseline | None, limits: Mapping[str, Budget]
) -> Iterator[Verdict]:
    """A verdict for each metric that has a limit or was accepted, and that this run lacks."""
    accepted = {} if baseline is None else {**baseline.own, **_own_times(baseline)}
    for name, budget in limits.items():
        if name in profile.metrics:
            continue
        if not budget.source:  # a limit of the project is for the tests that have the metric
            yield replace(_not_checked(budget, nowhere(name, profile)), baseline=accepted.get(name))
    for name, value in accepted.items():
        if name not in profile.metrics and name not in limits:
            missing = MissingValue(because(Why.NOT_RECORDED))
            yield Verdict(name, missing, "not_measured", value, reason=missing.reason)


def _own_times(baseline: Baseline) -> dict[str, Number]:
    """The accepted times of metrics that are not of the table."""
    return {
        name: value
        for name, value in baseline.times.items()
        if name not in METRICS and name not in _BESIDE_TIMES
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def of_lost_regions(
    profile: Profile, baseline: Baseline | None
) -> Iterator[tuple[str, list[Verdict]]]:
    """By region that the test no longer enters, a verdict for each value that was recorded there.

    Only for those: what ran there is part of the test's own numbers.
    """
    for name, before in ({} if baseline is None else baseline.regions).items():
        if name not in profile.regions:
            found = with_own(without_value(Profile({}), before, {}), {})
            yield name, [replace(verdict, region=name) for verdict in found]


def nowhere(name: str, profile: Profile) -> Reason:
    """Why the whole test has no value of a metric: it has another name, or is one of regions."""
    regions = tuple(sorted(r for r, one in profile.regions.items() if name in one.metrics))
    if regions:
        return because(Why.ONLY_IN_REGIONS, name=name, regions=regions)
    return no_such_metric(name, [*profile.own, *METRICS])


def no_such_metric(name: str, known: Collection[str]) -> Reason:
    """Why there is no metric of this name, with names that are spelled alike."""
    import difflib

    near = tuple(sorted(difflib.get_close_matches(name, known, _MOST_SHOWN)))
    if near:
        return because(Why.NO_SUCH_METRIC_NEAR, name=name, near=near)
    return because(Why.NO_SUCH_METRIC, name=name)


def value_within(budget: Budget, regions: Mapping[str, Profile]) -> Value | None:
    """The recorded value in the regions that the budget names; None if there is none.

    Of several, the one that decides: the highest for an upper limit, the lowest for a lower one.
    """
    pattern = budget.region or ""
    found: list[Value] = [
        one.metrics[budget.metric]
        for name, one in regions.items()
        if is_of_name(pattern, name) and budget.metric in one.metrics
    ]
    missing = [value for value in found if isinstance(value, MissingValue)]
    numbers: list[Number] = [value for value in found if not isinstance(value, MissingValue)]
    if missing or not numbers:
        return missing[0] if missing else None
    highest = max(numbers)
    over = budget.limit is not None and (highest > budget.limit or budget.least is None)
    return highest if over else min(numbers)


def not_in_region(budget: Budget, regions: Mapping[str, Profile], own: Collection[str]) -> Reason:
    """Why a recorded metric has no value in the regions that the budget names."""
    named = [name for name in regions if is_of_name(budget.region or "", name)]
    if budget.metric not in own:
        return no_such_metric(budget.metric, [*own, *METRICS])
    if named:
        return because(Why.NOT_RECORDED_IN, name=budget.metric, region=budget.region or "")
    wanted = budget.region or ""
    import difflib

    near = tuple(sorted(difflib.get_close_matches(wanted, regions, _MOST_SHOWN)))
    if near:
        return because(Why.SCOPE_DID_NOT_RUN_NEAR, scope="region", name=wanted, near=near)
    return because(Why.SCOPE_DID_NOT_RUN, scope="region", name=wanted)


def _not_checked(budget: Budget, why: Reason) -> Verdict:
    return Verdict(
        budget.metric,
        MissingValue(why),
        "not_measured",
        limit=budget.limit,
        least=budget.least,
        reason=why,
        scope=budget if budget.scoped else None,
        source=budget.source,
    )


def with_own(verdicts: Iterable[Verdict], own: Mapping[str, OwnMetric]) -> list[Verdict]:
    """The verdicts, those on users' own metrics with what is declared of them."""
    return [
        v
        if v.metric in METRICS
        else replace(v, own=own.get(v.metric) or OwnMetric(v.metric, unit=""))
        for v in verdicts
    ]
