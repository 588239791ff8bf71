"""Small pictures within tables, as SVG: a budget beside its limit, rounds beside the baseline.

Colors are attributes, so that the pictures can be read where styles are blocked; the styles of the
page replace them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pytest_torchprof.core.units import format_quantity, plural
from pytest_torchprof.render.html.page import render

if TYPE_CHECKING:
    from markupsafe import Markup

    from pytest_torchprof.render.stored_report import StoredMetric

_WIDTH, _EDGE = 160, 5
#: Where the limit is in a bar that is within it.
_LIMIT_AT = 0.8


class _Bar(NamedTuple):
    fill: float
    limits: Sequence[float]
    over: bool
    title: str


class _Rounds(NamedTuple):
    low: float
    high: float
    now: float
    before: float | None
    limit: float | None
    dots: Sequence[float]
    dots_before: Sequence[float]
    title: str


def picture(metric: StoredMetric, before: Sequence[float] = ()) -> Markup | None:
    """What suits the metric; None if there is nothing to compare. ``before``: earlier rounds."""
    if metric.value is not None and metric.n is not None and metric.n > 1:
        return _of_rounds(metric, before)
    if metric.limit is not None or metric.least is not None:
        return _of_budget(metric)
    return None


def _of_budget(metric: StoredMetric) -> Markup | None:
    value = metric.value if metric.value is not None else metric.at_least
    limits = [limit for limit in (metric.least, metric.limit) if limit is not None]
    if value == 0 and not any(limits):  # an empty bar in each test would say nothing
        return None
    largest = max([max(limits) / _LIMIT_AT, value or 0])
    scale = _WIDTH / largest if largest > 0 else 0
    over = metric.status == "over_budget"
    bar = _Bar(
        fill=round(max(value or 0, 0) * scale, 1),
        limits=[round(min(max(limit, 0) * scale, _WIDTH - 1), 1) for limit in limits],
        over=over,
        title=_budget_in_words(metric, value),
    )
    return render("budget.svg", bar=bar, width=_WIDTH)


def _budget_in_words(metric: StoredMetric, value: float | None) -> str:
    now = "not measured" if value is None else format_quantity(value, metric.unit)
    return f"{now}, limit: {limits_in_words(metric)}"


def limits_in_words(metric: StoredMetric) -> str:
    """``at least 2, at most 9``; empty if there is no limit."""
    limits = {"at least": metric.least, "at most": metric.limit}
    return ", ".join(
        f"{word} {format_quantity(value, metric.unit)}"
        for word, value in limits.items()
        if value is not None
    )


def _of_rounds(metric: StoredMetric, before: Sequence[float]) -> Markup:
    now = metric.value or 0
    low = now if metric.low is None else metric.low
    high = now if metric.high is None else metric.high
    marks = [now, low, high, *metric.rounds, *before]
    marks += [mark for mark in (metric.min, metric.baseline, metric.limit) if mark is not None]
    least, largest = min(marks), max(marks)
    scale = (_WIDTH - 2 * _EDGE) / (largest - least) if largest > least else 0

    def at(value: float) -> float:
        return round(_EDGE + (value - least) * scale, 1)

    rounds = _Rounds(
        at(low),
        at(high),
        at(now),
        None if metric.baseline is None else at(metric.baseline),
        None if metric.limit is None else at(metric.limit),
        sorted({at(value) for value in metric.rounds}),
        sorted({at(value) for value in before}),
        _rounds_in_words(metric),
    )
    return render("rounds.svg", rounds=rounds, width=_WIDTH)


def _rounds_in_words(metric: StoredMetric) -> str:
    parts = [
        f"{plural(metric.n or 0, 'round')}, median {format_quantity(metric.value, metric.unit)}"
    ]
    if metric.low is not None and metric.high is not None:
        low, high = (format_quantity(value, metric.unit) for value in (metric.low, metric.high))
        parts.append(f"quartiles {low} and {high}")
    if metric.min is not None:
        parts.append(f"fastest {format_quantity(metric.min, metric.unit)}")
    if metric.baseline is not None:
        parts.append(f"baseline {format_quantity(metric.baseline, metric.unit)}")
    if metric.limit is not None:
        parts.append(f"limit {format_quantity(metric.limit, metric.unit)}")
    return ", ".join(parts)
