"""Outliers and trends of series: those of known answers, and how often noise is taken for one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.analysis.steps import outliers, trend

SERIES = st.lists(st.floats(0.001, 1e6), max_size=40)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([9, 1, 1, 1], []),  # too few to say what is usual
        ([9, 1, 1, 1, 1], [0]),
        ([1, 1.04, 1, 1, 1], []),  # beyond the fences, but as close as two runs are
        ([1, 1.06, 1, 1, 1], [1]),
        ([10, 11, 12, 10, 11, 12, 1], [6]),
        ([1, 2, 3, 4, 5, 6, 7, 8], []),
        ([0, 0, 0, 0, 0, 5], [5]),
    ],
)
def test_what_stands_out(values: list[float], expected: list[int]) -> None:
    assert expected == np.flatnonzero(outliers(values)).tolist()


@pytest.mark.parametrize(
    ("values", "per_step"),
    [
        ([], None),
        ([1, 2], None),
        ([1, 2, 3, 4, 5], None),
        ([1, 2, 3, 4, 5, 6], 1),
        ([6, 5, 4, 3, 2, 1], -1),
        ([5] * 20, None),
        ([99, *range(1, 20)], 1),  # a warm-up does not hide it
        ([100 + i / 1000 for i in range(20)], None),  # clear, and does not matter
        ([100 + i / 10 for i in range(20)], 0.1),
        (list(range(1000, 1200)), 1),
    ],
)
def test_a_trend_is_a_slope_that_is_clear_and_matters(
    values: list[float], per_step: float | None
) -> None:
    found = trend(values)
    assert per_step == (found and pytest.approx(found.per_step))


@pytest.mark.parametrize("count", [6, 10, 30, 100])
def test_noise_is_rarely_a_trend(count: int) -> None:
    random = np.random.default_rng(count)
    found = [trend(random.lognormal(size=count).tolist()) is not None for _ in range(400)]
    assert sum(found) <= 13  # 4 are expected; more have a chance of 1e-4


@given(SERIES)
def test_a_series_backwards_has_the_opposite_trend(values: list[float]) -> None:
    one, other = trend(values), trend(values[::-1])
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert pytest.approx(one.p_value) == other.p_value < 0.01
        assert pytest.approx(one.per_step) == -other.per_step


@given(SERIES, st.floats(0.5, 100))
def test_units_do_not_matter(values: list[float], factor: float) -> None:
    scaled = [value * factor for value in values]
    one, other = trend(values), trend(scaled)
    if one is not None and other is not None:
        assert pytest.approx(one.share) == other.share
