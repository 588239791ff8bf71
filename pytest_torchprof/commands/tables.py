"""A command's table: printed, cut into parts, merged, as a tree, or as Parquet."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from pytest_torchprof.analysis.communication import ROW_KEY
from pytest_torchprof.analysis.kernels import UNLINKED, parse_grouping
from pytest_torchprof.analysis.operators import TreeRow, call_tree
from pytest_torchprof.commands.inputs import (
    SHOWN,
    Several,
    described,
    heading_of_several,
    merge_lines,
    notes_of,
    reading_bar,
    warn,
)
from pytest_torchprof.core.errors import (
    BAD_USAGE,
    SettingsError,
    TraceError,
    not_onto_itself,
    not_replaced,
    not_written,
)
from pytest_torchprof.core.files import is_other_file, replacing, same_file, system_message
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.units import plural
from pytest_torchprof.core.values import ALL_STEPS, CountedNames, StepRange
from pytest_torchprof.fleet.mapping import Answer, Merging, Question, answer, merged_rows
from pytest_torchprof.fleet.sources import find_sources, is_many
from pytest_torchprof.render import escape
from pytest_torchprof.render import table as row_formats
from pytest_torchprof.render.kernel_names import short_kernels
from pytest_torchprof.render.table import Rows, fields_of, sum_of
from pytest_torchprof.trace.ranks import (
    LeftOut,
    chosen_ranks,
    not_one_job,
    nothing_found,
    rank_in_name,
)
from pytest_torchprof.trace.steps import steps_of

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.inputs import Ranks
    from pytest_torchprof.fleet.sources import Source


# ---- Print rows of one or several ranks to stdout, in the requested format.

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
    escape.out(text)
    return OK


# ---- Rows as a Parquet file, for DuckDB, pandas, and others.

#: The first bytes of every Parquet file.
_MAGIC = b"PAR1"
#: Suffixes of fields with fractions. All other numbers are whole, unless a row has a fraction.
_FRACTIONS = ("_ms", "_us", "_pct", "_per_s", "share", "value", "intensity", "waves", "tail")
_WHOLE = (
    "bytes",
    "flops",
    "calls",
    "count",
    "gaps",
    "traces",
    "rank",
    "step",
    "modules",
    "size",
)
_TRUTHS = ("accepted",)
_LARGEST = 2**63
#: Of a file that could not be read, the only columns with a value.
_UNREAD = ("trace", "reason")


def check_target(options: Namespace) -> None:
    """Whether the file can be written, before anything is read.

    Raises:
        SettingsError: no file is named, or one without the format, or pyarrow is missing.
        TraceError: it is a trace that is read, or a file of another kind.
    """
    if options.format != "parquet":
        if options.output:
            what = f"-o {options.output}: --format {options.format} is printed"
            raise SettingsError(what, "", "redirect it: > FILE, or use --format parquet")
        return
    if not options.output:
        raise SettingsError("--format parquet is a file", "none is named", "add -o FILE")
    _pyarrow()
    target = Path(options.output)
    if target.is_dir():
        raise SettingsError(f"{target}: is a folder", next_step="name a file in it")
    if any(same_file(target, Path(name)) for name in options.traces):
        raise not_onto_itself(target)
    if is_other_file(target, _is_parquet):
        raise not_replaced(target, "a Parquet file")


def write_parquet(
    options: Namespace,
    several: Several[Any],
    rows: Sequence[dict[str, Any]],
    fields: Sequence[str],
    schema: str,
) -> None:
    """Write these rows, and one for each file that could not be read, with its ``reason``.

    The schema's metadata has ``torchprof``: JSON with the schema's name and the traces. Lists are
    JSON, too.

    Raises:
        TraceError: the file cannot be written.
    """
    pyarrow = _pyarrow()
    columns = [*fields, *(name for name in _UNREAD if name not in fields)]
    unread = [{"trace": f.source, "reason": str(f.error)} for f in several.left_out]
    all_rows = [*rows, *unread]
    # Of memory, it is a name.
    whole = _WHOLE if options.command == "memory" else (*_WHOLE, "device")
    arrays = {
        name: _array(pyarrow, name, [row.get(name) for row in all_rows], whole) for name in columns
    }
    table = pyarrow.table(arrays)
    facts = {"schema": schema, "traces": [str(one.path) for one in several.values()]}
    table = table.replace_schema_metadata({"torchprof": json.dumps(facts)})
    target = Path(options.output)
    try:
        with replacing(target) as file:
            pyarrow.parquet.write_table(table, file)
    except (OSError, ValueError) as error:
        raise not_written(target, system_message(error)) from None


def _array(pyarrow: Any, name: str, values: Sequence[Any], whole: tuple[str, ...]) -> Any:
    """A column, of the same type in every file unless a value does not fit."""
    known = [value for value in values if value is not None]
    kind = _kind(pyarrow, name, known, whole)
    if kind == pyarrow.string():
        values = [None if value is None else _text(value) for value in values]
    elif kind == pyarrow.float64():
        values = [None if value is None else float(value) for value in values]
    return pyarrow.array(values, type=kind)


def _kind(pyarrow: Any, name: str, known: Sequence[Any], whole: tuple[str, ...]) -> Any:
    if any(not isinstance(value, int | float) for value in known):
        return pyarrow.string()
    if name in _TRUTHS:
        return pyarrow.bool_()
    if name.endswith(_FRACTIONS):
        return pyarrow.float64()
    if any(isinstance(value, float) or abs(value) >= _LARGEST for value in known):
        return pyarrow.float64()
    return pyarrow.int64() if known or name.endswith(whole) else pyarrow.string()


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str) else json.dumps(value)


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        step = "pip install 'pytest-torchprof[parquet]'"
        raise SettingsError("--format parquet needs pyarrow", str(error), step) from None
    return pyarrow


# ---- What a table needs of each trace: asked where the trace is read, shown where all are
# together.
#
# A table command is two functions. The first makes a part of one trace: `part_of` takes what the
# command computes, and everything in it can be pickled. It runs in this process, in a worker of
# ``--jobs``, or in one of ``--dask``. `ask` brings all parts, by rank, and the second function
# prints them.


class Body(NamedTuple):
    """What a command's question brings of one trace.

    Attributes:
        described: device and size, in words.
        selected_steps: the numbers of the steps that count; None for a whole trace.
        lines: the same notes for each trace, in the same order; empty where there is none.
        said: warnings for stderr.
        values: what the command prints, by name.
    """

    described: str
    selected_steps: list[int] | None
    lines: tuple[str, ...]
    said: tuple[str, ...]
    values: dict[str, Any]


class Part(Frozen, frozen=True):
    """The same, with the address of its trace, and what was wrong with the file."""

    path: str
    warnings: tuple[str, ...]
    selected_steps: list[int] | None
    body: Body

    def __getitem__(self, name: str) -> Any:
        """A value of the body."""
        return self.body.values[name]


class Parts(Several[Part]):
    """Parts by rank.

    ``unread_named``: a file that the user named could not be read, while others were.
    ``is_fleet``: such files do not end the command.
    """

    unread_named: bool = False
    is_fleet: bool = False

    def status(self, status: int) -> int:
        """The exit status: that of bad input if a named file could not be read."""
        return BAD_USAGE if self.unread_named else status

    def each(self, name: str) -> dict[int, Any]:
        """One value of the body of each part."""
        return {rank: part[name] for rank, part in self.items()}

    @property
    def notes(self) -> list[str]:
        """The notes on each trace: once if they agree, otherwise with the trace's name."""
        return self.some_notes(0, None)

    def some_notes(self, start: int, stop: int | None) -> list[str]:
        """The notes from one place in `Body.lines` to another."""
        return merge_lines(self, {rank: p.body.lines[start:stop] for rank, p in self.items()})

    @property
    def heading(self) -> str:
        """What was read: file, device, size; of a fleet, what could not be read, too."""
        lines = [heading_of_several(self, lambda part: part.body.described)]
        left_out = self.left_out if self.is_fleet else ()
        lines += [escape.line(f"not read: {file.error}") for file in left_out[:SHOWN]]
        if (more := len(left_out) - SHOWN) > 0:
            lines.append(f"… and {plural(more, 'more file')} not read")
        return "\n".join(lines)


