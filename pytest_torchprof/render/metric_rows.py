"""Metrics of a trace as a table: values, or the reasons why there are none, in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_torchprof.core import results
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.render.rows import Rows, fields_of
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Number, Value


class NotMeasured(Frozen, frozen=True):
    """A metric without a value, and why.

    Attributes:
        reason: in words.
        at_hand: a number that is not reproducible, if there is one.
        at_least: the true value is ``at_hand`` or more.
    """

    reason: str
    at_hand: int | None = None
    at_least: bool = False


@dataclasses.dataclass(frozen=True)
class MetricRow:
    """One metric of a trace: its value in ``unit``, or None and the reason."""

    metric: str
    value: float | None
    unit: str
    klass: str
    reason: str | None = None


def metric_rows(metrics: Mapping[str, Value]) -> Rows[MetricRow]:
    """Metrics as a table, with the reason of each that was not measured."""
    rows = []
    for name, value in metrics.items():
        metric = METRICS[name]
        shown = shown_value(value)
        known, reason = (None, shown.reason) if isinstance(shown, NotMeasured) else (shown, None)
        rows.append(MetricRow(name, known, metric.unit, metric.klass, reason))
    return Rows(rows, fields_of(MetricRow))


def shown_value(value: Value) -> Number | NotMeasured:
    """The value, or the reason in words."""
    if not isinstance(value, results.MissingValue):
        return value
    return NotMeasured(in_words(value.reason), value.at_hand, value.at_least)
