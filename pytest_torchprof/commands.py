"""What each subcommand of `torchprof` does, one function each; returns the exit status."""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

from pytest_torchprof import api
from pytest_torchprof.analysis.diff import DiffRow, Growth, growth
from pytest_torchprof.analysis.replacements import replacements
from pytest_torchprof.api import Rows, Trace
from pytest_torchprof.compare import Policy, compare
from pytest_torchprof.devices import find, read_peaks
from pytest_torchprof.errors import SettingsError
from pytest_torchprof.events import DEVICE_KINDS
from pytest_torchprof.render import tables
from pytest_torchprof.render.json_report import metrics_of
from pytest_torchprof.render.kernel_names import readable
from pytest_torchprof.render.text import plural
from pytest_torchprof.rules import RULES
from pytest_torchprof.stats import NotMeasured, Profile, Value
from pytest_torchprof.trace.stacks import write_stacks
from pytest_torchprof.units import format_change, format_pair, format_quantity

OK, FAILED, BAD_USAGE = 0, 1, 2

#: Rows that a table shows unless ``--limit`` says otherwise.
TABLE_ROWS = 30
#: A file as large takes seconds to read: then a bar on stderr shows how far it is.
_BAR_FROM_BYTES = 200 * 2**20
#: Width of a table in a file or a log.
_WIDTH = 160
#: Replacements that a diff spells out.
_REPLACEMENTS = 12

Ranks = dict[int, Trace]
Row = dict[str, Any]
Metrics = dict[str, Value]


def summary(options: Namespace) -> int:
    """Every metric of a trace."""
    ranks = _load(options.traces, options.rank)
    values = {rank: trace.metrics() for rank, trace in ranks.items()}
    total = _total_metrics(values.values())
    if options.format == "json":
        parts = {"metrics": _reported(total)}
        if len(ranks) > 1:
            parts["ranks"] = {str(rank): _reported(metrics) for rank, metrics in values.items()}
        return _print(tables.to_json(_document("summary", ranks, parts)))
    rows = _rows_of(ranks, Trace.summary)
    if len(ranks) > 1:
        rows += [{"rank": "total", **row} for row in api.metric_rows(total).to_dicts()]
    fields = _fields(ranks, ("metric", "value", "unit", "klass", "reason"))
    if options.format != "csv":
        fields = _fields(ranks, ("metric", "value", "reason"))
        for row in rows:
            row["value"] = format_quantity(row["value"], row["unit"])
    return _print_table(options, rows, fields, head=_head(ranks))


def _total_metrics(ranks: Collection[Metrics]) -> Metrics:
    """Sums over the ranks of one job; a metric that one of them lacks has none."""
    total: Metrics = {}
    for name in next(iter(ranks)):
        values = [metrics[name] for metrics in ranks]
        missing = [value for value in values if isinstance(value, NotMeasured)]
        known = [value for value in values if not isinstance(value, NotMeasured)]
        total[name] = missing[0] if missing else sum(known)
    return total


def _reported(metrics: Metrics) -> dict[str, Any]:
    return metrics_of(compare(Profile(metrics), None, (), Policy()))


def ops(options: Namespace) -> int:
    """Key averages of operators."""
    ranks = _load(options.traces, options.rank)
    return _table(options, ranks, lambda trace: trace.ops(options.by), order="share")


def kernels(options: Namespace) -> int:
    """Kernels and copies against the chip's peak."""
    chips = _peaks(options)
    ranks = _load(options.traces, options.rank)
    notes = [_unlinked(trace) for trace in ranks.values()]
    notes += [_unknown_chips(trace, chips) for trace in ranks.values()]
    return _table(
        options,
        ranks,
        lambda trace: trace.kernels(options.by, chips),
        order="total_ms",
        notes=[note for note in dict.fromkeys(notes) if note],
    )


def lint(options: Namespace) -> int:
    """Anti-patterns."""
    ranks = _load(options.traces, options.rank)
    rows = _rows_of(ranks, Trace.findings)
    fields = _fields(ranks, ("rule", "count", "message", "location", "fix", "accepted"))
    if not RULES:
        _warn("this version has no anti-pattern rules yet: nothing was checked")
    if options.format == "json":
        _print(tables.to_json(_document("lint", ranks, {"findings": rows})))
    else:
        _print_table(options, rows, fields, head=_head(ranks))
    if options.fail and not RULES:
        return BAD_USAGE
    return FAILED if options.fail and rows else OK


