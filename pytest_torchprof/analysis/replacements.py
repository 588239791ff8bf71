"""Two sequences of operators or kernels, aligned: which ones took the place of which.

So a rename or a fusion reads as one change. The alignment is greedy and all but linear: where the
sequences part, it looks for the nearest place at which they go on together, and what it found for
one surrounding holds for all others that are equal, as of every step of a loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_torchprof import nesting
from pytest_torchprof.analysis.memory import ALLOCATORS
from pytest_torchprof.events import DEVICE_KINDS, Kind, Trace

if TYPE_CHECKING:
    from pytest_torchprof.analysis.diff import By
    from pytest_torchprof.nesting import Bools, Ints

#: Operators that compute nothing where no other operator runs inside: views, and casts to what is.
VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        *("_has_compatible_shallow_copy_type", "_reshape_alias", "_unsafe_view", "alias"),
        *("as_strided", "as_strided_", "chunk", "contiguous", "detach", "detach_", "dropout"),
        *("expand", "expand_as", "flatten", "is_pinned", "lift_fresh", "narrow", "permute"),
        *("reshape", "resolve_conj", "resolve_neg", "result_type", "select", "set_", "slice"),
        *("split", "squeeze", "squeeze_", "t", "to", "transpose", "type_as", "unbind"),
        *("unflatten", "unfold", "unsqueeze", "unsqueeze_", "view", "view_as"),
    )
) | {"detach", "detach_"}
#: What many operators do first: inside another operator they are part of it.
_PRELUDES = frozenset({"aten::fill_", "aten::zero_"})

_NEAR = 48  # how far ahead the exact search looks
_RUN = 4  # so many equal in a row are surely the same place
#: What a run of 0, 1, … equal ones costs, in ones that are passed over to get there.
_COST_OF_RUN = np.array([1e9, 12, 6, 2, 0])
_FAR = (1_000, 30_000, 2**62)  # how far ahead the search for a whole run looks, by and by
_MOST_SEARCHES = 10_000  # about a second
_MOST_DIFFERENCES = 200_000
_MOST_IN_ONE = 200  # names that have taken each other's place; more is another program
_MOST_SHOWN = 6


@dataclass(frozen=True)
class Replacement:
    """Some operators in a row, what stands in their place now, and how many times."""

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
    """What was replaced, most first; ``complete`` if the traces were compared to their ends."""

    rows: list[Replacement]
    complete: bool


def replacements(a: Trace, b: Trace, *, by: By = "op") -> Replacements:
    """What stands in ``b`` in the place of what stood in ``a``.

    The sequences are of kernels, copies and memsets, stream by stream, or of the innermost
    operators that do more than allocate and view, thread by thread. Traces that differ all over
    are compared as far as about a second of work goes.
    """
    numbers: dict[str, int] = {}
    one, other = (_sequence(trace, by, numbers) for trace in (a, b))
    names = list(numbers)
    found: Counter[tuple[bytes, bytes]] = Counter()
    alignment = _Alignment(one, other)
    for i, i_end, j, j_end in alignment.differences():
        found[one[i:i_end].tobytes(), other[j:j_end].tobytes()] += 1
    times: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
    for sides, count in found.items():
        for gone, come, folds in _refined(*(np.frombuffer(s, np.int64).tolist() for s in sides)):
            times[tuple(names[n] for n in gone), tuple(names[n] for n in come)] += count * folds
    rows = [Replacement(*sides, count) for sides, count in times.items()]
    rows.sort(key=lambda r: (-r.times * (len(r.before) + len(r.after)), r.before, r.after))
    return Replacements(rows, alignment.complete)


def _refined(gone: list[int], come: list[int]) -> Iterator[tuple[list[int], list[int], int]]:
    """Parts of a difference that took each other's place, repetitions folded: (…, …, times)."""
    if len(gone) + len(come) > _MOST_IN_ONE or sorted(gone) == sorted(come):
        return
    matcher = SequenceMatcher(None, gone, come, autojunk=False)
    for how, i, i_end, j, j_end in matcher.get_opcodes():
        if how == "replace":
            one, other = gone[i:i_end], come[j:j_end]
            folds = gcd(_folds(one), _folds(other))
            yield one[: len(one) // folds], other[: len(other) // folds], folds


# -------------------------------------------------------------------- sequences


def _sequence(trace: Trace, by: By, numbers: dict[str, int]) -> Ints:
    """Numbers of the names, in time order within each thread or stream, those in order of start."""
    if by == "kernel":
        rows = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS))
    else:
        rows = np.flatnonzero(_innermost(trace))
    _, first, at = np.unique(trace.thread[rows], return_index=True, return_inverse=True)
    rows = rows[np.argsort(np.argsort(np.argsort(first))[at], kind="stable")]
    distinct, at = np.unique(trace.name[rows], return_inverse=True)
    own = [numbers.setdefault(trace.names[i], len(numbers)) for i in distinct.tolist()]
    return np.array(own, np.int64)[at]


