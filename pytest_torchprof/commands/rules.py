"""`torchprof rules`: the anti-pattern rules, or the page of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.commands.inputs import rule_book
from pytest_torchprof.commands.printing import TableRow, print_table, terminal_width, write
from pytest_torchprof.core.errors import SettingsError, near
from pytest_torchprof.render import findings as text
from pytest_torchprof.render import row_formats
from pytest_torchprof.render.rule_page import defaults, page, page_of

if TYPE_CHECKING:
    from argparse import Namespace

    from pytest_torchprof.rules.engine.rule import Rule


def run_rules(options: Namespace) -> int:
    """The anti-pattern rules, or the page of one."""
    book = rule_book()
    if options.code is not None and options.code not in book:
        known = near(options.code, book)
        raise SettingsError(f"there is no anti-pattern rule {options.code!r}. {known}")
    chosen = [rule for rule in book.values() if options.code in (None, rule.code)]
    rows = [_row(rule) for rule in chosen]
    if options.format == "json":
        if options.code is not None:
            rows[0]["text"] = page(chosen[0])
        return write(row_formats.to_json({"schema": "torchprof-rules/1", "rows": rows}))
    if options.code is not None and options.format != "csv":
        return write(page(chosen[0]).partition("\n\n")[2])
    for row, rule in zip(rows, chosen, strict=True):
        row["needs"], row["thresholds"] = " ".join(row["needs"]), ", ".join(defaults(rule))
    if options.format == "table":
        listed = [(row["rule"], row["summary"], _details(row)) for row in rows]
        return write(
            text.listing(listed, terminal_width()) + "\ntorchprof rules RULE explains one\n"
        )
    return print_table(options, rows, ("rule", "summary", "needs", "thresholds", "fix", "page"))


def _row(rule: Rule) -> TableRow:
    thresholds = [
        {"name": name, "default": t.default, "unit": t.unit, "why": t.why}
        for name, t in rule.thresholds.items()
    ]
    return {
        "rule": rule.code,
        "summary": rule.summary,
        "needs": sorted(rule.needs),
        "thresholds": thresholds,
        "fix": rule.fix,
        "page": page_of(rule.code),
    }


def _details(row: TableRow) -> str:
    needs = f"needs {row['needs'].replace(' ', ', ')}" if row["needs"] else ""
    return "; ".join(filter(None, [needs, row["thresholds"]]))
