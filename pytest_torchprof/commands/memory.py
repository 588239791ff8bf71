"""`torchprof memory`: peak memory by device and operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.analysis.live_bytes import live_at_start
from pytest_torchprof.analysis.memory_leaks import moments_of
from pytest_torchprof.analysis.memory_timeline import MemoryPoint
from pytest_torchprof.api import Trace
from pytest_torchprof.commands.inputs import Ranks, heading_of, load_steps, notes_of
from pytest_torchprof.commands.printing import (
    TABLE_ROWS,
    columns_of,
    document,
    limited,
    print_table,
    rows_by_rank,
    with_rank,
    write,
)
from pytest_torchprof.core.results import MissingValue
from pytest_torchprof.core.units import format_quantity, plural
from pytest_torchprof.render import row_formats
from pytest_torchprof.render.memory_texts import device_lines, leak_lines, unknown_hint
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.render.rows import fields_of
from pytest_torchprof.verdict.metrics import METRICS, measure

if TYPE_CHECKING:
    from argparse import Namespace

    from pytest_torchprof.commands.printing import TableRow

_OF_MOMENTS = (
    "each moment is that of the highest level in an equal share of the time; --limit N shows N for "
    "each device, 0 every change"
)


def run_memory(options: Namespace) -> int:
    """Peak memory by device and operator, or the live memory over time by category."""
    ranks = load_steps(options, options.traces)
    rows = rows_by_rank(ranks, Trace.memory)
    if options.format == "json":
        return _as_json(options, ranks, rows)
    if options.timeline:
        return _timeline(options, ranks)
    flat = [
        {**{k: v for k, v in row.items() if k != "rows"}, **live}
        for row in rows
        for live in row["rows"] or [{}]
    ]
    fields = columns_of(ranks, ("device", "peak_bytes", "at_ms", "operator", "bytes", "count"))
    shown, left = limited(options, flat)
    notes = [f"… and {plural(left, 'more row')}: --limit 0 shows all"] if left else []
    notes += notes_of(ranks, no_memory)
    notes += memory_notes(ranks) if flat else []
    return print_table(options, shown, fields, head=heading_of(ranks), notes=notes)


def _as_json(options: Namespace, ranks: Ranks, rows: list[TableRow]) -> int:
    starts = {str(ranks.value(rank)): live_at_start(ranks[rank].events) for rank in ranks}
    start = starts if len(ranks) > 1 else next(iter(starts.values()))
    leaks = {rank: trace.memory_leaks() for rank, trace in ranks.items() if trace.memory()}
    checked = {rank: found for rank, found in leaks.items() if found is not None}
    unchecked = [
        f"{_mark(ranks, rank)}{line}"
        for rank, found in leaks.items()
        if found is None
        for line in leak_lines(None, moments_of(ranks[rank].events))
    ]
    grown = [row for rank in checked for row in with_rank(ranks, rank, checked[rank].to_dicts())]
    parts = {
        "rows": rows,
        "start_bytes": start,
        "devices": rows_by_rank(ranks, Trace.device_memory),
        "leaks": grown if checked else None,
        **({"timeline": _points(options, ranks)} if options.timeline else {}),
        "notes": notes_of(ranks, no_memory) + _starts(ranks) + unchecked,
    }
    return write(row_formats.to_json(document("memory", ranks, parts)))


def _points(options: Namespace, ranks: Ranks) -> list[TableRow]:
    usual = TABLE_ROWS if options.format == "table" else 0
    points = usual if options.limit is None else options.limit
    return rows_by_rank(ranks, lambda trace: trace.memory_timeline(points))


def _timeline(options: Namespace, ranks: Ranks) -> int:
    rows = _points(options, ranks)
    notes = notes_of(ranks, no_memory)
    if rows:
        notes += [_OF_MOMENTS, *memory_notes(ranks)]
    fields = columns_of(ranks, fields_of(MemoryPoint))
    return print_table(options, rows, fields, head=heading_of(ranks), notes=notes)


def memory_notes(ranks: Ranks) -> list[str]:
    """From where peaks count, what was live at each, and what grows from step to step."""
    return [*_starts(ranks), *_categories(ranks), *_leaks(ranks)]


def _categories(ranks: Ranks) -> list[str]:
    """What was live at the peaks, and what the allocators recorded."""
    lines = []
    for rank, trace in ranks.items():
        devices = trace.device_memory()
        mine = [line for device in devices for line in device_lines(device)]
        mine += filter(None, [unknown_hint(trace.events, devices)])
        lines += [f"{_mark(ranks, rank)}{line}" for line in mine]
    return lines


def _leaks(ranks: Ranks) -> list[str]:
    """What grows from step to step, trace by trace."""
    return [
        f"{_mark(ranks, rank)}{line}"
        for rank, trace in ranks.items()
        if trace.memory()
        for line in leak_lines(trace.memory_leaks(), moments_of(trace.events))
    ]


def _mark(ranks: Ranks, rank: int) -> str:
    return f"{ranks.label(rank)}: " if len(ranks) > 1 else ""


def _starts(ranks: Ranks) -> list[str]:
    """The starting points of the peaks: a line for all, and the known amounts."""
    lines = []
    for rank, trace in ranks.items():
        starts = live_at_start(trace.events)
        known = [f"{format_quantity(size, 'B')} on {device}" for device, size in starts.items()
                 if size is not None]  # fmt: skip
        unknown = [device for device, size in starts.items() if size is None]
        parts = [f"{', '.join(known)} live then, as counted by the allocator"] if known else []
        parts += [f"live memory then is unknown on {', '.join(unknown)}"] if unknown else []
        lines += [f"{_mark(ranks, rank)}{'; '.join(parts)}"] if parts else []
    when = "the first of these steps started" if _of_steps(ranks) else _WHOLE
    return [f"peaks count from what was live when {when}", *lines]


_WHOLE = "the trace or its measured region started"


def _of_steps(ranks: Ranks) -> bool:
    return any(trace.selected_steps is not None for trace in ranks.values())


def no_memory(trace: Trace) -> str | None:
    """A note on why there are no peaks, or what they are of; None if they are whole."""
    peak = measure(METRICS["peak_cpu_bytes"], trace.events)
    if trace.events.cut and trace.memory():
        return "the file is truncated: peaks are those of its part"
    if isinstance(peak, MissingValue):
        return f"no peak: {in_words(peak.reason)}"
    return None if trace.memory() else "nothing was allocated"
