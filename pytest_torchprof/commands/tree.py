"""The tree of `torchprof ops --by module` and `--by stack`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.analysis.call_tree import call_tree
from pytest_torchprof.analysis.tree_rows import TreeRow
from pytest_torchprof.commands.printing import (
    TABLE_ROWS,
    TableRow,
    columns_of,
    print_table,
    total_of,
    with_rank,
)
from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.units import plural
from pytest_torchprof.render import row_formats
from pytest_torchprof.render.rows import fields_of

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.parts import Parts
    from pytest_torchprof.commands.printing import Table

#: Columns of a table, which has no room for all; depth and path are its indentation.
_COLUMNS = (
    *("name", "calls", "self_cpu_ms", "cpu_ms", "self_cuda_ms", "cuda_ms", "share", "kernels"),
    *("flops", "cpu_bytes", "cuda_bytes"),
)
#: By which siblings can be sorted; text cannot.
_SORTED = tuple(f for f in fields_of(TreeRow) if f not in {"name", "path"})
#: A field, by its name or a table's heading.
_FIELDS = {row_formats.heading(name): name for name in _SORTED}
#: Numbers of subtrees, whose total is that of the own ones.
_WHOLE = ("kernels", "flops", "cpu_bytes", "cuda_bytes")
_INDENT = "  "


def trees_of(options: Namespace, parts: Parts, trees: Mapping[int, Table]) -> list[TableRow]:
    """The rows of all traces: each one's tree in its order, the largest if there is a limit."""
    field = _FIELDS.get(options.sort, options.sort)
    rows: list[TableRow] = []
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
        return print_table(options, flat, columns_of(parts, fields_of(TreeRow)))
    if options.limit is None and options.format == "table":
        shown = _largest(shown, TABLE_ROWS)
    if left := sum(len(tree.rows) for tree in trees.values()) - len(shown):
        more = f"… and {plural(left, 'more row')}, with smaller shares: --limit 0 shows all"
        notes = [more, *notes]
    fields = columns_of(parts, _COLUMNS)
    sums = total_of(trees.values())
    total = {field: sums[f"self_{field}"] for field in _WHOLE if f"self_{field}" in sums}
    return print_table(
        options,
        [{**row, "name": _indented(row, options.format)} for row in shown],
        fields,
        total={fields[0]: "total", **sums, **total} if shown and not parts.apart else None,
        head=parts.heading,
        notes=notes,
    )


def tree_note(trace: Trace, by: str) -> str:
    """A note on what the tree is of, if it is not what was asked for."""
    labels = call_tree(trace.events, "module" if by == "module" else "stack").labels
    return "the tree is of annotations" if labels == "annotation" else ""


def _indented(row: TableRow, form: str) -> str:
    """The name of a row: how many share it, and how deep it is."""
    times = f" ×{row['count']}" if row["count"] > 1 else ""
    # Markdown drops leading blanks.
    indent = _INDENT if form == "table" else "· "
    return f"{indent * (row['depth'] - 1)}{row['name']}{times}"


def _largest(rows: list[TableRow], limit: int) -> list[TableRow]:
    """So many rows with the largest share, in the order of the tree; parents before children."""
    order = sorted(
        range(len(rows)), key=lambda at: (-(rows[at]["share"] or 0), -rows[at]["cpu_ms"], at)
    )
    return [rows[at] for at in sorted(order[:limit])]


def _sorted(rows: list[TableRow], field: str) -> list[TableRow]:
    """The tree with siblings in the order of this field, the largest first."""
    below: dict[tuple[str, ...], list[TableRow]] = {}
    for row in rows:
        below.setdefault(tuple(row["path"][:-1]), []).append(row)
    for siblings in below.values():
        siblings.sort(key=lambda row: -(row[field] or 0))
    out: list[TableRow] = []
    stack = below.get((), [])[::-1]
    while stack:
        out.append(row := stack.pop())
        if row["path"]:
            stack += below.get(tuple(row["path"]), [])[::-1]
    return out
