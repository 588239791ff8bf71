"""A command's table over one or several traces: asked for, added up, and printed; trees, too."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from pytest_torchprof.analysis.communication import ROW_KEY
from pytest_torchprof.analysis.kernels import UNLINKED, parse_grouping
from pytest_torchprof.analysis.operators import TreeRow, call_tree
from pytest_torchprof.commands.inputs import (
    Part,
    Parts,
    merge_lines,
    part_with,
    reading_bar,
    warn,
)
from pytest_torchprof.core.errors import (
    SettingsError,
    TraceError,
    keep_others,
    not_onto_itself,
)
from pytest_torchprof.core.files import head_of, same_file
from pytest_torchprof.core.units import plural
from pytest_torchprof.core.values import ALL_STEPS, CountedNames, StepRange
from pytest_torchprof.fleet.mapping import Answer, Question, answer
from pytest_torchprof.fleet.sources import find_sources, is_many
from pytest_torchprof.render import escape
from pytest_torchprof.render.kernel_names import short_kernels
from pytest_torchprof.render.table import (
    Merging,
    Table,
    cell,
    fields_of,
    heading,
    markdown_page,
    pyarrow_or_error,
    to_json,
)
from pytest_torchprof.trace.ranks import (
    LeftOut,
    chosen_ranks,
    not_one_job,
    nothing_found,
    rank_in_name,
)
from pytest_torchprof.trace.steps import steps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.inputs import Body
    from pytest_torchprof.fleet.sources import Source
    from pytest_torchprof.render.table import Row


# ---- The table of one or several traces: added up, ordered, with its total.

OK, FAILED = 0, 1

#: Rows that a table shows unless ``--limit`` says otherwise.
TABLE_ROWS = 30
#: Width of a table in a file or a log.
_WIDTH = 160
#: Formats for people.
TEXTS = ("table", "markdown")

_OVER_BANDWIDTH = (
    "over 100 % of the bandwidth: data came from the L2 cache, the clock was higher than in the "
    "datasheet, or the trace counts whole microseconds"
)


def rows_of_each(several: Parts, rows: Mapping[int, Sequence[Row]]) -> list[Row]:
    """These rows of each trace, with its rank where there are several."""
    return [row for rank, own in rows.items() for row in with_rank(several, rank, own)]


def with_rank(several: Parts, rank: int, rows: Sequence[Row]) -> list[Row]:
    """These rows, with the rank where there are several."""
    if several.are_for_machines:
        own = {"trace": str(several[rank].path), "rank": None if several.apart else rank}
    elif len(several) < 2:
        return list(rows)
    else:
        own = {several.column: several.value(rank)}
    return [{**own, **row} for row in rows]


def columns_of(several: Parts, fields: Sequence[str]) -> list[str]:
    """These columns, below the rank where there are several."""
    if several.are_for_machines:
        return ["trace", "rank", *fields]
    return [several.column, *fields] if len(several) > 1 else list(fields)


def show(
    options: Namespace,
    several: Parts,
    tables: Mapping[int, Table],
    *,
    order: str = "",
    how: Merging | None = None,
    notes: Iterable[str] = (),
    unknown: Mapping[str, str] = MappingProxyType({}),
    extra: Row | None = None,
    head: str | None = None,
) -> int:
    """Print one table over all traces, ordered, with its total; return the status of success.

    ``order``: of which a share is told, and by which several traces are sorted. ``how`` adds the
    traces up, if that is asked for. ``unknown`` gives the text to show for a field without a value.
    ``extra``: more parts of JSON.
    """
    first, *others = tables.values()
    total = first.total(*others)
    if how is not None and options.merge:
        table, total, said = _merged_table(options, several, tables, how, order, total)
        notes = [f"merged: the rows of {plural(len(several), 'trace')}", *notes, *said]
        extra = {"merged": len(several)}
    else:
        table = _joined_table(options, several, tables, order, total)
        total = {} if several.apart else total
        notes = [*notes, *_over_peak(table.rows)]
    if options.format in TEXTS:
        for row in table.rows:
            row.update({field: text for field, text in unknown.items() if row[field] is None})
    _print(
        options,
        several,
        table,
        total,
        list(dict.fromkeys(filter(None, notes))),
        extra or {},
        several.heading if head is None else head,
    )
    return several.status(OK)


def _joined_table(
    options: Namespace,
    several: Parts,
    tables: Mapping[int, Table],
    order: str,
    total: Row,
) -> Table:
    """The rows of each trace; shares are of all traces if these are of one job."""
    first = next(iter(tables.values()))
    rows = rows_of_each(several, {rank: table.rows for rank, table in tables.items()})
    table = Table(rows, columns_of(several, first.fields), columns_of(several, first.columns))
    if len(several) > 1 and "share" in total and not several.apart:
        _share([*rows, total], total, "self_cuda_ms" if total["self_cuda_ms"] else "self_cpu_ms")
    chosen = options.sort or (order if len(several) > 1 else "")
    table.sort(order if chosen == "share" and "share" not in table.fields else chosen)
    if order and options.format in TEXTS and "share" not in table.columns:
        table.columns = _behind(order, table.columns)
        of_job: dict[str | None, list[Row]] = {} if several.apart else {None: []}
        for row in rows:
            of_job.setdefault(row["trace"] if several.apart else None, []).append(row)
        for job, own in of_job.items():
            whole = {order: sum(row[order] or 0 for row in own)}
            _share(own if job else [*own, total], whole, order)
    return table


def _behind(field: str, fields: Sequence[str]) -> list[str]:
    """The fields with that of the share behind this one."""
    at = fields.index(field) + 1
    return [*fields[:at], "share", *fields[at:]]


def _share(rows: Iterable[Row], whole: Row, of: str) -> None:
    """Make each row's share relative to this field of the whole."""
    every = whole[of]
    for row in rows:
        row["share"] = (row[of] or 0) / every if every else None


