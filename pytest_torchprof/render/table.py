"""One table: columns and rows of data, as text, Markdown, HTML, CSV, JSON and Parquet.

The name of a field tells how its values read, what a narrow terminal does with them, and how they
add up over ranks and traces.
"""

from __future__ import annotations

import dataclasses
import html
import io
import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise, zip_longest
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from pytest_torchprof.analysis.kernels import FINE_FIELDS, KernelRow
from pytest_torchprof.analysis.operators import OpRow, op_rows
from pytest_torchprof.core.errors import SettingsError, writing
from pytest_torchprof.core.files import replacing
from pytest_torchprof.core.units import UNKNOWN, format_quantity
from pytest_torchprof.core.values import CountedNames
from pytest_torchprof.render import escape
from pytest_torchprof.render.escape import end_of, shorten, width_of
from pytest_torchprof.render.kernel_names import short_kernels

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from pytest_torchprof.core.values import Number
    from pytest_torchprof.trace.events import Events

#: A row by field; a field that it lacks is an empty cell, None is an unknown value.
Row = dict[str, Any]


# ---- How the values of a field read: the suffix of its name decides.

#: Names, which a narrow terminal cuts, and the least width at which they can be told apart.
_CUT = {
    **dict.fromkeys(("name", "kernel", "module", "path", "fix", "file", "test"), 24),
    **dict.fromkeys(("operator", "what", "shapes", "trace", "location", "thresholds", "page"), 16),
    **dict.fromkeys(("category", "environment", "operation"), 12),
    "stack": 32, "summary": 32, "group": 10, "region": 8, "needs": 8, "dtype": 7,
}  # fmt: skip
#: Sentences, which it wraps.
_WRAPPED = {"reason": 24, "message": 32}
#: Words that are read in full.
_WHOLE = frozenset(
    {"cause", "change", "device", "bound", "rank", "metric", "rule", "verdict", "outlier",
     "commit", "date", "kind", "values"}
)  # fmt: skip
#: Fields that are code as a whole in Markdown.
_CODE = frozenset(
    {"name", "kernel", "operator", "stack", "module", "shapes", "location", "path", "file", "test",
     "trace"}
)  # fmt: skip
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
#: What stands between columns.
_GAP = "  "
#: The width that a note suggests, unless the columns need more.
_WIDE = 160

#: Headings that are not just the field without its unit, which the cells have.
_HEADINGS = {
    "tflops_per_s": "TFLOP/s", "gb_per_s": "GB/s", "algbw_gb_per_s": "algbw GB/s",
    "busbw_gb_per_s": "busbw GB/s", "compute_pct": "compute", "bandwidth_pct": "memory",
    "peak_bytes": "peak", "ms_to_gain": "gain", "arithmetic_intensity": "FLOP/B",
    "registers_per_thread": "registers", "shared_memory_bytes": "shared",
    "occupancy_pct": "occupancy", "live_bytes": "live", "parameters_bytes": "parameters",
    "gradients_bytes": "gradients", "optimizer_state_bytes": "optimizer",
    "activations_bytes": "activations", "temporaries_bytes": "temporaries",
    "unknown_bytes": "unknown", "before_bytes": "before", "a": "A", "b": "B",
}  # fmt: skip
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
    if field in {"grid", "block"} and isinstance(value, list | tuple):  # along x, y and z
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


class _Marked(str):
    """A cell that is already Markdown."""

    __slots__ = ()


def _marked(field: str, value: Any) -> Any:
    if isinstance(value, _Marked) or not isinstance(value, str | list):
        return value
    mark = escape.code if field in _CODE else escape.escape_markdown
    return _Marked(escape.table_cell(mark(cell(field, value))))


def strong(text: str) -> str:
    """A bold cell of Markdown."""
    return _Marked(f"**{escape.table_cell(escape.escape_markdown(text))}**")


# ---- The lines of a table with aligned columns, including wide characters.


def padded(
    headers: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[bool], padding: int = 0
) -> list[list[str]]:
    """Headers and rows, all cells of a column as wide as the widest, on the left or the right.

    A column is at least as wide as its header and ``padding``.
    """
    widths = [
        max(width_of(header) + padding, *(width_of(row[at]) for row in rows), 0)
        for at, header in enumerate(headers)
    ]
    return [
        [
            text + " " * (width - width_of(text)) if is_left else
            " " * (width - width_of(text)) + text
            for text, width, is_left in zip(line, widths, left, strict=True)
        ]
        for line in (headers, *rows)
    ]  # fmt: skip