def _innermost(trace: Trace) -> Bools:
    """Operators in which no other one does any work."""
    ops = trace.selection & trace.is_kind(Kind.OP)
    prelude = trace.names_where(_PRELUDES.__contains__)
    works = ops & ~prelude & ~trace.names_where((ALLOCATORS | VIEWS).__contains__)
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


class _Alignment:
    """Where two sequences of numbers, none of them negative, differ."""

    def __init__(self, a: Ints, b: Ints) -> None:
        self.complete = True
        self._lengths = len(a), len(b)
        end = np.full(_RUN, -1, np.int64)  # the ends are the same place too
        self._a, self._b = np.concatenate([a, end]), np.concatenate([b, end])
        self._bytes = self._a.tobytes(), self._b.tobytes()
        self._known: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        self._searches = 0
        self._runs: tuple[Ints, Ints] | None = None

    def differences(self) -> Iterator[tuple[int, int, int, int]]:
        """(start, end, start, end) of the parts of either, at least one of which is not empty."""
        (end_a, end_b), i, j = self._lengths, 0, 0
        for _ in range(_MOST_DIFFERENCES):
            same = self._same_from(i, j)
            i, j = min(i + same, end_a), min(j + same, end_b)
            if i == end_a or j == end_b:
                if i < end_a or j < end_b:
                    yield i, end_a, j, end_b
                return
            step = self._apart(i, j)
            if step is None:
                break
            yield i, i + step[0], j, j + step[1]
            i, j = i + step[0], j + step[1]
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

    def _apart(self, i: int, j: int) -> tuple[int, int] | None:
        """How many of either to pass over, so that they go on together; None if it is too much."""
        a, b = self._bytes
        key = a[i * 8 : (i + _NEAR) * 8], b[j * 8 : (j + _NEAR) * 8]
        step = self._known.get(key)
        if step is None:
            if self._searches >= _MOST_SEARCHES:
                return None
            self._searches += 1
            step = _nearest(*(np.frombuffer(side, np.int64) for side in key))
            if step is None:  # then what decides lies beyond the key
                return self._nearest_run(i, j)
            self._known[key] = step
        (end_a, end_b) = self._lengths
        return min(step[0], end_a - i), min(step[1], end_b - j)

    def _nearest_run(self, i: int, j: int) -> tuple[int, int]:
        if self._runs is None:
            self._runs = _hashed_runs(self._a), _hashed_runs(self._b)
        end_a, end_b = self._lengths
        for reach in _FAR:
            self._searches += min(reach, max(end_a - i, end_b - j)) // 1000
            a, b = self._runs[0][i : i + reach], self._runs[1][j : j + reach]
            (distinct_a, at_a), (distinct_b, at_b) = (
                np.unique(x, return_index=True) for x in (a, b)
            )
            _, in_a, in_b = np.intersect1d(
                distinct_a, distinct_b, assume_unique=True, return_indices=True
            )
            if len(in_a):
                best = int((at_a[in_a] + at_b[in_b]).argmin())
                return min(int(at_a[in_a[best]]), end_a - i), min(int(at_b[in_b[best]]), end_b - j)
        return end_a - i, end_b - j


def _nearest(a: Ints, b: Ints) -> tuple[int, int] | None:
    """The cheapest way on: few passed over, and then as many equal as needed to be sure."""
    equal = a[:, None] == b[None, :]
    run, length = equal, equal.astype(np.int64)
    for _ in range(_RUN - 1):
        longer = np.zeros_like(equal)
        longer[:-1, :-1] = equal[:-1, :-1] & run[1:, 1:]
        run = longer
        length += run
    cost = np.arange(len(a))[:, None] + np.arange(len(b))[None, :] + _COST_OF_RUN[length]
    in_a, in_b = divmod(int(cost.argmin()), len(b))
    return (in_a, in_b) if equal[in_a, in_b] else None


def _hashed_runs(numbers: Ints) -> Ints:
    """A number for each run of `_RUN`, by where it begins."""
    out = np.zeros(len(numbers) - _RUN + 1, np.uint64)
    for k in range(_RUN):
        out = out * np.uint64(0x9E3779B97F4A7C15) + numbers[k : k + len(out)].astype(np.uint64)
    return out.view(np.int64)


def _folds(numbers: Sequence[int]) -> int:
    """How many times the same part is repeated.

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
