"""Turns of two simulated sides: their order, their number, when it is enough, and failures."""

from __future__ import annotations

import random
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.verdict.paired import SIDES, Comparison, Pace, PairedTurns, PairRequest, Side

MS = 1_000_000


@dataclass
class Turn:
    wall_ns: array[int]
    cpu_ns: array[int]
    spent_ns: int


@dataclass
class Sides:
    """Two sides whose calls take this long, and whose fixtures cost some time."""

    call_ns: Mapping[Side, int]
    overhead_ns: int = 0
    #: Repeated calls on the same fixtures fail.
    once_only: bool = False
    now: int = 0
    asked: list[PairRequest] = field(default_factory=list)

    def take(self, wanted: PairRequest) -> tuple[dict[Side, Turn], Reason | None]:
        self.asked.append(wanted)
        if self.once_only and (wanted.calls > 1 or not wanted.fresh):
            return {}, because(*Why.FAILED)
        turns = {}
        for side in wanted.order:
            taken = array("q", [self.call_ns[side]] * wanted.calls)
            turns[side] = Turn(taken, taken, sum(taken))
            self.now += sum(taken) + self.overhead_ns
        return turns, None

    def measured(self, pace: Pace, *, threshold: float = 0.02) -> PairedTurns:
        comparison = Comparison(threshold=threshold)
        paired = PairedTurns(comparison, pace, random.Random(0), lambda: self.now)
        assert paired.measure(self.take) is None
        return paired


def test_it_ends_as_soon_as_the_answer_is_clear() -> None:
    sides = Sides({"A": MS, "B": MS * 11 // 10})
    paired = sides.measured(Pace(2_000 * MS))
    found = paired.comparison.decide()
    assert ("slower", 32) == (found.verdict, found.pairs)
    assert sides.now < 1_000 * MS


def test_a_number_of_pairs_is_kept_to_even_if_the_answer_is_clear() -> None:
    sides = Sides({"A": MS, "B": 2 * MS})
    assert 50 == sides.measured(Pace(None, 50)).pace.done


def test_each_side_is_first_equally_often_and_both_start_on_one_processor() -> None:
    sides = Sides({"A": MS, "B": MS})
    sides.measured(Pace(None, 60))
    firsts = [wanted.order[0] for wanted in sides.asked]
    assert abs(firsts.count("A") - firsts.count("B")) <= 1
    assert firsts[::2] != firsts[1::2]
    assert len({wanted.processor for wanted in sides.asked}) > 10
    assert {SIDES, SIDES[::-1]} == {wanted.order for wanted in sides.asked}


@pytest.mark.thorough
@given(st.integers(1_000, 5_000 * MS), st.floats(0.5, 2), st.integers(0, 50 * MS))
def test_time_is_limited_with_all_that_is_not_measured(
    call_ns: int, ratio: float, overhead_ns: int
) -> None:
    sides = Sides({"A": call_ns, "B": round(call_ns * ratio)}, overhead_ns)
    # A threshold that no answer reaches.
    paired = sides.measured(Pace(100 * MS), threshold=max(ratio, 1 / ratio) - 1 + 1e-9)
    pair = sides.asked[-1].calls * sum(sides.call_ns.values()) + 2 * overhead_ns
    assert sides.now <= 1.1 * 100 * MS + 4 * pair
    assert paired.pace.done >= 1
    assert len(paired.wall_ns["A"]) == len(paired.wall_ns["B"])


def test_a_side_that_cannot_be_repeated_is_measured_a_call_at_a_time() -> None:
    sides = Sides({"A": MS, "B": MS}, once_only=True)
    paired = sides.measured(Pace(None, 10))
    assert 10 == len(paired.wall_ns["B"])
    sample = paired.wall_ms("A")
    assert sample is not None
    assert 1 == sample.median


def test_a_side_that_fails_at_once_is_not_measured() -> None:
    def take(_: PairRequest) -> tuple[dict[Side, Turn], Reason]:
        return {}, because(*Why.FAILED)

    paired = PairedTurns(Comparison(), Pace(MS), random.Random(0), lambda: 0)
    assert because(*Why.FAILED) == paired.measure(take)
    assert paired.wall_ms("A") is paired.cpu_ms("B") is None


def test_what_a_side_raises_ends_the_comparison() -> None:
    def take(_: PairRequest) -> tuple[dict[Side, Turn], None]:
        raise KeyError("from the side")

    with pytest.raises(KeyError, match="from the side"):
        PairedTurns(Comparison(), Pace(MS), random.Random(0), lambda: 0).measure(take)
