"""What changed in a series: steps of exact metrics, drifts of times."""

from __future__ import annotations

import pytest

from pytest_torchprof.history.question import Change, changes_in, drifts, steps, tolerance_of
from pytest_torchprof.history.series import Series

CHAIN = [(), (0,), (1,), (2,)]
#: 1 is on the main line, 2 on a branch, 3 merges them.
MERGE = [(), (0,), (0,), (1, 2)]


def series(metric: str = "ops", klass: str = "exact") -> Series:
    return Series(
        repository="r",
        test="t",
        region=None,
        metric=metric,
        environment="cpu",
        source="",
        machine="",
        unit="1",
        klass=klass,
        better="lower",
    )


@pytest.mark.parametrize(
    ("values", "before", "found"),
    [
        ({0: 5, 1: 5, 2: 5, 3: 5}, CHAIN, []),
        ({0: 5, 1: 7, 2: 7, 3: 5}, CHAIN, [(1, 0, 5, 7), (3, 2, 7, 5)]),
        ({0: 5, 2: 7, 3: 7}, CHAIN, [(2, 0, 5, 7)]),  # without a value in 1
        ({1: 5, 2: 7}, CHAIN, [(2, 1, 5, 7)]),
        ({3: 7}, CHAIN, []),  # the first one is no step
        ({0: 5, 1: 5, 2: 7, 3: 7}, MERGE, [(2, 0, 5, 7)]),  # said at 2, not again at the merge
        ({0: 5, 1: 5, 3: 7}, MERGE, [(3, 1, 5, 7)]),  # without a run of the branch: at the merge
        ({0: 5, 1: 5, 2: 6, 3: 7}, MERGE, [(2, 0, 5, 6), (3, 1, 5, 7)]),
        ({0: 2**53, 1: 2**53 + 1}, CHAIN[:2], [(1, 0, 2**53, 2**53 + 1)]),
        ({}, [], []),
    ],
)
def test_a_step_is_a_value_that_no_run_before_has(
    values: dict[int, int],
    before: list[tuple[int, ...]],
    found: list[tuple[int, int, int, int]],
) -> None:
    assert [Change(*one, "step") for one in found] == steps(values, before)


@pytest.mark.parametrize(
    ("value", "stepped"), [(100, False), (101, False), (102, True), (98, True)]
)
def test_within_the_tolerance_there_is_no_step(value: int, stepped: bool) -> None:
    assert stepped == bool(steps({0: 100, 1: value}, CHAIN[:2], tolerance=(0.01, 0)))


def test_the_tolerance_is_that_of_the_metric() -> None:
    assert (0, 0) == tolerance_of(series("ops"))
    assert (0.001, 512) == tolerance_of(series("peak_cpu_bytes"))
    assert (0.01, 0) == tolerance_of(series("instructions", "near"))
    assert tolerance_of(series("kernels[op=a]")) == tolerance_of(series("kernels"))
    assert (0.01, 0) == tolerance_of(series("my_number", "near"))
    assert (0, 0) == tolerance_of(series("my_number"))


def test_a_drift_is_between_runs_of_the_line_alone() -> None:
    values = {at: 10.0 + at % 3 / 10 + (2 if at >= 20 else 0) for at in range(40)}
    line = list(range(0, 40, 2))
    (found,) = drifts(values, line)
    assert (20, 18, "drift") == (found.at, found.since, found.kind)
    assert (10.1, 12.1) == (round(found.before, 6), round(found.value, 6))


def test_exact_metrics_step_and_times_drift_and_others_do_neither() -> None:
    values = {0: 5, 1: 7}
    assert ["step"] == [c.kind for c in changes_in(series(), values, CHAIN[:2], [0, 1])]
    for klass in ("time", "never"):
        assert [] == changes_in(series(klass=klass), values, CHAIN[:2], [0, 1])
