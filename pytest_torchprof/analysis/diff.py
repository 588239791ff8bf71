"""Two traces side by side: what got slower, and which operators replaced which."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import gcd
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.device_time import device_time, launched_ns
from pytest_torchprof.analysis.memory import ALLOCATORS
from pytest_torchprof.analysis.missing import cpu_time_gap, device_time_gap
from pytest_torchprof.analysis.operators import NO_OPERATOR, Groups, own_device_ns, self_cpu_ns
from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import DEVICE_KINDS, HOST_KINDS, Kind
from pytest_torchprof.work.dispatch import IDLE

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- Compare two operator tables or two traces: what appeared, disappeared, or changed.

ChangeKind = Literal["appeared", "vanished", "more", "fewer", "slower", "faster", "same"]
DiffBy = Literal["op", "kernel"]

#: Times within these limits are the same: two runs of one program differ by as much.
SAME_TIME_SHARE = 0.05
SAME_TIME_MS = 0.005
_ROUNDING_MS = 1e-9

#: The column of the stored operator rows that accounts for a change in a metric.
COLUMN_OF = {
    "flops": "flops",
    "ops": "calls",
    "kernels": "kernels",
    "allocated_cpu_bytes": "allocated_cpu_bytes",
    "allocated_cuda_bytes": "allocated_cuda_bytes",
    "peak_cpu_bytes": "peak_cpu_bytes",
    "peak_cuda_bytes": "peak_cuda_bytes",
    "leaked_cpu_bytes": "leaked_cpu_bytes",
    "leaked_cuda_bytes": "leaked_cuda_bytes",
}


#: The same for estimates of a device's work, which operators have only in tests that ask for them.
ESTIMATE_COLUMN_OF = {
    "host_reads": "host_reads",
    "launches": "launches",
    "bound_ms": "bound_ns",
    "estimated_cuda_bytes": "estimated_bytes",
}


def change_of(before: float, now: float) -> ChangeKind:
    """How a count of something changed, in the words of reports.

    >>> change_of(0, 3), change_of(3, 0), change_of(3, 4), change_of(4, 3), change_of(3, 3)
    ('appeared', 'vanished', 'more', 'fewer', 'same')
    """
    if before == now:
        return "same"
    if not before:
        return "appeared"
    if not now:
        return "vanished"
    return "more" if now > before else "fewer"


# -------------------------------------------------------------------- tables of baselines


class Delta(Frozen, frozen=True):
    """One operator's or kernel's count of something, before and now."""

    name: str
    before: int
    now: int

    @property
    def change(self) -> ChangeKind:
        """How it changed, in the words of reports."""
        return change_of(self.before, self.now)


def deltas(
    before: Mapping[str, Mapping[str, int]], now: Mapping[str, Mapping[str, int]], column: str
) -> list[Delta]:
    """What changed in this column, largest absolute change first, then by name."""
    found = [
        Delta(name, before.get(name, {}).get(column, 0), now.get(name, {}).get(column, 0))
        for name in before.keys() | now.keys()
    ]
    changed = [d for d in found if d.before != d.now]
    return sorted(changed, key=lambda d: (-abs(d.now - d.before), d.name))


# -------------------------------------------------------------------- traces


@dataclass(frozen=True)
class DiffRow:
    """A host event or a kernel in two traces; a time is None where its trace does not have it.

    For host events, ``cpu_ms`` is the total CPU time, including nested events, and ``cuda_ms`` the
    device time of all that was launched inside; a call nested in one of the same name is part of
    it. ``self_`` excludes nested operators and calls, so that a change is in one row only. For
    kernels, ``cuda_ms`` and ``self_cuda_ms`` are their own time. Per step, all are divided by the
    number of steps.
    """

    name: str
    change: ChangeKind
    calls_a: float
    calls_b: float
    cpu_ms_a: float | None
    cpu_ms_b: float | None
    cuda_ms_a: float | None
    cuda_ms_b: float | None
    self_cpu_ms_a: float | None
    self_cpu_ms_b: float | None
    self_cuda_ms_a: float | None
    self_cuda_ms_b: float | None

    @property
    def change_ms(self) -> float:
        """The larger of the absolute changes in self CPU and self device time; 0 if both are
        unknown.
        """
        own = _known(
            (self.self_cpu_ms_a, self.self_cpu_ms_b), (self.self_cuda_ms_a, self.self_cuda_ms_b)
        )
        return max((abs(now - before) for before, now in own), default=0.0)


_Ms = TypeVar("_Ms", np.float64, npt.NDArray[np.float64])

#: By how many steps the numbers of each side are divided.
PerStep = tuple[int, int]


def diff_rows(
    a: Events, b: Events, *, by: DiffBy = "op", per_step: PerStep = (1, 1)
) -> list[DiffRow]:
    """All host events by the names of `op_stats`, or kernels, copies and memsets by their own.

    The exclusive times of all rows add up to the totals of `growth`.

    A change in calls takes precedence over one in time: `change` is ``slower`` or ``faster`` only
    where the calls are the same, by whichever of CPU and device time changed more, and then only
    for more than 5 % and 5 us. Rows are sorted by `DiffRow.change_ms`, then by the change in calls,
    largest first, then by name.
    """
    before, now = (_totals(t, by, steps) for t, steps in zip((a, b), per_step, strict=True))
    rows = [
        _row(name, before.rows.get(name, before.absent), now.rows.get(name, now.absent))
        for name in before.rows.keys() | now.rows.keys()
    ]
    return sorted(rows, key=lambda r: (-r.change_ms, -abs(r.calls_b - r.calls_a), r.name))


class _Total(NamedTuple):
    calls: float
    cpu_ms: float | None
    cuda_ms: float | None
    self_cpu_ms: float | None
    self_cuda_ms: float | None


class _Totals(NamedTuple):
    rows: dict[str, _Total]
    absent: _Total  # of a missing name: true zeros, or unknown as for all names


def _totals(trace: Events, by: DiffBy, steps: int) -> _Totals:
    device = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS))
    shown, shown_name = trace.shown_names
    if by == "kernel":
        events = device
    else:
        events = np.flatnonzero(trace.selection & trace.is_kind(*HOST_KINDS))
    groups = Groups(trace, events, shown_name[trace.name[events]])
    # A stored trace without operators does not tell whether any ran.
    none_ran = not len(events) and (by == "kernel" or trace.region is not None)
    timed = bool(trace.dur[events].any()) or none_ran
    unlinked = 0
    columns: list[Ints | None] = [None] * 4
    if by == "kernel":
        columns[1] = columns[3] = groups.total(trace.dur[events]) if timed else None
    else:
        if timed:
            columns[0], columns[2] = groups.cpu_ns, groups.self_cpu_ns
        if trace.once(launched_ns).any():  # otherwise operators have no known device time
            columns[1] = groups.cuda_ns
            columns[3] = groups.total(trace.once(own_device_ns)[events])
        unlinked = int(trace.dur[device].sum() - trace.once(own_device_ns)[events].sum())
    times = [
        [None] * len(groups.keys) if column is None else _each_ms(column / 1e6, steps).tolist()
        for column in columns
    ]
    names = [shown[i] for i in groups.keys.tolist()]
    calls = groups.calls.tolist()
    each = map(_Total, [_each(n, steps) for n in calls], *times)
    rows = dict(zip(names, each, strict=True))
    if unlinked:
        ms = float(_each_ms(np.float64(unlinked / 1e6), steps))
        rows[NO_OPERATOR] = _Total(0, 0.0, ms, 0.0, ms)
    zeros = [None if column is None else 0.0 for column in columns]
    return _Totals(rows, _Total(0, *zeros))


def _each(calls: int, steps: int) -> float:
    """Calls per step: a whole number where all steps may have as many."""
    return calls / steps if calls % steps else calls // steps


def _each_ms(ms: _Ms, steps: int) -> _Ms:
    """Times per step, without the rounding errors of the division: clocks count ns."""
    return ms if steps == 1 else np.round(ms / steps, 9)


def _row(name: str, a: _Total, b: _Total) -> DiffRow:
    change = change_of(a.calls, b.calls)
    if change == "same":
        inclusive = (a.cpu_ms, b.cpu_ms), (a.cuda_ms, b.cuda_ms)
        exclusive = (a.self_cpu_ms, b.self_cpu_ms), (a.self_cuda_ms, b.self_cuda_ms)
        change = _change_in_time(_known(*inclusive, *exclusive))
    sides = (value for pair in zip(a, b, strict=True) for value in pair)
    return DiffRow(name, change, *sides)  # type: ignore[arg-type]


def _known(*pairs: tuple[float | None, float | None]) -> list[tuple[float, float]]:
    return [(before, now) for before, now in pairs if before is not None and now is not None]


def _change_in_time(times: list[tuple[float, float]]) -> ChangeKind:
    steps = [
        now - before
        for before, now in times
        if abs(now - before) > max(SAME_TIME_SHARE * before, SAME_TIME_MS) + _ROUNDING_MS
    ]
    if not steps:
        return "same"
    return "slower" if max(steps, key=abs) > 0 else "faster"


# -------------------------------------------------------------------- a limit on growth


class Growth(Frozen, frozen=True):
    """A total time of two traces against a limit on its growth, in percent, inclusive."""

    metric: Literal["self_cpu_ms", "self_cuda_ms"]
    before: float | None
    now: float | None
    limit_percent: float

    @property
    def percent(self) -> float | None:
        """By how much it grew; None where either is unknown, infinite from 0."""
        if self.before is None or self.now is None:
            return None
        if self.before == self.now:
            return 0.0
        return (self.now / self.before - 1) * 100 if self.before else math.inf

    @property
    def exceeded(self) -> bool | None:
        """Whether it grew by more than the limit; None where unknown."""
        return None if self.percent is None else self.percent > self.limit_percent


def growth(
    a: Events,
    b: Events,
    *,
    by: DiffBy = "op",
    limit_percent: float,
    per_step: PerStep = (1, 1),
) -> list[Growth]:
    """The checks behind ``--fail-over``: passed if none was exceeded and all are known.

    By kernel, the device time is checked; by operator the CPU time, and the device time too where
    either trace has device events. A total that only one trace has, or that lacks a part, cannot
    be checked.

    Raises:
        SettingsError: the limit is negative or not a number.
    """
    if not limit_percent >= 0:
        found = f"{limit_percent:g} %"
        raise SettingsError("not a limit on growth", found, "give a percentage of 0 or more")
    before, now = _each_step(_device_ms(a), _device_ms(b), per_step)
    checks = [Growth("self_cuda_ms", before, now, limit_percent)]
    if by == "op":
        partial = any(trace.once(device_time_gap) for trace in (a, b))
        checks = [c for c in checks if partial or c.before is not None or c.now is not None]
        before, now = _each_step(_cpu_ms(a), _cpu_ms(b), per_step)
        checks.append(Growth("self_cpu_ms", before, now, limit_percent))
    return checks


def _each_step(a: float | None, b: float | None, steps: PerStep) -> tuple[float | None, ...]:
    sides = zip((a, b), steps, strict=True)
    return tuple(None if ms is None else float(_each_ms(np.float64(ms), n)) for ms, n in sides)


def _device_ms(trace: Events) -> float | None:
    """Total device time; None without any (no accelerator, no record), or if a part is missing."""
    gap = trace.cut or trace.once(device_time_gap)
    return None if gap else device_time(trace).self_ns / 1e6 or None


def _cpu_ms(trace: Events) -> float | None:
    """Total self CPU time; None without any: a capture that failed is not a fast program."""
    gap = trace.cut or trace.once(cpu_time_gap)
    return None if gap else self_cpu_ns(trace) / 1e6 or None


# ---- Align two sequences of operators or kernels to find what replaced what.
#
# A rename or a fusion becomes one change. The alignment is nearly linear: where the sequences
# differ, the longest common subsequence of a window of each decides how they continue, and the
# result for one pair of windows is reused for equal pairs, as in every step of a loop.

#: Called first by many operators: inside another operator they are part of it.
_PRELUDES = frozenset({"aten::fill_", "aten::zero_"})

_WINDOW = 128
_RUN = 4  # this many equal names in a row identify a place
_FAR = (1_000, 30_000, 2**62)  # how far ahead to search for such a run, in stages
_MOST_SEARCHES = 5_000  # about a second
_MOST_DIFFERENCES = 500_000
_MOST_IN_ONE = 200  # names in one replacement; more means a different program
_MOST_SHOWN = 6


@dataclass(frozen=True)
class Replacement:
    """A sequence of operators, what replaced it, and how many times."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    times: int

    def text(self, shorten: Callable[[str], str] = str) -> str:
        """In one line.

        >>> Replacement(("aten::mul", "aten::add", "aten::add"), ("fused_mul_add",), 12).text()
        'aten::mul, aten::add ×2 → fused_mul_add  ×12'
        """
        sides = [_listed(side, shorten) for side in (self.before, self.after)]
        return " → ".join(sides) + (f"  ×{self.times}" if self.times > 1 else "")


