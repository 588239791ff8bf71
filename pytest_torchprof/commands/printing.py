"""Print rows of one or several ranks to stdout, in the requested format."""

from __future__ import annotations

import shutil
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_torchprof.commands.inputs import heading_of
from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.units import plural
from pytest_torchprof.render import escape, row_formats, streams
from pytest_torchprof.render.rows import Rows

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.inputs import Ranks

OK, FAILED = 0, 1

#: Rows that a table shows unless ``--limit`` says otherwise.
TABLE_ROWS = 30
#: Width of a table in a file or a log.
_WIDTH = 160

_OVER_BANDWIDTH = (
    "over 100 % of the bandwidth: data came from the L2 cache, the clock was higher than in the "
    "datasheet, or the trace counts whole microseconds"
)

TableRow = dict[str, Any]


def rows_by_rank(ranks: Ranks, make: Callable[[Trace], Rows[Any]]) -> list[TableRow]:
    """Rows of one table of each trace, with its rank where there are several."""
    return [row for rank in ranks for row in with_rank(ranks, rank, make(ranks[rank]).to_dicts())]


def with_rank(ranks: Ranks, rank: int, rows: Sequence[TableRow]) -> list[TableRow]:
    """These rows, with the rank where there are several."""
    if len(ranks) < 2:
        return list(rows)
    return [{ranks.column: ranks.value(rank), **row} for row in rows]


def columns_of(ranks: Ranks, fields: Sequence[str]) -> list[str]:
    """These columns, below the rank where there are several."""
    return [ranks.column, *fields] if len(ranks) > 1 else list(fields)


def ranks_table(
    options: Namespace,
    ranks: Ranks,
    make: Callable[[Trace], Rows[Any]],
    *,
    order: str,
    notes: Sequence[str] = (),
    unknown: Mapping[str, str] = MappingProxyType({}),
    extra: TableRow | None = None,
) -> int:
    """One table over all ranks, ordered, with its total.

    ``unknown`` gives the text to show for a field without a value. ``extra``: more parts of JSON.
    """
    each = {rank: make(trace) for rank, trace in ranks.items()}
    every: Rows[Any] = Rows(
        [row for rows in each.values() for row in rows],
        next(iter(each.values())).fields,
        frozenset().union(*(rows.unknown for rows in each.values())),
        next(iter(each.values())).columns,
    )
    rows = [row for rank in ranks for row in with_rank(ranks, rank, each[rank].to_dicts())]
    fields = columns_of(ranks, every.fields)
    total = every.total()
    if len(ranks) > 1 and "share" in total and not ranks.apart:
        _share_over_ranks(rows, total)
    if options.sort == "share" and "share" not in fields:
        options.sort = order
    notes = [*notes, *_over_peak(rows)]
    rows = sorted_rows(
        rows, order if options.sort is None and len(ranks) > 1 else options.sort, fields
    )
    if options.format in ("table", "markdown"):
        fields = columns_of(ranks, every.columns)
    if options.format in ("table", "markdown") and "share" not in fields:
        whole: dict[Any, float] = {}
        for row in rows:  # relative to its own trace if the traces are from several jobs
            key = row["trace"] if ranks.apart else None
            whole[key] = whole.get(key, 0) + (row[order] or 0)
        for row in (*rows, *(() if ranks.apart else (total,))):
            part = whole.get(row.get("trace") if ranks.apart else None)
            row["share"] = (row[order] or 0) / part if part else None
        fields.insert(fields.index(order) + 1, "share")
    if options.format in ("table", "markdown"):
        for row in rows:
            row.update({field: text for field, text in unknown.items() if row[field] is None})
    shown = [note for note in dict.fromkeys(notes) if note]
    show(options, ranks, rows, fields, None if ranks.apart else total, shown, extra)
    return OK


def _over_peak(rows: Sequence[TableRow]) -> Iterator[str]:
    """Notes on rows over 100 % of a peak: possible for bandwidth, an error for compute."""
    if any((row.get("bandwidth_pct") or 0) > 100 for row in rows):
        yield _OVER_BANDWIDTH
    over = [row for row in rows if (row.get("compute_pct") or 0) > 100]
    if over:
        most = max(over, key=lambda row: row["compute_pct"])
        name = row_formats.cell("kernel", most["kernel"])
        yield (
            f"warning: {plural(len(over), 'row')} over 100 % of peak compute, the highest {name} "
            f"({row_formats.cell('compute_pct', most['compute_pct'])}): its FLOPs or the peak are "
            "wrong, unless its algorithm needs fewer (Winograd, FFT) or the trace counts whole "
            "microseconds; please report it, with the trace"
        )


def _share_over_ranks(rows: Sequence[TableRow], total: TableRow) -> None:
    """Make each row's share relative to the time of all ranks."""
    time = "self_cuda_ms" if total["self_cuda_ms"] else "self_cpu_ms"
    for row in (*rows, total):
        row["share"] = (row[time] or 0) / total[time] if total[time] else None


