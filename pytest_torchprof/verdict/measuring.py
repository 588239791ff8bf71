"""Measure a metric on a trace. A plain pytest run loads the table of metrics, but not this."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.analysis.gaps import partial_gap
from pytest_torchprof.analysis.work_elsewhere import work_elsewhere
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import MissingValue
from pytest_torchprof.verdict.bounds import at_least, of_whole
from pytest_torchprof.verdict.needs import lacking

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_torchprof.core.results import Value
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.verdict.metric import Metric, MetricNeed


def value_of(metric: Metric, trace: Events) -> Value:
    """The value of the metric on this trace, or why there is none.

    If a capture lacks some device work, or the file breaks off, counts are lower bounds.
    """
    if (missing := trace.whole.once(lacking, metric.needs)) is not None:
        return missing
    return _present(metric, trace, trace.whole, partial=_is_partial(trace))


def values_of(metrics: Iterable[Metric], trace: Events) -> dict[str, Value]:
    """The same of several metrics, by name."""
    whole, partial = trace.whole, _is_partial(trace)
    values: dict[str, Value] = {}
    lacks: dict[frozenset[MetricNeed], MissingValue | None] = {}
    for metric in metrics:
        needs = metric.needs
        if needs not in lacks:
            lacks[needs] = whole.once(lacking, needs)
        values[metric.name] = lacks[needs] or _present(metric, trace, whole, partial=partial)
    return values


def values_of_table(
    trace: Events, table: Iterable[Metric], known: Mapping[str, Value]
) -> dict[str, Value]:
    """The same of a whole table, but for metrics that nobody asked for and those that are known."""
    asked = trace.facts.asked or ()
    wanted = [one for one in table if not one.on_request or one.name in asked]
    found = values_of([one for one in wanted if one.name not in known], trace)
    return {one.name: known[one.name] if one.name in known else found[one.name] for one in wanted}


def _present(metric: Metric, trace: Events, whole: Events, *, partial: bool) -> Value:
    """The value of a metric whose needs the capture meets; ``partial``: more ran than it holds."""
    if trace.scope is not None and not metric.of_region:
        return _of_test(metric, whole)
    if "device" in metric.needs and (reason := whole.once(partial_gap)):
        # More work may lower what a function of a user's finds.
        counts = metric.klass == "exact" and metric.own is None
        return at_least(metric, metric.extract(trace) if counts else None, reason)
    value = metric.extract(trace)
    return of_whole(metric, value, trace) if partial else value


def _is_partial(trace: Events) -> bool:
    return trace.cut or trace.whole.once(_elsewhere) is not None


def _elsewhere(trace: Events) -> Reason | None:
    return work_elsewhere(trace) if trace.is_live else None


def _of_test(metric: Metric, whole: Events) -> Value:
    """Why a part of a trace does not have this metric: even the whole may not have it."""
    value = value_of(metric, whole)
    if isinstance(value, MissingValue):
        return value
    return MissingValue(because(Why.ONLY_OF_TEST))
