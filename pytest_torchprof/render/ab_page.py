"""The output of `torchprof ab` for people: heading, table, notes, and totals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_torchprof.core.samples import NOISY
from pytest_torchprof.core.units import plural
from pytest_torchprof.render import ab_table, escape, row_formats
from pytest_torchprof.render.findings import wrapped
from pytest_torchprof.render.text_width import shorten

if TYPE_CHECKING:
    from pytest_torchprof.render.ab_table import _Line
    from pytest_torchprof.verdict.paired_row import PairedRow

#: The most lines of each kind below the table, and the width of a test's name in them.
_MOST_LINES, _NAME = 12, 64
_NOISY = (
    f"calls took very different times (over ±{100 * NOISY:.0f} %); an idle machine, "
    "or OMP_NUM_THREADS=1 for small operators, helps:"
)
_BAD = ("slower", "failed", "error")


@dataclass(frozen=True)
class Page:
    """Everything to print; ``left`` counts hidden rows, ``every`` shows all notes."""

    heading: Sequence[str]
    rows: Sequence[PairedRow]
    left: int
    notes: Sequence[str]
    end: Sequence[str]
    every: bool = False


def text(page: Page, width: int) -> str:
    """For a terminal of this width."""
    cells, columns = ab_table.cells_of(page.rows, width)
    blocks = [wrapped(page.heading, width)]
    left = "".join(f"{line}\n" for line in _left(page))
    blocks.append(row_formats.text_table(cells, columns, width=width) + left)
    for head, lines in _below(page):
        joined = [_joined(line, _short, str) for line in lines]
        indented = [f"  {line}" for line in joined] if head else joined
        blocks.append(wrapped([head, *indented] if head else indented, width))
    # Not shortened, so that a search finds it.
    blocks.append("".join(f"{escape.line(line)}\n" for line in page.end))
    return "\n".join(blocks)


def page_markdown(page: Page) -> str:
    """For a comment on a pull request."""
    cells, columns = ab_table.cells_of(page.rows, None)
    for cell in cells:
        if cell["verdict"] in _BAD:
            cell["verdict"] = row_formats.strong(cell["verdict"])
    blocks = [
        _listed(map(escape.escape_markdown, page.heading)),
        row_formats.markdown_table(cells, columns),
    ]
    blocks += [escape.escape_markdown(line) for line in _left(page)]
    for head, lines in _below(page):
        blocks += [f"{escape.escape_markdown(head)}\n"] if head else []
        blocks.append(_listed(_joined(line, escape.code, escape.escape_markdown) for line in lines))
    blocks += [f"{escape.escape_markdown(line)}\n" for line in page.end]
    return "\n".join(blocks)


def _left(page: Page) -> list[str]:
    return [f"… and {plural(page.left, 'more row')}: --limit 0 shows all"] if page.left else []


def _below(page: Page) -> list[tuple[str, list[_Line]]]:
    """Blocks of notes below the table, each with its heading."""
    blocks = (
        ("", ab_table.reasons(page.rows)),
        ("exact metrics that differ:", ab_table.difference_lines(page.rows)),
        ("exact metrics were not compared:", ab_table.unprofiled(page.rows)),
        (_NOISY, ab_table.noisy(page.rows)),
        ("", [("", note) for note in page.notes]),
    )
    return [(head, _some(lines, every=page.every)) for head, lines in blocks if lines]


def _some(lines: list[_Line], *, every: bool) -> list[_Line]:
    """At most this many lines, and the number left out."""
    if every or len(lines) <= _MOST_LINES + 1:  # saying that one is left takes a line too
        return lines
    left = f"… and {len(lines) - _MOST_LINES} more: --limit 0 shows all"
    return [*lines[:_MOST_LINES], ("", left)]


def _listed(lines: Iterable[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)


def _joined(line: _Line, name: Callable[[str], str], text: Callable[[str], str]) -> str:
    """A note with the name of its test, if any, both escaped for the output."""
    return f"{name(line[0])}: {text(line[1])}" if line[0] else text(line[1])


def _short(name: str) -> str:
    return shorten(escape.line(name), _NAME)
