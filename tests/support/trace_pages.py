"""Numbers of a page about traces, as a browser finds them."""

from __future__ import annotations

import json
from typing import Any

from support.html_pages import Element

Row = dict[str, Any]


def number_of(element: Element) -> Any:
    """The exact value of a cell or a mark."""
    return json.loads(element.attributes["data-value"] or "")


def table_of(page: Element, name: str) -> list[Row]:
    """The numbers of a table, by field; cells of text are left out."""
    table = page.one("table", data_table=name)
    fields = [th.attributes.get("data-field") for th in table.one("thead").every("th")]
    rows = []
    for tr in table.one("tbody").every("tr"):
        cells = [cell for cell in tr.children if isinstance(cell, Element)]
        rows.append({
            field: number_of(cell)
            for field, cell in zip(fields, cells, strict=True)
            if field and "data-value" in cell.attributes
        })  # fmt: skip
    return rows


def tables_of(page: Element) -> list[str]:
    """Their names."""
    return [table.attributes["data-table"] or "" for table in page.every("table", class_="data")]


def metrics_of(page: Element) -> dict[str, Any]:
    """The table of metrics."""
    rows = page.one("table", data_table="metrics").one("tbody").every("tr")
    return {
        row.attributes["data-metric"] or "": number_of(
            next(cell for cell in row.every("td") if "data-value" in cell.attributes)
        )
        for row in rows
    }


def plots_of(page: Element, name: str) -> list[Element]:
    """The plots of this name."""
    return page.every("svg", data_plot=name)


def marks_of(plot: Element) -> list[Any]:
    """The number of each mark that has one."""
    return [number_of(g) for g in plot.every("g") if "data-value" in g.attributes]


def assert_drawn_well(plot: Element) -> None:
    """It has a text alternative, a title in each mark, and its coordinates are numbers."""
    assert plot.attributes["role"] == "img"
    assert plot.attributes["aria-label"]
    for g in plot.every("g"):
        assert g.one("title").text
    text = json.dumps([e.attributes for tag in ("rect", "path", "circle", "line", "text")
                       for e in plot.every(tag)])  # fmt: skip
    assert "nan" not in text
    assert "inf" not in text
    for rect in plot.every("rect"):
        assert float(rect.attributes["width"] or "") >= 0
        assert float(rect.attributes["height"] or "") >= 0
