"""Change points of noisy series."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_torchprof.analysis.steps import LEAST_RUNS, LEAST_SHARE, change_points


def noise(count: int, spread: float = 0.01, seed: int = 0) -> list[float]:
    """Log-normal values around 1."""
    random = np.random.default_rng(seed)
    return [float(value) for value in np.exp(random.normal(0, spread, count))]


def stepped(*levels: tuple[int, float], spread: float = 0.01, seed: int = 0) -> list[float]:
    """Noise on levels: how many values, and around what."""
    values = noise(sum(count for count, _ in levels), spread, seed)
    factors = [level for count, level in levels for _ in range(count)]
    return [value * factor for value, factor in zip(values, factors, strict=True)]


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([(100, 1.0)], []),
        ([(100, 1.0), (100, 1.05)], [100]),
        ([(100, 1.05), (100, 1.0)], [100]),
        ([(100, 1.0), (10, 1.05)], [100]),
        ([(10, 1.0), (100, 1.05)], [10]),
        ([(100, 1.0), (30, 1.1), (100, 1.0)], [100, 130]),  # taken back
        ([(80, 1.0), (80, 1.05), (80, 1.1), (80, 1.0)], [80, 160, 240]),
        ([(100, 1.0), (100, 1.01)], []),  # too small to matter
        ([(100, 1.0), (100, 30.0)], [100]),
        ([(LEAST_RUNS - 1, 1.0)], []),
        ([], []),
    ],
)
def test_changes_of_the_level_are_found(
    levels: list[tuple[int, float]], expected: list[int]
) -> None:
    found = [point.at for point in change_points(stepped(*levels))]
    assert len(expected) == len(found), found
    assert all(abs(a - b) <= 2 for a, b in zip(expected, found, strict=True)), found


def test_the_levels_are_medians() -> None:
    (point,) = change_points([10.0, 11, 10, 12, 11, 10] * 3 + [15.0, 16, 15, 17] * 4)
    assert (18, 10.5, 15.5) == (point.at, point.before, point.after)
    assert point.p_value <= 0.001


def test_outliers_are_no_change() -> None:
    values = noise(200)
    values[50] = values[51] = values[120] = 40.0
    assert [] == change_points(values)


def test_equal_values_have_no_change() -> None:
    assert [] == change_points([3.0] * 100)


@pytest.mark.parametrize("zero", [0.0, -1.0])
def test_zeros_and_negative_numbers_have_changes_too(zero: float) -> None:
    assert [50] == [point.at for point in change_points([zero] * 50 + [5.0] * 50)]


def test_slow_hours_are_no_change() -> None:
    """Levels that last some runs and come and go, as on a machine with other work."""
    random = np.random.default_rng(3)
    hours = np.repeat(np.exp(random.normal(0, 0.1, 60)), random.integers(3, 14, 60))
    values = [float(v) for v in hours * np.exp(random.normal(0, 0.01, len(hours)))]
    assert [] == change_points(values)


def test_a_large_change_is_found_beside_slow_hours() -> None:
    random = np.random.default_rng(3)
    hours = np.repeat(np.exp(random.normal(0, 0.1, 60)), 8)
    values = [float(v) for v in hours * np.where(np.arange(len(hours)) < 240, 1, 2)]
    assert [240] == [point.at for point in change_points(values)]


def test_the_answer_is_the_same_each_time() -> None:
    values = stepped((60, 1.0), (12, 1.03), spread=0.012)
    assert change_points(values) == change_points(values)


def test_noise_has_seldom_a_change() -> None:
    assert 0 == sum(len(change_points(noise(500, 0.03, seed))) for seed in range(20))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1e12, allow_nan=False), max_size=60))
def test_any_series_has_an_answer_in_order(values: list[float]) -> None:
    points = change_points(values)
    places = [0, *(point.at for point in points), len(values)]
    assert all(b - a >= LEAST_RUNS for a, b in pairwise(places) if points)
    for point in points:
        least = min(abs(point.before), abs(point.after))
        assert abs(point.after - point.before) >= LEAST_SHARE * least


@pytest.mark.thorough
@pytest.mark.parametrize("spread", [0.01, 0.015])
def test_five_percent_are_found_within_ten_runs(spread: float) -> None:
    found = 0
    for seed in range(40):
        values = stepped((200, 1.0), (10, 1.05), spread=spread, seed=seed)
        found += any(abs(point.at - 200) <= 3 for point in change_points(values))
    assert found >= 36
