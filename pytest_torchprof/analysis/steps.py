"""Steps in numbers, their trends, and change points of a noisy series."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.device_time import idle_of
from pytest_torchprof.analysis.memory import changes_of
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import HOST_KINDS, Kind, once_per_trace
from pytest_torchprof.trace.steps import step_of, steps_of
from pytest_torchprof.work.counting import computing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- What each step of a trace did: time, calls, device work and memory, and what no step did.

#: Columns whose values of all steps, and of the rest, add up to the whole trace's.
ADDS_UP: Final = ("self_cpu_ns", "self_cuda_ns", "ops", "kernels", "copies", "copied_bytes")


class StepNumbers(Frozen, frozen=True):
    """For each step, see `trace.steps`, its numbers by column; of a trace or some of its steps.

    ``step`` are the indices of the steps. ``columns`` are arrays of one length, in ns, bytes and
    counts; those of `ADDS_UP` have one more entry: what the measured region did outside of steps.
    """

    step: Ints
    columns: Mapping[str, Ints]
    #: Whether the size of each copy is known.
    sized: bool


@once_per_trace
def step_numbers(trace: Events, name: str = "") -> StepNumbers:
    """Numbers of the selected steps; ``name`` is that of their annotations, see `steps_of`."""
    steps, step = steps_of(trace, name), step_of(trace, name)
    count = len(steps)
    chosen = np.flatnonzero(trace.selection[steps.event])
    step = np.where((step < 0) & trace.in_region, count, step)
    host = (trace.is_kind(*HOST_KINDS) & (step >= 0)).nonzero()[0]
    device = trace.device_rows[step[trace.device_rows] >= 0]
    copied = device[trace.kind[device] == Kind.MEMCPY]
    sizes = trace.bytes[copied]

    def total(events: Ints, values: Ints | None = None) -> Ints:
        out = nesting.summed(step[events], 1 if values is None else values, count + 1)
        return np.append(out[chosen], out[-1])

    busy, idle = _busy(trace, device, step[device], count)
    columns = {
        "start_ns": (steps.begin - (trace.ts[0] if len(trace) else 0))[chosen],
        "duration_ns": (steps.end - steps.begin)[chosen],
        "self_cpu_ns": total(host, trace.self_ns[host]),
        "self_cuda_ns": total(device, trace.dur[device]),
        "cuda_busy_ns": busy[chosen],
        "cuda_idle_ns": idle[chosen],
        "ops": total(host[computing(trace.whole)[host]]),
        "kernels": total(device[trace.kind[device] == Kind.KERNEL]),
        "copies": total(copied),
        "copied_bytes": total(copied, np.maximum(sizes, 0)),
        "peak_cpu_bytes": _peaks(trace, step, count, on_device=False)[chosen],
        "peak_cuda_bytes": _peaks(trace, step, count, on_device=True)[chosen],
    }
    return StepNumbers(chosen, columns, bool((sizes >= 0).all()))


def _busy(trace: Events, device: Ints, step: Ints, count: int) -> tuple[Ints, Ints]:
    """As `device_time`: union of each step's device events, and when the device ran nothing."""
    busy, idle = np.zeros((2, count + 1), np.int64)
    if len(device):
        width = int(trace.device[device].max()) + 2
        group = step * width + trace.device[device] + 1
        found = nesting.covered(group, trace.ts[device], trace.ts[device] + trace.dur[device])
        np.add.at(busy, found.group // width, found.busy_ns)
        for one in nesting.distinct(found.group % width).tolist():
            mine = found.group % width == one
            begin, end = found.begin[mine], found.begin[mine] + found.span_ns[mine]
            ran, step_ = idle_of(trace, one - 1), found.group[mine] // width
            # What the device waits for until it begins a step belongs to that step.
            begin = np.where(step_ < count, ran.since(begin), begin)
            np.add.at(idle, step_, ran.between(begin, end))
    return busy, idle


def _peaks(trace: Events, step: Ints, count: int, *, on_device: bool) -> Ints:
    """The highest live amount of each step above its start, as `usage` of the step has it."""
    memory = trace.memory.device(on_device)
    at = np.where(step < count, step, -1)[memory.event]
    row, block, size = changes_of(memory, np.ones(len(at), bool), on_device)
    allocated = np.where(block >= 0, at[block], -1)
    own = (size > 0) | (allocated == at[row])
    if on_device or memory.addr is None:  # every free counts
        own |= memory.bytes[row] < 0
    keep = own & (at[row] >= 0)
    return _highest(at[row[keep]], size[keep], count)


def _highest(step: Ints, size: Ints, count: int) -> Ints:
    """The highest running sum of each step, at least 0; changes are in the order of steps."""
    out = np.zeros(count, np.int64)
    if len(step):
        live = size.cumsum()
        first = np.flatnonzero(np.concatenate([[True], step[1:] != step[:-1]]))
        before = live[first] - size[first]
        out[step[first]] = np.maximum(np.maximum.reduceat(live, first) - before, 0)
    return out


# ---- Statistics of a series of steps: which values stand out, and whether there is a trend.
#
# Both are nonparametric, since times of steps are skewed: a few are much longer.

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

    The test is that of Mann and Kendall (Mann, Econometrica 13, 1945), two-sided, by the normal
    distribution, with the correction for ties. The slope is Theil's from pairs that are half the
    series apart (Theil, Indagationes Mathematicae 12, 1950).
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


# ---- Change points of a noisy series: where its level changes for good.
#
# The method is E-divisive (Matteson and James, A Nonparametric Approach for Multiple Change Point
# Analysis of Multivariate Data, Journal of the American Statistical Association 109, 2014). Its
# divergence of two parts X and Y of m and n values is, for the exponent 2, which compares means,
#
#     Q(X, Y) = m n / (m + n) · 2 (mean X − mean Y)²
#
# The split with the largest Q is a change point if few random orders of the same values would have
# a split as good; then both sides are looked at in the same way. How few follows from the normal
# distribution: many orders of noise show that chance is as of one independent split a value. As in
# the paper, Y need not reach to the end, so that a change that was taken back is found, too; its
# ends are those of seeded intervals (Kovács, Bühlmann, Li and Munk, Seeded Binary Segmentation,
# Biometrika 110, 2023), which takes n log n steps in place of n².
#
# Times are skewed and have outliers. So the logarithms are compared, with outliers drawn in. And
# a level must be further from the one before than levels of the series usually are; see
# `_Swings`.

if TYPE_CHECKING:
    Floats = npt.NDArray[np.float64]
    Places = npt.NDArray[np.int64]

#: Fewer values after a change may be an outlier that lasts.
LEAST_RUNS: Final = 6
#: How often a series without a change is said to have one.
_CHANGE_ALPHA: Final = 0.001
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
    split, height = _best(scaled)
    spread = float(scaled.var())
    p_value = len(column) * math.erfc(math.sqrt(height / spread) / 2) if spread else 1.0
    if p_value >= _CHANGE_ALPHA:
        return {}
    return {
        **_significant(column[:split], offset),
        offset + split: p_value,
        **_significant(column[split:], offset + split),
    }


def _best(column: Floats) -> tuple[int, float]:
    """The split with the largest divergence Q, of every interval, and how large it is."""
    start, at, end = _splits(len(column))
    left, right = at - start, end - at
    sums = np.concatenate([[0.0], np.cumsum(column)])
    apart = (sums[at] - sums[start]) / left - (sums[end] - sums[at]) / right
    heights = 2 * left * right / (left + right) * apart**2
    top = int(heights.argmax())
    return int(at[top]), float(heights[top])


@lru_cache(maxsize=32)
def _splits(count: int) -> tuple[Places, Places, Places]:
    """Every split of every interval: from where, at what, and to where."""
    parts = [
        (np.full(len(at), start), at, np.full(len(at), end))
        for start, end in _intervals(count)
        for at in (np.arange(start + LEAST_RUNS, end - LEAST_RUNS + 1),)
    ]
    start, at, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    return start, at, end


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


class _Swings:
    """How far neighboring levels of a series are apart that differ by noise alone.

    Times of a busy machine are not independent of each other: there are slow hours. Levels then
    differ by more than in random orders, which have no hours. What is
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
