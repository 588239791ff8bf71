"""Print rows of one or several ranks to stdout, in the requested format."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.units import plural
from pytest_torchprof.render import escape, row_formats, streams
from pytest_torchprof.render.rows import Rows, sum_of

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.inputs import Ranks
    from pytest_torchprof.commands.several import Several

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
    return rows_of_each(ranks, {rank: make(trace).to_dicts() for rank, trace in ranks.items()})


def rows_of_each(several: Several[Any], rows: Mapping[int, Sequence[TableRow]]) -> list[TableRow]:
    """These rows of each trace, with its rank where there are several."""
    return [row for rank in several for row in with_rank(several, rank, rows[rank])]


def with_rank(several: Several[Any], rank: int, rows: Sequence[TableRow]) -> list[TableRow]:
    """These rows, with the rank where there are several."""
    if several.are_for_machines:
        own = {"trace": str(several[rank].path), "rank": None if several.apart else rank}
    elif len(several) < 2:
        return list(rows)
    else:
        own = {several.column: several.value(rank)}
    return [{**own, **row} for row in rows]


def columns_of(several: Several[Any], fields: Sequence[str]) -> list[str]:
    """These columns, below the rank where there are several."""
    if several.are_for_machines:
        return ["trace", "rank", *fields]
    return [several.column, *fields] if len(several) > 1 else list(fields)


class Table(NamedTuple):
    """The rows of one trace, as a part has them; the other fields are those of `Rows`."""

    rows: list[TableRow]
    fields: tuple[str, ...]
    columns: tuple[str, ...]
    unknown: frozenset[str]
    adds_up: tuple[str, ...]


def table_of(rows: Rows[Any]) -> Table:
    """These rows, to be sent and shown elsewhere."""
    adds_up = tuple(getattr(rows[0], "ADDS_UP", ())) if rows else ()
    return Table(rows.to_dicts(), rows.fields, rows.columns, rows.unknown, adds_up)


def total_of(tables: Iterable[Table]) -> TableRow:
    """Sums of the fields that add up over all rows; None where those of a trace are unknown."""
    tables = list(tables)
    unknown = frozenset().union(*(table.unknown for table in tables))
    adds_up = next((table.adds_up for table in tables if table.adds_up), ())
    return {
        field: None
        if field.removeprefix("self_") in unknown or any(is_lacking(t, field) for t in tables)
        else sum_of(row[field] for table in tables for row in table.rows)
        for field in adds_up
        if field in tables[0].fields
    }


def is_lacking(table: Table, field: str) -> bool:
    """Whether no row of the trace has a value in this field, though there are rows."""
    return bool(table.rows) and all(row[field] is None for row in table.rows)


def show_tables(
    options: Namespace,
    several: Several[Any],
    tables: Mapping[int, Table],
    *,
    order: str,
    notes: Sequence[str] = (),
    unknown: Mapping[str, str] = MappingProxyType({}),
    extra: TableRow | None = None,
) -> int:
    """One table over all traces, ordered, with its total.

    ``unknown`` gives the text to show for a field without a value. ``extra``: more parts of JSON.
    """
    first = next(iter(tables.values()))
    rows = rows_of_each(several, {rank: table.rows for rank, table in tables.items()})
    fields = columns_of(several, first.fields)
    total = total_of(tables.values())
    if len(several) > 1 and "share" in total and not several.apart:
        _share_over_ranks(rows, total)
    if options.sort == "share" and "share" not in fields:
        options.sort = order
    notes = [*notes, *_over_peak(rows)]
    rows = sorted_rows(
        rows, order if options.sort is None and len(several) > 1 else options.sort, fields
    )
    if options.format in ("table", "markdown"):
        fields = columns_of(several, first.columns)
    if options.format in ("table", "markdown") and "share" not in fields:
        whole: dict[Any, float] = {}
        for row in rows:  # relative to its own trace if the traces are from several jobs
            key = row["trace"] if several.apart else None
            whole[key] = whole.get(key, 0) + (row[order] or 0)
        for row in (*rows, *(() if several.apart else (total,))):
            part = whole.get(row.get("trace") if several.apart else None)
            row["share"] = (row[order] or 0) / part if part else None
        fields.insert(fields.index(order) + 1, "share")
    if options.format in ("table", "markdown"):
        for row in rows:
            row.update({field: text for field, text in unknown.items() if row[field] is None})
    shown = [note for note in dict.fromkeys(notes) if note]
    show(options, several, rows, fields, None if several.apart else total, shown, extra)
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
    ranks: Several[Any],
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
        head=ranks.heading if head is None else head,
        notes=[*(lines if left else ()), *notes],
        several=ranks,
    )


def _rest(rows: Sequence[TableRow], shown: Sequence[TableRow]) -> str:
    """How much of the time the hidden rows have."""
    for field in ("share", "total_ms"):
        if rows and field in rows[0]:
            whole = sum(row[field] or 0 for row in rows)
            part = whole - sum(row[field] or 0 for row in shown)
            what = "the device time" if _has_device(rows) else "the self CPU time"
            what = "the idle time" if "gaps" in rows[0] else what
            what = "the bound" if "bound_ms" in rows[0] else what
            return f" ({row_formats.cell('share', part / whole)} of {what})" if whole else ""
    return ""


def _has_device(rows: Sequence[TableRow]) -> bool:
    return any(row.get("total_ms") or row.get("self_cuda_ms") for row in rows)


def document(command: str, ranks: Several[Any], parts: TableRow) -> dict[str, Any]:
    """The JSON object of a command."""
    warnings = [warning for trace in ranks.values() for warning in trace.warnings]
    warnings += [f"left out: {file.error}" for file in ranks.left_out]
    unread = [{"trace": file.source, "reason": str(file.error)} for file in ranks.left_out]
    warnings += [f"not the ranks of one job: {ranks.apart}"] if ranks.apart else []
    return {
        "schema": f"torchprof-{command}/1",
        "traces": [str(trace.path) for trace in ranks.values()],
        **_selected(ranks),
        **parts,
        **({"unread": unread} if unread else {}),
        "warnings": warnings,
    }


def _selected(ranks: Several[Any]) -> TableRow:
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
    several: Several[Any] | None = None,
) -> int:
    """Print rows in the requested format; return the status of success.

    ``several``: what they are of, where they may be written as Parquet.
    """
    if options.format == "parquet" and several is not None:
        from pytest_torchprof.commands.parquet import write_parquet

        write_parquet(options, several, rows, fields, f"torchprof-{options.command}/1")
        return OK
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
    import shutil

    return shutil.get_terminal_size((_WIDTH, 24)).columns


def write(text: str) -> int:
    """Write to stdout; characters that its encoding lacks are escaped."""
    streams.out(text)
    return OK
