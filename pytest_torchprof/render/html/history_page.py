"""The page of a history: what changed, then the curve of each series."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_torchprof.core.units import format_change, format_pair, format_quantity, plural
from pytest_torchprof.render.html.page import Section, page, render

if TYPE_CHECKING:
    from markupsafe import Markup

    from pytest_torchprof.core.values import Number
    from pytest_torchprof.history.git import Order
    from pytest_torchprof.history.question import SeriesAnswer


# ---- The values of one series over runs, as SVG: a stepped line, or dots around levels.
#
# Colors are attributes, so that the curves can be read where styles are blocked; the custom
# properties of the page replace them.

_WIDTH, _HEIGHT = 720, 132
_LEFT, _RIGHT, _TOP, _BOTTOM = 8, 640, 12, 108
#: From a number of a run, or a value, to where it is drawn.
Scale = Callable[[float], float]
#: Dots of a curve; of more runs, each is the median of neighbors.
_MOST_DOTS = 240


class Point(NamedTuple):
    """A dot: where it is, and what it says."""

    x: float
    y: float
    title: str


class Curve(NamedTuple):
    """What the template draws; ``path`` is the line of exact values, ``levels`` those of times."""

    label: str
    path: str
    levels: Sequence[tuple[float, float, float]]
    dots: Sequence[Point]
    changes: Sequence[Point]
    low: str
    high: str
    first: str
    last: str


def curve(one: SeriesAnswer, order: Order, places: Sequence[int]) -> Markup:
    """The curve of a series with at least one value; ``places`` are those of its runs to draw."""
    values = [one.values[place] for place in places]
    shown = [*values, *(c.value for c in one.changes), *(c.before for c in one.changes)]
    low, high = min(shown), max(shown)
    at_of = {place: number for number, place in enumerate(places)}

    def x(number: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * (number + 0.5) / len(places), 1)

    def y(value: float) -> float:
        share = (value - low) / (high - low) if high > low else 0.5
        return round(_BOTTOM - (_BOTTOM - _TOP) * share, 1)

    unit, timed = one.series.unit, one.series.klass == "time"
    changes = []
    for change in one.changes:
        if change.at not in at_of:
            continue
        before, now = format_pair(change.before, change.value, unit)
        share = format_change(change.before, change.value)
        what = f"{_run(order, change.at)}: {before} → {now} ({share}), {change.kind}"
        changes.append(Point(x(at_of[change.at]), y(change.value), what))
    least, most = format_pair(low, high, unit) if high > low else (format_quantity(low, unit), "")
    return render(
        "curve.svg",
        curve=Curve(
            label=f"{one.series.metric} over {len(places)} runs, from {least} to {most or least}",
            path="" if timed else _stepped([(x(n), y(v)) for n, v in enumerate(values)]),
            levels=_levels(one, places, x, y) if timed else (),
            dots=_dots(values, places, order, unit, x, y) if timed else (),
            changes=changes,
            low=least,
            high=most,
            first=_run(order, places[0]),
            last=_run(order, places[-1]) if len(places) > 1 else "",
        ),
        width=_WIDTH,
        height=_HEIGHT,
        top=_TOP,
        bottom=_BOTTOM,
        right=_RIGHT,
    )


def _run(order: Order, place: int) -> str:
    run = order.runs[place]
    return f"{run.commit[:10] if run.commit else 'no commit'}, {run.started[:10]}"


def _stepped(points: Sequence[tuple[float, float]]) -> str:
    """A line with a corner where the value changes; runs in between are left out."""
    parts = [f"M{points[0][0]} {points[0][1]}"]
    for (_, before), (x, y) in pairwise(points):
        if y != before:
            parts.append(f"H{x}V{y}")
    return "".join([*parts, f"H{points[-1][0]}"])


def _levels(
    one: SeriesAnswer, places: Sequence[int], x: Scale, y: Scale
) -> list[tuple[float, float, float]]:
    """The medians between change points: where each begins and ends, and its height."""
    changed = {change.at for change in one.changes}
    edges = [0, *(n for n, place in enumerate(places) if place in changed and n), len(places)]
    found = []
    for start, end in pairwise(edges):
        level = median([one.values[place] for place in places[start:end]])
        found.append((x(start - 0.5), x(end - 0.5), y(level)))
    return found


def _dots(
    values: Sequence[Number], places: Sequence[int], order: Order, unit: str, x: Scale, y: Scale
) -> list[Point]:
    count = min(len(values), _MOST_DOTS)
    edges = [len(values) * n // count for n in range(count + 1)]
    found = []
    for start, end in pairwise(edges):
        value = median(values[start:end])
        more = f", median of {end - start} runs from here" if end - start > 1 else ""
        title = f"{_run(order, places[start])}: {format_quantity(value, unit)}{more}"
        found.append(Point(x((start + end - 1) / 2), y(value), title))
    return found


#: Of more, the page has the newest, and says how many are left out.
_MOST_CHANGES, _MOST_CURVES = 500, 300


class History(NamedTuple):
    """What a page shows: the address, the runs, those of the line that curves are along, the series
    to draw, the rows of all changes as JSON has them, and notes.
    """

    address: str
    order: Order
    line: Sequence[int]
    series: Sequence[SeriesAnswer]
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str]


class _ChangeView(NamedTuple):
    row: Mapping[str, Any]
    before: str
    value: str
    change: str
    anchor: str


class _SeriesView(NamedTuple):
    anchor: str
    one: SeriesAnswer
    curve: Markup


def history_page(history: History) -> str:
    """The whole page."""
    drawn = list(_drawn(history))
    anchors = {_key_of(view.one): view.anchor for view in drawn}
    rows = history.rows[:_MOST_CHANGES]
    changes = [_view(row, anchors) for row in rows]
    body = render(
        "changes.html",
        changes=changes,
        left=len(history.rows) - len(changes),
        address=history.address,
        runs=plural(len(history.order.runs), "run"),
        notes=history.notes,
    )
    sections = [Section("changes", "Changes", body)]
    if drawn:
        left = len(history.series) - len(drawn)
        curves = render("curves.html", series=drawn, left=left)
        sections.append(Section("curves", "Curves", curves))
    count = len(history.rows)
    title = f"{plural(count, 'change')} in {plural(len(history.order.runs), 'run')}"
    data = {"schema": "torchprof-history/1", "history": history.address, "rows": list(rows)}
    return page(title if count else f"No change in {title.partition(' in ')[2]}", sections,
                data=data)  # fmt: skip


def _drawn(history: History) -> list[_SeriesView]:
    """The series with their curves: those that changed last come first."""
    ranked = sorted(
        history.series, key=lambda one: -max((change.at for change in one.changes), default=-1)
    )
    drawn = []
    for number, one in enumerate(ranked[:_MOST_CURVES], 1):
        places = [place for place in history.line if place in one.values] or sorted(one.values)
        drawn.append(_SeriesView(f"series-{number}", one, curve(one, history.order, places)))
    return drawn


def _key_of(one: SeriesAnswer) -> tuple[object, ...]:
    series = one.series
    return series.test, series.region, series.metric, series.environment, series.machine or None


def _view(row: Mapping[str, Any], anchors: Mapping[tuple[object, ...], str]) -> _ChangeView:
    before, value = format_pair(row["before"], row["value"], row["unit"])
    key = tuple(row[field] for field in ("test", "region", "metric", "environment", "machine"))
    change = format_change(row["before"], row["value"])
    return _ChangeView(row, before, value, change, anchors.get(key, ""))