def _over_peak(rows: Sequence[Row]) -> Iterator[str]:
    """Notes on rows over 100 % of a peak: possible for bandwidth, an error for compute."""
    if any((row.get("bandwidth_pct") or 0) > 100 for row in rows):
        yield _OVER_BANDWIDTH
    over = [row for row in rows if (row.get("compute_pct") or 0) > 100]
    if over:
        most = max(over, key=lambda row: row["compute_pct"])
        name = cell("kernel", most["kernel"])
        yield (
            f"warning: {plural(len(over), 'row')} over 100 % of peak compute, the highest {name} "
            f"({cell('compute_pct', most['compute_pct'])}): its FLOPs or the peak are "
            "wrong, unless its algorithm needs fewer (Winograd, FFT) or the trace counts whole "
            "microseconds; please report it, with the trace"
        )


# ---- `--merge`: a row for each name over all traces, instead of one for each trace.

OPS: Final = Merging(("name", "shapes", "stack", "module"), "self_cpu_ms")
IDLE: Final = Merging(("cause", "what", "location", "path"), "time_ms")
FINDINGS: Final = Merging(("rule", "message", "location", "module", "path"), "cost_ms")
#: Peaks of different traces are at different moments, so the largest is told, not a sum.
MEMORY: Final = Merging(("device", "operator"), "bytes", ("peak_bytes", "bytes", "count"))
#: Each rank that meets at a call has the same wait.
COLLECTIVES: Final = Merging(ROW_KEY, "total_ms")
METRICS: Final = Merging(("metric",), "value")
BREAKDOWN: Final = Merging(("category",), "time_ms")

_PARTS_OF_KERNELS: Final = {"kernel": "kernel", "op": "operator", "shape": "shapes"}


def kernels_by(by: str) -> Merging:
    """Of rows in this grouping, see `parse_grouping`."""
    words = parse_grouping(by)
    return Merging(tuple(f for word, f in _PARTS_OF_KERNELS.items() if word in words), "total_ms")


def merged(how: Merging, parts: Parts, rows: Mapping[int, Sequence[Row]]) -> list[Row]:
    """The rows of all traces, each with the trace that has the most of it.

    ``rows``: those of each trace, without its rank.
    """
    most = f"max_{parts.column}"
    return [
        {**row, most: parts.value(at) if at >= 0 else None}
        for row, at in how.rows((rank, rows[rank]) for rank in parts)
    ]


def added_fields(how: Merging, parts: Parts) -> tuple[str, ...]:
    """The fields that `merged` adds."""
    return (*how.added, f"max_{parts.column}")


