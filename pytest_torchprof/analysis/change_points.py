"""Change points of a noisy series: where its level changes for good.

The method is E-divisive (Matteson and James, A Nonparametric Approach for Multiple Change Point
Analysis of Multivariate Data, Journal of the American Statistical Association 109, 2014). Its
divergence of two parts X and Y of m and n values is, for the exponent 2, which compares means,

    Q(X, Y) = m n / (m + n) · 2 (mean X − mean Y)²

The split with the largest Q is a change point if few of the random orders of the same values have
a split as good; then both sides are looked at in the same way. As in the paper, Y need not reach
to the end, so that a change that was taken back is found, too; its ends are those of seeded
intervals (Kovács, Bühlmann, Li and Munk, Seeded Binary Segmentation, Biometrika 110, 2023), which
takes n log n steps in place of n².

Times are skewed and have outliers. So the logarithms are compared, with outliers drawn in. And a
level must be further from the one before than levels of the series usually are; see `_Swings`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.random import PCG64, Generator

from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Places = npt.NDArray[np.int64]

#: Fewer values after a change may be an outlier that lasts.
LEAST_RUNS: Final = 6
#: How often a series without a change is said to have one.
_ALPHA: Final = 0.001
#: Random orders that are tried; none may have a split as good: 1 / (999 + 1) = 0.001.
_ORDERS: Final = round(1 / _ALPHA) - 1
#: If all splits together have such a chance, no random order has one as good: none is tried.
_CERTAIN: Final = 1e-9
#: Orders that are looked at together: they fit the processor's cache.
_ROWS: Final = 27
#: A level that changes by less does not matter.
LEAST_SHARE: Final = 0.02
#: A level must change by so many standard deviations of what is usual in the series.
_SWINGS: Final = 4.5
#: Means of so many values are compared that a series has this many of them.
_PER_SWING: Final = 12
#: Values further from the median are drawn in to this many standard deviations.
_REACH: Final = 4.0
#: A median absolute deviation times this is the standard deviation of normal values.
_DEVIATION: Final = 1.4826


class ChangePoint(Frozen, frozen=True):
    """A change before the value at this position: the medians of the levels before and after.

    ``p_value`` is the share of random orders with a split as good, at most.
    """

    at: int
    before: float
    after: float
    p_value: float


def change_points(values: Sequence[float]) -> list[ChangePoint]:
    """The change points of a series in order, each by at least 2 %, and beyond what is usual in it.

    >>> [point.at for point in change_points([10, 11, 10, 12, 11, 10] * 3 + [14, 15, 14, 16] * 3)]
    [18]
    """
    column = np.asarray(values, float)
    scaled = np.log(column) if len(column) and column.min() > 0 else column
    return _lasting(column, scaled, _significant(scaled, 0))


def _drawn_in(column: Floats) -> Floats:
    """Centered and scaled, with outliers drawn in."""
    center = np.median(column)
    # That of neighbors, which a change of level does not widen.
    steps = np.abs(np.diff(column))
    deviation = _DEVIATION * float(np.median(steps)) / math.sqrt(2) if len(steps) else 0.0
    spread = max(deviation, _DEVIATION * float(np.median(np.abs(column - center))))
    if not spread:
        return column - center
    drawn: Floats = np.clip((column - center) / spread, -_REACH, _REACH)
    return drawn


def _significant(column: Floats, offset: int) -> dict[int, float]:
    """Positions of change points with their p-values: of the whole, then of each side."""
    if len(column) < 2 * LEAST_RUNS:
        return {}
    scaled = _drawn_in(column)
    splits = _splits(len(column))
    split, height = _best(scaled, splits)
    p_value = _p_value(scaled, height, splits)
    if p_value is None:
        return {}
    return {
        **_significant(column[:split], offset),
        offset + split: p_value,
        **_significant(column[split:], offset + split),
    }


def _best(column: Floats, splits: Splits) -> tuple[int, float]:
    """The split with the largest divergence, and how large it is."""
    heights = _heights(_sums(column[np.newaxis]), splits)[0]
    top = int(heights.argmax())
    return int(splits.at[top]), float(heights[top])


def _sums(rows: Floats) -> Floats:
    """Running sums of each row, from 0."""
    sums = np.zeros((len(rows), rows.shape[1] + 1))
    np.cumsum(rows, axis=1, out=sums[:, 1:])
    return sums


def _heights(sums: Floats, splits: Splits) -> Floats:
    """Q of each split, for rows of running sums."""
    at = sums[:, splits.at]
    heights: Floats = (at - sums[:, splits.start]) * splits.by_left
    heights -= (sums[:, splits.end] - at) * splits.by_right
    heights *= heights
    heights *= splits.weight
    return heights


class Splits(NamedTuple):
    """Intervals from ``start`` to ``end``, split at ``at``, and the factors of their divergence."""

    start: Places
    at: Places
    end: Places
    by_left: Floats
    by_right: Floats
    weight: Floats


@lru_cache(maxsize=32)
def _splits(count: int) -> Splits:
    """Every split of every interval."""
    parts = [
        (np.full(len(at), start), at, np.full(len(at), end))
        for start, end in _intervals(count)
        for at in (np.arange(start + LEAST_RUNS, end - LEAST_RUNS + 1),)
    ]
    start, at, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    left, right = at - start, end - at
    return Splits(start, at, end, 1 / left, 1 / right, 2 * left * right / (left + right))


def _intervals(count: int) -> list[tuple[int, int]]:
    """Seeded intervals: all, shorter ones that overlap by half, and so on, to the shortest."""
    found = {(0, count): None}
    length = float(count)
    while (length := length / math.sqrt(2)) >= 2 * LEAST_RUNS:
        number = 2 * math.ceil(count / length) - 1
        size = math.ceil(length)
        for start in np.linspace(0, count - size, number).round().astype(int).tolist():
            found[start, start + size] = None
    return list(found)


def _p_value(column: Floats, height: float, splits: Splits) -> float | None:
    """The share of random orders with a split as good; None if it is too large."""
    # Many orders of noise show that chance is as of about one independent split a value.
    apart = len(column) // 2
    spread = float(column.var())
    chance = math.erfc(math.sqrt(height / spread) / 2) if spread else 1.0
    if chance * apart > 2 * _ALPHA:
        return None
    if chance * len(splits.at) < _CERTAIN:
        return 1 / (_ORDERS + 1)
    random = Generator(PCG64(len(column)))  # the same answer each time
    limit = height * (1 - 1e-9)
    tried = 0
    while tried < _ORDERS:
        rows = min(_ROWS, _ORDERS - tried)
        orders = random.permuted(np.broadcast_to(column, (rows, len(column))), axis=1)
        if _heights(_sums(orders), splits).max() >= limit:
            return None
        tried += rows
    return 1 / (tried + 1)


class _Swings:
    """How far neighboring levels of a series are apart that differ by noise alone.

    Times of a busy machine are not independent of each other: there are slow hours. Levels then
    differ by more than in the random orders of a permutation test, which have no hours. What is
    usual between neighboring means of so many values is measured in the series itself, as in
    Allan's variance (Proceedings of the IEEE 54, 1966); with a median in place of the mean, as a
    few differences may be real changes.
    """

    def __init__(self, column: Floats) -> None:
        self._sums = np.concatenate(([0.0], np.cumsum(column)))
        self._most = max(len(column) // _PER_SWING, 1)
        self._known: dict[int, float] = {}

    def usual(self, left: int, right: int) -> float:
        """The standard deviation of the difference between means of so many values.

        The larger of long levels is not taken to be steadier than what can be seen.
        """
        size = min(left, right, self._most)
        if size not in self._known:
            means = (self._sums[size:] - self._sums[:-size]) / size
            apart = np.abs(means[size:] - means[:-size])
            self._known[size] = _DEVIATION * float(np.median(apart)) if len(apart) else 0.0
        larger = min(max(left, right), self._most)
        return self._known[size] * math.sqrt((1 + size / larger) / 2)


def _lasting(values: Floats, column: Floats, found: dict[int, float]) -> list[ChangePoint]:
    """Those between levels that are far enough apart; the levels on both sides of others are one.

    ``column`` has the values as they are compared.
    """
    swings, kept = _Swings(column), sorted(found)
    while kept:
        edges = [0, *kept, len(values)]
        parts = list(pairwise(edges))
        levels = [float(np.median(values[a:b])) for a, b in parts]
        compared = [float(np.median(column[a:b])) for a, b in parts]
        sizes = [b - a for a, b in parts]
        clear = [
            _clear(compared[i : i + 2], levels[i : i + 2], swings.usual(*sizes[i : i + 2]))
            for i in range(len(kept))
        ]
        least = min(range(len(kept)), key=clear.__getitem__)
        if clear[least] >= 1:
            return [
                ChangePoint(at, levels[i], levels[i + 1], found[at]) for i, at in enumerate(kept)
            ]
        del kept[least]
    return []


def _clear(compared: Sequence[float], levels: Sequence[float], usual: float) -> float:
    """How far two levels are apart, relative to what is needed."""
    apart = abs(compared[1] - compared[0])
    share = _share(*levels) / LEAST_SHARE
    return min(share, apart / (_SWINGS * usual)) if usual else share


def _share(before: float, after: float) -> float:
    """How far two levels are apart, relative to the smaller one."""
    least = min(abs(before), abs(after))
    if not least:
        return math.inf if after != before else 0.0
    return abs(after - before) / least
