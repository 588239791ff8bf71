"""Statistics of a series of steps: which values stand out, and whether there is a trend.

Both are nonparametric, since times of steps are skewed: a few are much longer.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pytest_torchprof.trace.nesting import Bools

#: Quartiles of fewer values say little about what is usual.
LEAST_FOR_OUTLIERS: Final = 5
#: The fences are this many quartile distances beyond the quartiles. Source: Tukey, Exploratory Data
#: Analysis, 1977, section 2D.
_FENCE: Final = 1.5
#: Values this close to the median never stand out: two runs of one program differ by as much.
_USUAL_SHARE: Final = 0.05
#: How often a series without a trend is said to have one.
_ALPHA: Final = 0.01
#: A change over the whole series by less of the median does not matter.
_LEAST_SHARE: Final = 0.01
#: Up to this many values, the exact distribution is used.
_EXACT: Final = 30


class Trend(Frozen, frozen=True):
    """A series that rises or falls: its slope per step, in its unit, and the test's p-value.

    ``share`` is the change from the first to the last step, relative to the median.
    """

    per_step: float
    share: float
    p_value: float


def outliers(values: Sequence[float]) -> Bools:
    """Which values are beyond Tukey's fences, and at least 5 % away from the median.

    >>> outliers([9, 1, 1, 1, 1, 1]).tolist()
    [True, False, False, False, False, False]
    """
    column = np.asarray(values, float)
    if len(column) < LEAST_FOR_OUTLIERS:
        return np.zeros(len(column), bool)
    low, median, high = np.quantile(column, (0.25, 0.5, 0.75)).tolist()
    reach = _FENCE * (high - low)
    beyond = (column < low - reach) | (column > high + reach)
    found: Bools = beyond & (np.abs(column - median) > _USUAL_SHARE * abs(median))
    return found


def trend(values: Sequence[float]) -> Trend | None:
    """The trend of a series with one value per step, None without a clear one.

    The test is that of Mann and Kendall (Mann, Econometrica 13, 1945), two-sided: its p-value is
    exact for up to 30 distinct values, normal with the correction for ties otherwise. The slope is
    Theil's from pairs that are half the series apart (Theil, Indagationes Mathematicae 12, 1950).
    Outliers, as a first step that warms up, are left out.

    >>> trend([1, 2, 3, 4, 5, 6, 7, 8]).per_step, trend([1, 2, 1, 2, 1, 2, 1, 2])
    (1.0, None)
    """
    at = np.flatnonzero(~outliers(values))
    column = np.asarray(values, float)[at]
    half = len(column) // 2
    median = abs(float(np.median(column))) if len(column) else 0.0
    if not half or not median or (p_value := _p_value(column)) >= _ALPHA:
        return None
    slope = float(np.median((column[-half:] - column[:half]) / (at[-half:] - at[:half])))
    share = slope * (len(values) - 1) / median
    return Trend(slope, share, p_value) if abs(share) >= _LEAST_SHARE else None


def _p_value(column: npt.NDArray[np.float64]) -> float:
    count = len(column)
    rises = _rises(column)
    _, ties = np.unique(column, return_counts=True)
    if count <= _EXACT and (ties == 1).all():
        return _exact(count, abs(rises))
    spread = _cubic(np.array([count])) - _cubic(ties)
    if not spread:
        return 1.0
    z = max(abs(rises) - 1, 0) / math.sqrt(spread / 18)
    return math.erfc(z / math.sqrt(2))


def _rises(column: npt.NDArray[np.float64]) -> int:
    """Pairs of values that rise less those that fall, by halves.

    >>> _rises(np.array([1.0, 3.0, 2.0, 3.0]))
    3
    """
    half = len(column) // 2
    if not half:
        return 0
    before, after = np.sort(column[:half]), column[half:]
    below = int(before.searchsorted(after, "left").sum())
    above = half * len(after) - int(before.searchsorted(after, "right").sum())
    return _rises(column[:half]) + _rises(after) + below - above


def _cubic(numbers: npt.NDArray[np.int64]) -> int:
    return int((numbers * (numbers - 1) * (2 * numbers + 5)).sum())


def _exact(count: int, rises: int) -> float:
    """How often a random order of so many values rises, or falls, at least as clearly.

    ``rises``: pairs of values that rise less those that fall.
    """
    pairs = count * (count - 1) // 2
    return min(2 * float(_orders(count)[(pairs - rises) // 2]), 1.0)


@lru_cache(maxsize=_EXACT)
def _orders(count: int) -> npt.NDArray[np.float64]:
    """The share of orders of so many values with at most 0, 1, 2, … inversions.

    Their numbers are the coefficients of the product of 1 + x + … + x^k for k below ``count``
    (Kendall, Rank Correlation Methods, 1948).
    """
    ways = np.ones(1)
    for size in range(2, count + 1):
        ways = np.convolve(ways, np.ones(size))
    shares: npt.NDArray[np.float64] = ways.cumsum() / ways.sum()
    return shares