def memory(options: Namespace) -> int:
    """Peak memory by device and operator."""
    ranks = _load(options.traces, options.rank)
    rows = _rows_of(ranks, Trace.memory)
    if options.format == "json":
        return _print(tables.to_json(_document("memory", ranks, {"rows": rows})))
    flat = [
        {**{k: v for k, v in row.items() if k != "rows"}, **live}
        for row in rows
        for live in row["rows"] or [{}]
    ]
    fields = _fields(ranks, ("device", "peak_bytes", "at_ms", "operator", "bytes", "count"))
    shown, left = _limited(options, flat)
    notes = [f"… and {plural(left, 'more row')}: --limit 0 shows all"] if left else []
    notes += [why for trace in ranks.values() if (why := _no_memory(trace))]
    return _print_table(options, shown, fields, head=_head(ranks), notes=notes)


def _no_memory(trace: Trace) -> str | None:
    peak = trace.metrics()["peak_cpu_bytes"]
    if isinstance(peak, NotMeasured):
        return f"no peak: {peak.reason}"
    return None if trace.memory() else "nothing was allocated"


def diff(options: Namespace) -> int:
    """What changed between two traces, or two folders of ranks."""
    before, now = _load([options.a], options.rank), _load([options.b], options.rank)
    if before.keys() != now.keys() and not len(before) == len(now) == 1:
        raise SettingsError(
            "the two sides are not of the same ranks",
            f"{_listed(before)} before, {_listed(now)} now",
            "compare one rank with --rank N",
        )
    pairs = dict(zip(now, zip(before.values(), now.values(), strict=True), strict=True))
    made = {rank: api.diff(a, b, options.by) for rank, (a, b) in pairs.items()}
    notes, extra = _growth(options, pairs.values())
    for a, b in pairs.values():
        found = replacements(a.events, b.events, by=options.by)
        notes += [one.text(readable) for one in found.rows[:_REPLACEMENTS]]
        if not found.complete:
            notes.append("the traces differ all over: only their first part was searched for what "
                         "took the place of what")  # fmt: skip
    rows = [row for rank in made for row in _with_rank(now, rank, made[rank].to_dicts())]
    same = sum(row["change"] == "same" for row in rows)
    if options.format in ("table", "markdown"):
        rows = [row for row in rows if row["change"] != "same"]
        if same:
            notes.append(f"{plural(same, 'more row')} without a change")
        if options.by == "kernel":
            rows = [{**row, "name": readable(row["name"])} for row in rows]
    fields = _fields(now, api.fields_of(DiffRow))
    rows = _ordered(rows, options.sort, fields)
    head = f"a: {_head(before)}\nb: {_head(now)}"
    _show(options, now, rows, fields, None, notes, extra=extra, head=head)
    return FAILED if extra.get("failed") else OK


def _growth(options: Namespace, pairs: Iterable[tuple[Trace, Trace]]) -> tuple[list[str], Row]:
    """Lines on the total times, and whether one grew over the limit, where there is a limit."""
    limit = options.fail_over
    checks = [
        check
        for a, b in pairs
        for check in growth(
            a.events, b.events, by=options.by, limit_percent=inf if limit is None else limit
        )
    ]
    lines = [_said(check, limit) for check in checks]
    # What cannot be checked has not passed.
    failed = any(check.exceeded is not False for check in checks)
    return lines, {} if limit is None else {"failed": failed}


def _said(check: Growth, limit: float | None) -> str:
    before, now = format_pair(check.before, check.now, "ms")
    line = f"{check.metric} {before} → {now} ({format_change(check.before, check.now)})"
    if limit is None:
        return line
    verdict = {True: "over", False: "within", None: "could not be checked against"}[check.exceeded]
    return f"{line}: {verdict} --fail-over {limit:g}"


def augment(options: Namespace) -> int:
    """The same trace with FLOPs, bytes and achieved % on its kernels."""
    done = api.augment(options.trace, options.target, _peaks(options))
    for warning in done.warnings:
        _warn(f"{options.trace}: {warning}")
    row = {"file": options.target, "events": done.events, "counters": done.counters}
    return _print_table(options, [row], list(row), schema="augment")


