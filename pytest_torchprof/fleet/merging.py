"""Rows of many traces as rows of all: sums that are exact, so that no order changes a digit.

A sum of floats depends on the order. Here a float is a whole number of 2**-1074, the smallest one
that IEEE 754 has in 64 bits, and only the sum is rounded.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pytest_torchprof.core.counted_names import CountedNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Row = dict[str, Any]
T = TypeVar("T")

_SHIFT = 1074


class Merging(NamedTuple):
    """How the rows of a table become rows of all traces.

    What no field of this names is kept where all traces agree, and unknown where they do not.

    Attributes:
        keys: rows that agree in these are one.
        spread: the time or size whose smallest and largest trace are told.
        sums: added up; unknown if a part is.
        largest: the largest of all.
        weighted: rates; their mean, weighted by ``weight``.
        weight: a field of ``sums``.
        names: names with their counts, which are added up; a single name counts
            ``counted_by`` times.
        counted_by: a field of ``sums``.
    """

    keys: tuple[str, ...]
    spread: str
    sums: tuple[str, ...] = ()
    largest: tuple[str, ...] = ()
    weighted: tuple[str, ...] = ()
    weight: str = ""
    names: tuple[str, ...] = ()
    counted_by: str = "calls"

    @property
    def added(self) -> tuple[str, str, str]:
        """The fields that a merged row has beside those of the table: traces, least, and most."""
        unit = self.spread.rpartition("_")[2]
        return "traces", f"min_{unit}", f"max_{unit}"


class _Sum:
    """An exact sum; unknown if a part is, and an int if all parts are."""

    __slots__ = ("is_int", "is_known", "total")

    def __init__(self) -> None:
        self.total, self.is_int, self.is_known = 0, True, True

    def add(self, value: float | None) -> None:
        if value is None:
            self.is_known = False
            return
        number, divisor = value.as_integer_ratio()
        self.total += number << (_SHIFT + 1 - divisor.bit_length())
        self.is_int = self.is_int and isinstance(value, int)

    def merge(self, other: _Sum) -> None:
        self.total += other.total
        self.is_int, self.is_known = self.is_int and other.is_int, self.is_known and other.is_known

    @property
    def value(self) -> float | None:
        if not self.is_known:
            return None
        return self.total >> _SHIFT if self.is_int else self.total / (1 << _SHIFT)


class _Merged:
    """One row of all traces so far."""

    def __init__(self, how: Merging) -> None:
        self.sums = {field: _Sum() for field in (*how.sums, *how.weighted)}
        self.largest: dict[str, Any] = dict.fromkeys(how.largest)
        self.names: dict[str, dict[str, int]] = {field: {} for field in how.names}
        self.kept: dict[str, Any] = {}
        self.traces = 0
        #: (value, trace) of the least and of the most; the first trace where several have it.
        self.least: tuple[float, int] | None = None
        self.most: tuple[float, int] | None = None

    def add(self, how: Merging, row: Mapping[str, Any]) -> None:
        for field in how.sums:
            self.sums[field].add(row.get(field))
        for field in how.weighted:
            rate, weight = row.get(field), row.get(how.weight)
            self.sums[field].add(None if rate is None or weight is None else rate * weight)
        for field in how.largest:
            self.largest[field] = _largest(self.largest[field], row.get(field))
        for field in how.names:
            for name, count in _named(row.get(field), row.get(how.counted_by)):
                self.names[field][name] = self.names[field].get(name, 0) + count
        special = {*how.sums, *how.largest, *how.weighted, *how.names, "share"}
        self._keep({field: value for field, value in row.items() if field not in special})

    def _keep(self, values: Mapping[str, Any]) -> None:
        for field, value in values.items():
            if self.kept.setdefault(field, value) != value:
                self.kept[field] = None

    def close(self, how: Merging, trace: int) -> None:
        """All rows of this trace are in."""
        self.traces = 1
        value = self.sums[how.spread].value if how.spread in self.sums else None
        value = self.largest.get(how.spread, value)
        self.least = self.most = None if value is None else (value, trace)

    def merge(self, other: _Merged) -> None:
        for field, own in self.sums.items():
            own.merge(other.sums[field])
        for field in self.largest:
            self.largest[field] = _largest(self.largest[field], other.largest[field])
        for field, counts in self.names.items():
            for name, count in other.names[field].items():
                counts[name] = counts.get(name, 0) + count
        self._keep(other.kept)
        self.traces += other.traces
        self.least = min(filter(None, (self.least, other.least)), default=None)
        self.most = max(
            filter(None, (self.most, other.most)), default=None, key=lambda m: (m[0], -m[1])
        )

    def row(self, how: Merging) -> Row:
        sums = {field: own.value for field, own in self.sums.items()}
        for field in how.weighted:
            rate, weight = sums[field], sums[how.weight]
            sums[field] = rate / weight if rate is not None and weight else None
        names = {
            field: CountedNames(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
            if counts
            else None
            for field, counts in self.names.items()
        }
        traces, least, most = how.added
        return {
            **self.kept,
            **sums,
            **self.largest,
            **names,
            traces: self.traces,
            least: self.least and self.least[0],
            most: self.most and self.most[0],
        }


Merged = dict[tuple[str, ...], _Merged]


def merged_rows(how: Merging, each: Iterable[tuple[int, Sequence[Row]]]) -> list[tuple[Row, int]]:
    """Rows of all traces, in the order of their keys, and the trace with the most of each, or -1.

    ``each``: numbers of traces, and their rows.
    """
    merged = tree_merge((_of_trace(how, trace, rows) for trace, rows in each), _both)
    return [
        (one.row(how), one.most[1] if one.most else -1)
        for _, one in sorted((merged or {}).items(), key=itemgetter(0))
    ]


def tree_merge(parts: Iterable[T], both: Callable[[T, T], T]) -> T | None:
    """All parts in one: as soon as two have the same number of parts in them, they become one.

    So each part is merged about log2(n) times, and about log2(n) results are in memory.

    >>> tree_merge("abcde", lambda a, b: f"({a}{b})")
    '(((ab)(cd))e)'
    """
    waiting: list[tuple[int, T]] = []
    for part in parts:
        size, merged = 1, part
        while waiting and waiting[-1][0] == size:
            size, merged = 2 * size, both(waiting.pop()[1], merged)
        waiting.append((size, merged))
    if not waiting:
        return None
    last = waiting.pop()[1]
    while waiting:
        last = both(waiting.pop()[1], last)
    return last


def _of_trace(how: Merging, trace: int, rows: Sequence[Row]) -> Merged:
    found: Merged = {}
    for row in rows:
        key = tuple(repr(row.get(field)) for field in how.keys)
        if key not in found:
            found[key] = _Merged(how)
        found[key].add(how, row)
    for one in found.values():
        one.close(how, trace)
    return found


def _both(one: Merged, other: Merged) -> Merged:
    for key, theirs in other.items():
        if key in one:
            one[key].merge(theirs)
        else:
            one[key] = theirs
    return one


def _largest(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return max(known, default=None)


def _named(value: Any, count: int | None) -> Sequence[tuple[str, int]]:
    if value is None:
        return ()
    return value.parts if isinstance(value, CountedNames) else ((str(value), count or 0),)
