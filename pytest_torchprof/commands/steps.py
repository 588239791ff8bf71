"""`torchprof steps`: each step of a trace, and what is usual, stands out or drifts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pytest_torchprof.commands.inputs import (
    cpu_time_note,
    device_time_note,
    load_traces,
    notes_of,
    unlinked_note,
)
from pytest_torchprof.commands.printing import (
    OK,
    TableRow,
    columns_of,
    show,
    sorted_rows,
    with_rank,
)
from pytest_torchprof.core.units import plural
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.render.row_formats import cell, heading
from pytest_torchprof.render.rows import fields_of
from pytest_torchprof.trace.steps import known_steps
from pytest_torchprof.verdict.step_rows import StepRow, StepTable, step_table

if TYPE_CHECKING:
    from argparse import Namespace

    from pytest_torchprof.commands.inputs import Ranks
    from pytest_torchprof.verdict.step_rows import StepStatistics


#: How many outliers of a field a note names.
_SHOWN = 8


def run_steps(options: Namespace) -> int:
    """Each step of a trace."""
    name = options.step_name or ""
    ranks = load_traces(options.traces, options.rank)
    tables = {}
    for rank, trace in ranks.items():
        known_steps(trace.events, name)
        if options.step is not None:
            ranks[rank] = trace.step(options.step, name)
        tables[rank] = step_table(ranks[rank].events, name)
    rows = [row for rank in ranks for row in _in_rank(ranks, rank, tables[rank].rows)]
    fields = columns_of(ranks, fields_of(StepRow))
    rows = sorted_rows(rows, options.sort, fields)
    notes = notes_of(ranks, cpu_time_note, device_time_note, unlinked_note)
    for rank, table in tables.items():
        mark = f"{ranks.label(rank)}: " if len(ranks) > 1 else ""
        notes += [f"{mark}{line}" for line in _lines(table, whole=options.step is None)]
    extra: TableRow = {
        "step_names": _each(ranks, {rank: table.name for rank, table in tables.items()}),
        "statistics": [
            row for rank in ranks for row in _in_rank(ranks, rank, tables[rank].statistics)
        ],
        "outside": _each(ranks, {rank: dict(table.outside) for rank, table in tables.items()}),
    }
    show(options, ranks, rows, fields, None, notes, extra=extra)
    return OK


def _in_rank(ranks: Ranks, rank: int, rows: list[StepRow] | list[StepStatistics]) -> list[TableRow]:
    return with_rank(ranks, rank, [dataclasses.asdict(row) for row in rows])


def _each(ranks: Ranks, values: dict[int, object]) -> object:
    """By rank where there are several."""
    if len(ranks) == 1:
        return next(iter(values.values()))
    return {str(ranks.value(rank)): value for rank, value in values.items()}


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