def stacks(options: Namespace) -> int:
    """Folded stacks for flame graphs."""
    (trace,) = _load([options.trace], None).values()
    lines = write_stacks(trace.events, Path(options.target), options.metric)
    row = {"file": options.target, "lines": lines, "metric": options.metric}
    return _print_table(options, [row], list(row), schema="stacks")


# -------------------------------------------------------------------- reading


def _load(paths: Sequence[str], rank: int | None) -> Ranks:
    with _bar(paths) as progress:
        ranks = api.load_ranks(paths, rank, progress)
    for trace in ranks.values():
        for warning in trace.warnings:
            _warn(f"{trace.path}: {warning}")
    return ranks


@contextmanager
def _bar(paths: Sequence[str]) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on a terminal, for files that take their time."""
    size = sum(Path(path).stat().st_size for path in paths if Path(path).is_file())
    if size < _BAR_FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    import tqdm

    with tqdm.tqdm(total=size, unit="B", unit_scale=True, leave=False, desc="reading") as bar:

        def progress(done: int, whole: int) -> None:
            bar.total = max(whole, done)
            bar.update(done - bar.n)

        yield progress


def _peaks(options: Namespace) -> tuple[Any, ...]:
    return read_peaks(Path(options.device_peaks)) if options.device_peaks else ()


# -------------------------------------------------------------------- what is said beside the rows


def _head(ranks: Ranks) -> str:
    """What was read: file, device, size."""
    lines = []
    for trace in list(ranks.values())[:8]:
        names = [str(p.get("name") or "unnamed device") for p in trace.devices]
        device = ", ".join(f"{n} × {names.count(n)}" if names.count(n) > 1 else n
                           for n in dict.fromkeys(names)) or "no device named"  # fmt: skip
        lines.append(f"{trace.path.name}: {device}; {plural(len(trace.events), 'event')}")
    if len(ranks) > 8:
        lines.append(f"… and {plural(len(ranks) - 8, 'more rank')}")
    return "\n".join(lines)


def _unlinked(trace: Trace) -> str:
    count = trace.unlinked
    if not count:
        return ""
    every = int(trace.events.is_kind(*DEVICE_KINDS).sum())
    return f"{count} of {plural(every, 'device event')} have no runtime call: operator –"


def _unknown_chips(trace: Trace, chips: Sequence[Any]) -> str:
    unknown = [p.get("name") or "a device without a name" for p in trace.devices
               if find(p, chips) is None]  # fmt: skip
    if not trace.devices:
        return "the trace does not say which device it ran on, so no % of peak"
    if not unknown:
        return ""
    return f"no peaks are known of {unknown[0]}: --device-peaks FILE adds a chip"


def _listed(ranks: Ranks) -> str:
    return "rank" + ("s " if len(ranks) > 1 else " ") + ", ".join(map(str, ranks))


def _warn(message: str) -> None:
    print(f"torchprof: warning: {message}", file=sys.stderr)  # noqa: T201 - a command


# -------------------------------------------------------------------- printing


def _rows_of(ranks: Ranks, make: Callable[[Trace], Rows[Any]]) -> list[Row]:
    return [row for rank in ranks for row in _with_rank(ranks, rank, make(ranks[rank]).to_dicts())]


def _with_rank(ranks: Ranks, rank: int, rows: Sequence[Row]) -> list[Row]:
    return [{"rank": rank, **row} for row in rows] if len(ranks) > 1 else list(rows)


def _fields(ranks: Ranks, fields: Sequence[str]) -> list[str]:
    return ["rank", *fields] if len(ranks) > 1 else list(fields)


def _table(
    options: Namespace,
    ranks: Ranks,
    make: Callable[[Trace], Rows[Any]],
    *,
    order: str,
    notes: Sequence[str] = (),
) -> int:
    """One table over all ranks, ordered, with its total."""
    each = {rank: make(trace) for rank, trace in ranks.items()}
    every: Rows[Any] = Rows([row for rows in each.values() for row in rows],
                            next(iter(each.values())).fields)  # fmt: skip
    rows = [row for rank in ranks for row in _with_rank(ranks, rank, each[rank].to_dicts())]
    fields = _fields(ranks, every.fields)
    total = every.total()
    if len(ranks) > 1 and "share" in total:
        _share_over_ranks(rows, total)
    rows = _ordered(rows, options.sort or (order if len(ranks) > 1 else None), fields)
    if options.format in ("table", "markdown") and "share" not in fields:
        whole = total.get(order)
        for row in (*rows, total):
            row["share"] = (row[order] or 0) / whole if whole else None
        fields.insert(fields.index(order) + 1, "share")
    _show(options, ranks, rows, fields, total, notes)
    return OK


def _share_over_ranks(rows: Sequence[Row], total: Row) -> None:
    """Make each row's share one of the time of all ranks."""
    time = "self_cuda_ms" if total["self_cuda_ms"] else "self_cpu_ms"
    for row in (*rows, total):
        row["share"] = (row[time] or 0) / total[time] if total[time] else None


