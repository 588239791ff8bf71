"""Operators of a trace as a table, in torch's order of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.analysis.operator_totals import OpRow, op_rows
from pytest_torchprof.core.units import format_quantity
from pytest_torchprof.render import escape
from pytest_torchprof.render.aligned_columns import Align, aligned_columns
from pytest_torchprof.render.text_width import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_torchprof.trace.events import Events

#: Column → (attribute of `OpRow`, divisor to the unit, unit).
OPS_COLUMNS: Mapping[str, tuple[str, float, str]] = {
    "calls": ("calls", 1, "1"),
    "self_cpu_ms": ("self_cpu_ns", 1e6, "ms"),
    "cpu_ms": ("cpu_ns", 1e6, "ms"),
    "self_cuda_ms": ("self_cuda_ns", 1e6, "ms"),
    "kernels": ("kernels", 1, "1"),
    "flops": ("flops", 1, "FLOP"),
    "allocated_cpu_bytes": ("allocated_cpu_bytes", 1, "B"),
    "allocated_cuda_bytes": ("allocated_cuda_bytes", 1, "B"),
    "peak_cpu_bytes": ("peak_cpu_bytes", 1, "B"),
    "peak_cuda_bytes": ("peak_cuda_bytes", 1, "B"),
}


def ops_table(trace: Events, sort_by: str, limit: int) -> str:
    """The ``limit`` operators with the most of ``sort_by`` (a key of `OPS_COLUMNS`), 0 for all."""
    rows = sorted(op_rows(trace).values(), key=lambda row: (-_value(row, sort_by), row.name))
    shown = rows[:limit] if limit else rows
    columns = [c for c in OPS_COLUMNS if c == sort_by or any(_cell(row, c) for row in rows)]
    names = [shorten(escape.line(row.name), 48) for row in shown]
    cells = [[_cell(row, column) for column in columns] for row in shown]
    body = [[name, *row] for name, row in zip(names, cells, strict=True)]
    align: list[Align] = ["left", *["right"] * len(columns)]  # type: ignore[list-item]
    text = "\n".join(aligned_columns(["operator", *columns], body, align, padding=2))
    left = len(rows) - len(shown)
    return f"{text}\n… and {left} more\n" if left else f"{text}\n"


def _value(row: OpRow, column: str) -> float:
    attribute, divisor, _ = OPS_COLUMNS[column]
    return float(getattr(row, attribute) or 0) / divisor


def _cell(row: OpRow, column: str) -> str:
    if getattr(row, OPS_COLUMNS[column][0]) is None:
        return "–"
    value = _value(row, column)
    return format_quantity(value, OPS_COLUMNS[column][2]) if value else ""
