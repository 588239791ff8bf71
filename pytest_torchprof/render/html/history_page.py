"""The page of a history: what changed, then the curve of each series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_torchprof.core.units import format_change, format_pair, plural
from pytest_torchprof.render.html.curves import curve
from pytest_torchprof.render.html.page import page, render
from pytest_torchprof.render.html.section import Section

if TYPE_CHECKING:
    from markupsafe import Markup

    from pytest_torchprof.history.ancestry import Order
    from pytest_torchprof.history.question import SeriesAnswer

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
