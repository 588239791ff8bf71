"""`torchprof memory`: peak memory by device and operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.analysis.live_bytes import live_at_start
from pytest_torchprof.api import Trace
from pytest_torchprof.commands.inputs import Ranks, heading_of, load_traces, notes_of
from pytest_torchprof.commands.printing import (
    columns_of,
    document,
    limited,
    print_table,
    rows_by_rank,
    write,
)
from pytest_torchprof.core.results import MissingValue
from pytest_torchprof.core.units import format_quantity, plural
from pytest_torchprof.render import row_formats
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.verdict.metrics import measure_all

if TYPE_CHECKING:
    from argparse import Namespace


def run_memory(options: Namespace) -> int:
    """Peak memory by device and operator."""
    ranks = load_traces(options.traces, options.rank)
    rows = rows_by_rank(ranks, Trace.memory)
    if options.format == "json":
        starts = {str(ranks.value(rank)): live_at_start(ranks[rank].events) for rank in ranks}
        start = starts if len(ranks) > 1 else next(iter(starts.values()))
        notes = notes_of(ranks, _no_memory) + _starts(ranks)
        parts = {"rows": rows, "start_bytes": start, "notes": notes}
        return write(row_formats.to_json(document("memory", ranks, parts)))
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
    """The starting points of the peaks: a line for all, and the known amounts."""
    lines = []
    for rank, trace in ranks.items():
        mark = f"{ranks.label(rank)}: " if len(ranks) > 1 else ""
        starts = live_at_start(trace.events)
        known = [f"{format_quantity(size, 'B')} on {device}" for device, size in starts.items()
                 if size is not None]  # fmt: skip
        unknown = [device for device, size in starts.items() if size is None]
        parts = [f"{', '.join(known)} live then, as counted by the allocator"] if known else []
        parts += [f"live memory then is unknown on {', '.join(unknown)}"] if unknown else []
        lines += [f"{mark}{'; '.join(parts)}"] if parts else []
    return ["peaks count from what was live when the trace or its measured region started", *lines]


def _no_memory(trace: Trace) -> str | None:
    peak = trace.events.once(measure_all)["peak_cpu_bytes"]
    if trace.events.cut and trace.memory():
        return "the file is truncated: peaks are those of its part"
    if isinstance(peak, MissingValue):
        return f"no peak: {in_words(peak.reason)}"
    return None if trace.memory() else "nothing was allocated"