def part_of(
    trace: Trace,
    lines: Sequence[str | None] = (),
    said: Sequence[str] = (),
    **values: Any,
) -> Body:
    """A part of this trace."""
    notes = tuple(line or "" for line in lines)
    return Body(described(trace), trace.selected_steps, notes, tuple(filter(None, said)), values)


def at_steps(trace: Trace, settings: Mapping[str, Any]) -> Trace:
    """The trace, counting only the steps that are asked for, if any.

    Raises:
        SettingsError: it has no steps, or not these.
    """
    step, name = settings["step"], settings["step_name"]
    if step is None and name is None:
        return trace
    return trace.step(step or ALL_STEPS, name or "")


def ask(options: Namespace, function: str, **settings: Any) -> Parts:
    """Ask the command's question of each trace, and report what was wrong with them.

    ``function`` is ``module:function`` below the package: from a `Trace` and the settings, which
    have ``step``, ``step_name``, and ``format`` beside these, it makes a `Body`.

    Raises:
        TraceError: no trace; or, of files that are read in this process, a named one is none.
        SettingsError: the workers are not there; or the question does not fit the trace.
    """
    check_target(options)
    for name in ("step", "step_name", "format"):
        settings.setdefault(name, getattr(options, name, None))
    is_fleet = options.jobs is not None or bool(options.dask) or is_many(options.traces)
    sources = find_sources(options.traces)
    question = Question(function, settings, options.rank)
    answers: list[Answer | None] = [None] * len(sources)
    size = sum(source.size for source in sources)
    with reading_bar(size) as progress:
        for at, one in _answers(options, question, sources, progress):
            if one.error is not None and not is_fleet and _ends(one, sources[at]):
                raise one.error
            answers[at] = one
    parts = _parts(options, sources, [one for one in answers if one is not None], is_fleet=is_fleet)
    _report(parts, is_merged=getattr(options, "merge", False))
    return parts


