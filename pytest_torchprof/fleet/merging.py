"""Rows of many traces as rows of all: sums that are exact, so that no order changes a digit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_torchprof.core.counted_names import CountedNames
from pytest_torchprof.render.rows import sum_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Row = dict[str, Any]


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
        names: names with their counts, which are added up; a single name counts ``calls`` times.
    """

    keys: tuple[str, ...]
    spread: str
    sums: tuple[str, ...] = ()
    largest: tuple[str, ...] = ()
    weighted: tuple[str, ...] = ()
    weight: str = ""
    names: tuple[str, ...] = ()

    @property
    def added(self) -> tuple[str, str, str]:
        """The fields that a merged row has beside those of the table: traces, least, and most."""
        unit = self.spread.rpartition("_")[2]
        return "traces", f"min_{unit}", f"max_{unit}"


def merged_rows(how: Merging, each: Iterable[tuple[int, Sequence[Row]]]) -> list[tuple[Row, int]]:
    """Rows of all traces, in the order of their keys, and the trace with the most of each, or -1.

    ``each``: numbers of traces, and their rows.
    """
    found: dict[tuple[str, ...], list[tuple[int, Row]]] = {}
    for trace, rows in each:
        for row in rows:
            key = tuple(repr(row.get(field)) for field in how.keys)
            found.setdefault(key, []).append((trace, row))
    return [_merged(how, found[key]) for key in sorted(found)]


def _merged(how: Merging, parts: Sequence[tuple[int, Row]]) -> tuple[Row, int]:
    """One row of all traces, and the trace with the most; the first where several have it."""
    special = {*how.sums, *how.largest, *how.weighted, *how.names, "share"}
    rows = [row for _, row in parts]
    out: Row = {}
    for row in rows:
        for field, value in row.items():
            if field not in special and out.setdefault(field, value) != value:
                out[field] = None
    out |= {field: _sum(row.get(field) for row in rows) for field in how.sums}
    for field in how.weighted:
        total = _sum(_product(row.get(field), row.get(how.weight)) for row in rows)
        out[field] = None if total is None or not out[how.weight] else total / out[how.weight]
    out |= {field: _most(row.get(field) for row in rows) for field in how.largest}
    out |= {field: _counted(field, rows) for field in how.names}
    of_trace: dict[int, list[float | None]] = {}
    for trace, row in parts:
        of_trace.setdefault(trace, []).append(row.get(how.spread))
    both = _most if how.spread in how.largest else _sum
    known = {trace: value for trace, own in of_trace.items() if (value := both(own)) is not None}
    least, most = min(known.values(), default=None), max(known.values(), default=None)
    out |= dict(zip(how.added, (len(of_trace), least, most), strict=True))
    return out, min((trace for trace, value in known.items() if value == most), default=-1)


def _sum(values: Iterable[float | None]) -> float | None:
    """Unknown if a part is."""
    parts = list(values)
    return None if None in parts else sum_of(parts)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _product(rate: float | None, weight: float | None) -> float | None:
    return None if rate is None or weight is None else rate * weight


def _counted(field: str, rows: Sequence[Row]) -> CountedNames | None:
    counts: dict[str, int] = {}
    for row in rows:
        value = row.get(field)
        one = [] if value is None else [(str(value), row.get("calls") or 0)]
        for name, count in value.parts if isinstance(value, CountedNames) else one:
            counts[name] = counts.get(name, 0) + count
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return CountedNames(ordered) if counts else None
