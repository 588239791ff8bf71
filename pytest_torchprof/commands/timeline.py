"""`torchprof steps`, `idle` and `memory`: a trace over time."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_torchprof.analysis.memory import MemoryPoint, live_at_start
from pytest_torchprof.analysis.memory import step_moments as moments_of
from pytest_torchprof.analysis.missing import device_gap, device_time_gap
from pytest_torchprof.commands.inputs import (
    SHOWN,
    cpu_time_note,
    device_time_note,
    part_of,
    unlinked_note,
)
from pytest_torchprof.commands.tables import (
    IDLE,
    MEMORY,
    OK,
    TABLE_ROWS,
    added_fields,
    ask,
    at_steps,
    by_rank,
    columns_of,
    document,
    limited,
    merged,
    print_table,
    rows_of_each,
    show,
    with_rank,
    write,
)
from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.units import format_quantity, plural
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.render.notes import device_lines, leak_lines, unknown_hint
from pytest_torchprof.render.table import Rows, Table, cell, fields_of, heading, to_json
from pytest_torchprof.trace.steps import known_steps
from pytest_torchprof.verdict.metrics import METRICS, measure
from pytest_torchprof.verdict.parts import StepRow, StepTable, step_table

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.inputs import Body, Parts
    from pytest_torchprof.render.table import Row


# ---- `torchprof steps`: each step of a trace, and what is usual, stands out or drifts.

#: How many outliers of a field a note names.
_SHOWN = 8


def run_steps(options: Namespace) -> int:
    """Each step of a trace."""
    parts = ask(options, "commands.timeline:steps_part")
    notes = parts.notes + parts.marked(dict(list(parts.each("texts").items())[:SHOWN]))
    extra = {
        "step_names": by_rank(parts, parts.each("name")),
        "statistics": rows_of_each(parts, parts.each("statistics")),
        "outside": by_rank(parts, parts.each("outside")),
    }
    return show(options, parts, parts.each("table"), notes=notes, extra=extra)


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
        table=Rows(table.rows, fields_of(StepRow)).table(),
        statistics=[dataclasses.asdict(row) for row in table.statistics],
        outside=dict(table.outside),
        texts=_lines(table, whole=whole),
    )


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
        why.setdefault(reason.text, []).append(heading(field))
    lines += [f"not measured: {', '.join(fields)}: {text}" for text, fields in why.items()]
    return lines


def _rounded(field: str, value: float) -> float:
    """Counts and bytes are whole numbers, unless a median or a slope is between two."""
    return int(value) if not field.endswith("_ms") and value == int(value) else value


# ---- `torchprof idle`: what the host did while the device was idle.


def run_idle(options: Namespace) -> int:
    """What the host did while the device was idle."""
    parts = ask(options, "commands.timeline:idle_part", by=options.by)
    return show(options, parts, parts.each("table"), order="time_ms", how=IDLE, notes=parts.notes)


def idle_part(trace: Trace, settings: Mapping[str, Any]) -> Body:
    """What is needed of one trace."""
    trace = at_steps(trace, settings)
    return part_of(trace, [idle_gap(trace)], table=trace.idle(settings["by"]).table())


def idle_gap(trace: Trace) -> str:
    """Why there are no rows; empty if there are, or if no device was ever idle."""
    gap = trace.events.once(device_gap) or trace.events.once(device_time_gap)
    return f"idle time is not measured: {gap.text}" if gap else ""


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
    rows = _merged(parts) if options.merge else rows_of_each(parts, parts.each("rows"))
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
        notes += memory_notes(parts, parts.each("texts"))
    columns = [*fields, *added_fields(MEMORY, parts)] if options.merge else None
    table = Table(rows, columns or columns_of(parts, fields))
    print_table(options, table, head=parts.heading, notes=notes, several=parts)
    return parts.status(OK)


def _merged(parts: Parts) -> list[Row]:
    """What was live at the peaks, by kind of device and operator: the most in one trace."""
    kinds = {
        rank: [
            {**row, "device": row["device"].partition(":")[0], "at_ms": None} for row in _flat(own)
        ]
        for rank, own in parts.each("rows").items()
    }
    return sorted(merged(MEMORY, parts, kinds), key=lambda row: -(row.get("bytes") or 0))


def _flat(rows: Sequence[Row]) -> list[Row]:
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
        texts=memory_texts(trace),
    )


def _as_json(options: Namespace, parts: Parts, rows: list[Row]) -> int:
    checked = {rank: own for rank, own in parts.each("leaks").items() if own is not None}
    unchecked = parts.marked(parts.each("unchecked"))
    texts: dict[int, _Texts] = parts.each("texts")
    grown = [row for rank in checked for row in with_rank(parts, rank, checked[rank])]
    shown = {
        "rows": rows,
        "start_bytes": by_rank(parts, parts.each("start_bytes")),
        "devices": rows_of_each(parts, parts.each("devices")),
        "leaks": grown if checked else None,
        **({"timeline": rows_of_each(parts, parts.each("timeline"))} if options.timeline else {}),
        "notes": parts.some_notes(0, 1) + _starts(parts, texts) + unchecked,
    }
    return write(to_json(document("memory", parts, shown)))


class _Texts(NamedTuple):
    """Notes on the memory of one trace, in words."""

    start: str
    categories: list[str]
    leaks: list[str]


def memory_texts(trace: Trace) -> _Texts:
    """The notes of `memory_notes` on this trace."""
    devices = trace.device_memory()
    categories = [line for device in devices for line in device_lines(device)]
    categories += filter(None, [unknown_hint(trace.events, devices)])
    leaks = [*leak_lines(trace.memory_leaks(), moments_of(trace.events))] if trace.memory() else []
    return _Texts(_start(trace), categories, leaks)


def memory_notes(several: Parts, texts: Mapping[int, _Texts]) -> list[str]:
    """From where peaks count, what was live at each, and what grows from step to step."""
    shown = dict(list(texts.items())[:SHOWN])
    more = len(texts) - len(shown)
    return [
        *_starts(several, shown),
        *several.marked({rank: own.categories for rank, own in shown.items()}),
        *several.marked({rank: own.leaks for rank, own in shown.items()}),
        *([f"… and such notes on {plural(more, f'more {several.column}')}"] if more else []),
    ]


def _starts(several: Parts, texts: Mapping[int, _Texts]) -> list[str]:
    """The starting points of the peaks: a line for all, and the known amounts."""
    of_steps = any(one.selected_steps is not None for one in several.values())
    when = "the first of these steps started" if of_steps else _WHOLE
    lines = {rank: [own.start] * bool(own.start) for rank, own in texts.items()}
    return [f"peaks count from what was live when {when}", *several.marked(lines)]


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
        return f"no peak: {peak.reason.text}"
    return None if trace.memory() else "nothing was allocated"