def sorted_rows(rows: list[TableRow], field: str | None, fields: Sequence[str]) -> list[TableRow]:
    """Largest first; text alphabetically; unknown values last."""
    if field is None:
        return rows
    # A table's heading is accepted too.
    field = {row_formats.heading(name): name for name in fields}.get(field, field)
    if field not in fields:
        raise SettingsError(f"--sort {field}: no such field", "", f"one of {', '.join(fields)}")
    known = [row for row in rows if row[field] is not None]
    text = any(isinstance(row[field], str | list) for row in known)
    known.sort(key=lambda row: str(row[field]) if text else -row[field])
    return known + [row for row in rows if row[field] is None]


def limited(options: Namespace, rows: list[TableRow]) -> tuple[list[TableRow], int]:
    """The rows that are printed, and how many are not."""
    limit = options.limit
    if limit is None:
        limit = TABLE_ROWS if options.format == "table" else 0
    shown = rows[:limit] if limit else rows
    return shown, len(rows) - len(shown)


def show(
    options: Namespace,
    ranks: Ranks,
    rows: list[TableRow],
    fields: list[str],
    total: TableRow | None,
    notes: Sequence[str],
    extra: TableRow | None = None,
    head: str | None = None,
) -> None:
    """Print a table of all ranks: rows, total, how many rows are left out, notes."""
    shown, left = limited(options, rows)
    if options.format == "table" and len({row.get("device") for row in rows}) == 1:
        fields = [field for field in fields if field != "device"]  # the heading names it
    if options.format == "json":
        parts = {"rows": shown, **({"total": total} if total else {}), "left_out": left}
        parts |= {**(extra or {}), "notes": list(notes)}
        write(row_formats.to_json(document(options.command, ranks, parts)))
        return
    rest = "" if ranks.apart else _rest(rows, shown)
    lines = [f"… and {plural(left, 'more row')}{rest}: --limit 0 shows all"]
    if total:
        total = {fields[0]: "total", **total}
    print_table(
        options,
        shown,
        fields,
        total=total if rows else None,
        head=heading_of(ranks) if head is None else head,
        notes=[*(lines if left else ()), *notes],
    )


def _rest(rows: Sequence[TableRow], shown: Sequence[TableRow]) -> str:
    """How much of the time the hidden rows have."""
    for field in ("share", "total_ms"):
        if rows and field in rows[0]:
            whole = sum(row[field] or 0 for row in rows)
            part = whole - sum(row[field] or 0 for row in shown)
            what = "the device time" if _has_device(rows) else "the self CPU time"
            what = "the idle time" if "gaps" in rows[0] else what
            return f" ({row_formats.cell('share', part / whole)} of {what})" if whole else ""
    return ""


def _has_device(rows: Sequence[TableRow]) -> bool:
    return any(row.get("total_ms") or row.get("self_cuda_ms") for row in rows)


def document(command: str, ranks: Ranks, parts: TableRow) -> dict[str, Any]:
    """The JSON object of a command."""
    warnings = [warning for trace in ranks.values() for warning in trace.warnings]
    warnings += [f"left out: {file.error}" for file in ranks.left_out]
    warnings += [f"not the ranks of one job: {ranks.apart}"] if ranks.apart else []
    return {
        "schema": f"torchprof-{command}/1",
        "traces": [str(trace.path) for trace in ranks.values()],
        **_selected(ranks),
        **parts,
        "warnings": warnings,
    }


def _selected(ranks: Ranks) -> TableRow:
    """The numbers of the steps, by rank if there are several; nothing for whole traces."""
    numbers = {str(ranks.value(rank)): trace.selected_steps for rank, trace in ranks.items()}
    if all(steps is None for steps in numbers.values()):
        return {}
    return {"steps": numbers if len(ranks) > 1 else next(iter(numbers.values()))}


def print_table(
    options: Namespace,
    rows: list[TableRow],
    fields: Sequence[str],
    *,
    total: TableRow | None = None,
    head: str = "",
    notes: Sequence[str] = (),
    schema: str = "",
) -> int:
    """Print rows in the requested format; return the status of success."""
    if options.format == "json":
        return write(row_formats.to_json({"schema": f"torchprof-{schema}/1", "rows": rows}))
    if options.format == "csv":
        return write(row_formats.to_csv(rows, fields))
    return write(table_text(options, rows, fields, total=total, head=head, notes=notes))


def table_text(
    options: Namespace,
    rows: Sequence[TableRow],
    fields: Sequence[str],
    *,
    total: TableRow | None = None,
    head: str = "",
    notes: Sequence[str] = (),
) -> str:
    """Rows between a heading and notes, as text or Markdown."""
    if options.format == "markdown":
        text = row_formats.markdown_table(rows, fields, total=total)
        return row_formats.markdown_page(head.splitlines(), text, notes)
    text = row_formats.text_table(rows, fields, total=total, width=terminal_width())
    head = f"{head}\n\n" if head else ""
    tail = "\n" + "".join(f"{escape.line(note)}\n" for note in notes) if notes else ""
    return head + text + tail


def terminal_width() -> int:
    """The terminal's width, or the default width for files."""
    return shutil.get_terminal_size((_WIDTH, 24)).columns


def write(text: str) -> int:
    """Write to stdout; characters that its encoding lacks are escaped."""
    streams.out(text)
    return OK
