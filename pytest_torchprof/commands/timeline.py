"""`torchprof steps`, `idle` and `memory`: a trace over time."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_torchprof.analysis.memory import MemoryPoint, live_at_start
from pytest_torchprof.analysis.memory import step_moments as moments_of
from pytest_torchprof.analysis.missing import device_gap, device_time_gap
from pytest_torchprof.commands.inputs import SHOWN, cpu_time_note, device_time_note, unlinked_note
from pytest_torchprof.commands.tables import (
    IDLE,
    MEMORY,
    OK,
    TABLE_ROWS,
    TableRow,
    added_fields,
    ask,
    at_steps,
    columns_of,
    document,
    limited,
    merged_memory,
    part_of,
    print_table,
    rows_of_each,
    show,
    show_merged,
    show_tables,
    sorted_rows,
    table_of,
    with_rank,
    write,
)
from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.units import format_quantity, plural
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.render import table as row_formats
from pytest_torchprof.render.table import cell, fields_of, heading
from pytest_torchprof.render.unknown import device_lines, in_words, leak_lines, unknown_hint
from pytest_torchprof.trace.steps import known_steps
from pytest_torchprof.verdict.metrics import METRICS, measure
from pytest_torchprof.verdict.parts import StepRow, StepTable, step_table

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.inputs import Ranks, Several
    from pytest_torchprof.commands.tables import Body, Parts


# ---- `torchprof steps`: each step of a trace, and what is usual, stands out or drifts.

#: How many outliers of a field a note names.
_SHOWN = 8


def run_steps(options: Namespace) -> int:
    """Each step of a trace."""
    parts = ask(options, "commands.timeline:steps_part")
    rows = rows_of_each(parts, parts.each("rows"))
    fields = columns_of(parts, fields_of(StepRow))
    rows = sorted_rows(rows, options.sort, fields)
    notes = parts.notes
    for rank, lines in list(parts.each("texts").items())[:SHOWN]:
        mark = f"{parts.label(rank)}: " if len(parts) > 1 else ""
        notes += [f"{mark}{line}" for line in lines]
    extra: TableRow = {
        "step_names": _each(parts, "name"),
        "statistics": rows_of_each(parts, parts.each("statistics")),
        "outside": _each(parts, "outside"),
    }
    show(options, parts, rows, fields, None, notes, extra=extra)
    return parts.status(OK)


def steps_part(trace: Trace, settings: Mapping[str, Any]) -> Body:
    """What is needed of one trace."""
    name = settings["step_name"] or ""
    known_steps(trace.events, name)
    whole = settings["step"] is None
    if not whole:
        trace = trace.step(settings["step"], name)
    table = step_table(trace.events, name)
    return part_of(
        trace,
        [cpu_time_note(trace), device_time_note(trace), unlinked_note(trace)],
        name=table.name,
        rows=[dataclasses.asdict(row) for row in table.rows],
        statistics=[dataclasses.asdict(row) for row in table.statistics],
        outside=dict(table.outside),
        texts=_lines(table, whole=whole),
    )


def _each(parts: Parts, name: str) -> object:
    """By rank where there are several."""
    values = parts.each(name)
    if len(parts) == 1:
        return next(iter(values.values()))
    return {str(parts.value(rank)): value for rank, value in values.items()}


def _lines(table: StepTable, *, whole: bool) -> list[str]:
    """What is usual, what stands out, what drifts, what is outside, and what is not known."""
    lines = []
    for one in table.statistics:
        text = f"{heading(one.field)}: median {cell(one.field, _rounded(one.field, one.median))}"
        if one.spread is not None:
            text += f" ±{100 * one.spread:.2g} %"
        far = [str(step) for step in (one.outliers or ())[:_SHOWN]]
        if far:
            more = len(one.outliers or ()) - len(far)
            text += f"; outliers: step {', '.join(far)}{f' and {more} more' if more else ''}"
        if one.drift is not None and one.drift_share is not None:
            way = "rises" if one.drift > 0 else "falls"
            by = cell(one.field, _rounded(one.field, abs(one.drift)))
            text += f"; {way} by {by} a step, {100 * one.drift_share:+.2g} % from first to last"
            text += f" (p = {one.drift_p_value:.1g})"
        if one.field == "duration_ms" or far or one.drift is not None:
            lines.append(text)
    lines.insert(0, f"{plural(len(table.rows), 'step')}: {table.name}")
    rest = [
        f"{heading(field)} {cell(field, value)}" for field, value in table.outside.items() if value
    ]
    if whole and rest:
        lines.append(f"outside of steps: {', '.join(rest)}")
    why: dict[str, list[str]] = {}
    for field, reason in table.unknown.items():
        why.setdefault(in_words(reason), []).append(heading(field))
    lines += [f"not measured: {', '.join(fields)}: {text}" for text, fields in why.items()]
    return lines


def _rounded(field: str, value: float) -> float:
    """Counts and bytes are whole numbers, unless a median or a slope is between two."""
    return int(value) if not field.endswith("_ms") and value == int(value) else value


# ---- `torchprof idle`: what the host did while the device was idle.


def run_idle(options: Namespace) -> int:
    """What the host did while the device was idle."""
    parts = ask(options, "commands.timeline:idle_part", by=options.by)
    tables = parts.each("table")
    if options.merge:
        return parts.status(
            show_merged(options, parts, IDLE, tables, order="time_ms", notes=parts.notes)
        )
    return parts.status(show_tables(options, parts, tables, order="time_ms", notes=parts.notes))


def idle_part(trace: Trace, settings: Mapping[str, Any]) -> Body:
    """What is needed of one trace."""
    trace = at_steps(trace, settings)
    return part_of(trace, [idle_gap(trace)], table=table_of(trace.idle(settings["by"])))


def idle_gap(trace: Trace) -> str:
    """Why there are no rows; empty if there are, or if no device was ever idle."""
    gap = trace.events.once(device_gap) or trace.events.once(device_time_gap)
    return f"idle time is not measured: {in_words(gap)}" if gap else ""


# ---- `torchprof memory`: peak memory by device and operator.

_OF_MOMENTS = (
    "each moment is that of the highest level in an equal share of the time; --limit N shows N for "
    "each device, 0 every change"
)


def run_memory(options: Namespace) -> int:
    """Peak memory by device and operator, or the live memory over time by category."""
    points = 0
    if options.timeline:
        usual = TABLE_ROWS if options.format == "table" else 0
        points = usual if options.limit is None else options.limit
    parts = ask(options, "commands.timeline:memory_part", timeline=options.timeline, points=points)
    if options.merge and options.timeline:
        raise SettingsError("--merge and --timeline", "moments of several traces do not match")
    if options.merge:
        flat_of_each = {rank: _flat(own) for rank, own in parts.each("rows").items()}
        rows = merged_memory(parts, flat_of_each)
    else:
        rows = rows_of_each(parts, parts.each("rows"))
    if options.format == "json":
        return parts.status(_as_json(options, parts, rows))
    notes = parts.some_notes(0, 1)
    if options.timeline:
        rows, fields = rows_of_each(parts, parts.each("timeline")), fields_of(MemoryPoint)
        notes += [_OF_MOMENTS] if rows else []
    else:
        fields = ["device", "peak_bytes", "at_ms", "operator", "bytes", "count"]
        rows, left = limited(options, rows if options.merge else _flat(rows))
        more = [f"… and {plural(left, 'more row')}: --limit 0 shows all"] if left else []
        notes = more + notes
    if rows:
        notes += _notes(parts)
    columns = [*fields, *added_fields(MEMORY, parts)] if options.merge else None
    fields = columns or columns_of(parts, fields)
    print_table(options, rows, fields, head=parts.heading, notes=notes, several=parts)
    return parts.status(OK)


def _flat(rows: Sequence[TableRow]) -> list[TableRow]:
    """A row for each operator that had something live at the peak of a device."""
    return [
        {**{k: v for k, v in row.items() if k != "rows"}, **live}
        for row in rows
        for live in row["rows"] or [{}]
    ]


def memory_part(trace: Trace, settings: Mapping[str, Any]) -> Body:
    """What is needed of one trace."""
    trace = at_steps(trace, settings)
    rows = trace.memory().to_dicts()
    leaks = trace.memory_leaks() if rows else None
    points = trace.memory_timeline(settings["points"]).to_dicts() if settings["timeline"] else []
    return part_of(
        trace,
        [no_memory(trace)],
        rows=rows,
        start_bytes=live_at_start(trace.events),
        devices=trace.device_memory().to_dicts(),
        leaks=None if leaks is None else leaks.to_dicts(),
        unchecked=[*leak_lines(None, moments_of(trace.events))] if rows and leaks is None else [],
        timeline=points,
        texts=_texts_of(trace),
    )


def _as_json(options: Namespace, parts: Parts, rows: list[TableRow]) -> int:
    starts = {str(parts.value(rank)): own for rank, own in parts.each("start_bytes").items()}
    checked = {rank: own for rank, own in parts.each("leaks").items() if own is not None}
    unchecked = [
        f"{_mark(parts, rank)}{line}"
        for rank, lines in parts.each("unchecked").items()
        for line in lines
    ]
    texts: dict[int, _Texts] = parts.each("texts")
    grown = [row for rank in checked for row in with_rank(parts, rank, checked[rank])]
    shown = {
        "rows": rows,
        "start_bytes": starts if len(parts) > 1 else next(iter(starts.values())),
        "devices": rows_of_each(parts, parts.each("devices")),
        "leaks": grown if checked else None,
        **({"timeline": rows_of_each(parts, parts.each("timeline"))} if options.timeline else {}),
        "notes": parts.some_notes(0, 1) + _starts(parts, texts) + unchecked,
    }
    return write(row_formats.to_json(document("memory", parts, shown)))


class _Texts(NamedTuple):
    """Notes on the memory of one trace, in words."""

    start: str
    categories: list[str]
    leaks: list[str]


def _texts_of(trace: Trace) -> _Texts:
    devices = trace.device_memory()
    categories = [line for device in devices for line in device_lines(device)]
    categories += filter(None, [unknown_hint(trace.events, devices)])
    leaks = [*leak_lines(trace.memory_leaks(), moments_of(trace.events))] if trace.memory() else []
    return _Texts(_start(trace), categories, leaks)


def memory_notes(ranks: Ranks) -> list[str]:
    """From where peaks count, what was live at each, and what grows from step to step."""
    return _all_notes(ranks, {rank: _texts_of(trace) for rank, trace in ranks.items()})


def _notes(parts: Parts) -> list[str]:
    return _all_notes(parts, parts.each("texts"))


def _all_notes(several: Several[Any], texts: Mapping[int, _Texts]) -> list[str]:
    shown = dict(list(texts.items())[:SHOWN])
    more = len(texts) - len(shown)
    return [
        *_starts(several, shown),
        *_marked(several, {rank: own.categories for rank, own in shown.items()}),
        *_marked(several, {rank: own.leaks for rank, own in shown.items()}),
        *([f"… and such notes on {plural(more, f'more {several.column}')}"] if more else []),
    ]


def _marked(several: Several[Any], lines: Mapping[int, Sequence[str]]) -> list[str]:
    return [f"{_mark(several, rank)}{line}" for rank, own in lines.items() for line in own]


def _mark(several: Several[Any], rank: int) -> str:
    return f"{several.label(rank)}: " if len(several) > 1 else ""


def _starts(several: Several[Any], texts: Mapping[int, _Texts]) -> list[str]:
    """The starting points of the peaks: a line for all, and the known amounts."""
    of_steps = any(one.selected_steps is not None for one in several.values())
    when = "the first of these steps started" if of_steps else _WHOLE
    lines = {rank: [own.start] * bool(own.start) for rank, own in texts.items()}
    return [f"peaks count from what was live when {when}", *_marked(several, lines)]


def _start(trace: Trace) -> str:
    """What was live where the peaks begin, as far as it is known."""
    starts = live_at_start(trace.events)
    known = [f"{format_quantity(size, 'B')} on {device}" for device, size in starts.items()
             if size is not None]  # fmt: skip
    unknown = [device for device, size in starts.items() if size is None]
    parts = [f"{', '.join(known)} live then, as counted by the allocator"] if known else []
    parts += [f"live memory then is unknown on {', '.join(unknown)}"] if unknown else []
    return "; ".join(parts)


_WHOLE = "the trace or its measured region started"


def no_memory(trace: Trace) -> str | None:
    """A note on why there are no peaks, or what they are of; None if they are whole."""
    peak = measure(METRICS["peak_cpu_bytes"], trace.events)
    if trace.events.cut and trace.memory():
        return "the file is truncated: peaks are those of its part"
    if isinstance(peak, MissingValue):
        return f"no peak: {in_words(peak.reason)}"
    return None if trace.memory() else "nothing was allocated"
