"""Rows as a table of HTML whose cells also have the exact values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_torchprof.core.counted_names import CountedNames
from pytest_torchprof.render.html.plots.svg import element, exact, shown
from pytest_torchprof.render.row_formats import cell, heading
from pytest_torchprof.render.text_width import end_of, width_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup

#: Names, which are set as code, and the letters of each that are shown; the tooltip has more.
_NAMES: Final = {
    "name": 44, "kernel": 30, "operator": 29, "shapes": 30, "what": 32, "location": 34,
    "path": 40, "where": 36, "module": 34, "stack": 44,
}  # fmt: skip
#: Names whose end tells most.
_ENDS: Final = frozenset({"location", "path", "where", "module", "stack"})
#: Sentences, which are wrapped.
_WORDS: Final = frozenset({"reason", "message", "fix"})


def data_table(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    fields: Sequence[str],
    *,
    numbered: bool = False,
    headings: Mapping[str, str] | None = None,
) -> Markup:
    """A table called ``name``; fields that no row has a value for are left out.

    Each cell of a number has it in ``data-value``, as ``--format json`` prints it; a number that is
    not known is ``null`` there.  ``numbered``: a first column counts the rows. ``headings`` of
    columns that need other words than usual.
    """
    headings = headings or {}
    used = [field for field in fields if any(row.get(field) is not None for row in rows)]
    numeric = {field for field in used if all(_is_number(row.get(field)) for row in rows)}
    head = [
        element(
            "th",
            headings.get(field) or heading(field).replace("_", " "),
            scope="col",
            data_field=field,
            class_="number" if field in numeric else None,
        )
        for field in used
    ]
    body = []
    for number, row in enumerate(rows, 1):
        cells = [_cell(field, row.get(field), field in numeric) for field in used]
        first = [element("td", str(number), class_="t-rank")] if numbered else []
        body.append(element("tr", *first, *cells))
    first = [element("th", "#", scope="col", class_="number")] if numbered else []
    table = element(
        "table",
        element("thead", element("tr", *first, *head)),
        element("tbody", *body),
        class_="data",
        data_table=name,
    )
    return element("div", table, class_="scroll")


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(field: str, value: Any, is_number: bool) -> Markup:
    if is_number:
        return element("td", cell(field, value), class_="number", data_value=exact(value))
    words = cell(field, value)
    if field == "cause":
        return element("td", words, class_="t-cause")
    if field in _WORDS:
        return element("td", shown(words, 400), class_="t-words")
    if field not in _NAMES or value is None:
        return element("td", shown(words, 80))
    whole = value if isinstance(value, CountedNames) or not isinstance(value, str) else str(value)
    full = shown(str(whole))
    width = _NAMES[field]
    if field in _ENDS and width_of(words) > width:
        short = f"…{end_of(words, width - 1)}"
    else:
        short = shown(words, width)
    return element(
        "td", element("code", short), class_="t-name", title=full if full != short else None
    )


def notes(lines: Sequence[str]) -> Markup | None:
    """What is to be known of the numbers above; None without lines."""
    if not lines:
        return None
    return element("ul", *(element("li", shown(line, 600)) for line in lines), class_="t-notes")


def metrics_table(heads: Sequence[tuple[str, str | None]], body: Sequence[Markup]) -> Markup:
    """A table of metrics, of rows that are made; each heading with the class of its column."""
    head = [element("th", words, scope="col", class_=class_) for words, class_ in heads]
    table = element(
        "table",
        element("thead", element("tr", *head)),
        element("tbody", *body),
        class_="data",
        data_table="metrics",
    )
    return element("div", table, class_="scroll")