class Replacements(NamedTuple):
    """What was replaced, the most frequent first; ``complete`` if compared to the traces' ends."""

    rows: list[Replacement]
    complete: bool


def replacements(a: Events, b: Events, *, by: DiffBy = "op") -> Replacements:
    """What in ``b`` replaced what in ``a``.

    The sequences are kernels, copies and memsets, stream by stream, or the innermost operators that
    do more than allocate and view, thread by thread. If the traces differ throughout, the
    comparison stops after about a second of work.
    """
    numbers: dict[str, int] = {}
    one, other = (_sequence(trace, by, numbers) for trace in (a, b))
    names = list(numbers)
    found: Counter[tuple[bytes, bytes]] = Counter()
    alignment = _Alignment(one, other)
    for i, i_end, j, j_end in alignment.differences():
        found[one[i:i_end].tobytes(), other[j:j_end].tobytes()] += 1
    times: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
    calls = [np.bincount(side, minlength=len(names)) for side in (one, other)]
    fewer, more = calls[1] < calls[0], calls[1] > calls[0]
    for (before, after), count in found.items():
        gone, come = (np.frombuffer(side, np.int64) for side in (before, after))
        # What runs as often as before has only moved: it is not part of a replacement.
        gone, come = gone[fewer[gone]].tolist(), come[more[come]].tolist()
        if gone and come and len(gone) + len(come) <= _MOST_IN_ONE:
            folds = gcd(_folds(gone), _folds(come))
            gone, come = gone[: len(gone) // folds], come[: len(come) // folds]
            times[tuple(names[n] for n in gone), tuple(names[n] for n in come)] += count * folds
    rows = [Replacement(*sides, count) for sides, count in times.items()]
    rows.sort(key=lambda r: (-r.times * (len(r.before) + len(r.after)), r.before, r.after))
    return Replacements(rows, alignment.complete)


# -------------------------------------------------------------------- sequences


def _sequence(trace: Events, by: DiffBy, numbers: dict[str, int]) -> Ints:
    """Numbers of the names, in time order within each thread or stream, those by first event."""
    if by == "kernel":
        rows = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS))
    else:
        rows = np.flatnonzero(_innermost(trace))
    _, first, at = np.unique(trace.thread[rows], return_index=True, return_inverse=True)
    rows = rows[np.argsort(np.argsort(np.argsort(first))[at], kind="stable")]
    distinct, at = np.unique(trace.name[rows], return_inverse=True)
    own = [numbers.setdefault(trace.names[i], len(numbers)) for i in distinct.tolist()]
    return np.array(own, np.int64)[at]


