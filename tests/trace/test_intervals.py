"""Unions of intervals by group, against a plain count of the moments that they cover."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.trace.nesting import covered

PARTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 9)), max_size=20)


@given(PARTS)
def test_the_union_has_the_moments_that_any_interval_covers(
    parts: list[tuple[int, int, int]],
) -> None:
    table = np.array([(g, s, s + d) for g, s, d in parts], np.int64).reshape(-1, 3)
    found = covered(*table.T)
    for group, busy, span in zip(found.group, found.busy_ns, found.span_ns, strict=True):
        mine = [(s, e) for g, s, e in table.tolist() if g == group]
        assert busy == len({moment for s, e in mine for moment in range(s, e)})
        assert span == max(e for _, e in mine) - min(s for s, _ in mine)
    assert found.group.tolist() == sorted({g for g, _, _ in parts})


@given(PARTS)
def test_outer_intervals_of_a_group_overlap_by_less_than_half(
    parts: list[tuple[int, int, int]],
) -> None:
    table = np.array([(g, s, s + d) for g, s, d in parts], np.int64).reshape(-1, 3)
    found = covered(*table.T)
    assert {g for g, _, _ in table[found.outer].tolist()} == set(found.group.tolist())
    for group in found.group.tolist():
        end = -1
        for _, start, until in sorted(table[found.outer & (table[:, 0] == group)].tolist()):
            assert start + until >= 2 * end
            end = max(end, until)
