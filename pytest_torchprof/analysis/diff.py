"""Two traces side by side: what got slower, and which operators replaced which."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
    "ops": "ops",
    "dispatches": "calls",
    "kernels": "kernels",
    "allocated_cpu_bytes": "allocated_cpu_bytes",
    "allocated_cuda_bytes": "allocated_cuda_bytes",
    "peak_cpu_bytes": "peak_cpu_bytes",
    "peak_cuda_bytes": "peak_cuda_bytes",
    "leaked_cpu_bytes": "leaked_cpu_bytes",
    "leaked_cuda_bytes": "leaked_cuda_bytes",
}


#: The same for estimates of a device's work: of launches, times and bytes only if asked for.
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


# ---- What replaced what: a rename or a fusion becomes one change.
#
# What ran as often in both traces is where it was, and what changed lies between: in one trace
# what is gone, in the other what has come. Where also such operators are in another order, only
# what comes before and after that is compared.

#: Called first by many operators: inside another operator they are part of it.
_PRELUDES = frozenset({"aten::fill_", "aten::zero_"})
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
    """What was replaced, the most frequent first; ``complete`` if no operators are out of order."""

    rows: list[Replacement]
    complete: bool


def replacements(a: Events, b: Events, *, by: DiffBy = "op") -> Replacements:
    """What in ``b`` replaced what in ``a``.

    The sequences are kernels, copies and memsets, stream by stream, or the innermost operators that
    do more than allocate and view, thread by thread.
    """
    numbers: dict[str, int] = {}
    sides = [_sequence(trace, by, numbers) for trace in (a, b)]
    names = list(numbers)
    calls = [np.bincount(side, minlength=len(names)) for side in sides]
    fewer, more = calls[1] < calls[0], calls[1] > calls[0]
    kept = [np.flatnonzero(~(fewer | more)[side]) for side in sides]
    one, other = (side[at] for side, at in zip(sides, kept, strict=True))
    head = _alike(one, other)
    tail = min(_alike(one[::-1], other[::-1]), len(one) - head)
    fixed = [np.concatenate([[-1], at[:head], at[len(at) - tail :], [len(side)]])
             for at, side in zip(kept, sides, strict=True)]  # fmt: skip
    times: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
    for i in np.flatnonzero((np.diff(fixed[0]) > 1) & (np.diff(fixed[1]) > 1)).tolist():
        gone, come = (side[at[i] + 1 : at[i + 1]] for side, at in zip(sides, fixed, strict=True))
        gone, come = gone[fewer[gone]].tolist(), come[more[come]].tolist()
        if gone and come and len(gone) + len(come) <= _MOST_IN_ONE:
            folds = gcd(_folds(gone), _folds(come))
            gone, come = gone[: len(gone) // folds], come[: len(come) // folds]
            times[tuple(names[n] for n in gone), tuple(names[n] for n in come)] += folds
    rows = [Replacement(*found, count) for found, count in times.items()]
    rows.sort(key=lambda r: (-r.times * (len(r.before) + len(r.after)), r.before, r.after))
    return Replacements(rows, head + tail == len(one))


def _alike(a: Ints, b: Ints) -> int:
    """Length of the common beginning."""
    differ = np.flatnonzero(a != b)
    return int(differ[0]) if len(differ) else len(a)


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
