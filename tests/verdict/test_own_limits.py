"""Limits on metrics of users' own: their units, their regions, and metrics that a run lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.core.values import Baseline, Budget, MissingValue, Number, OwnMetric, Profile
from pytest_torchprof.verdict.compare import Policy, compare
from pytest_torchprof.verdict.metrics import measure
from pytest_torchprof.verdict.own import metric, rounded, value_within

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events


def profile(value: Number, unit: str = "s", better: str = "lower", how: str = "exact") -> Profile:
    own = {"n": OwnMetric("n", unit, better, how, recorded=True)}  # type: ignore[arg-type]
    return Profile({"n": value}, own=own)


@pytest.mark.parametrize(
    ("value", "unit", "limit", "of", "status"),
    [
        (2, "s", 2, "", "new"),
        (2, "s", 1, "s", "over_budget"),
        (2, "s", 2000, "ms", "new"),
        (2, "s", 1999, "ms", "over_budget"),
        (2, "ms", 1, "s", "new"),
        (2, "MiB", 2097152, "B", "new"),
        (2, "s", 1, "B", "not_measured"),
        (2, "s", 1, "1/s", "not_measured"),
        (-2, "loss", -3, "", "over_budget"),
    ],
)
def test_a_limit_is_compared_in_the_metrics_unit(
    value: float, unit: str, limit: float, of: str, status: str
) -> None:
    found = compare(profile(value, unit), None, [Budget("n", limit, unit=of)], Policy())
    assert status == found[-1].status
    assert (found[-1].limit, found[-1].own and found[-1].own.unit)[1] == unit


@pytest.mark.parametrize(
    ("limit", "least", "expected"),
    [(5, None, 9), (10, None, 9), (None, 2, 1), (None, 0, 1), (9, 1, 1), (8, 1, 9), (9, 2, 1)],
)
def test_of_several_regions_the_one_that_decides_counts(
    limit: float | None, least: float | None, expected: float
) -> None:
    regions = {f"step {value}": profile(value) for value in (1, 4, 9)}
    budget = Budget("n", limit, region="step*", least=least)
    assert expected == value_within(budget, regions)


def test_a_metric_that_was_accepted_and_is_no_longer_recorded_is_not_measured() -> None:
    (found,) = compare(Profile({}), Baseline(own={"n": 3}), (), Policy())
    assert isinstance(found.value, MissingValue)
    assert ("not_measured", 3, Why.NOT_RECORDED.code) == (
        found.status,
        found.baseline,
        found.value.reason.code,
    )


@pytest.mark.parametrize(
    ("how", "better", "now", "status"),
    [
        ("exact", "lower", 100, "ok"),
        ("exact", "lower", 100.0001, "regressed"),
        ("exact", "higher", 100.0001, "improved"),
        ("near", "higher", 99, "ok"),
        ("near", "higher", 98.99, "regressed"),
        ("near", "lower", 101.01, "regressed"),
        ("never", "lower", 500, "ok"),
    ],
)
def test_the_direction_decides_which_change_is_a_regression(
    how: str, better: str, now: float, status: str
) -> None:
    (found,) = compare(profile(now, "s", better, how), Baseline(own={"n": 100}), (), Policy())
    assert status == found.status


@pytest.mark.parametrize(
    ("better", "now", "status"),
    [
        ("lower", 125, "ok"),
        ("lower", 126, "advisory"),
        ("higher", 75, "ok"),
        ("higher", 74, "advisory"),
    ],
)
def test_a_time_advises(better: str, now: float, status: str) -> None:
    accepted = Baseline(times={"n": 100})
    (found,) = compare(profile(now, "s", better, "time"), accepted, (), Policy())
    assert status == found.status


def test_a_lower_bound_of_a_users_metric_is_no_regression() -> None:
    own = {"n": OwnMetric("n", "1", "higher", "exact")}
    partial = MissingValue(because(*Why.WAS_NOT_MEASURED), 12, at_least=True)
    (found,) = compare(Profile({"n": partial}, own=own), Baseline(own={"n": 10}), (), Policy())
    assert "not_measured" == found.status


def test_a_users_function_counts_nothing_in_a_partial_capture() -> None:
    @metric("n", needs="device")
    def count(trace: Events) -> int:
        return 12

    class Partial:
        whole: Partial
        scope = None
        cut = False

        def once(self, question: object, *more: object) -> object:
            name = getattr(question, "__name__", "")
            return because(*Why.WAS_NOT_MEASURED) if name == "partial_gap" else None

    trace = Partial()
    trace.whole = trace
    found = measure(count, cast("Events", trace))
    assert isinstance(found, MissingValue)
    assert found.at_hand is None


@pytest.mark.parametrize(
    ("value", "kept"), [(4.123456789e-7, 4.12346e-7), (1.5, 1.5), (7, 7), (12345678.9, 12345679.0)]
)
def test_a_recorded_time_is_kept_to_six_digits_in_any_unit(value: float, kept: float) -> None:
    assert kept == rounded(value)
