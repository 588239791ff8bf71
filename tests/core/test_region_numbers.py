"""Numbers of regions: they behave like plain ones, and remember unit and origin."""

from __future__ import annotations

import copy
import json
import operator
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.core.values import in_unit_of, region_number

#: Whole ones whose products a float holds.
NUMBERS = st.one_of(st.integers(-(2**26), 2**26), st.floats(-1e15, 1e15))
SIGNS = ("add", "sub", "mul", "truediv", "floordiv", "mod")


def named(value: float, unit: str = "B", text: str = "a.b") -> Any:
    return region_number(value, unit, text)


@given(NUMBERS, NUMBERS, st.sampled_from(SIGNS))
def test_arithmetic_is_that_of_plain_numbers(a: float, b: float, sign: str) -> None:
    apply = getattr(operator, sign)
    try:
        expected = apply(a, b)
    except (ZeroDivisionError, OverflowError) as error:
        for one, other in ((named(a), b), (a, named(b)), (named(a), named(b))):
            with pytest.raises(type(error)):
                apply(one, other)
        return
    for one, other in ((named(a), b), (a, named(b)), (named(a), named(b))):
        found = apply(one, other)
        assert expected == found
        assert type(expected) is (type(found.plain()) if hasattr(found, "plain") else float)


@given(NUMBERS, NUMBERS)
def test_comparisons_and_hashes_are_those_of_plain_numbers(a: float, b: float) -> None:
    for sign in ("lt", "le", "eq", "ne", "gt", "ge"):
        compare = getattr(operator, sign)
        assert compare(a, b) == compare(named(a), b) == compare(a, named(b))
        assert compare(a, b) == compare(named(a), named(b))
    assert hash(a) == hash(named(a))
    assert bool(a) == bool(named(a))


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (lambda n: n, "3 MiB (a.b)"),
        (lambda n: 0.5 * n, "1.5 MiB (0.5 * a.b)"),
        (lambda n: n / 2, "1.5 MiB (a.b / 2)"),
        (lambda n: n + n, "6 MiB (a.b + a.b)"),
        (lambda n: (n + 2**20) * 2, "8 MiB ((a.b + 1048576) * 2)"),
        (lambda n: n / n, "1 (a.b / a.b)"),
        (lambda n: 1 / n, "3.17891e-07 (1 / a.b)"),
    ],
)
def test_an_expression_shows_its_value_with_its_unit_and_text(made: Any, shown: str) -> None:
    assert shown == repr(made(named(3 * 2**20))) == str(made(named(3 * 2**20)))


def test_formats_indices_and_copies_are_those_of_plain_numbers() -> None:
    count, time = named(5, "1"), named(1.25, "ms")
    assert ("5", "1.2", "5.0") == (f"{count:d}", f"{time:.1f}", f"{count:.1f}")
    assert ([0] * 5, 3) == ([0] * count, [1, 2, 3][named(2, "1")])
    with pytest.raises(TypeError, match="is not a whole number"):
        range(time)
    assert (5, int) == (pickle.loads(pickle.dumps(count)), type(copy.copy(count)))
    assert "1.25" == json.dumps(time)


def test_a_plain_number_is_shown_in_the_unit_of_the_other_one() -> None:
    assert ("2 KiB", "7") == (in_unit_of(named(1), 2048), in_unit_of(named(1, ""), 7))
    assert "3 MiB (a.b)" == in_unit_of(5, named(3 * 2**20))
    assert "'x'" == in_unit_of(named(1), "x")