def _merged_table(
    options: Namespace,
    parts: Parts,
    tables: Mapping[int, Table],
    how: Merging,
    order: str,
    total: Row,
) -> tuple[Table, Row, list[str]]:
    """A row for each name over all traces, their total, and why a total is unknown."""
    first = next(iter(tables.values()))
    if order == "share":
        on_device = any(row["self_cuda_ms"] for one in tables.values() for row in one.rows)
        order = "self_cuda_ms" if on_device else "self_cpu_ms"
        how = how._replace(spread=order)
    rows = merged(how, parts, {rank: table.rows for rank, table in tables.items()})
    for row in rows:
        if "mean_us" in row:
            known = row["total_ms"] is not None and row["calls"]
            row["mean_us"] = 1e3 * row["total_ms"] / row["calls"] if known else None
            row["kernel_short"] = row["kernel"] and short_kernels(row["kernel"])
            row["operators"] = _operators(how, row)
    total = {field: value for field, value in total.items() if how.sums(field)}
    lacking = {
        rank: [
            f"no total of {field}: not recorded" if table.lacks(field) else ""
            for field, value in total.items()
            if value is None and not all(one.lacks(field) for one in tables.values())
        ]
        for rank, table in tables.items()
    }
    _share([*rows, total], {order: total.get(order)}, order)
    added = added_fields(how, parts)
    fields = [*first.fields, *added]
    fields = fields if "share" in fields else _behind(order, fields)
    table = Table([{f: row[f] for f in fields} for row in rows], fields)
    table.columns = [f for f in fields if f in (*first.columns, "share", *added)]
    table.sort(options.sort or order)
    return table, total, merge_lines(parts, lacking)


def _operators(how: Merging, row: Row) -> list[Row]:
    """The operators of a row of kernels with their calls; None for those without a launch."""
    named = row["operator"]
    own = "operator" not in how.keys and isinstance(named, CountedNames)
    parts: dict[Any, int] = dict(named.parts) if own else {}
    left = row["calls"] - sum(parts.values())
    parts |= {named if "operator" in how.keys else None: left} if left else {}
    return [
        {"operator": None if name == UNLINKED else name, "calls": n} for name, n in parts.items()
    ]


# ---- Printed to stdout, or written as Parquet, in the requested format.


def limited(options: Namespace, rows: list[Row]) -> tuple[list[Row], int]:
    """The rows that are printed, and how many are not."""
    limit = options.limit
    if limit is None:
        limit = TABLE_ROWS if options.format == "table" else 0
    shown = rows[:limit] if limit else rows
    return shown, len(rows) - len(shown)


def _print(
    options: Namespace,
    several: Parts,
    table: Table,
    total: Row,
    notes: Sequence[str],
    extra: Row,
    head: str,
) -> None:
    """Rows, total, how many rows are left out, notes."""
    rows = table.rows
    shown, left = limited(options, rows)
    if options.format == "json":
        parts = {"rows": shown, **({"total": total} if total else {}), "left_out": left}
        parts |= {**extra, "notes": list(notes)}
        write(to_json(document(options.command, several, parts)))
        return
    if options.format == "table" and len({row.get("device") for row in rows}) == 1:
        # The heading names it.
        table.columns = [field for field in table.columns if field != "device"]
    rest = "" if several.apart else _rest(rows, shown)
    lines = [f"… and {plural(left, 'more row')}{rest}: --limit 0 shows all"] if left else []
    table.rows = shown
    print_table(
        options,
        table,
        total={table.columns[0]: "total", **total} if total and rows else None,
        head=head,
        notes=[*lines, *notes],
        several=several,
    )


def _rest(rows: Sequence[Row], shown: Sequence[Row]) -> str:
    """How much of the time the hidden rows have."""
    for field in ("share", "total_ms"):
        if rows and field in rows[0]:
            whole = sum(row[field] or 0 for row in rows)
            part = whole - sum(row[field] or 0 for row in shown)
            on_device = any(row.get("total_ms") or row.get("self_cuda_ms") for row in rows)
            what = "the device time" if on_device else "the self CPU time"
            what = "the idle time" if "gaps" in rows[0] else what
            what = "the bound" if "bound_ms" in rows[0] else what
            return f" ({cell('share', part / whole)} of {what})" if whole else ""
    return ""


def document(command: str, ranks: Parts, parts: Row) -> dict[str, Any]:
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


def _selected(ranks: Parts) -> Row:
    """The numbers of the steps, by rank if there are several; nothing for whole traces."""
    numbers = {rank: trace.selected_steps for rank, trace in ranks.items()}
    if all(steps is None for steps in numbers.values()):
        return {}
    return {"steps": by_rank(ranks, numbers)}


def by_rank(several: Parts, values: Mapping[int, Any]) -> Any:
    """The only value, or by rank where there are several."""
    if len(values) == 1:
        return next(iter(values.values()))
    return {str(several.value(rank)): value for rank, value in values.items()}


