"""What `torchprof ab` prints for people: heading, table, what is below it, and the last line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_torchprof.render import ab_table, tables
from pytest_torchprof.render.findings import wrapped
from pytest_torchprof.render.text import plural, shorten
from pytest_torchprof.samples import NOISY

if TYPE_CHECKING:
    from pytest_torchprof.paired import Row

#: Lines below the table, of each kind; and the width of a test's name in them.
_MOST_LINES, _NAME = 12, 64
_NOISY = (
    f"calls took very different times (over ±{100 * NOISY:.0f} %); an idle machine, "
    "or OMP_NUM_THREADS=1 for small operators, helps:"
)
_BAD = ("slower", "failed", "error")


@dataclass(frozen=True)
class Page:
    """All that is printed; ``left`` rows are not, and with ``every`` no line is left out."""

    heading: Sequence[str]
    rows: Sequence[Row]
    left: int
    notes: Sequence[str]
    end: Sequence[str]
    every: bool = False


def text(page: Page, width: int) -> str:
    """For a terminal of this width."""
    cells, columns = ab_table.cells_of(page.rows, width)
    blocks = [wrapped(page.heading, width)]
    blocks.append(tables.table(cells, columns, width=width) + "".join(_left(page)))
    for head, lines in _below(page, _short):
        indented = [f"  {line}" for line in lines] if head else lines
        blocks.append(wrapped([head, *indented] if head else indented, width))
    blocks.append("".join(f"{line}\n" for line in page.end))  # whole, to be found by a search
    return "\n".join(blocks)


def markdown(page: Page) -> str:
    """For a comment on a pull request."""
    cells, columns = ab_table.cells_of(page.rows, None)
    for cell in cells:
        cell["test"] = _code(cell["test"])
        if cell["verdict"] in _BAD:
            cell["verdict"] = f"**{cell['verdict']}**"
    blocks = [_listed(page.heading), tables.markdown(cells, columns), *_left(page)]
    for head, lines in _below(page, _code):
        blocks += [f"{head}\n"] if head else []
        blocks.append(_listed(lines))
    blocks += [f"{line}\n" for line in page.end]
    return "\n".join(blocks)


def _left(page: Page) -> list[str]:
    return [f"… and {plural(page.left, 'more row')}: --limit 0 shows all\n"] if page.left else []


def _below(page: Page, name: Callable[[str], str]) -> list[tuple[str, list[str]]]:
    """Blocks of lines below the table, each with what stands above it."""
    blocks = (
        ("", ab_table.reasons(page.rows, name)),
        ("exact metrics that differ:", ab_table.differences(page.rows, name)),
        ("exact metrics were not compared:", ab_table.unprofiled(page.rows, name)),
        (_NOISY, ab_table.noisy(page.rows, name)),
        ("", list(page.notes)),
    )
    return [(head, _some(lines, every=page.every)) for head, lines in blocks if lines]


def _some(lines: list[str], *, every: bool) -> list[str]:
    """At most so many lines, and how many are left."""
    if every or len(lines) <= _MOST_LINES + 1:  # to say that one is left takes a line, too
        return lines
    return [*lines[:_MOST_LINES], f"… and {len(lines) - _MOST_LINES} more: --limit 0 shows all"]


def _listed(lines: Sequence[str]) -> str:
    return "".join(f"- {line}\n" for line in lines)


def _short(name: str) -> str:
    return shorten(tables.printable(name), _NAME)


def _code(name: str) -> str:
    """Underscores and brackets of a name are no markup."""
    return f"`{tables.printable(name)}`"