def _ends(one: Answer, source: Source) -> bool:
    """Whether this error ends the command: a named file, or a question that is wrong."""
    return source.named or not isinstance(one.error, TraceError)


def _answers(
    options: Namespace,
    question: Question,
    sources: Sequence[Source],
    progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[int, Answer]]:
    """The answers as they come, from where they were asked for."""
    if options.dask and options.jobs is not None:
        raise SettingsError("--jobs and --dask", "both say where traces are read", "give one")
    total, before = sum(source.size for source in sources), 0

    def step(done: int, _: int = 0) -> None:
        if progress is not None:
            progress(before + done, max(total, before + done))

    jobs = min(_processors() if options.jobs == 0 else options.jobs or 1, len(sources))
    if options.dask:
        from pytest_torchprof.fleet.workers import dask_answers

        found = dask_answers(options.dask, question, sources)
    elif jobs > 1:
        from pytest_torchprof.fleet.workers import process_answers

        found = process_answers(question, sources, jobs)
    else:
        within = None if progress is None else step
        known_first = sorted(enumerate(sources), key=lambda pair: not _is_missing(pair[1]))
        found = ((at, answer(question, source, within)) for at, source in known_first)
    for at, one in found:
        before += sources[at].size
        step(0)
        yield at, one


def _is_missing(source: Source) -> bool:
    """Whether the answer is known at once."""
    return source.named and not source.remote and not os.path.lexists(source.address)