def _innermost(trace: Events) -> Bools:
    """Operators without a nested operator that does work."""
    ops = trace.selection & trace.is_kind(Kind.OP)
    prelude = trace.names_where(_PRELUDES.__contains__)
    works = ops & ~prelude & ~trace.names_where((ALLOCATORS | IDLE).__contains__)
    levels = [*nesting.levels(trace.depth)]
    outer = np.zeros(len(trace), bool)
    for level in reversed(levels):
        busy = level[works[level] | outer[level]]
        outer[trace.parent[busy]] = True
    around = np.full(len(trace), -1, np.int64)
    for level in levels:
        above = trace.parent[level]
        around[level] = np.where(ops[above], above, around[above])
    alone = (around < 0) | outer[around]
    return (works & ~outer) | (ops & prelude & alone)


# -------------------------------------------------------------------- alignment


_Step = tuple[tuple[tuple[int, int, int, int], ...], int, int]  # differences and where they end


class _Alignment:
    """Where two sequences of numbers, none of them negative, differ."""

    def __init__(self, a: Ints, b: Ints) -> None:
        self.complete = True
        self._ends = len(a), len(b)
        # Numbers that are in only one sequence are made equal: they match nothing.
        self._a = np.where(nesting.among(a, b), a, -1)
        self._b = np.where(nesting.among(b, a), b, -2)
        self._bytes = self._a.tobytes(), self._b.tobytes()
        self._known: dict[tuple[bytes, bytes, bool], _Step | None] = {}
        self._searches = 0
        self._runs: tuple[Ints, Ints] | None = None

    def differences(self) -> Iterator[tuple[int, int, int, int]]:
        """(start, end, start, end) of the differing parts, at least one of which is not empty."""
        last = (0, 0, 0, 0)
        for found in self._differences():
            if found[0] == last[1] and found[2] == last[3]:
                last = (last[0], found[1], last[2], found[3])
                continue
            if last[1] > last[0] or last[3] > last[2]:
                yield last
            last = found
        if last[1] > last[0] or last[3] > last[2]:
            yield last

    def _differences(self) -> Iterator[tuple[int, int, int, int]]:
        (end_a, end_b), i, j = self._ends, 0, 0
        for _ in range(_MOST_DIFFERENCES):
            same = self._same_from(i, j)
            i, j = i + same, j + same
            if i == end_a or j == end_b:
                yield i, end_a, j, end_b
                return
            step = self._apart(i, j)
            if step is None:
                break
            for start, stop, first, last in step[0]:
                yield i + start, i + stop, j + first, j + last
            i, j = i + step[1], j + step[2]
        self.complete = False

    def _same_from(self, i: int, j: int) -> int:
        size, start = 32, i
        while True:
            a, b = self._a[i : i + size], self._b[j : j + size]
            length = min(len(a), len(b))
            differ = a[:length] != b[:length]
            at = int(differ.argmax()) if length else 0
            if not length or differ[at]:
                return i + at - start
            i, j, size = i + length, j + length, size * 2

    def _apart(self, i: int, j: int) -> _Step | None:
        """How the sequences continue after a difference; None if that takes too much work."""
        (a, b), (end_a, end_b) = self._bytes, self._ends
        at_end = i + _WINDOW >= end_a and j + _WINDOW >= end_b
        key = a[i * 8 : (i + _WINDOW) * 8], b[j * 8 : (j + _WINDOW) * 8], at_end
        if key not in self._known:
            if self._searches >= _MOST_SEARCHES:
                return None
            self._searches += 1
            windows = (np.frombuffer(side, np.int64).tolist() for side in key[:2])
            self._known[key] = _way_on(*windows, to_the_end=at_end)
        return self._known[key] or self._to_next_run(i, j)

    def _to_next_run(self, i: int, j: int) -> _Step:
        """Up to the nearest run that both have, or to the end."""
        if self._runs is None:
            self._runs = _hashed_runs(self._a), _hashed_runs(self._b)
        in_a, in_b = self._ends[0] - i, self._ends[1] - j
        for reach in _FAR:
            self._searches += min(reach, max(in_a, in_b)) // 1000
            a, at_a = np.unique(self._runs[0][i : i + reach], return_index=True)
            b, at_b = np.unique(self._runs[1][j : j + reach], return_index=True)
            _, of_a, of_b = np.intersect1d(a, b, assume_unique=True, return_indices=True)
            if len(of_a):
                best = int((at_a[of_a] + at_b[of_b]).argmin())
                in_a, in_b = int(at_a[of_a[best]]), int(at_b[of_b[best]])
                break
        return ((0, in_a, 0, in_b),), in_a, in_b


