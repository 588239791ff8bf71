"""Rows of many traces as rows of all."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_torchprof.core.values import CountedNames
from pytest_torchprof.render.table import Merging

TIMES = Merging(("name",), "time_ms")
NUMBERS = st.floats(-1e300, 1e300) | st.integers(-(2**50), 2**50)


def row(name: str, **values: Any) -> dict[str, Any]:
    return {"name": name, **values}


def test_rates_are_weighted_and_names_are_counted() -> None:
    how = Merging(("shapes",), "total_ms")
    several = CountedNames([("mm", 3), ("add", 1)])
    each = [
        (0, [{"shapes": "a", "total_ms": 1.0, "calls": 4, "gb_per_s": 10.0, "operator": several}]),
        (1, [{"shapes": "a", "total_ms": 3.0, "calls": 2, "gb_per_s": 30.0, "operator": "add"}]),
    ]
    ((merged, _),) = how.rows(each)
    assert (25.0, "add ×3, mm ×3") == (merged["gb_per_s"], merged["operator"])
    each[0][1][0]["gb_per_s"] = None
    assert how.rows(each)[0][0]["gb_per_s"] is None


@pytest.mark.thorough
@example([("a", 0.0), ("a", 0)], Random(2))
@given(st.lists(st.tuples(st.sampled_from("abc"), NUMBERS), max_size=20), st.randoms())
def test_sums_are_exact_in_any_order(values: list[tuple[str, float]], random: Any) -> None:
    each = [(at, [row(name, time_ms=v, calls=at)]) for at, (name, v) in enumerate(values)]
    expected = {}
    for name, _ in values:
        own = [value for other, value in values if other == name]
        whole = all(isinstance(value, int) for value in own)
        expected[name] = sum(own) if whole else float(sum(map(Fraction, own)))
    found = TIMES.rows(each)
    assert expected == {one["name"]: one["time_ms"] for one, _ in found}
    random.shuffle(each)
    assert repr(found) == repr(TIMES.rows(each))
