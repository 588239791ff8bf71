"""`torchprof summary`: every metric of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_torchprof import api
from pytest_torchprof.api import Trace
from pytest_torchprof.commands.inputs import heading_of, load_traces, notes_of, uncounted_note
from pytest_torchprof.commands.printing import (
    TableRow,
    columns_of,
    document,
    print_table,
    rows_by_rank,
    write,
)
from pytest_torchprof.core.reasons import Why, because
from pytest_torchprof.core.results import MissingValue, Profile, Value
from pytest_torchprof.core.units import format_quantity, format_spread
from pytest_torchprof.render import row_formats
from pytest_torchprof.render.json_report import metrics_of
from pytest_torchprof.verdict.decision import Policy, compare
from pytest_torchprof.verdict.metrics import measure_all

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Collection, Mapping

    from pytest_torchprof.core.samples import Sample


Metrics = dict[str, Value]


def run_summary(options: Namespace) -> int:
    """Every metric of a trace."""
    ranks = load_traces(options.traces, options.rank)
    values = {rank: trace.events.once(measure_all) for rank, trace in ranks.items()}
    total = _total_metrics(values.values(), ranks.apart)
    samples = next(iter(ranks.values())).samples() if len(ranks) == 1 else {}
    if options.format == "json":
        parts: TableRow = {"metrics": _reported(total, samples)}
        parts["notes"] = notes_of(ranks, uncounted_note)
        if len(ranks) > 1:
            each = {str(ranks.value(rank)): _reported(values[rank]) for rank in ranks}
            parts["by_trace" if ranks.apart else "ranks"] = each
        return write(row_formats.to_json(document("summary", ranks, parts)))
    rows = rows_by_rank(ranks, Trace.summary)
    if len(ranks) > 1 and not ranks.apart:
        rows += [{"rank": "total", **row} for row in api.metric_rows(total).to_dicts()]
    for row in rows:
        row["class"] = row.pop("klass")
    if options.format == "csv":
        fields = columns_of(ranks, ("metric", "value", "unit", "class", "reason"))
        return print_table(options, rows, fields)
    notes = notes_of(ranks, uncounted_note)
    if len(ranks) > 1:  # repeating them for each rank adds nothing
        unknown = {name for name in total if all(name not in _measured(m) for m in values.values())}
        notes += [f"not measured: {', '.join(name for name in total if name in unknown)}"]
        rows = [row for row in rows if row["metric"] not in unknown]
    for row in rows:
        sample = samples.get(row["metric"])
        spread = format_spread(sample.spread) if sample else ""
        row["value"] = f"{format_quantity(row['value'], row['unit'])} {spread}".rstrip()
    fields = columns_of(ranks, ("metric", "value", "reason"))
    return print_table(options, rows, fields, head=heading_of(ranks), notes=notes)


def _measured(metrics: Metrics) -> set[str]:
    return {name for name, value in metrics.items() if not isinstance(value, MissingValue)}


def _total_metrics(ranks: Collection[Metrics], apart: str) -> Metrics:
    """Sums over the ranks of one job; a metric missing on one of several has no sum."""
    if apart:
        why = MissingValue(because(Why.NOT_ONE_JOB, apart=apart))
        return dict.fromkeys(next(iter(ranks)), why)
    if len(ranks) == 1:
        return next(iter(ranks))
    total: Metrics = {}
    for name in next(iter(ranks)):
        values = [metrics[name] for metrics in ranks]
        missing = [value for value in values if isinstance(value, MissingValue)]
        known = [value for value in values if not isinstance(value, MissingValue)]
        total[name] = _of_one(missing[0]) if missing else sum(known)
    return total


def _of_one(value: MissingValue) -> MissingValue:
    """Why a total is unknown: a lower bound for one rank is not one for all."""
    return MissingValue(because(Why.ON_ONE_RANK, why=value.reason)) if value.at_least else value


def _reported(metrics: Metrics, samples: Mapping[str, Sample] | None = None) -> dict[str, Any]:
    return metrics_of(compare(Profile(metrics, samples=samples or {}), None, (), Policy()))
