"""Tables as text: rows, formats, columns, and which fields a table of kernels shows."""

from __future__ import annotations

import dataclasses
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from pytest_torchprof.analysis.kernels import FINE_FIELDS, KernelRow
from pytest_torchprof.analysis.operators import OpRow, op_rows
from pytest_torchprof.core.units import UNKNOWN, format_quantity
from pytest_torchprof.core.values import CountedNames
from pytest_torchprof.render import escape
from pytest_torchprof.render.escape import end_of, shorten, width_of
from pytest_torchprof.render.kernel_names import short_kernels

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from pytest_torchprof.core.values import Number
    from pytest_torchprof.trace.events import Events


# ---- The lines of a text table with aligned columns, including wide characters.

Align = Literal["left", "right"]

_GAP = "  "


def aligned_columns(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    align: Sequence[Align],
    *,
    padding: int = 0,
) -> list[str]:
    r"""Lines: headers, a rule, rows. A column is at least as wide as its header and ``padding``.

    >>> rows = [["テスト", "12"], ["a", "3"]]
    >>> print("\n".join(aligned_columns(["name", "n"], rows, ["left", "right"])))
    name     n
    ------  --
    テスト  12
    a        3
    """
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(headers)
    widths = [
        max(width_of(header) + padding, *map(width_of, column), 0)
        for header, column in zip(headers, columns, strict=True)
    ]
    lines = [headers, ["-" * width for width in widths], *rows]
    return [
        _GAP.join(_padded(*cell) for cell in zip(line, widths, align, strict=True)).rstrip()
        for line in lines
    ]


def _padded(text: str, width: int, side: Align) -> str:
    blanks = " " * (width - width_of(text))
    return text + blanks if side == "left" else blanks + text


# ---- Rows as a table, JSON, CSV or Markdown; the suffix of a field's name decides its format.

Format = Literal["table", "json", "csv", "markdown"]

Row = Mapping[str, Any]

#: Text fields, and the least width at which their values can be told apart.
_TEXTS = {
    "name": 24,
    "kernel": 24,
    "operator": 16,
    "what": 16,
    "cause": 10,
    "category": 12,
    "stack": 32,
    "module": 24,
    "shapes": 16,
    "change": 8,
    "device": 4,
    "bound": 7,
    "rank": 5,
    "trace": 16,
    "metric": 16,
    "reason": 24,
    "rule": 12,
    "message": 32,
    "location": 16,
    "path": 24,
    "summary": 32,
    "needs": 8,
    "thresholds": 16,
    "fix": 24,
    "page": 16,
    "file": 24,
    "test": 24,
    "verdict": 7,
    "outlier": 7,
    "region": 8,
    "environment": 12,
    "commit": 7,
    "date": 10,
    "kind": 5,
    "values": 8,
    "operation": 12,
    "group": 10,
    "dtype": 7,
}
#: What a narrow terminal drops, least informative first.
_SPARE = (
    *("registers_per_thread", "shared_memory_bytes", "block", "occupancy_pct", "grid"),
    *("mean_us", "self_cpu_bytes", "self_cuda_bytes", "cpu_bytes", "cuda_bytes"),
    *("bytes", "flops", "cpu_ms", "gb_per_s"),
    *("bound", "tflops_per_s", "at_ms", "count", "cuda_ms", "cpu_ms_a", "cpu_ms_b", "share"),
    *("arithmetic_intensity", "tail", "waves", "roofline_ms"),
    *("bandwidth_pct", "compute_pct", "interval", "cuda_ms_a", "cuda_ms_b"),
    *("start_ms", "ops", "copied_bytes", "copies", "peak_cpu_bytes", "path", "longest_ms"),
    *("gaps", "operator", "shapes", "values", "environment", "date"),
)
#: Read in full by users, so never cut.
_WHOLE = frozenset(
    {
        "cause",
        "change",
        "device",
        "bound",
        "rank",
        "metric",
        "reason",
        "message",
        "rule",
        "verdict",
        "outlier",
        "commit",
        "date",
        "kind",
        "values",
    }
)
#: What stands between columns.
_COLUMN_GAP = 2
#: The width that a note suggests, unless the columns need more.
_WIDE = 160