def _processors() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _parts(
    options: Namespace, sources: Sequence[Source], answers: Sequence[Answer], *, is_fleet: bool
) -> Parts:
    """The parts by number, and the files that are none."""
    good = [at for at, one in enumerate(answers) if one.error is None]
    left_out = [
        LeftOut(sources[at].shown, one.error, not one.foreign)
        for at, one in enumerate(answers)
        if one.error is not None
    ]
    if not good:
        if len(left_out) == 1:
            raise left_out[0].error
        raise nothing_found(options.traces, [file.error for file in left_out])
    parts = Parts()
    parts.are_for_machines = options.format == "parquet"
    jobs = []
    for number, place, notes in chosen_ranks(
        [sources[at].shown for at in good],
        [answers[at].claim for at in good],
        [answers[at].part is not None for at in good],
        options.rank,
    ):
        source, found = sources[good[place]], answers[good[place]].part
        assert found is not None  # noqa: S101 - only those that were read are chosen
        body: Body = found.body
        warnings = (*found.warnings, *notes)
        parts[number] = Part(source.shown, warnings, body.selected_steps, body)
        rank = rank_in_name(source.path) if found.own_rank is None else found.own_rank
        jobs.append(replace(found.job, source=source.shown, rank=rank))
    parts.left_out = tuple(left_out)
    parts.apart = not_one_job(jobs)
    parts.is_fleet = is_fleet
    parts.unread_named = is_fleet and any(
        one.error is not None and source.named for one, source in zip(answers, sources, strict=True)
    )
    return parts


def _report(parts: Parts, *, is_merged: bool) -> None:
    for part in parts.values():
        for warning in part.warnings:
            warn(f"{part.path}: {warning}")
    for text in dict.fromkeys(text for part in parts.values() for text in part.body.said):
        warn(text)
    for file in parts.left_out:
        warn(f"left out: {file.error}")
    if parts.left_out and parts.unread_named:
        unread = plural(len(parts.left_out), "file")
        warn(f"not read: {unread}; the table is of {plural(len(parts), 'trace')}")
    if parts.apart:
        then = "the sums are of all" if is_merged else "each stands alone, and there is no total"
        warn(f"not the ranks of one job: {parts.apart}; {then}")


# ---- `--merge`: a row for each name over all traces, instead of one for each trace.

OPS: Final = Merging(
    keys=("name", "shapes", "stack", "module"),
    spread="self_cpu_ms",
    sums=("calls", "self_cpu_ms", "cpu_ms", "self_cuda_ms", "cuda_ms", "self_cpu_bytes",
          "self_cuda_bytes", "flops"),
)  # fmt: skip
IDLE: Final = Merging(
    keys=("cause", "what", "location", "path"),
    spread="time_ms",
    sums=("time_ms", "gaps"),
    largest=("longest_ms",),
)
FINDINGS: Final = Merging(
    keys=("rule", "message", "location", "module", "path"),
    spread="cost_ms",
    sums=("count", "cost_ms", "bytes"),
)
#: Peaks of different traces are at different moments, so the largest is told, not a sum.
MEMORY: Final = Merging(
    keys=("device", "operator"), spread="bytes", largest=("peak_bytes", "bytes", "count")
)
#: Each rank that meets at a call has the same wait.
COLLECTIVES: Final = Merging(
    keys=ROW_KEY,
    spread="total_ms",
    sums=("calls", "bytes", "total_ms"),
    largest=("wait_ms",),
    weighted=("algbw_gb_per_s", "busbw_gb_per_s"),
    weight="total_ms",
)
METRICS: Final = Merging(keys=("metric",), spread="value", sums=("value",))
BREAKDOWN: Final = Merging(
    keys=("category",), spread="time_ms", sums=("time_ms", "total_ms", "calls")
)

_RATES: Final = ("tflops_per_s", "gb_per_s", "compute_pct", "bandwidth_pct")
_PARTS_OF_KERNELS: Final = {"kernel": "kernel", "op": "operator", "shape": "shapes"}