def _ordered(rows: list[Row], field: str | None, fields: Sequence[str]) -> list[Row]:
    """Largest first; text by the alphabet; what is unknown last."""
    if field is None:
        return rows
    if field not in fields:
        raise SettingsError(f"--sort {field}: no such field", "", f"one of {', '.join(fields)}")
    known = [row for row in rows if row[field] is not None]
    text = any(isinstance(row[field], str | list) for row in known)
    known.sort(key=lambda row: str(row[field]) if text else -row[field])
    return known + [row for row in rows if row[field] is None]


def _limited(options: Namespace, rows: list[Row]) -> tuple[list[Row], int]:
    limit = options.limit
    if limit is None:
        limit = TABLE_ROWS if options.format in ("table", "markdown") else 0
    shown = rows[:limit] if limit else rows
    return shown, len(rows) - len(shown)


def _show(
    options: Namespace,
    ranks: Ranks,
    rows: list[Row],
    fields: list[str],
    total: Row | None,
    notes: Sequence[str],
    extra: Row | None = None,
    head: str | None = None,
) -> None:
    shown, left = _limited(options, rows)
    if options.format == "table" and len({row.get("device") for row in rows}) == 1:
        fields = [field for field in fields if field != "device"]  # the heading names it
    if options.format == "json":
        parts = {"rows": shown, **({"total": total} if total else {}), "left_out": left}
        parts |= {**(extra or {}), "notes": list(notes)}
        _print(tables.to_json(_document(options.command, ranks, parts)))
        return
    lines = [f"… and {plural(left, 'more row')}{_rest(rows, shown)}: --limit 0 shows all"]
    if total:
        total = {fields[0]: "total", **total}
    _print_table(
        options,
        shown,
        fields,
        total=total if rows else None,
        head=_head(ranks) if head is None else head,
        notes=[*(lines if left else ()), *notes],
    )


def _rest(rows: Sequence[Row], shown: Sequence[Row]) -> str:
    """How much of the time is not shown."""
    for field in ("share", "total_ms"):
        if rows and field in rows[0]:
            whole = sum(row[field] or 0 for row in rows)
            part = whole - sum(row[field] or 0 for row in shown)
            return f" ({tables.cell('share', part / whole)} of the time)" if whole else ""
    return ""


def _document(command: str, ranks: Ranks, parts: Row) -> dict[str, Any]:
    warnings = [warning for trace in ranks.values() for warning in trace.warnings]
    return {
        "schema": f"torchprof-{command}/1",
        "traces": [str(trace.path) for trace in ranks.values()],
        **parts,
        "warnings": warnings,
    }


def _print_table(
    options: Namespace,
    rows: list[Row],
    fields: list[str],
    *,
    total: Row | None = None,
    head: str = "",
    notes: Sequence[str] = (),
    schema: str = "",
) -> int:
    if options.format == "json":
        return _print(tables.to_json({"schema": f"torchprof-{schema}/1", "rows": rows}))
    if options.format == "csv":
        return _print(tables.to_csv(rows, fields))
    if options.format == "markdown":
        text = tables.markdown(rows, fields, total=total)
    else:
        width = shutil.get_terminal_size((_WIDTH, 24)).columns
        text = tables.table(rows, fields, total=total, width=width)
    head = f"{head}\n\n" if head else ""
    tail = "\n" + "".join(f"{note}\n" for note in notes) if notes else ""
    return _print(head + text + tail)


def _print(text: str) -> int:
    """To stdout, whatever its encoding can hold."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    return OK
