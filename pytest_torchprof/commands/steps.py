"""`torchprof steps`: each step of a trace, and what is usual, stands out or drifts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pytest_torchprof.commands.inputs import cpu_time_note, device_time_note, unlinked_note
from pytest_torchprof.commands.parts import ask, part_of
from pytest_torchprof.commands.printing import (
    OK,
    TableRow,
    columns_of,
    rows_of_each,
    show,
    sorted_rows,
)
from pytest_torchprof.commands.several import SHOWN
from pytest_torchprof.core.units import plural
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.render.row_formats import cell, heading
from pytest_torchprof.render.rows import fields_of
from pytest_torchprof.trace.steps import known_steps
from pytest_torchprof.verdict.step_rows import StepRow, StepTable, step_table

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.parts import Body, Parts


#: How many outliers of a field a note names.
_SHOWN = 8


def run_steps(options: Namespace) -> int:
    """Each step of a trace."""
    parts = ask(options, "commands.steps:steps_part")
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
