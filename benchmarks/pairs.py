"""Interleaved pairs, so that the machine's drift affects both sides and cancels."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: theme and case.
        unit: of ``ours`` and ``peer``, which are medians.
        figure: median over the pairs of what is compared with the goal, in ``figure_unit``.
        low: smallest of the pairs; ``high`` the largest.
        interval: bounds of the median with 95 % confidence, as far as the number of pairs allows.
        goal: the figure should not be above this; None without a goal.
        note: what a reader must know to judge the number.
    """

    name: str
    unit: str
    ours: float
    peer: float
    figure: float
    figure_unit: str
    low: float
    high: float
    interval: tuple[float, float]
    pairs: int
    goal: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """``met``, ``missed`` or empty; judged by the displayed figure, so that both agree."""
        if self.goal is None:
            return "–"
        return "met" if round(self.figure, 3) <= self.goal else "missed"


def paired(
    ours: Callable[[], T], peer: Callable[[], T], count: int, *, warm: bool = True
) -> list[tuple[T, T]]:
    """Both sides measured ``count`` times, one after the other, in random order within a pair.

    ``warm`` first runs each once, unmeasured.
    """
    order = random.Random(count)
    if warm:
        ours()
        peer()
    results = []
    for _ in range(count):
        if order.random() < 0.5:
            first = ours()
            results.append((first, peer()))
        else:
            second = peer()
            results.append((ours(), second))
    return results


def ratio(ours: float, peer: float) -> float:
    """``ours / peer``; growth from nothing to nothing is no change."""
    return ours / peer if peer else (math.inf if ours else 1.0)


def difference(ours: float, peer: float) -> float:
    """``ours - peer``."""
    return ours - peer


def added(ours: float, peer: float) -> float:
    """What ours takes beyond the peer, as a multiple of the peer."""
    return ratio(ours - peer, peer)


def summarize(
    name: str,
    samples: Sequence[tuple[float, float]],
    *,
    unit: str,
    figure: Callable[[float, float], float] = ratio,
    goal: float | None = None,
    note: str = "",
) -> Row:
    """The row of these pairs; the figure is computed for each pair, then its median."""
    figures = sorted(figure(*pair) for pair in samples)
    return Row(
        name=name,
        unit=unit,
        ours=statistics.median(o for o, _ in samples),
        peer=statistics.median(p for _, p in samples),
        figure=statistics.median(figures),
        figure_unit=unit if figure is difference else "×",
        low=figures[0],
        high=figures[-1],
        interval=_median_interval(figures),
        pairs=len(figures),
        goal=goal,
        note=note,
    )


def _median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Order statistics that enclose the median with 95 % confidence (the sign test, inverted)."""
    n = len(ordered)
    below, k = 0.5**n, 0
    while below <= 0.025 and k < n // 2:
        k += 1
        below += math.comb(n, k) * 0.5**n
    k = max(k - 1, 0)
    return ordered[k], ordered[n - 1 - k]
