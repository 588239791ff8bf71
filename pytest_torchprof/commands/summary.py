"""`torchprof summary`: every metric of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_torchprof.analysis.breakdown import EXPOSED
from pytest_torchprof.analysis.device_time import spans_of
from pytest_torchprof.commands.inputs import (
    cpu_time_note,
    device_time_note,
    merge_lines,
    part_of,
    uncounted_note,
)
from pytest_torchprof.commands.tables import (
    BREAKDOWN,
    METRICS,
    OK,
    added_fields,
    ask,
    at_steps,
    by_rank,
    columns_of,
    document,
    merged,
    print_table,
    rows_of_each,
    table_text,
    with_rank,
    write,
)
from pytest_torchprof.core.units import format_quantity, format_spread
from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.core.values import MissingValue, Profile, Value
from pytest_torchprof.render.notes import metric_rows
from pytest_torchprof.render.report import metrics_of
from pytest_torchprof.render.table import Table, cell, sum_of, to_json
from pytest_torchprof.verdict.compare import Policy, compare
from pytest_torchprof.verdict.metrics import measure_all

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Collection, Mapping, Sequence

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.inputs import Body, Parts
    from pytest_torchprof.core.values import Sample
    from pytest_torchprof.places.idle_rows import IdleRow
    from pytest_torchprof.render.table import Row, Rows


Metrics = dict[str, Value]


def run_summary(options: Namespace) -> int:
    """Every metric of a trace."""
    parts = ask(options, "commands.summary:summary_part")
    values: dict[int, Metrics] = parts.each("values")
    total = _total_metrics(values.values(), parts.apart)
    samples = next(iter(parts.each("samples").values())) if len(parts) == 1 else {}
    notes = parts.some_notes(0, 1)
    if options.format == "json":
        shown: Row = {"metrics": _reported(total, samples)}
        shown["breakdown"] = rows_of_each(parts, parts.each("breakdown"))
        shown["idle"] = rows_of_each(parts, parts.each("idle"))
        shown["notes"] = notes
        if options.merge:
            shown["rows"] = merged_metrics(parts)
            shown["breakdown"] = merged_breakdown(parts)
            del shown["idle"]
        if len(parts) > 1:
            each = {rank: _reported(values[rank]) for rank in parts}
            shown["by_trace" if parts.apart else "ranks"] = by_rank(parts, each)
        write(to_json(document("summary", parts, shown)))
        return parts.status(OK)
    if options.merge:
        rows, added = merged_metrics(parts), added_fields(METRICS, parts)
        fields: Sequence[str] = (*_FIELDS, *added)
        unknown = {row["metric"] for row in rows if row["max_value"] is None}
    else:
        rows, added, fields = _metric_rows(parts, total), (), columns_of(parts, _FIELDS)
        unknown = {name for name in total if all(name not in _measured(m) for m in values.values())}
    if options.format in ("csv", "parquet"):
        print_table(options, Table(rows, fields), several=parts)
        return parts.status(OK)
    if live := [name for name in total if all(_is_live(own[name]) for own in values.values())]:
        notes += [f"only a live test measures {', '.join(live)}"]
        rows = [row for row in rows if row["metric"] not in live]
        unknown -= {*live}
    if unknown and (options.merge or len(parts) > 1):  # repeating them for each rank adds nothing
        notes += [f"not measured: {', '.join(name for name in total if name in unknown)}"]
        rows = [row for row in rows if row["metric"] not in unknown]
    for row in rows:
        sample = samples.get(row["metric"])
        for field in {"value", *added} & {"value", "min_value", "max_value"}:
            row[field] = format_quantity(row[field], row["unit"])
        row["value"] += f" {format_spread(sample.spread)}".rstrip() if sample else ""
    table = Table(rows, [field for field in fields if field not in {"unit", "class"}])
    times = _breakdown_text(options, parts)
    write(f"{times}\n{table_text(options, table, notes=notes)}")
    return parts.status(OK)


_FIELDS = ("metric", "value", "unit", "class", "reason")


def _metric_rows(parts: Parts, total: Metrics) -> list[Row]:
    """The metrics of each trace, and of all together if they are of one job."""
    each = {rank: metric_rows(own).to_dicts() for rank, own in parts.each("values").items()}
    rows = rows_of_each(parts, each)
    if len(parts) > 1 and not parts.apart and not parts.are_for_machines:
        rows += [{"rank": "total", **row} for row in metric_rows(total).to_dicts()]
    for row in rows:
        row["class"] = row.pop("klass")
    return rows


def merged_metrics(parts: Parts) -> list[Row]:
    """Each metric over all traces."""
    each = {rank: metric_rows(own).to_dicts() for rank, own in parts.each("values").items()}
    order = list(next(iter(parts.each("values").values())))
    rows = merged(METRICS, parts, each)
    for row in rows:
        row["class"] = row.pop("klass")
        why = {rank: [one["reason"] for one in own if one["metric"] == row["metric"]]
               for rank, own in each.items()}  # fmt: skip
        row["reason"] = "; ".join(merge_lines(parts, why)) or None
    return sorted(rows, key=lambda row: order.index(row["metric"]))


def merged_breakdown(parts: Parts) -> list[Row]:
    """Where the time of all devices goes."""
    rows = merged(BREAKDOWN, parts, parts.each("breakdown"))
    total = sum_of(row["time_ms"] for row in rows)
    for row in rows:
        known = total and row["time_ms"] is not None
        row["share"] = row["time_ms"] / total if known else None
    return sorted(rows, key=lambda row: -(row["time_ms"] or 0))


def summary_part(trace: Trace, settings: Mapping[str, Any]) -> Body:
    """What is needed of one trace."""
    trace = at_steps(trace, settings)
    in_lines = settings["format"] in ("table", "markdown")
    lines: list[str] = [uncounted_note(trace)]
    if in_lines:
        times = [cpu_time_note(trace), device_time_note(trace), span_note(trace), _idle(trace)]
        lines += times
    return part_of(
        trace,
        lines,
        values=trace.events.once(measure_all),
        samples=trace.samples(),
        breakdown=trace.breakdown().to_dicts(),
        has_spans=bool(spans_of(trace.events)),
        idle=_idle_causes(trace).to_dicts() if settings["format"] == "json" else [],
    )


#: As a table shows them: other categories take their time first.
_EXPOSED = {name: f"{name}, exposed" for name in EXPOSED}


def _breakdown_text(options: Namespace, parts: Parts) -> str:
    """Where the time goes: a row for each category, and what the idle time is."""
    if options.merge:
        added = added_fields(BREAKDOWN, parts)
        fields = ["category", "time_ms", "share", "total_ms", "calls", *added]
        return table_text(options, Table(merged_breakdown(parts), fields), head=parts.heading)
    rows: list[Row] = []
    has_spans = parts.each("has_spans")
    for rank, mine in parts.each("breakdown").items():
        for row in mine if has_spans[rank] else ():
            row["category"] = _EXPOSED.get(row["category"], row["category"])
        rows += with_rank(parts, rank, mine)
    if not rows:
        return f"{parts.heading}\n"
    fields = columns_of(parts, ("device", "category", "time_ms", "share", "total_ms", "calls"))
    if len({row["device"] for row in rows}) == 1:
        fields.remove("device")
    notes = parts.some_notes(1, None)
    return table_text(options, Table(rows, fields), head=parts.heading, notes=notes)


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
    parts = [f"{row.cause} {cell('share', row.share)}" for row in rows[:_SOME]]
    more = ", …" if len(rows) > _SOME else ""
    return f"idle: {', '.join(parts)}{more}{_largest_gap(trace, rows)}; torchprof idle shows where"


def _largest_gap(trace: Trace, causes: Rows[IdleRow]) -> str:
    """What the host did in a gap that is more than half of the idle time."""
    longest = max(row.longest_ms for row in causes)
    if longest <= sum(row.time_ms for row in causes) / 2:
        return ""  # most traces: to locate what causes all gaps would take longer than the summary
    row = max(trace.idle(), key=lambda row: row.longest_ms)
    at = f" at {cell('location', row.location)}" if row.location else ""
    return f"; {format_quantity(row.longest_ms, 'ms')} in one gap: {row.what or row.cause}{at}"


def _is_live(value: Value) -> bool:
    """Whether no stored trace has it."""
    return isinstance(value, MissingValue) and value.reason.code == Why.ONLY_LIVE.code


def _measured(metrics: Metrics) -> set[str]:
    return {name for name, value in metrics.items() if not isinstance(value, MissingValue)}


def _total_metrics(ranks: Collection[Metrics], apart: str) -> Metrics:
    """Sums over the ranks of one job; a metric missing on one of several has no sum."""
    if apart:
        why = MissingValue(because("not_one_job", "not the ranks of one job: {apart}", apart=apart))
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
    return (
        MissingValue(because("on_one_rank", "on one rank, {why}", why=value.reason))
        if value.at_least
        else value
    )


def _reported(metrics: Metrics, samples: Mapping[str, Sample] | None = None) -> dict[str, Any]:
    return metrics_of(compare(Profile(metrics, samples=samples or {}), None, (), Policy()))
