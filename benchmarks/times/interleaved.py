"""Procedures for two processes measured turn by turn: ours, and simpler ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb
from statistics import median

import numpy as np

from benchmarks.times.series import Pairs, Turn
from pytest_torchprof.verdict.paired import Comparison, Decision

#: Whether B, with its times multiplied, is reported to have changed.
Interleaved = Callable[[Pairs, float], bool]


def compared(pairs: Pairs, factor: float, *, tests: int = 1, threshold: float = 0.02) -> Decision:
    """Like `torchprof ab`: pair by pair, until the result is clear or the series ends."""
    comparison = Comparison(tests=tests, threshold=threshold)
    a_first = pairs.a_first or [True] * len(pairs.a)
    for a, b, first in zip(pairs.a, pairs.b, a_first, strict=True):
        comparison.add(a, [round(duration * factor) for duration in b], a_first=first)
        if comparison.clear:
            break
    return comparison.decide()


def ours(pairs: Pairs, factor: float) -> bool:
    """A confirmed change; for the same code, faster is as wrong as slower."""
    wanted = {"slower"} if factor > 1 else {"slower", "faster"}
    return compared(pairs, factor).verdict in wanted


def median_over(limit: float) -> Interleaved:
    """The median of pair ratios is over the limit."""
    return lambda pairs, factor: median(_ratios(pairs, factor)) > limit


def signs(pairs: Pairs, factor: float) -> bool:
    """Sign test with p < 0.001, and the median over 1.02; no stopping early."""
    ratios = _ratios(pairs, factor)
    n, fewer = len(ratios), sum(ratio <= 1 for ratio in ratios)
    chance = sum(comb(n, k) for k in range(fewer + 1)) / 2**n
    return chance < 0.001 and median(ratios) > 1.02


def bootstrap(pairs: Pairs, factor: float) -> bool:
    """The median's lower bound at 99 % is over 1, and the median over 1.02; no stopping early."""
    ratios = np.array(_ratios(pairs, factor))
    resampled = np.random.default_rng(0).choice(ratios, (1000, len(ratios)))
    low = np.quantile(np.median(resampled, axis=1), 0.005)
    return bool(low > 1 and np.median(ratios) > 1.02)


def _ratios(pairs: Pairs, factor: float) -> list[float]:
    def value(turn: Turn) -> float:
        return float(median(turn))

    return [factor * value(b) / value(a) for a, b in zip(pairs.a, pairs.b, strict=True)]


def alarms(procedure: Interleaved, series: Sequence[Pairs], factor: float) -> list[bool]:
    """The result for each series."""
    return [procedure(pairs, factor) for pairs in series]


PROCEDURES: dict[str, Interleaved] = {
    "interleaved, median of pair ratios, 5 %": median_over(1.05),
    "interleaved, sign test p < 0.001 and median > 1.02": signs,
    "interleaved, bootstrap 99 % above 1 and median > 1.02": bootstrap,
    "**torchprof ab**, stopping early": ours,
}
