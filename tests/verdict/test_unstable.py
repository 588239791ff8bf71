"""Metrics that vary: their ranges from two runs, and comparing with a range."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_torchprof.core.unknown import because
from pytest_torchprof.core.values import Baseline, MissingValue, Profile, Range
from pytest_torchprof.verdict.compare import (
    Policy,
    advising,
    compare,
    new_findings,
    ranges_of,
    status_of,
    unstable,
    within,
)

RANGE = {"ops": Range(10, 20)}
GONE = MissingValue(because("unknown", "for a reason that this version does not know ({name})"))


@pytest.mark.parametrize(
    ("value", "unstable_", "status"),
    [
        (10, RANGE, "ok"),
        (12, RANGE, "ok"),
        (15, RANGE, "ok"),
        (20, RANGE, "ok"),
        (21, RANGE, "regressed"),
        (9, RANGE, "improved"),
        (15, {}, "regressed"),
        (12, {}, "ok"),
        # Written by a version that knows of no ranges, which has changed the value alone.
        (15, {"ops": Range(1, 5)}, "regressed"),
        (3, {"ops": Range(1, 5)}, "improved"),
    ],
)
def test_a_value_is_compared_with_its_range(
    value: int, unstable_: dict[str, Range], status: str
) -> None:
    baseline = Baseline(metrics={"ops": 12}, unstable=unstable_)
    (verdict,) = compare(Profile({"ops": value}), baseline, (), Policy())
    assert (status, 12) == (verdict.status, verdict.baseline)
    beyond = status != "ok" and unstable_ is RANGE
    assert beyond == (verdict.reason is not None)
    if verdict.reason is not None:
        assert "accepted from 10 to 20, as it varies" == verdict.reason.text


@pytest.mark.parametrize(
    ("value", "seed", "strict", "status"),
    [
        (21, 0, False, "regressed"),
        (9, 0, False, "improved"),
        (21, None, True, "regressed"),
        (9, None, True, "improved"),
        (21, None, False, "advisory"),
        (9, None, False, "advisory"),
        (15, None, False, "ok"),
    ],
)
def test_what_varies_with_one_seed_only_advises(
    value: int, seed: int | None, strict: bool, status: str
) -> None:
    """In the test and in its regions, in numbers and in findings."""
    label = "findings[rule=host-sync]"
    ranges = {**RANGE, label: Range(10, 20)}
    numbers = Baseline(metrics={"ops": 12}, findings={"host-sync": 12}, unstable=ranges)
    baseline = advising(replace(numbers, seed=seed, regions={"part": numbers}), strict=strict)
    assert baseline is not None
    found = Profile({"ops": value}, found={"host-sync": value})
    for part in (baseline, baseline.regions["part"]):
        (verdict,) = compare(found, part, (), Policy(strict=strict))
        assert (status, 12) == (verdict.status, verdict.baseline)
        assert (status != "ok") == (verdict.reason is not None)
        assert (status == "regressed") == bool(new_findings(found, part))


def test_numbers_without_a_range_are_compared_whatever_the_seed() -> None:
    baseline = Baseline(metrics={"ops": 12, "flops": 7}, unstable=RANGE)
    part = advising(baseline, strict=False)
    found = compare(Profile({"ops": 25, "flops": 8}), part, (), Policy())
    assert ["advisory", "regressed"] == [verdict.status for verdict in found]
    plain = Baseline(metrics={"ops": 12})
    assert plain is advising(plain, strict=False)
    assert advising(None, strict=False) is None


def test_a_tolerance_begins_at_the_end_of_the_range() -> None:
    baseline = Baseline(
        metrics={"instructions": 1000}, unstable={"instructions": Range(1000, 2000)}
    )
    found = [
        compare(Profile({"instructions": n}), baseline, (), Policy())[0].status
        for n in (2001, 4000)
    ]
    assert ["ok", "regressed"] == found


@given(*[st.integers(0, 30)] * 4)
def test_within_a_range_nothing_differs_and_beyond_the_nearer_end_counts(
    value: int, accepted: int, low: int, high: int
) -> None:
    reference = within(Baseline(unstable={"ops": Range(low, high)}), "ops", value, accepted)
    if not low <= accepted <= high:
        assert accepted == reference
    else:
        assert reference == sorted((low, value, high))[1]


def test_findings_are_compared_rule_by_rule() -> None:
    baseline = Baseline(
        metrics={"findings": 3},
        findings={"a": 2, "b": 1},
        unstable={"findings[rule=a]": Range(0, 4)},
    )

    def found(a: int, b: int) -> tuple[Any, Any]:
        profile = Profile({"findings": a + b}, found={"a": a, "b": b})
        (verdict,) = compare(profile, baseline, (), Policy())
        return verdict.status, new_findings(profile, baseline)

    assert ("ok", {}) == found(0, 1)
    assert ("ok", {}) == found(4, 1)
    assert ("regressed", {"a": (4, 5)}) == found(5, 1)
    assert ("regressed", {"b": (1, 2)}) == found(3, 2)
    assert ("improved", {}) == found(4, 0)


def profile(ops: Any = 5, **other: Any) -> Profile:
    calls = {"aten::add": {"calls": ops}} if isinstance(ops, int) else {}
    return Profile({"ops": ops, "flops": 8, "wall_ms": ops, **other}, operators=calls)


def test_ranges_are_of_what_the_profiled_run_decides() -> None:
    assert {} == ranges_of(profile(), profile(), None)
    first = profile(recompiles=1, leaked_cpu_bytes=-400)
    other = profile(7, recompiles=2, leaked_cpu_bytes=400)
    expected = {"ops": Range(5, 7), "leaked_cpu_bytes": Range(-400, 400)}
    assert expected == ranges_of(first, other, None) == ranges_of(other, first, None)
    assert (
        {} == ranges_of(profile(), profile(GONE), None) == ranges_of(profile(GONE), profile(), None)
    )


def test_a_difference_within_the_tolerance_needs_no_range() -> None:
    near = [Profile({"peak_cuda_bytes": value}) for value in (100_000, 100_001, 200_000)]
    assert {} == ranges_of(near[0], near[1], None)
    assert {"peak_cuda_bytes": Range(100_000, 200_000)} == ranges_of(near[0], near[2], None)


def test_without_another_run_ranges_stay_that_still_hold() -> None:
    known = {"ops": Range(1, 5), "flops": Range(1, 3), "kernels": Range(1, 2)}
    assert {"ops": Range(1, 5)} == ranges_of(profile(), None, Baseline(unstable=known))
    assert {} == ranges_of(profile(), None, None)


def test_what_varies_is_told_with_units_regions_and_operators() -> None:
    first, other = (
        Profile(
            {"ops": n, "moved_bytes": 4},
            operators={"aten::add": {"calls": n}, "aten::mul": {"calls": 1}},
            regions={"part": Profile({"moved_bytes": n}), f"only {n}": Profile({"ops": n})},
        )
        for n in (3, 1)
    )
    found = unstable(first, other, drawn=True)
    assert found is not None
    assert {"ops": Range(1, 3), "part: moved_bytes": Range(1, 3)} == found.ranges
    assert {"ops": "1", "part: moved_bytes": "B"} == found.units
    assert {"aten::add": Range(1, 3)} == found.operators
    assert found.drawn
    assert unstable(first, first, drawn=True) is None


def test_gradients_that_seem_to_add_up_are_no_regression_where_operators_vary() -> None:
    rows = [{"aten::add_": {"accumulations": n, "calls": n}} for n in (1, 3)]
    for ranges, status in (({}, "regressed"), ({"ops": Range(1, 3)}, "ok")):
        baseline = Baseline(metrics={"ops": 3}, operators=rows[0], unstable=ranges)
        verdicts = compare(Profile({"ops": 3}, operators=rows[1]), baseline, (), Policy())
        assert status == status_of(verdicts, has_baseline=True)
