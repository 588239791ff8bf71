"""What each subcommand of `torchprof` does, one function each; returns the exit status."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchprof import api
from pytest_torchprof.analysis.diff import DiffRow, Growth, growth
from pytest_torchprof.analysis.memory import live_at_start
from pytest_torchprof.analysis.replacements import replacements
from pytest_torchprof.analysis.roofline import UNLINKED
from pytest_torchprof.api import Trace
from pytest_torchprof.commands.comparing import ab
from pytest_torchprof.commands.linting import lint, rules
from pytest_torchprof.commands.printing import (
    FAILED,
    OK,
    Row,
    columns_of,
    document,
    limited,
    ordered,
    print_table,
    rows_of,
    show,
    table,
    with_rank,
    write,
)
from pytest_torchprof.commands.reading import (
    Ranks,
    calls_of,
    heading_of,
    listed,
    load,
    masked,
    no_flops,
    notes_of,
    only,
    peaks,
    peaks_used,
    uncounted,
    ungrouped,
    unlinked,
    warn,
)
from pytest_torchprof.compare import Policy, compare
from pytest_torchprof.errors import SettingsError
from pytest_torchprof.render import tables
from pytest_torchprof.render.json_report import metrics_of
from pytest_torchprof.render.kernel_names import readable
from pytest_torchprof.render.text import plural, shorten
from pytest_torchprof.stats import NotMeasured, Profile, Value
from pytest_torchprof.trace.stacks import write_stacks
from pytest_torchprof.units import format_change, format_pair, format_quantity, format_spread

if TYPE_CHECKING:
    from pytest_torchprof.samples import Sample

__all__ = [
    "ab",
    "augment",
    "diff",
    "kernels",
    "lint",
    "memory",
    "ops",
    "rules",
    "stacks",
    "summary",
]

#: Replacements that a diff spells out, and the width of a name in them.
_REPLACEMENTS, _NAME = 12, 48

Metrics = dict[str, Value]


def summary(options: Namespace) -> int:
    """Every metric of a trace."""
    ranks = load(options.traces, options.rank)
    values = {rank: trace.metrics() for rank, trace in ranks.items()}
    total = _total_metrics(values.values(), ranks.apart)
    samples = next(iter(ranks.values())).samples() if len(ranks) == 1 else {}
    if options.format == "json":
        parts: Row = {"metrics": _reported(total, samples)}
        parts["notes"] = notes_of(ranks, uncounted)
        if len(ranks) > 1:
            each = {str(ranks.value(rank)): _reported(values[rank]) for rank in ranks}
            parts["by_trace" if ranks.apart else "ranks"] = each
        return write(tables.to_json(document("summary", ranks, parts)))
    rows = rows_of(ranks, Trace.summary)
    if len(ranks) > 1 and not ranks.apart:
        rows += [{"rank": "total", **row} for row in api.metric_rows(total).to_dicts()]
    for row in rows:
        row["class"] = row.pop("klass")
    if options.format == "csv":
        fields = columns_of(ranks, ("metric", "value", "unit", "class", "reason"))
        return print_table(options, rows, fields)
    notes = notes_of(ranks, uncounted)
    if len(ranks) > 1:  # a line for each rank would say it over and over
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
    return {name for name, value in metrics.items() if not isinstance(value, NotMeasured)}


def _total_metrics(ranks: Collection[Metrics], apart: str) -> Metrics:
    """Sums over the ranks of one job; a metric that one of them lacks has none."""
    if apart:
        why = NotMeasured(f"not the ranks of one job: {apart}")
        return dict.fromkeys(next(iter(ranks)), why)
    total: Metrics = {}
    for name in next(iter(ranks)):
        values = [metrics[name] for metrics in ranks]
        missing = [value for value in values if isinstance(value, NotMeasured)]
        known = [value for value in values if not isinstance(value, NotMeasured)]
        total[name] = _of_one(missing[0]) if missing else sum(known)
    return total


def _of_one(value: NotMeasured) -> NotMeasured:
    """Why a total is unknown: a lower bound of one rank is none of all."""
    return NotMeasured(f"of one rank, {value.reason}") if value.at_least else value


def _reported(metrics: Metrics, samples: Mapping[str, Sample] | None = None) -> dict[str, Any]:
    return metrics_of(compare(Profile(metrics, samples=samples or {}), None, (), Policy()))


def ops(options: Namespace) -> int:
    """Key averages of operators."""
    ranks = load(options.traces, options.rank)
    return table(
        options,
        ranks,
        lambda trace: trace.ops(options.by),
        order="share",
        notes=[
            *notes_of(ranks, lambda trace: ungrouped(trace, options.by), no_flops),
            calls_of(ranks),
        ],
    )


def kernels(options: Namespace) -> int:
    """Kernels and copies against the chip's peak."""
    chips = peaks(options)
    ranks = load(options.traces, options.rank)
    notes = notes_of(ranks, unlinked, uncounted, no_flops, masked)
    notes += notes_of(ranks, lambda trace: peaks_used(trace, chips))
    return table(
        options,
        ranks,
        lambda trace: trace.kernels(options.by, chips),
        unknown={"operator": UNLINKED},
        order="total_ms",
        notes=notes,
    )


