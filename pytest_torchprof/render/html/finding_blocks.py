"""What the rules found in a trace: a block for each rule, with places, gain and fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.units import format_quantity, plural
from pytest_torchprof.render.findings import by_cost, gaps, more_modules, rule_totals
from pytest_torchprof.render.html.data_table import data_table, notes
from pytest_torchprof.render.html.plots.svg import element, exact, nothing, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from markupsafe import Markup

    from pytest_torchprof.render.html.trace_facts import Found, Row

#: Places of a rule that are shown.
PLACES: Final = 10
_FIELDS: Final = ("count", "cost_ms", "share", "bytes", "location", "path", "module", "message")


def findings(found: Found) -> Iterable[Markup | None]:
    """The costliest rule first, then what was not checked."""
    if not found.rows:
        yield nothing("no findings")
    for rule in by_cost(found.rows):
        yield _block(rule, [row for row in found.rows if row["rule"] == rule])
    lines = [*gaps("not checked", found.unchecked), *gaps("failed, so not checked", found.errors)]
    yield notes([*lines, *found.notes])


def _block(rule: str, rows: Sequence[Row]) -> Markup:
    known = [row["cost_ms"] for row in rows if row["cost_ms"] is not None]
    gain = sum(known) if known else None
    words = f"{format_quantity(gain, 'ms')} to gain" if gain is not None else "unknown gain"
    one_message = len({row["message"] for row in rows}) == 1
    fields = [field for field in _FIELDS if field != "message" or not one_message]
    places = [{**row, "module": _module(row), "path": _path(row)} for row in rows[:PLACES]]
    for place in places:
        place["bytes"] = place["bytes"] or None
    left = len(rows) - PLACES
    more = f"{plural(left, 'more place')}: torchprof lint --limit 0 shows all" if left > 0 else ""
    fixes = dict.fromkeys(row["fix"] for row in rows if row["fix"])
    return element(
        "div",
        element(
            "h3",
            element("code", rule),
            element("span", _matches(rows), class_="quiet"),
            element("span", words, class_="t-gain", data_value=exact(gain)),
        ),
        element("p", shown(rows[0]["message"], 400)) if one_message else None,
        *(element("p", element("b", "Fix: "), shown(fix, 400), class_="t-fix") for fix in fixes),
        data_table(f"findings-{rule}", places, fields, headings={"cost_ms": "gain"}),
        notes([more] if more else []),
        class_="t-finding",
        data_rule=rule,
    )


def _matches(rows: Sequence[Row]) -> str:
    """How often, and in how many places."""
    return rule_totals([{**row, "cost_ms": None} for row in rows])


def _path(row: Row) -> str | None:
    """The operators; None where the location is the same."""
    return None if row["path"] == row["location"] else row["path"]


def _module(row: Row) -> str | None:
    module = row["module"]
    return f"{module}{more_modules(module, row['modules'])}" if module else None