def kernels_by(by: str) -> Merging:
    """Of rows in this grouping, see `parse_grouping`."""
    keys = tuple(_PARTS_OF_KERNELS[word] for word in parse_grouping(by))
    return Merging(
        keys=keys,
        spread="total_ms",
        sums=("calls", "total_ms", "flops", "bytes", "roofline_ms", "ms_to_gain"),
        weighted=_RATES,
        weight="total_ms",
        names=tuple(name for name in ("kernel", "operator") if name not in keys),
    )


def merged(how: Merging, parts: Parts, rows: Mapping[int, Sequence[TableRow]]) -> list[TableRow]:
    """The rows of all traces, each with the trace that has the most of it.

    ``rows``: those of each trace, without its rank.
    """
    most = f"max_{parts.column}"
    return [
        {**row, most: parts.value(at) if at >= 0 else None}
        for row, at in merged_rows(how, ((rank, rows[rank]) for rank in parts))
    ]


def added_fields(how: Merging, parts: Parts) -> tuple[str, ...]:
    """The fields that `merged` adds."""
    return (*how.added, f"max_{parts.column}")


def show_merged(
    options: Namespace,
    parts: Parts,
    how: Merging,
    tables: Mapping[int, Table],
    *,
    order: str,
    notes: Sequence[str] = (),
    unknown: Mapping[str, str] | None = None,
) -> int:
    """One table over all traces with a row for each name, ordered, with its total."""
    first = next(iter(tables.values()))
    if order == "self_cpu_ms" and any(
        row["self_cuda_ms"] for table in tables.values() for row in table.rows
    ):
        order = "self_cuda_ms"
        how = how._replace(spread=order)
    rows = merged(how, parts, {rank: table.rows for rank, table in tables.items()})
    for row in rows:
        if "mean_us" in row:
            known = row["total_ms"] is not None and row["calls"]
            row["mean_us"] = 1e3 * row["total_ms"] / row["calls"] if known else None
            row["kernel_short"] = row["kernel"] and short_kernels(row["kernel"])
            row["operators"] = _operators(how, row)
    total = {f: value for f, value in total_of(tables.values()).items() if f in how.sums}
    lacking = {
        rank: [
            f"no total of {field}: not recorded" if is_lacking(table, field) else ""
            for field, value in total.items()
            if value is None and not all(is_lacking(one, field) for one in tables.values())
        ]
        for rank, table in tables.items()
    }
    notes = [*notes, *merge_lines(parts, lacking)]
    whole = total.get(order)
    for row in (*rows, total):
        row["share"] = (row[order] or 0) / whole if whole else None
    fields = [*first.fields, *added_fields(how, parts)]
    if "share" not in fields:
        fields.insert(fields.index(order) + 1, "share")
    rows = [{f: row[f] for f in fields} for row in sorted_rows(rows, options.sort or order, fields)]
    if options.format in ("table", "markdown"):
        fields = [f for f in fields if f in (*first.columns, "share", *added_fields(how, parts))]
        for row in rows:
            row.update({f: text for f, text in (unknown or {}).items() if row[f] is None})
    extra = {"merged": len(parts)}
    lines = [f"merged: the rows of {plural(len(parts), 'trace')}", *filter(None, notes)]
    show(options, parts, rows, fields, total, list(dict.fromkeys(lines)), extra)
    return OK


def _operators(how: Merging, row: TableRow) -> list[TableRow]:
    """The operators of a row of kernels with their calls; None for those without a launch."""
    named = row["operator"]
    own = "operator" in how.names and isinstance(named, CountedNames)
    parts: dict[Any, int] = dict(named.parts) if own else {}
    left = row["calls"] - sum(parts.values())
    parts |= {named if "operator" in how.keys else None: left} if left else {}
    return [
        {"operator": None if name == UNLINKED else name, "calls": n} for name, n in parts.items()
    ]