def memory(options: Namespace) -> int:
    """Peak memory by device and operator."""
    ranks = load(options.traces, options.rank)
    rows = rows_of(ranks, Trace.memory)
    if options.format == "json":
        starts = {str(ranks.value(rank)): live_at_start(ranks[rank].events) for rank in ranks}
        start = starts if len(ranks) > 1 else next(iter(starts.values()))
        parts = {"rows": rows, "start_bytes": start, "notes": _starts(ranks)}
        return write(tables.to_json(document("memory", ranks, parts)))
    flat = [
        {**{k: v for k, v in row.items() if k != "rows"}, **live}
        for row in rows
        for live in row["rows"] or [{}]
    ]
    fields = columns_of(ranks, ("device", "peak_bytes", "at_ms", "operator", "bytes", "count"))
    shown, left = limited(options, flat)
    notes = [f"… and {plural(left, 'more row')}: --limit 0 shows all"] if left else []
    notes += notes_of(ranks, _no_memory)
    notes += _starts(ranks) if flat else []
    return print_table(options, shown, fields, head=heading_of(ranks), notes=notes)


def _starts(ranks: Ranks) -> list[str]:
    """What the peaks are above: a line for all, and the amounts that are known."""
    lines = []
    for rank, trace in ranks.items():
        mark = f"{ranks.label(rank)}: " if len(ranks) > 1 else ""
        starts = live_at_start(trace.events)
        known = [f"{format_quantity(size, 'B')} on {device}" for device, size in starts.items()
                 if size is not None]  # fmt: skip
        unknown = [device for device, size in starts.items() if size is None]
        said = [f"{', '.join(known)} live then, by the allocator's own count"] if known else []
        said += [f"not known how much was live then on {', '.join(unknown)}"] if unknown else []
        lines += [f"{mark}{'; '.join(said)}"] if said else []
    return ["peaks are above what was live as the trace, or its measured region, began", *lines]


def _no_memory(trace: Trace) -> str | None:
    peak = trace.metrics()["peak_cpu_bytes"]
    if isinstance(peak, NotMeasured):
        return f"no peak: {peak.reason}"
    return None if trace.memory() else "nothing was allocated"


