"""What changed in a series: steps of exact metrics, and drifts of times. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from pytest_torchprof.analysis.change_points import ChangePoint, change_points
from pytest_torchprof.core.units import alike
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.own_metrics import NEAR_TOLERANCE

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Number
    from pytest_torchprof.history.index import Series

Kind = Literal["step", "drift"]
Find = Callable[[Sequence[float]], list[ChangePoint]]


class Change(NamedTuple):
    """A value that differs from the one before it; ``at`` and ``since`` are positions of runs.

    Of a drift, both are medians, of the runs from ``at`` on and of those before it.
    """

    at: int
    since: int
    before: Number
    value: Number
    kind: Kind


def changes_in(
    series: Series,
    values: Mapping[int, Number],
    before: Sequence[tuple[int, ...]],
    line: Sequence[int],
    find: Find = change_points,
) -> list[Change]:
    """What changed, in order; ``find`` finds change points.

    ``values`` are by position of the run, and ``before`` has the positions before each; see
    `history.ancestry.Order`. ``line`` is the line of runs on which drifts are looked for.
    """
    if series.klass == "time":
        return drifts(values, line, find)
    if series.klass == "never":  # compared with nothing
        return []
    if series.low == series.high:
        return []
    return steps(values, before, tolerance_of(series))


def tolerance_of(series: Series) -> tuple[float, float]:
    """How far a value may be from the one before: relative to it, and in its unit.

    These are the defaults: a history has no ini file of each of its runs.
    """
    name = series.metric.partition("[")[0]
    if name in METRICS:
        return METRICS[name].tolerance, METRICS[name].margin
    return (NEAR_TOLERANCE if series.klass == "near" else 0.0), 0.0


def steps(
    values: Mapping[int, Number],
    before: Sequence[tuple[int, ...]],
    tolerance: tuple[float, float] = (0.0, 0.0),
) -> list[Change]:
    """Values that differ from those of all nearest runs before.

    At a merge, the value of one side is no step: it was one where that side got it.

    >>> steps({0: 5, 1: 5, 2: 7}, [(), (0,), (1,)])
    [Change(at=2, since=1, before=5, value=7, kind='step')]
    """
    found = []
    whole = len(values) == len(before)
    nearest: dict[int, tuple[int, ...]] = {}
    for at, earlier in enumerate(before):
        places = earlier
        if not whole:
            places = ()
            for place in earlier:
                places += (place,) if place in values else nearest[place]
            if at not in values:
                nearest[at] = tuple(dict.fromkeys(places))
                continue
        value = values[at]
        if not places or value == values[places[0]]:
            continue
        if not any(alike(values[place], value, *tolerance) for place in places):
            found.append(Change(at, places[0], values[places[0]], value, "step"))
    return found


def drifts(
    values: Mapping[int, Number], line: Sequence[int], find: Find = change_points
) -> list[Change]:
    """Change points along a line of runs."""
    places = [place for place in line if place in values]
    points = find([values[place] for place in places])
    return [Change(places[p.at], places[p.at - 1], p.before, p.after, "drift") for p in points]
