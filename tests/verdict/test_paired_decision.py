"""Decisions on pairs of turns: tables of cases, and what holds of all."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.core.unknown import because
from pytest_torchprof.verdict.paired import LOOKS, Comparison, Decision, orders

Pair = tuple[list[int], list[int]]
MIRRORED = {"slower": "faster", "faster": "slower", "same": "same", "unclear": "unclear"}


def decided(
    pairs: Iterable[Pair], tests: int = 1, threshold: float = 0.02, *, a_first: int = 0
) -> Decision:
    """After these pairs, or fewer if it was clear before; ``a_first`` is in every second one."""
    comparison = Comparison(tests=tests, threshold=threshold)
    for number, (a, b) in enumerate(pairs):
        comparison.add(a, b, a_first=number % 2 == a_first)
        if comparison.clear:
            break
    return comparison.decide()


def noisy(count: int, ratio: float, *, noise: float = 0.03, seed: int = 0) -> list[Pair]:
    """Turns of ten calls of 1 ms, with noise between turns and between calls."""
    draw = random.Random(seed)

    def turn(scale: float) -> list[int]:
        scale *= draw.lognormvariate(0, noise)
        return [round(1e6 * scale * draw.lognormvariate(0, noise)) for _ in range(10)]

    return [(turn(1), turn(ratio)) for _ in range(count)]


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (1, "same"),
        (1.005, "same"),
        (1.02, "unclear"),  # on the threshold
        (1.05, "slower"),
        (1.5, "slower"),
        (1 / 1.05, "faster"),
        (0.5, "faster"),
    ],
)
def test_a_change_beyond_the_threshold_is_confirmed(ratio: float, verdict: str) -> None:
    found = decided(noisy(300, ratio))
    assert (verdict, found.confidence) == (found.verdict, 0.99)
    assert found.low < found.ratio < found.high
    assert math.isclose(found.ratio, ratio, rel_tol=0.05)


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1, "same"), (1.05, "slower"), (1 / 1.05, "faster")]
)
def test_a_slower_second_turn_hides_no_change_and_is_not_one(ratio: float, verdict: str) -> None:
    draw, comparison = random.Random(0), Comparison()
    for (a, b), a_first in zip(noisy(100, ratio), orders(draw)):  # noqa: B905 - never ends
        second = b if a_first else a
        second[:] = [round(1.07 * duration) for duration in second]
        comparison.add(a, b, a_first=a_first)
    found = comparison.decide()
    assert found.verdict == verdict
    assert found.high / found.low < 1.04
    assert found.p_value < 1e-9 or ratio == 1


@pytest.mark.parametrize(("count", "moved"), [(16, False), (40, True)])
def test_few_pairs_are_not_moved_by_their_order(count: int, moved: bool) -> None:
    """Three in four are 10 % up, the others down; around one middle all would be on one side."""
    comparison = Comparison()
    for number in range(count):
        a_first = number % 4 != 0
        comparison.add([1000], [1100] if a_first else [900], a_first=a_first)
    assert (comparison.decide().p_value < 0.001) is moved


def test_the_larger_the_change_the_fewer_pairs_it_takes() -> None:
    counts = [decided(noisy(1000, ratio)).pairs for ratio in (1.04, 1.06, 1.1, 2)]
    assert counts == sorted(counts, reverse=True)
    assert LOOKS[0] == counts[-1]


def test_more_tests_make_each_answer_stricter() -> None:
    pairs = noisy(1000, 1.06)
    assert decided(pairs, tests=500).pairs > decided(pairs).pairs


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_few_pairs_are_unclear_and_the_reason_says_how_many_it_takes(count: int) -> None:
    found = decided([([500_000_000], [600_000_000])] * count)
    assert ("unclear", count) == (found.verdict, found.pairs)
    assert (
        because(
            "few_pairs",
            "{pairs} of the {needed} pairs of turns that it takes at least to be sure",
            pairs=count,
            needed=8,
        )
        == found.reason
    )


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (100, 100, "same"),
        (100, 103, "slower"),
        (103, 100, "faster"),
        (0, 0, "same"),
        (100, 101, "same"),
    ],
)
def test_constant_durations_have_the_plain_answer(a: int, b: int, verdict: str) -> None:
    found = decided([([a], [b])] * 40)
    assert verdict == found.verdict
    assert math.isclose(found.ratio, b / a if a else 1)


def test_a_duration_of_nothing_is_one_below_the_clocks_tick() -> None:
    assert decided([([0], [5])] * 40).ratio == pytest.approx(5)


def test_spikes_on_one_side_are_not_a_change() -> None:
    pairs = noisy(300, 1)
    for a, b in pairs[::9]:
        b[:] = [value * 20 for value in b]
        assert a
    assert decided(pairs).verdict == "same"


def test_drift_on_both_sides_is_not_a_change() -> None:
    pairs = [
        ([int(v * (1 + i / 100)) for v in a], [int(v * (1 + i / 100)) for v in b])
        for i, (a, b) in enumerate(noisy(300, 1))
    ]
    assert decided(pairs).verdict == "same"


def test_two_modes_of_the_machine_are_not_a_change() -> None:
    draw = random.Random(3)
    pairs = [
        ([v * draw.choice((1, 2)) for v in a[:1]], [v * draw.choice((1, 2)) for v in b[:1]])
        for a, b in noisy(300, 1)
    ]
    assert decided(pairs).verdict in {"same", "unclear"}


def test_a_turn_without_a_call_is_refused() -> None:
    with pytest.raises(ValueError, match="without a call"):
        Comparison().add([], [1])


def test_without_a_pair_there_is_no_result() -> None:
    with pytest.raises(ValueError, match="no pair"):
        Comparison().decide()


TURNS = st.lists(st.integers(0, 10**9), min_size=1, max_size=5)
PAIRS = st.lists(st.tuples(TURNS, TURNS), min_size=1, max_size=60)
NEAR = st.builds(
    noisy, st.integers(1, 80), st.floats(0.8, 1.25), noise=st.floats(0, 0.1), seed=st.integers(0, 9)
)


@given(PAIRS | NEAR)
def test_swapped_sides_mirror_the_answer(pairs: list[Pair]) -> None:
    found, other = decided(pairs), decided(((b, a) for a, b in pairs), a_first=1)
    assert MIRRORED[found.verdict] == other.verdict
    assert (found.pairs, found.p_value) == (other.pairs, other.p_value)
    assert math.isclose(found.ratio, 1 / other.ratio)
    assert math.isclose(found.low, 1 / other.high)


@given(NEAR, st.integers(2, 1000))
def test_the_unit_of_time_does_not_matter(pairs: list[Pair], factor: int) -> None:
    scaled = [([v * factor for v in a], [v * factor for v in b]) for a, b in pairs]
    found, other = decided(pairs), decided(scaled)
    assert (found.verdict, found.pairs) == (other.verdict, other.pairs)
    assert math.isclose(found.ratio, other.ratio)


@pytest.mark.thorough
@given(PAIRS | NEAR)
def test_the_same_pairs_have_the_same_answer_and_a_sound_one(pairs: list[Pair]) -> None:
    found = decided(pairs)
    assert found == decided(pairs)
    assert 0 < found.low <= found.ratio <= found.high < math.inf
    assert 0 <= found.p_value <= 1
    assert found.pairs <= len(pairs)


def single(count: int, ratio: float, draw: random.Random) -> list[Pair]:
    """Turns of one call, one in ten of which is twice as long."""

    def turn(scale: float) -> list[int]:
        scale *= draw.lognormvariate(0, 0.05) * (2 if draw.random() < 0.1 else 1)
        return [round(1e6 * scale)]

    return [(turn(1), turn(ratio)) for _ in range(count)]


@pytest.mark.thorough
def test_asking_after_every_pair_makes_no_more_false_alarms() -> None:
    """On the threshold itself, where they are likeliest: at most 0.5 % a direction."""
    draw = random.Random(7)
    found = [decided(single(150, 1.02, draw)).verdict for _ in range(400)]
    assert found.count("slower") + found.count("faster") <= 6
    assert "unclear" in found


@pytest.mark.thorough
def test_moving_pairs_by_their_order_makes_no_more_false_alarms_either() -> None:
    draw, alarms = random.Random(9), 0
    for _ in range(400):
        comparison = Comparison()
        for (a, b), a_first in zip(single(100, 1.02, draw), orders(draw)):  # noqa: B905
            second = b if a_first else a
            second[:] = [round(1.05 * duration) for duration in second]
            comparison.add(a, b, a_first=a_first)
            if comparison.clear:
                break
        alarms += comparison.decide().verdict in ("slower", "faster")
    assert alarms <= 6


def test_a_tenth_more_is_found_between_spikes() -> None:
    draw = random.Random(8)
    found = [decided(single(150, 1.1, draw)).verdict for _ in range(100)]
    assert found.count("slower") >= 95


def test_a_first_look_at_the_end_has_the_whole_error() -> None:
    pairs = noisy(200, 1.03)
    never, often = Comparison(), Comparison()
    for a, b in pairs:
        never.add(a, b)
        often.add(a, b)
        if often.clear:
            break
    at_last, looked = never.decide(), often.decide()
    assert at_last.high - at_last.low < looked.high - looked.low


@pytest.mark.parametrize(
    ("pairs", "share", "expected"),
    [
        (noisy(100, 1.1), 0.05, True),
        (noisy(100, 1.1), 0.0999, False),  # within the interval
        (noisy(100, 1.0), 0.0, False),
        (noisy(100, 1.015, noise=0.01), 0.005, True),  # although `same` or `unclear` at 2 %
        (noisy(100, 0.9), 0.0, False),
        ([([100], [200])] * 7, 0.05, False),  # too few to be sure
        ([([100], [200])] * 8, 0.05, True),
    ],
)
def test_slower_by_a_share_is_the_whole_interval_from_enough_pairs(
    pairs: list[Pair], share: float, expected: bool
) -> None:
    assert expected is decided(pairs).is_slower_by(share)


@given(NEAR, st.floats(0, 0.3))
def test_what_is_slower_by_a_share_is_slower_by_any_smaller_one(
    pairs: list[Pair], share: float
) -> None:
    found = decided(pairs)
    if found.is_slower_by(share):
        assert found.low > 1 + share
        assert found.is_slower_by(share / 2)
        assert "faster" != found.verdict


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("ratio", "verdict"), [(1.1, "slower"), (0.9, "faster"), (1, "same")])
def test_a_precise_answer_has_a_narrow_interval(ratio: float, verdict: str) -> None:
    def found(comparison: Comparison) -> Decision:
        for a, b in noisy(1000, ratio, noise=0.1):
            comparison.add(a, b)
            if comparison.clear:
                break
        return comparison.decide()

    usual, precise = found(Comparison()), found(Comparison(precise=True))
    assert verdict == usual.verdict == precise.verdict
    assert math.log(precise.high / precise.low) <= 2 * math.log1p(0.02)
    assert precise.pairs >= usual.pairs
    assert precise.is_slower_by(0.05) is (verdict == "slower")