def diff(options: Namespace) -> int:
    """What changed between two traces, or two folders of ranks."""
    before, now = load([options.a], options.rank), load([options.b], options.rank)
    for side, ranks in ((options.a, before), (options.b, now)):
        if ranks.apart:
            what = f"{side}: not the ranks of one job"
            raise SettingsError(what, ranks.apart, "compare one trace with another")
    if before.keys() != now.keys() and not len(before) == len(now) == 1:
        raise SettingsError(
            "the two sides are not of the same ranks",
            f"{listed(before)} before, {listed(now)} now",
            "compare one rank with --rank N",
        )
    pairs = dict(zip(now, zip(before.values(), now.values(), strict=True), strict=True))
    made = {rank: api.diff(a, b, options.by) for rank, (a, b) in pairs.items()}
    notes, extra = _growth(options, pairs)
    for rank, (a, b) in pairs.items():
        found = replacements(a.events, b.events, by=options.by)
        mark = f"rank {rank}: " if len(pairs) > 1 else ""
        notes += [f"{mark}{one.text(_short)}" for one in found.rows[:_REPLACEMENTS]]
        if not found.complete:
            notes.append("the traces differ all over: only their first part was searched for what "
                         "took the place of what")  # fmt: skip
    rows = [row for rank in made for row in with_rank(now, rank, made[rank].to_dicts())]
    same = sum(row["change"] == "same" for row in rows)
    if options.format in ("table", "markdown"):
        rows = [row for row in rows if row["change"] != "same"]
        if same:
            notes.append(f"{plural(same, 'more row')} without a change")
        if options.by == "kernel":
            rows = [{**row, "name": readable(row["name"])} for row in rows]
    fields = columns_of(now, api.fields_of(DiffRow))
    rows = ordered(rows, options.sort, fields)
    head = f"a: {heading_of(before)}\nb: {heading_of(now)}"
    extra["traces"] = {
        side: [str(trace.path) for trace in ranks.values()]
        for side, ranks in (("a", before), ("b", now))
    }
    show(options, now, rows, fields, None, notes, extra=extra, head=head)
    return FAILED if extra.get("failed") else OK


def _short(name: str) -> str:
    return shorten(readable(name), _NAME)


def _growth(options: Namespace, pairs: Mapping[int, tuple[Trace, Trace]]) -> tuple[list[str], Row]:
    """Lines on the total times, and whether one grew over the limit, where there is a limit."""
    limit = options.fail_over
    lines, growths, failed = [], [], False
    for rank, (a, b) in pairs.items():
        limit_percent = inf if limit is None else limit
        mark = {"rank": rank} if len(pairs) > 1 else {}
        for check in growth(a.events, b.events, by=options.by, limit_percent=limit_percent):
            # What cannot be checked has not passed.
            failed |= check.exceeded is not False
            lines.append(f"rank {rank}: {_said(check, limit)}" if mark else _said(check, limit))
            numbers = {"before": check.before, "now": check.now, "percent": check.percent}
            growths.append({**mark, "metric": check.metric, **numbers})
    return lines, {"growth": growths, **({} if limit is None else {"failed": failed})}


def _said(check: Growth, limit: float | None) -> str:
    before, now = format_pair(check.before, check.now, "ms")
    line = f"{check.metric} {before} → {now} ({format_change(check.before, check.now)})"
    if limit is None:
        return line
    verdict = {True: "over", False: "within", None: "could not be checked against"}[check.exceeded]
    return f"{line}: {verdict} --fail-over {limit:g}"


def augment(options: Namespace) -> int:
    """The same trace with FLOPs, bytes and achieved % on its kernels."""
    chips, path = peaks(options), Path(options.trace)
    if path.is_dir():
        path = only(load([options.trace], options.rank)).path
    done = api.augment(path, options.target, chips)
    for warning in done.warnings:
        warn(f"{options.trace}: {warning}")
    row = {"file": options.target, "events": done.events, "counters": done.counters}
    return print_table(options, [row], list(row), schema="augment")


def stacks(options: Namespace) -> int:
    """Folded stacks for flame graphs."""
    trace = only(load([options.trace], options.rank))
    lines = write_stacks(trace.events, Path(options.target), options.metric)
    row = {"file": options.target, "lines": lines, "metric": options.metric}
    return print_table(options, [row], list(row), schema="stacks")