#: Removed from headings, since cells have their units.
_HEADINGS = {
    "tflops_per_s": "TFLOP/s",
    "gb_per_s": "GB/s",
    "algbw_gb_per_s": "algbw GB/s",
    "busbw_gb_per_s": "busbw GB/s",
    "compute_pct": "compute",
    "bandwidth_pct": "memory",
    "peak_bytes": "peak",
    "ms_to_gain": "gain",
    "arithmetic_intensity": "FLOP/B",
    "registers_per_thread": "registers",
    "shared_memory_bytes": "shared",
    "occupancy_pct": "occupancy",
    "live_bytes": "live",
    "parameters_bytes": "parameters",
    "gradients_bytes": "gradients",
    "optimizer_state_bytes": "optimizer",
    "activations_bytes": "activations",
    "temporaries_bytes": "temporaries",
    "unknown_bytes": "unknown",
    "before_bytes": "before",
    "a": "A",
    "b": "B",
}
#: Which of two traces a field belongs to.
_SIDE = re.compile(r"_[ab]$")
_UNIT = re.compile(r"_(ms|us)(?=_[ab]$|$)")


def heading(field: str) -> str:
    """The heading of a table column.

    >>> heading("self_cuda_ms"), heading("cpu_ms_a"), heading("gb_per_s"), heading("calls")
    ('self_cuda', 'cpu_a', 'GB/s', 'calls')
    """
    return _HEADINGS.get(field, _UNIT.sub("", field))


def _percent(value: float) -> str:
    """One decimal; never shown as 0 or 100 unless it is exactly that.

    >>> [_percent(v) for v in (0, 0.01, 12.34, 99.99, 100, 140)]
    ['0 %', '<0.1 %', '12.3 %', '99.9 %', '100 %', '140.0 %']
    """
    if value == 0 or abs(value - 100) < 1e-9:  # a sum of shares may be off by rounding
        return f"{value:.0f} %"
    if 0 < value < 0.1:
        return "<0.1 %"
    return f"{min(value, 99.9) if value < 100 else value:.1f} %"