def print_table(
    options: Namespace,
    table: Table,
    *,
    total: Row | None = None,
    head: str = "",
    notes: Sequence[str] = (),
    several: Parts | None = None,
) -> int:
    """Print rows in the requested format; return the status of success.

    ``several``: what they are of, where they may be written as Parquet.
    """
    if options.format == "parquet" and several is not None:
        _write_parquet(options, several, table)
        return OK
    if options.format == "json":
        schema = f"torchprof-{options.command}/1"
        return write(to_json({"schema": schema, "rows": table.rows}))
    if options.format == "csv":
        return write(table.csv())
    return write(table_text(options, table, total=total, head=head, notes=notes))


def table_text(
    options: Namespace,
    table: Table,
    *,
    total: Row | None = None,
    head: str = "",
    notes: Sequence[str] = (),
) -> str:
    """Rows between a heading and notes, as text or Markdown."""
    if options.format == "markdown":
        return laid_out(options, head, table.markdown(total), notes)
    return laid_out(options, head, table.text(terminal_width(), total), notes)


def laid_out(options: Namespace, head: str, body: str, notes: Sequence[str]) -> str:
    """Tables between a heading and notes."""
    if options.format == "markdown":
        return markdown_page(head.splitlines(), body, notes)
    head = f"{head}\n\n" if head else ""
    tail = "\n" + "".join(f"{escape.line(note)}\n" for note in notes) if notes else ""
    return head + body + tail


def terminal_width() -> int:
    """The terminal's width, or the default width for files."""
    import shutil

    return shutil.get_terminal_size((_WIDTH, 24)).columns


def write(text: str) -> int:
    """Write to stdout; characters that its encoding lacks are escaped."""
    escape.out(text)
    return OK


def check_target(options: Namespace) -> None:
    """Whether a Parquet file can be written, before anything is read.

    Raises:
        SettingsError: no file is named, or one without the format, or one of another kind, or
            pyarrow is missing.
        TraceError: it is a trace that is read.
    """
    if options.format != "parquet":
        if options.output:
            what = f"-o {options.output}: --format {options.format} is printed"
            raise SettingsError(what, "", "redirect it: > FILE, or use --format parquet")
        return
    if not options.output:
        raise SettingsError("--format parquet is a file", "none is named", "add -o FILE")
    pyarrow_or_error()
    target = Path(options.output)
    if target.is_dir():
        raise SettingsError(f"{target}: is a folder", next_step="name a file in it")
    if any(same_file(target, Path(name)) for name in options.traces):
        raise not_onto_itself(target)
    keep_others(target, lambda path: head_of(path).startswith(b"PAR1"), "a Parquet file")


def page_target(options: Namespace, read: Sequence[str] = ()) -> Path | None:
    """The file of ``--html``, if it is asked for, before anything is read.

    Raises:
        SettingsError: it would replace a trace that is read, or another file that is no page.
    """
    if options.html is None:
        return None
    from pytest_torchprof.render.html.page import check_page

    target = Path(options.html)
    if any(same_file(target, Path(name)) for name in read):
        raise SettingsError(f"{target}: this is one of the traces", "", "name another file")
    check_page(target)
    return target


def _write_parquet(options: Namespace, several: Parts, table: Table) -> None:
    """Write these rows, and one for each file that could not be read, with its ``reason``."""
    unread = [{"trace": f.source, "reason": str(f.error)} for f in several.left_out]
    fields = list(dict.fromkeys((*table.fields, "trace", "reason")))
    facts = {
        "schema": f"torchprof-{options.command}/1",
        "traces": [str(one.path) for one in several.values()],
    }
    names = ("device",) if options.command == "memory" else ()
    Table([*table.rows, *unread], fields).parquet(Path(options.output), facts, names)


# ---- What a table needs of each trace: asked where the trace is read, shown where all are
# together.
#
# A table command is two functions. The first makes a part of one trace: `part_of` takes what the
# command computes, and everything in it can be pickled. It runs in this process, in a worker of
# ``--jobs``, or in one of ``--dask``. `ask` brings all parts, by rank, and the second function
# prints them.


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


def load(words: Sequence[str], rank: int | None, steps: Namespace | None = None) -> Parts:
    """The traces themselves; of each only the steps that the options ask for, if any.

    Raises:
        TraceError: see `ask`.
        SettingsError: a trace has no steps, or not these.
    """
    return ask(
        Namespace(traces=words, rank=rank, format="table", output=None, jobs=None, dask=None),
        "commands.tables:whole_trace",
        step=steps and steps.step,
        step_name=steps and steps.step_name,
    )


