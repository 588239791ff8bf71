"""How many calls a turn makes, when fixtures are renewed, and when it is enough: pure decisions."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.verdict.paired import (
    MOST_SPENT,
    MOST_TRIALS,
    RENEWING_SHARE,
    TURN_NS,
    Pace,
    calls_for,
    orders,
)

MS = 1_000_000


@pytest.mark.parametrize(
    ("a_ns", "b_ns", "expected"),
    [
        (50_000, 50_000, 240),
        (1 * MS, 1 * MS, 12),
        (1 * MS, 3 * MS, 6),  # the mean of both: their turns together are as long as others
        (7 * MS, 7 * MS, 2),
        (9 * MS, 9 * MS, 1),
        (12 * MS, 12 * MS, 1),
        (5_000 * MS, 5_000 * MS, 1),
        (0, 0, 2 * TURN_NS),
    ],
)
def test_calls_of_a_turn(a_ns: float, b_ns: float, expected: int) -> None:
    assert calls_for(a_ns, b_ns) == expected


@given(st.floats(1, 1e12), st.floats(1, 1e12))
def test_a_turn_is_one_call_or_about_as_long_as_it_should_be(a_ns: float, b_ns: float) -> None:
    calls = calls_for(a_ns, b_ns)
    assert calls == 1 or 1.5 * TURN_NS <= calls * (a_ns + b_ns) <= 3 * TURN_NS


def test_the_first_pair_of_a_long_call_counts_and_trials_of_short_ones_do_not() -> None:
    long = Pace(1e9)
    assert long.counts(30 * MS, 30 * MS, calls=1)
    short = Pace(1e9)
    assert not short.counts(0.1 * MS, 0.1 * MS, calls=1)
    assert short.calls == 120
    assert not short.counts(0.07 * MS, 0.07 * MS, calls=120)  # now they are warm
    assert short.calls == 171
    assert short.counts(0.01 * MS, 0.01 * MS, calls=171)
    assert short.calls == 171  # the number stays, so that turns are alike


def test_a_call_that_gets_faster_and_faster_is_not_tried_for_ever() -> None:
    pace = Pace(1e9)
    wall = 1.0 * MS
    for _ in range(MOST_TRIALS):
        assert not pace.counts(wall, wall, calls=pace.calls)
        wall /= 100
    assert pace.counts(wall, wall, calls=pace.calls)


def test_a_test_that_cannot_be_called_twice_has_one_call_a_turn_and_new_fixtures_each_time() -> (
    None
):
    pace = Pace(1e9, repeatable=False)
    assert pace.fresh
    assert pace.counts(1000, 1000, calls=1)
    pace.took(2000, 900 * MS, fresh=True)
    assert (pace.fresh, pace.calls) == (True, 1)


@given(st.lists(st.tuples(st.integers(1, 20 * MS), st.integers(0, 300 * MS)), min_size=1))
def test_renewals_cost_no_more_than_their_share_after_the_first(
    turns: list[tuple[int, int]],
) -> None:
    pace = Pace(1e12)
    renewing, latest = 0, 0
    for number, (measured, cost) in enumerate(turns):
        fresh = pace.fresh
        assert fresh == (number == 0 or renewing + latest <= RENEWING_SHARE * pace.measured_ns)
        pace.took(measured, measured + cost, fresh=fresh)
        if fresh:
            renewing, latest = renewing + cost, cost


@pytest.mark.parametrize(
    ("pace", "expected"),
    [
        (Pace(1e9), False),
        (Pace(1e9, measured_ns=2 * 10**9), False),  # a pair at least
        (Pace(1e9, done=1, measured_ns=10**9 - 1), False),
        (Pace(1e9, done=1, measured_ns=10**9), True),
        (Pace(1e9, done=1, measured_ns=1, spent_ns=int(MOST_SPENT * 1e9)), True),
        (Pace(None, pairs=3, done=2, measured_ns=10**12), False),
        (Pace(None, pairs=3, done=3), True),
        (Pace(None, pairs=0), True),
    ],
)
def test_when_it_is_enough(pace: Pace, expected: bool) -> None:
    assert pace.over is expected


def test_both_orders_are_as_frequent_and_at_random() -> None:
    drawn = [list(islice(orders(random.Random(seed)), 21)) for seed in range(20)]
    for order in drawn:
        counts = [sum(order[:n]) - n / 2 for n in range(22)]
        assert max(map(abs, counts)) <= 1
    assert len(set(map(tuple, drawn))) == 20


def test_long_calls_may_take_longer_for_the_fewest_pairs_that_allow_an_answer() -> None:
    pace, taken = Pace(100 * MS, least=8), 0
    while not pace.over:
        pace.took(40 * MS, 40 * MS, fresh=False)
        pace.done += 1
        taken += 1
    assert taken == 8
    very_long = Pace(100 * MS, least=8)
    while not very_long.over:
        very_long.took(200 * MS, 200 * MS, fresh=False)
        very_long.done += 1
    assert very_long.done == 3  # 440 ms