def _calls(value: float) -> str:
    """A count; per step it may be a fraction."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


#: Sizes along x, y and z.
_SIZES = frozenset({"grid", "block"})
#: Suffix of a field → formatter of its value.
_SHOWN: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("_ms", lambda v: format_quantity(v, "ms")),
    ("ms_to_gain", lambda v: format_quantity(v, "ms")),
    ("calls", _calls),
    ("_us", lambda v: format_quantity(v / 1000, "ms")),
    ("bytes", lambda v: format_quantity(v, "B")),
    ("size", lambda v: format_quantity(v, "B")),
    ("tflops_per_s", _rate),
    ("flops", lambda v: format_quantity(v, "FLOP")),
    ("gb_per_s", _rate),
    ("arithmetic_intensity", _rate),
    ("waves", _rate),
    ("_pct", _percent),
    ("share", lambda v: _percent(100 * v)),
    ("tail", lambda v: _percent(100 * v)),
)


def cell(field: str, value: Any) -> str:
    """One value, formatted for a table."""
    if value is None:
        return UNKNOWN
    if isinstance(value, _Marked):
        return value
    if field == "kernel":
        value = short_kernels(value)
    if isinstance(value, CountedNames):
        return value.renamed(escape.line)
    if field in _SIZES and isinstance(value, list | tuple):
        return "×".join(map(str, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            return UNKNOWN
        kind = _SIDE.sub("", field)
        for suffix, show in _SHOWN:
            if kind.endswith(suffix):
                return show(value)
        return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
    return escape.line(str(value))


def text_table(
    rows: Sequence[Row],
    fields: Sequence[str],
    *,
    total: Row | None = None,
    width: int | None = None,
    style: str = "simple",
) -> str:
    """Rows below a heading, without empty columns, with long names cut in the middle.

    ``width`` is the terminal's; without one, nothing is cut. If names at their shortest are still
    too wide, columns are dropped and named below. ``total`` is the last row.
    """
    everything = [*rows, total] if total else list(rows)
    shown = [f for f in fields if any(row.get(f) is not None for row in everything)] or list(fields)
    cells = {f: [cell(f, row[f]) if f in row else "" for row in everything] for f in shown}
    dropped = [] if width is None else _too_wide(cells, width)
    shown = [f for f in shown if f not in dropped]
    if total and fields[0] in dropped:  # whose cell is the label
        cells[shown[0]][-1] = cells[fields[0]][-1]
    columns = [cells[f] for f in shown]
    if width is not None:
        columns = _fitted(shown, columns, width)
    body = [list(cells) for cells in zip(*columns, strict=True)]
    headers = [heading(field) for field in shown]
    align: list[Align] = ["left" if f in _TEXTS else "right" for f in shown]
    if style == "simple":
        lines = aligned_columns(headers, body, align)
        if total:
            lines.insert(len(lines) - 1, lines[1])
    else:
        lines = _tabulated(headers, body, align, style)
    if dropped:
        wide = max(_WIDE, -(-_least_width(cells) // 10) * 10)
        lines.append(f"… without {', '.join(map(heading, dropped))}: COLUMNS={wide} shows more")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _tabulated(
    headers: Sequence[str], body: Sequence[Sequence[str]], align: Sequence[Align], style: str
) -> list[str]:
    """As Markdown or HTML."""
    import tabulate

    before, tabulate.MIN_PADDING = tabulate.MIN_PADDING, 0
    try:
        text = tabulate.tabulate(
            body,
            headers=headers,
            tablefmt=style,
            disable_numparse=True,
            colalign=align if body else None,
        )
    finally:
        tabulate.MIN_PADDING = before
    return text.splitlines()


def _least_width(cells: Mapping[str, Sequence[str]]) -> int:
    """The width at which all of these columns fit, cut as far as possible."""
    return sum(min(_widths(*item)) + _COLUMN_GAP for item in cells.items()) - _COLUMN_GAP


def _too_wide(cells: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """The columns that do not fit in a narrow terminal, least informative first."""
    widths = {field: min(_widths(field, column)) for field, column in cells.items()}
    dropped: list[str] = []
    for field in _SPARE:
        if sum(widths.values()) + _COLUMN_GAP * (len(widths) - 1) <= width:
            break
        if widths.pop(field, None) is not None:
            dropped.append(field)
    return dropped


def _widths(field: str, column: Sequence[str]) -> tuple[int, int]:
    """The widest cell, and the least width to cut the column to."""
    widest = max([len(heading(field)), *map(width_of, column)])
    if field in _TEXTS and field not in _WHOLE:
        return widest, min(widest, max(len(heading(field)), _TEXTS[field]))
    return widest, widest


def _fitted(fields: Sequence[str], columns: list[list[str]], width: int) -> list[list[str]]:
    """Text columns cut to fit the remaining width, widest first."""
    both = [_widths(field, column) for field, column in zip(fields, columns, strict=True)]
    widths, least = [widest for widest, _ in both], [narrow for _, narrow in both]
    over = sum(widths) + _COLUMN_GAP * (len(widths) - 1) - width
    while over > 0:
        i = max(range(len(widths)), key=lambda i: widths[i] - least[i])
        if widths[i] <= least[i]:
            break
        widths[i] -= 1
        over -= 1
    return [
        [_cut(field, text, w) for text in column]
        for field, w, column in zip(fields, widths, columns, strict=True)
    ]


def _cut(field: str, text: str, width: int) -> str:
    """Cut names in the middle; cut paths at the start, since the innermost part tells most.

    Of several names, those that fit are shown, and the number left.

    >>> names = CountedNames([("aten::mm", 3), ("aten::fill_", 2), ("aten::add", 1)])
    >>> _cut("operator", names, 20)
    'aten::mm ×3, +2 more'
    """
    found = text.parts if isinstance(text, CountedNames) else ()
    if width_of(text) > width and len(found) > 1:
        for shown in range(len(found) - 1, 0, -1):
            parts = [f"{name} ×{count}" for name, count in found[:shown]]
            short = f"{', '.join(parts)}, +{len(found) - shown} more"
            if width_of(short) <= width:
                return short
        rest = f" ×{found[0][1]}, +{len(found) - 1} more"
        if len(rest) < width:
            return f"{shorten(found[0][0], width - len(rest))}{rest}"
    if field in {"stack", "module"} and width_of(text) > width:
        return f"…{end_of(text, width - 1)}"
    return shorten(text, width)


#: Fields that are code as a whole in Markdown.
_NAMES = frozenset(
    {
        "name",
        "kernel",
        "operator",
        "stack",
        "module",
        "shapes",
        "location",
        "path",
        "file",
        "test",
        "trace",
    }
)


def markdown_table(rows: Sequence[Row], fields: Sequence[str], *, total: Row | None = None) -> str:
    """The same as a GitHub Markdown table, with nothing cut."""
    safe = [{f: _marked(f, row.get(f)) for f in fields} for row in rows]
    whole = {f: total.get(f) for f in fields if f in total} if total else None
    return text_table(safe, fields, total=whole, style="pipe")


class _Marked(str):
    """A cell that is already Markdown."""

    __slots__ = ()


def _marked(field: str, value: Any) -> Any:
    if isinstance(value, _Marked) or not isinstance(value, str | list):
        return value
    mark = escape.code if field in _NAMES else escape.escape_markdown
    return _Marked(escape.table_cell(mark(cell(field, value))))


def strong(text: str) -> str:
    """A bold cell of Markdown."""
    return _Marked(f"**{escape.table_cell(escape.escape_markdown(text))}**")


def markdown_page(head: Sequence[str], table: str, notes: Sequence[str] = ()) -> str:
    """A Markdown table with lines of text above and below."""
    above = "".join(f"- {escape.escape_markdown(line)}\n" for line in head)
    below = "".join(f"- {escape.escape_markdown(note)}\n" for note in notes)
    return "\n".join(part for part in (above, table, below) if part)


def to_csv(rows: Sequence[Row], fields: Sequence[str]) -> str:
    """Raw values under their field names; empty for unknown values."""
    import csv

    out = io.StringIO()
    writer = csv.DictWriter(out, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows({f: escape.csv_value(row.get(f)) for f in fields} for row in rows)
    return out.getvalue()


def to_json(document: Mapping[str, Any]) -> str:
    """One JSON object; non-finite numbers are null."""
    return escape.json_text(document, indent=1) + "\n"


# ---- The rows of a table: dataclasses that print as text, HTML, or dictionaries.

R = TypeVar("R")


class Rows(list[R], Generic[R]):
    """The rows of one table: a list of dataclasses that prints as a table.

    ``ADDS_UP`` of their class names the fields that can be summed over rows.
    """

    def __init__(
        self,
        rows: Iterable[R],
        fields: Sequence[str],
        unknown: Iterable[str] = (),
        columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(rows)
        #: What `to_dicts` holds, in order.
        self.fields = tuple(fields)
        #: The columns of a table, in order, if they are not the same.
        self.columns = self.fields if columns is None else tuple(columns)
        #: Columns with unknown parts, whose sums are unknown too.
        self.unknown = frozenset(unknown)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary per row, as ``--format json`` prints it; unknown values are None."""
        return [{field: _plain(getattr(row, field)) for field in self.fields} for row in self]

    def total(self) -> dict[str, Any]:
        """Sums of the fields that add up; None where no row has a value."""
        adds_up = getattr(self[0], "ADDS_UP", ()) if self else ()
        return {
            field: None
            if field.removeprefix("self_") in self.unknown
            else sum_of(getattr(row, field) for row in self)
            for field in adds_up
            if field in self.fields
        }

    def __str__(self) -> str:
        """The table as the command prints it, without cutting anything."""
        return text_table(self.to_dicts(), self.columns)

    def _repr_html_(self) -> str:
        return text_table(self.to_dicts(), self.columns, style="html")


