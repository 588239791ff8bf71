"""Procedures that compare a session with an earlier one, as CI does with a stored baseline.

They use the statistics and the check of the real pytest-benchmark package. It is not a dependency,
because its plugin would load into our tests. `rival` tells how to get it.
"""

from __future__ import annotations

import importlib
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from benchmarks.times.series import Session

#: Where `make times` puts pytest-benchmark.
RIVALS = Path(__file__).parent.parent.parent / "build" / "rivals"
HOW = (
    "pytest-benchmark is not here, so its rows are left out. To have them: "
    "python -m pip install --target build/rivals --no-deps pytest-benchmark"
)

#: Whether the second session, with its times multiplied, is reported to be slower.
Stored = Callable[[Session, Session, float], bool]


def rival() -> bool:
    """Whether pytest-benchmark can be imported, without loading its plugin."""
    if RIVALS.is_dir() and str(RIVALS) not in sys.path:
        sys.path.append(str(RIVALS))
    try:
        importlib.import_module("pytest_benchmark.stats")
    except ImportError:
        return False
    return True


@cache
def _rivals_statistics(calls: tuple[int, ...], factor: float) -> dict[str, float]:
    """What pytest-benchmark stores for these calls."""
    stats: Any = importlib.import_module("pytest_benchmark.stats").Stats()
    for duration in calls:
        stats.update(duration * factor / 1e9)
    return {field: getattr(stats, field) for field in ("min", "mean", "median")}


def rivals_check(expression: str) -> Stored:
    """``--benchmark-compare-fail=EXPRESSION``: the check that the option makes."""

    def slower(before: Session, after: Session, factor: float) -> bool:
        parse = importlib.import_module("pytest_benchmark.utils").parse_compare_fail
        then = _rivals_statistics(tuple(before.calls), 1.0)
        now = _rivals_statistics(tuple(after.calls), factor)
        return bool(parse(expression).fails(now, then))

    return slower


def median_over(limit: float) -> Stored:
    """The median has grown by more than the limit."""

    def slower(before: Session, after: Session, factor: float) -> bool:
        then, now = statistics.median(before.calls), statistics.median(after.calls)
        return now * factor > then * limit

    return slower


def normalised_over(limit: float) -> Stored:
    """The minimum, as a multiple of the reference kernel's, has grown by more than the limit."""

    def normalised(session: Session) -> float:
        return min(session.calls) / min(min(turn) for turn in session.reference)

    def slower(before: Session, after: Session, factor: float) -> bool:
        return normalised(after) * factor > normalised(before) * limit

    return slower


def rank_test(before: Session, after: Session, factor: float) -> bool:
    """asv's: the Mann-Whitney test with p < 0.002, and a median over 1.1 × the old one."""
    then = np.array(before.calls, float)
    now = np.array(after.calls, float) * factor
    return bool(np.median(now) > 1.1 * np.median(then)) and _mann_whitney(then, now) < 0.002


def _mann_whitney(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """Two-sided, by the normal approximation with the correction for ties."""
    both = np.concatenate((a, b))
    _, place, count = np.unique(both, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]
    n, m = len(a), len(b)
    u = ranks[:n].sum() - n * (n + 1) / 2
    ties = float((count.astype(float) ** 3 - count).sum())
    total = n + m
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    return 2 * NormalDist().cdf(-abs(u - n * m / 2) / variance**0.5)


def alarms(procedure: Stored, sessions: dict[str, list[Session]], factor: float) -> list[bool]:
    """The result for every session against every earlier one of the same work."""
    return [
        procedure(before, after, factor)
        for same in sessions.values()
        for before, after in combinations(same, 2)
    ]


def three_tries(sessions: dict[str, list[Session]], factor: float) -> list[bool]:
    """The minimum is above the largest of five earlier sessions, three times in a row."""

    def slower(before: Sequence[Session], tries: Sequence[Session]) -> bool:
        limit = max(min(one.calls) for one in before)
        return all(min(one.calls) * factor > limit for one in tries)

    return [
        slower(same[i : i + 5], same[i + 5 : i + 8])
        for same in sessions.values()
        for i in range(len(same) - 7)
    ]


def procedures() -> dict[str, Stored]:
    """Procedures by name in the table; pytest-benchmark's only if it is installed."""
    ours: dict[str, Stored] = {
        "stored, median, 5 %": median_over(1.05),
        "stored, Mann-Whitney p < 0.002 and median > 1.10 (asv's)": rank_test,
        "stored, minimum over the reference kernel's, 5 %": normalised_over(1.05),
        "stored, minimum over the reference kernel's, 25 % (time=gate)": normalised_over(1.25),
    }
    if not rival():
        return ours
    return {
        f"pytest-benchmark --benchmark-compare-fail={expression}": rivals_check(expression)
        for expression in ("mean:5%", "min:5%")
    } | ours