def _way_on(a: list[int], b: list[int], *, to_the_end: bool) -> _Step | None:
    """The differences in the first half of two windows, or in all; None if nothing is common.

    Of all paths to the end of either window, the one that leaves out the fewest.
    """
    rows = _common_lengths(a, b)
    end = (len(a), len(b)) if to_the_end else _cheapest_end(rows, len(b))
    pairs = _common(rows, *end)
    if not to_the_end:
        if not pairs:
            return None
        half = sum(end) / 2
        pairs = [pair for pair in pairs if sum(pair) <= half] or pairs[:1]
        end = pairs[-1][0] + 1, pairs[-1][1] + 1
    found, i, j = list[tuple[int, int, int, int]](), 0, 0
    for in_a, in_b in [*pairs, end]:
        if in_a > i or in_b > j:
            found.append((i, in_a, j, in_b))
        i, j = in_a + 1, in_b + 1
    return tuple(found), *end


def _common_lengths(a: list[int], b: list[int]) -> list[int]:
    """Lengths of longest common subsequences, as bits. For each prefix of ``a`` a number: its zero
    bits among the lowest k count the length in common with the first k of ``b``.

    H. Hyyrö, Bit-parallel LCS-length computation revisited, AWOCA 2004.
    """
    where: dict[int, int] = {}
    for at, number in enumerate(b):
        where[number] = where.get(number, 0) | 1 << at
    every = (1 << len(b)) - 1
    rows = [every]
    for number in a:
        common = rows[-1] & where.get(number, 0)
        rows.append(((rows[-1] + common) | (rows[-1] - common)) & every)
    return rows


