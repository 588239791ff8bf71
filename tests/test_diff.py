"""What changed between two operator tables."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_torchprof.analysis.diff import COLUMN_OF, Delta, deltas
from pytest_torchprof.analysis.ops import OpRow
from pytest_torchprof.metrics import METRICS


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (0, 0, "same"),
        (3, 3, "same"),
        (0, 3, "appeared"),
        (3, 0, "vanished"),
        (3, 4, "more"),
        (4, 3, "fewer"),
        (0, -8, "appeared"),  # bytes of before the region are freed in it
        (-8, -16, "fewer"),
    ],
)
def test_change(before: int, now: int, change: str) -> None:
    assert Delta("aten::mm", before, now).change == change


def test_the_largest_change_comes_first() -> None:
    before = {"mm": {"calls": 5, "flops": 9}, "add": {"calls": 2}, "gone": {"calls": 7}}
    now = {"mm": {"calls": 5}, "add": {"calls": 9}, "new": {"calls": 1}}
    assert deltas(before, now, "calls") == [
        Delta("add", 2, 9),
        Delta("gone", 7, 0),
        Delta("new", 0, 1),
    ]
    assert deltas(before, now, "flops") == [Delta("mm", 9, 0)]
    assert deltas(before, now, "kernels") == []
    assert deltas({}, {}, "calls") == []


TABLES = st.dictionaries(st.sampled_from("abcdef"), st.fixed_dictionaries({"n": st.integers(0, 5)}))


@settings(deadline=None)
@given(TABLES, TABLES)
def test_all_changes_are_there_and_add_up(
    before: dict[str, dict[str, int]], now: dict[str, dict[str, int]]
) -> None:
    found = deltas(before, now, "n")
    total = sum(row["n"] for row in now.values()) - sum(row["n"] for row in before.values())
    assert sum(d.now - d.before for d in found) == total
    assert {d.change for d in found} <= {"appeared", "vanished", "more", "fewer"}
    sizes = [abs(d.now - d.before) for d in found]
    assert sizes == sorted(sizes, reverse=True)
    assert deltas(now, before, "n") == [Delta(d.name, d.now, d.before) for d in found]


def test_columns_are_those_of_operator_rows() -> None:
    assert set(COLUMN_OF) <= set(METRICS)
    assert set(COLUMN_OF.values()) <= set(vars(OpRow("aten::mm")))
