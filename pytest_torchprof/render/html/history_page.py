"""The page of a history: what changed, then the curve of each series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_torchprof.core.units import format_change, format_pair, format_quantity, plural
from pytest_torchprof.render.html.page import Section, macros, page, render
from pytest_torchprof.render.html.svg import Scale

if TYPE_CHECKING:
    from markupsafe import Markup

    from pytest_torchprof.history.git import Order
    from pytest_torchprof.history.question import Answer, SeriesAnswer

#: Of more, the page has the newest, and says how many are left out.
_MOST_CHANGES, _MOST_CURVES = 500, 300
#: What tells series apart, in a row of changes and in a series.
_KEY = ("test", "region", "metric", "environment", "machine")


def history_page(found: Answer, rows: Sequence[Mapping[str, Any]]) -> str:
    """The whole page, with the rows of all changes as JSON has them.

    The series that changed last come first.
    """
    ranked = sorted(
        found.series, key=lambda one: -max((change.at for change in one.changes), default=-1)
    )
    drawn = {f"series-{at}": one for at, one in enumerate(ranked[:_MOST_CURVES], 1)}
    anchors = {_key_of(one.series): anchor for anchor, one in drawn.items()}
    made = macros("history.html", curve=curve, key_of=_key_of)
    sections = [Section("changes", "Changes", made.changes(found, rows, anchors, _MOST_CHANGES))]
    if drawn:
        sections.append(Section("curves", "Curves", made.curves(found, drawn)))
    count = plural(len(rows), "change") if rows else "No change"
    title = f"{count} in {plural(len(found.order.runs), 'run')}"
    data = {"schema": "torchprof-history/1", "history": found.address}
    return page(title, sections, data={**data, "rows": rows[:_MOST_CHANGES]})


def _key_of(one: Any) -> tuple[object, ...]:
    values = [one[name] if isinstance(one, Mapping) else getattr(one, name) for name in _KEY]
    return (*values[:-1], values[-1] or None)


# ---- The values of one series over runs, as SVG: a stepped line, or dots around levels.
#
# Colors are attributes, so that the curves can be read where styles are blocked; the custom
# properties of the page replace them.

_WIDTH, _HEIGHT = 720, 132
_LEFT, _RIGHT, _TOP, _BOTTOM = 8, 640, 12, 108
#: Dots of a curve; of more runs, each is the median of neighbors.
_MOST_DOTS = 240


class Point(NamedTuple):
    """A dot: where it is, and what it says."""

    x: float
    y: float
    title: str


def curve(one: SeriesAnswer, history: Answer) -> Markup:
    """The curve of a series with at least one value, along the history's line if it has some there:
    the line of exact values, or dots of times with the median between changes.
    """
    order, unit = history.order, one.series.unit
    places = [place for place in history.line if place in one.values] or sorted(one.values)
    values = [one.values[place] for place in places]
    at_of = {place: number for number, place in enumerate(places)}
    shown = [*values, *(c.value for c in one.changes), *(c.before for c in one.changes)]
    low, high = min(shown), max(shown)
    across, up = Scale(0, len(places), _LEFT, _RIGHT), Scale(low, high, _BOTTOM, _TOP)

    def x(number: float) -> float:
        return round(across.at(number + 0.5), 1)

    def y(value: float) -> float:
        return round(up.at(value) if high > low else (_TOP + _BOTTOM) / 2, 1)

    changes = []
    for change in one.changes:
        if change.at in at_of:
            before, now = format_pair(change.before, change.value, unit)
            share = format_change(change.before, change.value)
            what = f"{_run(order, change.at)}: {before} → {now} ({share}), {change.kind}"
            changes.append(Point(x(at_of[change.at]), y(change.value), what))
    path, levels, dots = "", [], []
    if one.series.klass == "time":
        changed = {at_of[change.at] for change in one.changes if at_of.get(change.at)}
        for start, end in pairwise([0, *sorted(changed), len(places)]):
            levels.append((x(start - 0.5), x(end - 0.5), y(median(values[start:end]))))
        count = min(len(values), _MOST_DOTS)
        for start, end in pairwise([len(values) * n // count for n in range(count + 1)]):
            value = median(values[start:end])
            more = f", median of {end - start} runs from here" if end - start > 1 else ""
            title = f"{_run(order, places[start])}: {format_quantity(value, unit)}{more}"
            dots.append(Point(x((start + end - 1) / 2), y(value), title))
    else:
        path = _stepped([(x(number), y(value)) for number, value in enumerate(values)])
    least, most = format_pair(low, high, unit) if high > low else (format_quantity(low, unit), "")
    return render(
        "curve.svg",
        label=f"{one.series.metric} over {len(places)} runs, from {least} to {most or least}",
        path=path,
        levels=levels,
        dots=dots,
        changes=changes,
        low=least,
        high=most,
        first=_run(order, places[0]),
        last=_run(order, places[-1]) if len(places) > 1 else "",
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