def merged_memory(parts: Parts, flat: Mapping[int, Sequence[TableRow]]) -> list[TableRow]:
    """What was live at the peaks, by kind of device and operator: the most in one trace."""
    kinds = {
        rank: [{**row, "device": row["device"].partition(":")[0], "at_ms": None} for row in rows]
        for rank, rows in flat.items()
    }
    rows = merged(MEMORY, parts, kinds)
    return sorted(rows, key=lambda row: -(row.get("bytes") or 0))


# ---- The tree of `torchprof ops --by module` and `--by stack`.

#: Columns of a table, which has no room for all; depth and path are its indentation.
_COLUMNS = (
    *("name", "calls", "self_cpu_ms", "cpu_ms", "self_cuda_ms", "cuda_ms", "share", "kernels"),
    *("flops", "cpu_bytes", "cuda_bytes"),
)
#: By which siblings can be sorted; text cannot.
_SORTED = tuple(f for f in fields_of(TreeRow) if f not in {"name", "path"})
#: A field, by its name or a table's heading.
_FIELDS = {row_formats.heading(name): name for name in _SORTED}
#: Numbers of subtrees, whose total is that of the own ones.
_WHOLE_TREE = ("kernels", "flops", "cpu_bytes", "cuda_bytes")
_INDENT = "  "


def trees_of(options: Namespace, parts: Parts, trees: Mapping[int, Table]) -> list[TableRow]:
    """The rows of all traces: each one's tree in its order, the largest if there is a limit."""
    field = _FIELDS.get(options.sort, options.sort)
    rows: list[TableRow] = []
    for rank, tree in trees.items():
        mine = _sorted(tree.rows, field) if field in _SORTED else tree.rows
        rows += with_rank(parts, rank, mine)
    return _largest(rows, options.limit) if options.limit else rows


def show_tree(
    options: Namespace, parts: Parts, trees: Mapping[int, Table], notes: Sequence[str]
) -> int:
    """Print the tree, each level indented; in CSV, with the path.

    Raises:
        SettingsError: siblings cannot be sorted by this field.
    """
    if options.sort is not None and _FIELDS.get(options.sort, options.sort) not in _SORTED:
        what = f"--sort {options.sort}: no such field of a tree"
        raise SettingsError(what, "", f"one of {', '.join(_SORTED)}")
    shown = trees_of(options, parts, trees)
    if options.format == "csv":
        flat = [{**row, "path": " > ".join(row["path"])} for row in shown]
        return print_table(options, flat, columns_of(parts, fields_of(TreeRow)))
    if options.limit is None and options.format == "table":
        shown = _largest(shown, TABLE_ROWS)
    if left := sum(len(tree.rows) for tree in trees.values()) - len(shown):
        more = f"… and {plural(left, 'more row')}, with smaller shares: --limit 0 shows all"
        notes = [more, *notes]
    fields = columns_of(parts, _COLUMNS)
    sums = total_of(trees.values())
    total = {field: sums[f"self_{field}"] for field in _WHOLE_TREE if f"self_{field}" in sums}
    return print_table(
        options,
        [{**row, "name": _indented(row, options.format)} for row in shown],
        fields,
        total={fields[0]: "total", **sums, **total} if shown and not parts.apart else None,
        head=parts.heading,
        notes=notes,
    )


def tree_note(trace: Trace, by: str) -> str:
    """A note on what the tree is of, if it is not what was asked for."""
    labels = call_tree(trace.events, "module" if by == "module" else "stack").labels
    return "the tree is of annotations" if labels == "annotation" else ""


def _indented(row: TableRow, form: str) -> str:
    """The name of a row: how many share it, and how deep it is."""
    times = f" ×{row['count']}" if row["count"] > 1 else ""
    # Markdown drops leading blanks.
    indent = _INDENT if form == "table" else "· "
    return f"{indent * (row['depth'] - 1)}{row['name']}{times}"