def _cheapest_end(rows: list[int], width: int) -> tuple[int, int]:
    """The farthest cell on the far edges of the table with the fewest left out."""
    in_a, in_last = len(rows) - 1, f"{rows[-1]:0{width}b}"[::-1]
    common, ends = 0, [(in_a, in_a, 0)]
    for in_b, bit in enumerate(in_last, 1):
        common += bit == "0"
        ends.append((in_a + in_b - 2 * common, in_a, in_b))
    ends += [(x - width + 2 * row.bit_count(), x, width) for x, row in enumerate(rows)]
    return min(ends, key=lambda end: (end[0], -end[1] - end[2]))[1:]


def _common(rows: list[int], i: int, j: int) -> list[tuple[int, int]]:
    """Positions of a longest common subsequence of prefixes of these lengths."""
    pairs = []
    while i and j:
        if rows[i] >> (j - 1) & 1:
            j -= 1
        else:
            i -= 1
            if rows[i] >> (j - 1) & 1:
                j -= 1
                pairs.append((i, j))
    return pairs[::-1]


def _hashed_runs(numbers: Ints) -> Ints:
    """A number for each run of `_RUN`, by where it begins."""
    out = np.zeros(max(len(numbers) - _RUN + 1, 0), np.uint64)
    for k in range(_RUN):
        out = out * np.uint64(0x9E3779B97F4A7C15) + numbers[k : k + len(out)].astype(np.uint64)
    return out.view(np.int64)


def _folds(numbers: Sequence[int]) -> int:
    """How many times a sequence repeats its smallest part.

    >>> _folds([1, 2, 1, 2]), _folds([1, 1, 1]), _folds([1, 2, 1])
    (2, 3, 1)
    """
    length = len(numbers)
    parts = (p for p in range(1, length + 1) if not length % p)
    return next(length // p for p in parts if numbers[p:] == numbers[:-p] or p == length)


def _listed(names: Sequence[str], shorten: Callable[[str], str]) -> str:
    runs = [(shorten(name), len([*same])) for name, same in groupby(names)]
    shown = [f"{name} ×{count}" if count > 1 else name for name, count in runs[:_MOST_SHOWN]]
    rest = sum(count for _, count in runs[_MOST_SHOWN:])
    return ", ".join(shown) + (f", … and {rest} more" if rest else "")