def whole_trace(trace: Trace, settings: Mapping[str, Any]) -> Body:
    """All of it."""
    return part_with(at_steps(trace, settings)).body


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
        known_first = sorted(enumerate(sources), key=lambda pair: not pair[1].missing)  # at once
        found = ((at, answer(question, source, within)) for at, source in known_first)
    for at, one in found:
        before += sources[at].size
        step(0)
        yield at, one


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
        parts[number] = Part(source.shown, warnings, body)
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


# ---- The tree of `torchprof ops --by module` and `--by stack`.

#: Columns of a table, which has no room for all; depth and path are its indentation.
_COLUMNS = (
    *("name", "calls", "self_cpu_ms", "cpu_ms", "self_cuda_ms", "cuda_ms", "share", "kernels"),
    *("flops", "cpu_bytes", "cuda_bytes"),
)
#: By which siblings can be sorted; text cannot.
_SORTED = tuple(f for f in fields_of(TreeRow) if f not in {"name", "path"})
#: A field, by its name or a table's heading.
_FIELDS = {heading(name): name for name in _SORTED}
#: Numbers of subtrees, whose total is that of the own ones.
_WHOLE_TREE = ("kernels", "flops", "cpu_bytes", "cuda_bytes")
_INDENT = "  "


def trees_of(options: Namespace, parts: Parts, trees: Mapping[int, Table]) -> list[Row]:
    """The rows of all traces: each one's tree in its order, the largest if there is a limit."""
    field = _FIELDS.get(options.sort, options.sort)
    rows: list[Row] = []
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
        return print_table(options, Table(flat, columns_of(parts, fields_of(TreeRow))))
    if options.limit is None and options.format == "table":
        shown = _largest(shown, TABLE_ROWS)
    if left := sum(len(tree.rows) for tree in trees.values()) - len(shown):
        more = f"… and {plural(left, 'more row')}, with smaller shares: --limit 0 shows all"
        notes = [more, *notes]
    fields = columns_of(parts, _COLUMNS)
    first, *others = trees.values()
    sums = first.total(*others)
    total = {field: sums[f"self_{field}"] for field in _WHOLE_TREE if f"self_{field}" in sums}
    return print_table(
        options,
        Table([{**row, "name": _indented(row, options.format)} for row in shown], fields),
        total={fields[0]: "total", **sums, **total} if shown and not parts.apart else None,
        head=parts.heading,
        notes=notes,
    )


def tree_note(trace: Trace, by: str) -> str:
    """A note on what the tree is of, if it is not what was asked for."""
    labels = call_tree(trace.events, "module" if by == "module" else "stack").labels
    return "the tree is of annotations" if labels == "annotation" else ""


def _indented(row: Row, form: str) -> str:
    """The name of a row: how many share it, and how deep it is."""
    times = f" ×{row['count']}" if row["count"] > 1 else ""
    # Markdown drops leading blanks.
    indent = _INDENT if form == "table" else "· "
    return f"{indent * (row['depth'] - 1)}{row['name']}{times}"


def _largest(rows: list[Row], limit: int) -> list[Row]:
    """So many rows with the largest share, in the order of the tree; parents before children."""
    order = sorted(
        range(len(rows)), key=lambda at: (-(rows[at]["share"] or 0), -rows[at]["cpu_ms"], at)
    )
    return [rows[at] for at in sorted(order[:limit])]


def _sorted(rows: list[Row], field: str) -> list[Row]:
    """The tree with siblings in the order of this field, the largest first."""
    below: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        below.setdefault(tuple(row["path"][:-1]), []).append(row)
    for siblings in below.values():
        siblings.sort(key=lambda row: -(row[field] or 0))
    out: list[Row] = []
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


def notes_on_steps(ranks: Parts, sides: Mapping[int, Sides]) -> list[str]:
    """What is divided by what, if anything is."""
    return merge_lines(ranks, {rank: [side.note] for rank, side in sides.items()})


def steps_by_rank(ranks: Parts, sides: Mapping[int, Sides]) -> object:
    """The numbers of steps of both sides, None for totals; by rank if there are several."""
    numbers = {
        rank: side.steps and dict(zip("ab", side.steps, strict=True))
        for rank, side in sides.items()
    }
    return by_rank(ranks, numbers)


def _numbers(trace: Trace, name: str) -> list[int]:
    if (chosen := trace.selected_steps) is not None:
        return chosen
    numbers: list[int] = steps_of(trace.events, name).number.tolist()
    return numbers


def _last_step(trace: Trace) -> Trace:
    last = (trace.selected_steps or [0])[-1]
    scope = trace.events.scope
    return trace.step(StepRange(last, last + 1), scope[1] if scope else "")
