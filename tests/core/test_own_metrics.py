"""What users declare of their own metrics, and the numbers that they give."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.units import format_exact, format_pair, format_quantity, parse_signed
from pytest_torchprof.core.values import OwnMetric, declared, number_of


def test_a_declaration_crosses_to_another_process() -> None:
    made = declared("n", "tokens/s", "higher", "time", taken=(), recorded=True)
    assert made == OwnMetric.read(made.sent())


@pytest.mark.parametrize("unit", ["1", "1/s", "tokens/s", "B", "µs", "%", "x" * 20])
def test_a_unit_is_a_short_text_without_spaces(unit: str) -> None:
    assert unit == declared("n", unit, "lower", "exact", taken=()).unit


@pytest.mark.parametrize("unit", ["", " ", "a b", "x" * 21, 1, None, "1\n"])
def test_anything_else_is_no_unit(unit: object) -> None:
    with pytest.raises(SettingsError, match="is not a unit"):
        declared("n", unit, "lower", "exact", taken=())


@given(st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(-1e18, 1e18))
def test_a_number_is_recorded_as_it_is(number: float) -> None:
    found = number_of(number, "n")
    assert (number, type(number)) == (found, type(found))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(np.float32(0.5), 0.5), (np.int64(7), 7), (np.array([3.5]), 3.5), (Fraction(1, 4), 0.25)],
)
def test_what_has_one_number_is_recorded_as_a_plain_one(value: object, expected: float) -> None:
    found = number_of(value, "n")
    assert (expected, type(expected)) == (found, type(found))


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, True, np.bool_(True), np.ones(2), 2**63, 1e300, 1j, "1", None],
)
def test_anything_else_is_no_number(value: object) -> None:
    with pytest.raises(SettingsError, match=r"^n cannot be .*; record a finite number"):
        number_of(value, "n")


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_number_in_any_unit_is_shown_with_it_and_only_zero_as_zero(number: float) -> None:
    shown = format_quantity(number, "tokens/s")
    assert shown.endswith(" tokens/s")
    assert (float(shown.split()[0].replace(",", "")) == 0) == (number == 0)


@given(st.floats(-1e15, 1e15, allow_nan=False), st.floats(-1e15, 1e15, allow_nan=False))
def test_two_numbers_in_any_unit_are_told_apart(a: float, b: float) -> None:
    one, other = format_pair(a, b, "1/s")
    assert (one == other) == (a == b)


@given(st.integers(-(10**18), 10**18), st.sampled_from(["", "1/s", "ms", "tokens/s", "%"]))
def test_a_limit_is_read_with_its_unit(number: int, unit: str) -> None:
    text = f"{number:,} {unit}".strip()
    assert (number, unit) == parse_signed(text)
    assert format_exact(number, unit) in (text, f"{number:,}")
