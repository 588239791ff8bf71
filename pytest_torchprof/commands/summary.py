"""`torchprof summary`: every metric of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_torchprof.analysis.breakdown import EXPOSED
from pytest_torchprof.analysis.idle import spans_of
from pytest_torchprof.api import Trace
from pytest_torchprof.commands.inputs import (
    Ranks,
    cpu_time_note,
    device_time_note,
    heading_of,
    load_steps,
    notes_of,
    uncounted_note,
)
from pytest_torchprof.commands.printing import (
    TableRow,
    columns_of,
    document,
    print_table,
    rows_by_rank,
    table_text,
    with_rank,
    write,
)
from pytest_torchprof.core.reasons import Why, because
from pytest_torchprof.core.results import MissingValue, Profile, Value
from pytest_torchprof.core.units import format_quantity, format_spread
from pytest_torchprof.render import row_formats
from pytest_torchprof.render.json_report import metrics_of
from pytest_torchprof.render.metric_rows import metric_rows
from pytest_torchprof.verdict.decision import Policy, compare
from pytest_torchprof.verdict.metrics import measure_all

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Collection, Mapping

    from pytest_torchprof.core.samples import Sample
    from pytest_torchprof.places.idle_rows import IdleRow
    from pytest_torchprof.render.rows import Rows


Metrics = dict[str, Value]


def run_summary(options: Namespace) -> int:
    """Every metric of a trace."""
    ranks = load_steps(options, options.traces)
    values = {rank: trace.events.once(measure_all) for rank, trace in ranks.items()}
    total = _total_metrics(values.values(), ranks.apart)
    samples = next(iter(ranks.values())).samples() if len(ranks) == 1 else {}
    if options.format == "json":
        parts: TableRow = {"metrics": _reported(total, samples)}
        parts["breakdown"] = rows_by_rank(ranks, Trace.breakdown)
        parts["idle"] = rows_by_rank(ranks, _idle_causes)
        parts["notes"] = notes_of(ranks, uncounted_note)
        if len(ranks) > 1:
            each = {str(ranks.value(rank)): _reported(values[rank]) for rank in ranks}
            parts["by_trace" if ranks.apart else "ranks"] = each
        return write(row_formats.to_json(document("summary", ranks, parts)))
    rows = rows_by_rank(ranks, Trace.summary)
    if len(ranks) > 1 and not ranks.apart:
        rows += [{"rank": "total", **row} for row in metric_rows(total).to_dicts()]
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
    times = _breakdown_text(options, ranks)
    return write(f"{times}\n{table_text(options, rows, fields, notes=notes)}")


#: As a table shows them: other categories take their time first.
_EXPOSED = {name: f"{name}, exposed" for name in EXPOSED}


def _breakdown_text(options: Namespace, ranks: Ranks) -> str:
    """Where the time goes: a row for each category, and what the idle time is."""
    rows = []
    for rank, trace in ranks.items():
        mine = trace.breakdown().to_dicts()
        for row in mine if spans_of(trace.events) else ():
            row["category"] = _EXPOSED.get(row["category"], row["category"])
        rows += with_rank(ranks, rank, mine)
    if not rows:
        return f"{heading_of(ranks)}\n"
    fields = columns_of(ranks, ("device", "category", "time_ms", "share", "total_ms", "calls"))
    if len({row["device"] for row in rows}) == 1:
        fields.remove("device")
    notes = notes_of(ranks, cpu_time_note, device_time_note)
    notes += [*notes_of(ranks, span_note), *notes_of(ranks, _idle)]
    return table_text(options, rows, fields, head=heading_of(ranks), notes=notes)


def _idle_causes(trace: Trace) -> Rows[IdleRow]:
    rows = trace.idle("cause")
    rows.fields = ("device", "cause", "time_ms", "share", "gaps", "longest_ms")
    return rows


def span_note(trace: Trace) -> str:
    """What the shares are relative to."""
    found = spans_of(trace.events)
    if not found:
        return "shares of the self time of operators: no device time in the trace"
    each = [format_quantity((end - begin) / 1e6, "ms") for begin, end in found.values()]
    return f"shares of {', '.join(each)} from the device's first event to its last"


#: How many causes a line names.
_SOME = 4


def _idle(trace: Trace) -> str:
    """What the idle time is, in a line."""
    rows = trace.idle("cause")
    if not rows:
        return ""
    parts = [f"{row.cause} {row_formats.cell('share', row.share)}" for row in rows[:_SOME]]
    more = ", …" if len(rows) > _SOME else ""
    return f"idle: {', '.join(parts)}{more}{_largest_gap(trace, rows)}; torchprof idle shows where"


def _largest_gap(trace: Trace, causes: Rows[IdleRow]) -> str:
    """What the host did in a gap that is more than half of the idle time."""
    longest = max(row.longest_ms for row in causes)
    if longest <= sum(row.time_ms for row in causes) / 2:
        return ""  # most traces: to locate what causes all gaps would take longer than the summary
    row = max(trace.idle(), key=lambda row: row.longest_ms)
    at = f" at {row_formats.cell('location', row.location)}" if row.location else ""
    return f"; {format_quantity(row.longest_ms, 'ms')} in one gap: {row.what or row.cause}{at}"


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
