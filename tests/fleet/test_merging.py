"""Rows of many traces as rows of all."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.core.values import CountedNames
from pytest_torchprof.fleet.mapping import Merging, merged_rows

TIMES = Merging(keys=("name",), spread="time_ms", sums=("time_ms", "calls"))
NUMBERS = st.floats(-1e300, 1e300) | st.integers(-(2**50), 2**50)


def row(name: str, **values: Any) -> dict[str, Any]:
    return {"name": name, **values}


def test_rates_are_weighted_and_names_are_counted() -> None:
    how = Merging(
        ("k",), "ms", ("ms", "calls"), weighted=("rate",), weight="ms", names=("op",),
    )  # fmt: skip
    several = CountedNames([("mm", 3), ("add", 1)])
    each = [
        (0, [{"k": "a", "ms": 1.0, "calls": 4, "rate": 10.0, "op": several}]),
        (1, [{"k": "a", "ms": 3.0, "calls": 2, "rate": 30.0, "op": "add"}]),
    ]
    ((merged, _),) = merged_rows(how, each)
    assert (25.0, "add ×3, mm ×3") == (merged["rate"], merged["op"])
    each[0][1][0]["rate"] = None
    assert merged_rows(how, each)[0][0]["rate"] is None


@pytest.mark.thorough
@given(st.lists(st.tuples(st.sampled_from("abc"), NUMBERS), max_size=20), st.randoms())
def test_sums_are_exact_in_any_order(values: list[tuple[str, float]], random: Any) -> None:
    each = [(at, [row(name, time_ms=v, calls=at)]) for at, (name, v) in enumerate(values)]
    expected = {}
    for name, _ in values:
        own = [value for other, value in values if other == name]
        whole = all(isinstance(value, int) for value in own)
        expected[name] = sum(own) if whole else float(sum(map(Fraction, own)))
    found = merged_rows(TIMES, each)
    assert expected == {one["name"]: one["time_ms"] for one, _ in found}
    random.shuffle(each)
    assert repr(found) == repr(merged_rows(TIMES, each))