def fields_of(row: type) -> list[str]:
    """The columns of a table of such rows."""
    return [field.name for field in dataclasses.fields(row)]


def sum_of(values: Iterable[float | None]) -> float | None:
    """The sum of the known values, in any order the same; None if there are none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return math.fsum(known) if any(isinstance(value, float) for value in known) else sum(known)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key: _plain(inner) for key, inner in dataclasses.asdict(value).items()}
    return dict(value) if isinstance(value, Mapping) else value


# ---- A series of numbers as a line of small bars.

_BARS = "▁▂▃▄▅▆▇█"


def can_show(encoding: str | None) -> bool:
    """Whether text in this encoding can have the bars.

    >>> can_show("utf-8"), can_show("ascii")
    (True, False)
    """
    try:
        return bool(_BARS.encode(encoding or "utf-8"))
    except (UnicodeEncodeError, LookupError):
        return False


def sparkline(values: Sequence[Number], width: int = 24) -> str:
    """The numbers from the least to the largest as bars, at most so many.

    Of more numbers, each bar is the median of neighbors. Equal numbers are all lowest bars.

    >>> sparkline([1, 2, 3, 8])
    '▁▂▃█'
    >>> sparkline([5, 5, 5])
    '▁▁▁'
    """
    if len(values) > width:
        edges = [len(values) * at // width for at in range(width + 1)]
        values = [median(values[a:b]) for a, b in pairwise(edges)]
    low, high = min(values, default=0), max(values, default=0)
    if low == high:
        return _BARS[0] * len(values)
    top = len(_BARS) - 1
    return "".join(_BARS[round((value - low) / (high - low) * top)] for value in values)


# ---- Operators of a trace as a table, in torch's order of columns.

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


# ---- Which fields of a kernel's row a grouping has, and which of them a table shows.

#: Of a grouping by several words, in the order of reading: what, how long, what to gain, why.
_FINE_COLUMNS: Final = (
    *("device", "operator", "kernel", "shapes", "calls", "total_ms", "mean_us", "ms_to_gain"),
    *("roofline_ms", "flops", "tflops_per_s", "bytes", "gb_per_s", "arithmetic_intensity", "bound"),
    *("grid", "block", "waves", "tail", "occupancy_pct"),
    *("registers_per_thread", "shared_memory_bytes"),
)
#: Fields that no table shows: the names of ``kernel`` and ``operator`` again.
_KERNEL_FIELDS: Final = ("kernel_short", "operators")


def kernel_fields(words: AbstractSet[str]) -> list[str]:
    """The fields of rows grouped by these words, see `parse_grouping`."""
    fine = FINE_FIELDS if len(words) > 1 else ()
    left_out = {*FINE_FIELDS} - {*fine} | ({"shapes"} - {f"{word}s" for word in words})
    return [field.name for field in fields(KernelRow) if field.name not in left_out]


def kernel_columns(words: AbstractSet[str]) -> list[str]:
    """Those that a table shows."""
    known = [field for field in kernel_fields(words) if field not in _KERNEL_FIELDS]
    return [field for field in _FINE_COLUMNS if field in known] if len(words) > 1 else known
