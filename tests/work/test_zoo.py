"""FLOPs of modules and functions, each the same as FlopCounterMode's, or different for a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.utils.flop_counter import FlopCounterMode
from zoo import keeper
from zoo.exhibit import Payload, Seen, differs, equal, lower, problem

LEAST = 60


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore")  # prototypes of torch's warn
@pytest.mark.parametrize("theme", keeper.THEMES)
def test_flops_are_those_of_flop_counter_mode_or_the_table_says_why_not(
    theme: str, tmp_path: Path
) -> None:
    _, problems = keeper.table(keeper.THEMES[theme], tmp_path)
    assert problems == []


def test_the_zoo_is_large_and_names_each_row_once() -> None:
    names = [row.name for row in keeper.ROWS]
    assert len(names) == len(set(names))
    assert len(names) >= 2 * LEAST
    assert sum(not row.why for row in keeper.ROWS) >= LEAST


def test_a_row_is_checked_against_its_claims() -> None:
    """Neither a difference without a reason, nor a reason without a difference, nor a new gap."""

    def nothing() -> Payload:
        return lambda: None

    one, two, none = equal("x", nothing), differs("x", nothing, "reason", 2), frozenset[str]()
    gap = lower("x", nothing, "aten::y")
    assert problem(one, Seen(1, 1, none)) == ""
    assert problem(one, Seen(1, 2, none)) != ""
    assert problem(one, Seen(1, 1, frozenset({"aten::y"}))) != ""
    assert problem(two, Seen(1, 2, none)) == ""
    assert problem(two, Seen(2, 2, none)) != ""
    assert problem(two, Seen(1, 3, none)) != ""
    assert problem(two, Seen(None, 2, none)) == ""
    assert problem(gap, Seen(0, 0, frozenset({"aten::y"}))) == ""
    assert problem(gap, Seen(0, 0, none)) != ""


def test_a_recomputation_that_stops_early_counts_what_it_did(tmp_path: Path) -> None:
    """The product out of which it is broken off is recorded, and never ran."""
    row = next(row for row in keeper.ROWS if "stops early" in row.name)
    full = next(row for row in keeper.ROWS if row.name == "checkpoint, reentrant")
    counts = []
    for one in (row, full):
        payload = one.make()
        with FlopCounterMode(display=False) as counter:
            payload()
        counts.append(counter.get_total_flops())
    last = 2 * 3 * 6 * 4  # the second layer's product
    assert counts[1] - counts[0] == last
    assert keeper.table([row, full], tmp_path)[1] == []