def aligned_columns(
    headers: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[bool], padding: int = 0
) -> list[str]:
    r"""Lines: headers, a rule, rows, see `padded`.

    >>> rows = [["テスト", "12"], ["a", "3"]]
    >>> print("\n".join(aligned_columns(["name", "n"], rows, [True, False])))
    name     n
    ------  --
    テスト  12
    a        3
    """
    head, *body = padded(headers, rows, left, padding)
    rule = ["-" * width_of(text) for text in head]
    return [_GAP.join(line).rstrip() for line in (head, rule, *body)]


# ---- The table.


@dataclass
class Table:
    """Rows of data under their fields.

    Attributes:
        rows: each by field.
        fields: what CSV, JSON and Parquet have, in order.
        columns: what people see, in order, if that is not the same.
        unknown: fields with unknown parts, whose sums are unknown too.
        adds_up: fields that can be summed over rows.
    """

    rows: list[Row]
    fields: Sequence[str]
    columns: Sequence[str] = ()
    unknown: AbstractSet[str] = frozenset()
    adds_up: Sequence[str] = ()

    def total(self, *others: Table) -> Row:
        """Sums over these tables of the fields that add up.

        None where no row has a value, where a part is unknown, or where no row of one of several
        tables has a value.
        """
        tables = (self, *others)
        unknown = frozenset().union(*(table.unknown for table in tables))
        return {
            field: None
            if field.removeprefix("self_") in unknown
            or (others and any(table.lacks(field) for table in tables))
            else sum_of(row[field] for table in tables for row in table.rows)
            for field in next((table.adds_up for table in tables if table.adds_up), ())
            if field in self.fields
        }

    def lacks(self, field: str) -> bool:
        """Whether no row has a value in this field, though there are rows."""
        return bool(self.rows) and all(row[field] is None for row in self.rows)

    def sort(self, field: str | None) -> None:
        """Largest first; text alphabetically; unknown values last. Without a field, they stay.

        ``field``: its name, or its heading.

        Raises:
            SettingsError: there is no such field.
        """
        if not field:
            return
        field = {heading(name): name for name in self.fields}.get(field, field)
        if field not in self.fields:
            one_of = f"one of {', '.join(self.fields)}"
            raise SettingsError(f"--sort {field}: no such field", "", one_of)
        known = [row for row in self.rows if row[field] is not None]
        text = any(isinstance(row[field], str | list) for row in known)
        known.sort(key=lambda row: str(row[field]) if text else -row[field])
        self.rows = known + [row for row in self.rows if row[field] is None]

    def text(self, width: int | None = None, total: Row | None = None) -> str:
        """Rows below a heading, without empty columns, with long names cut in the middle.

        ``width`` is the terminal's; without one, nothing is cut. If names at their shortest are
        still too wide, columns are dropped and named below. ``total`` is the last row.
        """
        cells = self._cells(total)
        sizes = {field: _widths(field, column) for field, column in cells.items()}
        needed = _together(least for _, least in sizes.values())
        dropped = []
        for field in _SPARE if width is not None else ():
            if _together(least for _, least in sizes.values()) <= (width or 0):
                break
            if sizes.pop(field, None) is not None:
                dropped.append(field)
        if total and self.shown[0] in dropped:  # whose cell is the label
            cells[next(iter(sizes))][-1] = cells[self.shown[0]][-1]
        fitted = [size for size, _ in sizes.values()]
        if width is not None:
            fitted = _fitted([*sizes.values()], width)
        columns = [
            [_cut(field, text, own) for text in cells[field]]
            for field, own in zip(sizes, fitted, strict=True)
        ]
        rows = [
            [*zip_longest(*(text.split("\n") for text in row), fillvalue="")]
            for row in zip(*columns, strict=True)
        ]
        lines = aligned_columns(
            [*map(heading, sizes)], [line for row in rows for line in row], [*map(_is_text, sizes)]
        )
        if total:
            lines.insert(len(lines) - len(rows[-1]), lines[1])
        if dropped:
            wide = max(_WIDE, -(-needed // 10) * 10)
            lines.append(f"… without {', '.join(map(heading, dropped))}: COLUMNS={wide} shows more")
        return "\n".join(lines) + "\n"

    def markdown(self, total: Row | None = None) -> str:
        """The same as a GitHub Markdown table, with nothing cut."""
        marked = [{f: _marked(f, row.get(f)) for f in self.shown} for row in self.rows]
        shown, head, *body = Table(marked, self.shown)._padded(total)  # noqa: SLF001
        rule = ["-" * (width_of(text) + 1) for text in head]
        if body:
            rule = [f":{r}" if _is_text(f) else f"{r}:" for f, r in zip(shown, rule, strict=True)]
        else:
            rule = [f"-{line}" for line in rule]
        lines = [f"| {' | '.join(line)} |\n" for line in (head, *body)]
        return "".join([lines[0], f"|{'|'.join(rule)}|\n", *lines[1:]])

    def html(self) -> str:
        """The same for a notebook."""
        shown, head, *body = self._padded(None)
        right = [bool(body) and not _is_text(field) for field in shown]
        styles = [' style="text-align: right;"' * is_right for is_right in right]

        def line(kind: str, texts: Sequence[str]) -> str:
            cells = zip(styles, texts, strict=True)
            inner = (f"<{kind}{style}>{html.escape(text)}</{kind}>" for style, text in cells)
            return f"<tr>{''.join(inner)}</tr>\n"

        rows = "".join(line("td", texts) for texts in body)
        head_row = line("th", head)
        return f"<table>\n<thead>\n{head_row}</thead>\n<tbody>\n{rows}</tbody>\n</table>\n"

    def csv(self) -> str:
        """Raw values under their field names; empty for unknown values."""
        import csv

        out = io.StringIO()
        writer = csv.DictWriter(out, self.fields, lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            writer.writerow({field: escape.csv_value(row.get(field)) for field in self.fields})
        return out.getvalue()

    def parquet(self, target: Path, facts: Mapping[str, Any], names: Sequence[str] = ()) -> None:
        """Write a file with a column of the same type in every file, unless a value does not fit.

        Its schema's metadata has ``torchprof``: the ``facts`` as JSON. Lists are JSON, too.
        ``names``: fields that are text, though the same ones of other tables are numbers.

        Raises:
            TraceError: the file cannot be written.
        """
        pyarrow = pyarrow_or_error()
        arrays = {
            field: _array(pyarrow, field, [row.get(field) for row in self.rows], names)
            for field in self.fields
        }
        table = pyarrow.table(arrays)
        table = table.replace_schema_metadata({"torchprof": json.dumps(facts)})
        with writing(target), replacing(target) as file:
            pyarrow.parquet.write_table(table, file)

    @property
    def shown(self) -> Sequence[str]:
        """What people see."""
        return self.columns or self.fields

    def _cells(self, total: Row | None) -> dict[str, list[str]]:
        """The cells of each column, without empty columns."""
        rows = [*self.rows, total] if total else self.rows
        used = [f for f in self.shown if any(row.get(f) is not None for row in rows)]
        return {
            field: [cell(field, row[field]) if field in row else "" for row in rows]
            for field in used or self.shown
        }

    def _padded(self, total: Row | None) -> list[list[str]]:
        """The fields that are shown, then their headings and the rows as `padded` has them."""
        cells = self._cells(total)
        left = [_is_text(field) for field in cells] if self.rows else [True] * len(cells)
        body = list(zip(*cells.values(), strict=True))
        return [[*cells], *padded([*map(heading, cells)], body, left)]


def _is_text(field: str) -> bool:
    return field in _CUT or field in _WRAPPED or field in _WHOLE


def _together(widths: Iterable[int]) -> int:
    """The width of columns side by side."""
    each = list(widths)
    return sum(each) + len(_GAP) * (len(each) - 1)


def _widths(field: str, column: Sequence[str]) -> tuple[int, int]:
    """The widest cell, and the least width to cut the column to."""
    widest = max([len(heading(field)), *map(width_of, column)])
    least = _CUT.get(field) or _WRAPPED.get(field) or widest
    return widest, min(widest, max(len(heading(field)), least))


def _fitted(sizes: Sequence[tuple[int, int]], width: int) -> list[int]:
    """The widths of these columns in the given one: those that can be cut most give first."""
    widths = [widest for widest, _ in sizes]
    for _ in range(_together(widths) - width):
        at = max(range(len(widths)), key=lambda at: widths[at] - sizes[at][1])
        if widths[at] <= sizes[at][1]:
            break
        widths[at] -= 1
    return widths


def _cut(field: str, text: str, width: int) -> str:
    """Cut names in the middle; cut paths at the start, since the innermost part tells most.

    Of several names, those that fit are shown, and the number left. Sentences become several lines.

    >>> names = CountedNames([("aten::mm", 3), ("aten::fill_", 2), ("aten::add", 1)])
    >>> _cut("operator", names, 20)
    'aten::mm ×3, +2 more'
    """
    if width_of(text) <= width:
        return text
    if field in _WRAPPED:
        return "\n".join(textwrap.wrap(text, width, break_on_hyphens=False))
    found = text.parts if isinstance(text, CountedNames) else ()
    for shown in range(len(found) - 1, 0, -1):
        parts = [f"{name} ×{count}" for name, count in found[:shown]]
        short = f"{', '.join(parts)}, +{len(found) - shown} more"
        if width_of(short) <= width:
            return short
    if len(found) > 1:
        rest = f" ×{found[0][1]}, +{len(found) - 1} more"
        if len(rest) < width:
            return f"{shorten(found[0][0], width - len(rest))}{rest}"
    if field in {"stack", "module"}:
        return f"…{end_of(text, width - 1)}"
    return shorten(text, width)


#: Suffixes of fields with fractions. All other numbers are whole, unless a row has a fraction.
_FRACTIONS = ("_ms", "_us", "_pct", "_per_s", "share", "value", "intensity", "waves", "tail")
_COUNTS = (
    *("bytes", "flops", "calls", "count", "gaps", "traces", "rank", "step", "modules", "size"),
    "device",
)
_LARGEST = 2**63


def pyarrow_or_error() -> Any:
    """The package.

    Raises:
        SettingsError: it is missing.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        step = "pip install 'pytest-torchprof[parquet]'"
        raise SettingsError("--format parquet needs pyarrow", str(error), step) from None
    return pyarrow


def _array(pyarrow: Any, field: str, values: Sequence[Any], names: Sequence[str]) -> Any:
    known = [value for value in values if value is not None]
    if any(not isinstance(value, int | float) for value in known):
        texts = [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
        return pyarrow.array(texts, type=pyarrow.string())
    if field == "accepted":
        return pyarrow.array(values, type=pyarrow.bool_())
    fractions = any(isinstance(value, float) or abs(value) >= _LARGEST for value in known)
    if fractions or field.endswith(_FRACTIONS):
        floats = [None if value is None else float(value) for value in values]
        return pyarrow.array(floats, type=pyarrow.float64())
    whole = known or (field.endswith(_COUNTS) and field not in names)
    return pyarrow.array(values, type=pyarrow.int64() if whole else pyarrow.string())


def markdown_page(head: Sequence[str], table: str, notes: Sequence[str] = ()) -> str:
    """A Markdown table with lines of text above and below."""
    above = "".join(f"- {escape.escape_markdown(line)}\n" for line in head)
    below = "".join(f"- {escape.escape_markdown(note)}\n" for note in notes)
    return "\n".join(part for part in (above, table, below) if part)


def to_json(document: Mapping[str, Any]) -> str:
    """One JSON object; non-finite numbers are null."""
    return escape.json_text(document, indent=1) + "\n"


# ---- Rows of many traces as rows of all: sums that are exact, so that no order changes a digit.

#: How fields add up; others are kept where all traces agree, and unknown where they do not.
_SUMS = (
    *("value", "count", "cost_ms", "time_ms", "bytes", "total_ms", "calls", "gaps", "flops"),
    *("self_cpu_ms", "cpu_ms", "self_cuda_ms", "cuda_ms", "self_cpu_bytes", "self_cuda_bytes"),
    *("roofline_ms", "ms_to_gain"),
)
_LARGEST_OF_ALL = ("longest_ms", "wait_ms")
#: Means, weighted by ``total_ms``.
_RATES = (
    *("tflops_per_s", "gb_per_s", "compute_pct", "bandwidth_pct"),
    *("algbw_gb_per_s", "busbw_gb_per_s"),
)
#: Names with their counts, which are added up; a single name counts ``calls`` times.
_COUNTED = ("kernel", "operator")


class Merging(NamedTuple):
    """How the rows of a table become rows of all traces.

    Attributes:
        keys: rows that agree in these are one.
        spread: the time or size whose smallest and largest trace are told.
        largest: fields of which the largest of all is told, though those of others are added up.
    """

    keys: tuple[str, ...]
    spread: str
    largest: tuple[str, ...] = ()

    @property
    def added(self) -> tuple[str, str, str]:
        """The fields that a merged row has beside those of the table: traces, least, and most."""
        unit = self.spread.rpartition("_")[2]
        return "traces", f"min_{unit}", f"max_{unit}"

    def sums(self, field: str) -> bool:
        """Whether this field is added up."""
        return field in _SUMS and field not in self.largest

    def rows(self, each: Iterable[tuple[int, Sequence[Row]]]) -> list[tuple[Row, int]]:
        """Rows of all traces, in the order of their keys, and the trace with the most of each.

        That is the first where several have it, and -1 where none has any. ``each``: numbers of
        traces, and their rows.
        """
        found: dict[tuple[str, ...], list[tuple[int, Row]]] = {}
        for trace, rows in each:
            for row in rows:
                key = tuple(repr(row.get(field)) for field in self.keys)
                found.setdefault(key, []).append((trace, row))
        return [self._merged(found[key]) for key in sorted(found)]

    def _merged(self, parts: Sequence[tuple[int, Row]]) -> tuple[Row, int]:
        rows = [row for _, row in parts]
        present = {field for row in rows for field in row} - {*self.keys}
        largest = self.largest or [f for f in _LARGEST_OF_ALL if f in present]
        sums = [field for field in _SUMS if field in present and field not in largest]
        rates, names = ([f for f in of if f in present] for of in (_RATES, _COUNTED))
        special = {*sums, *rates, *largest, *names, "share"}
        out: Row = {}
        for row in rows:
            for field, value in row.items():
                if field not in special and out.setdefault(field, value) != value:
                    out[field] = None
        out |= {field: _sum(row.get(field) for row in rows) for field in sums}
        for field in rates:
            whole = _sum(_product(row.get(field), row["total_ms"]) for row in rows)
            out[field] = None if whole is None or not out["total_ms"] else whole / out["total_ms"]
        out |= {field: _most(row.get(field) for row in rows) for field in largest}
        out |= {field: _counted(field, rows) for field in names}
        of_trace: dict[int, list[float | None]] = {}
        for trace, row in parts:
            of_trace.setdefault(trace, []).append(row.get(self.spread))
        both = _most if self.spread in largest else _sum
        known = {at: value for at, own in of_trace.items() if (value := both(own)) is not None}
        # Of equal ones, such as 0 and 0.0, the same in any order of the traces.
        ends = sorted(known.values(), key=lambda value: (value, isinstance(value, float)))
        least, most = (ends[0], ends[-1]) if ends else (None, None)
        out |= dict(zip(self.added, (len(of_trace), least, most), strict=True))
        return out, min((trace for trace, value in known.items() if value == most), default=-1)


def _sum(values: Iterable[float | None]) -> float | None:
    """Unknown if a part is."""
    parts = list(values)
    return None if None in parts else sum_of(parts)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _product(rate: float | None, weight: float | None) -> float | None:
    return None if rate is None or weight is None else rate * weight


def _counted(field: str, rows: Sequence[Row]) -> CountedNames | None:
    counts: dict[str, int] = {}
    for row in rows:
        value = row.get(field)
        one = [] if value is None else [(str(value), row.get("calls") or 0)]
        for name, count in value.parts if isinstance(value, CountedNames) else one:
            counts[name] = counts.get(name, 0) + count
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return CountedNames(ordered) if counts else None


# ---- The rows of a table for Python: a list of records.

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

    def table(self) -> Table:
        """The same as data, which can be sent, merged, and shown elsewhere."""
        adds_up = tuple(getattr(self[0], "ADDS_UP", ())) if self else ()
        return Table(self.to_dicts(), self.fields, self.columns, self.unknown, adds_up)

    def total(self) -> dict[str, Any]:
        """Sums of the fields that add up; None where no row has a value."""
        return self.table().total()

    def __str__(self) -> str:
        """The table as the command prints it, without cutting anything."""
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().html()


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
    body = [
        [shorten(escape.line(row.name), 48), *(_cell(row, column) for column in columns)]
        for row in shown
    ]
    left = [True, *[False] * len(columns)]
    text = "\n".join(aligned_columns(["operator", *columns], body, left, padding=2))
    more = len(rows) - len(shown)
    return f"{text}\n… and {more} more\n" if more else f"{text}\n"


def _value(row: OpRow, column: str) -> float:
    attribute, divisor, _ = OPS_COLUMNS[column]
    return float(getattr(row, attribute) or 0) / divisor


def _cell(row: OpRow, column: str) -> str:
    if getattr(row, OPS_COLUMNS[column][0]) is None:
        return UNKNOWN
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