def _largest(rows: list[TableRow], limit: int) -> list[TableRow]:
    """So many rows with the largest share, in the order of the tree; parents before children."""
    order = sorted(
        range(len(rows)), key=lambda at: (-(rows[at]["share"] or 0), -rows[at]["cpu_ms"], at)
    )
    return [rows[at] for at in sorted(order[:limit])]


def _sorted(rows: list[TableRow], field: str) -> list[TableRow]:
    """The tree with siblings in the order of this field, the largest first."""
    below: dict[tuple[str, ...], list[TableRow]] = {}
    for row in rows:
        below.setdefault(tuple(row["path"][:-1]), []).append(row)
    for siblings in below.values():
        siblings.sort(key=lambda row: -(row[field] or 0))
    out: list[TableRow] = []
    stack = below.get((), [])[::-1]
    while stack:
        out.append(row := stack.pop())
        if row["path"]:
            stack += below.get(tuple(row["path"]), [])[::-1]
    return out


# ---- Two traces of different length, compared per step.


class Sides(NamedTuple):
    """What is compared of two traces, and by how many steps their numbers are divided, if so.

    ``note`` says why.
    """

    a: Trace
    b: Trace
    steps: tuple[int, int] | None
    note: str

    @property
    def for_order(self) -> tuple[Trace, Trace]:
        """What to compare the order of execution of: per step, the last step of each."""
        if self.steps is None:
            return self.a, self.b
        return _last_step(self.a), _last_step(self.b)


def side_by_side(a: Trace, b: Trace, options: Namespace) -> Sides:
    """Both traces, or all their steps if asked for, or if both have steps, but not as many.

    A guess at what the steps are is not enough: it may be a part of each, such as the forward pass.
    Nor does a limit on the growth pass over what is outside of steps, unless asked to.

    Raises:
        SettingsError: ``--per-step``, and a trace has no steps.
    """
    wanted, name = options.per_step, options.step_name or ""
    steps = [steps_of(trace.events, name) for trace in (a, b)]
    if wanted is None:
        one, other = (len(_numbers(trace, name)) for trace in (a, b))
        if not (one and other) or one == other or steps[0].name != steps[1].name:
            return Sides(a, b, None, "")
        if options.fail_over is not None or any(side.guessed for side in steps):
            many = f"a has {plural(one, 'step')}, b {other} ({steps[0].name})"
            return Sides(a, b, None, f"{many}: --per-step compares them per step")
    elif not wanted:
        return Sides(a, b, None, "")
    a, b = (t.step(ALL_STEPS, name) if t.selected_steps is None else t for t in (a, b))
    one, other = (len(_numbers(trace, name)) for trace in (a, b))
    note = f"per step: a has {plural(one, 'step')}, b {other} ({steps[0].name}); what is outside of"
    note += " steps is left out"
    if options.per_step is None:
        note += "; --no-per-step compares the totals"
    return Sides(a, b, (one, other), note)


def notes_on_steps(ranks: Ranks, sides: Mapping[int, Sides]) -> list[str]:
    """What is divided by what, if anything is."""
    by_trace = {id(ranks[rank]): side.note for rank, side in sides.items()}
    return [note for note in notes_of(ranks, lambda trace: by_trace[id(trace)] or None) if note]


def steps_by_rank(ranks: Ranks, sides: Mapping[int, Sides]) -> object:
    """The numbers of steps of both sides, None for totals; by rank if there are several."""
    numbers = {
        str(ranks.value(rank)): side.steps and dict(zip("ab", side.steps, strict=True))
        for rank, side in sides.items()
    }
    return numbers if len(ranks) > 1 else next(iter(numbers.values()))


def _numbers(trace: Trace, name: str) -> list[int]:
    if (chosen := trace.selected_steps) is not None:
        return chosen
    numbers: list[int] = steps_of(trace.events, name).number.tolist()
    return numbers


def _last_step(trace: Trace) -> Trace:
    last = (trace.selected_steps or [0])[-1]
    scope = trace.events.scope
    return trace.step(StepRange(last, last + 1), scope[1] if scope else "")
