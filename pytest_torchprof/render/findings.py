"""Findings as text: one block per rule, with its places, their cost, and the fix once."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_torchprof.core.units import UNKNOWN, format_quantity, plural
from pytest_torchprof.render import escape
from pytest_torchprof.render.text_width import end_of, shorten, width_of

FindingRow = Mapping[str, Any]

#: Narrower than this, text is cut to nothing.
_LEAST = 40
_GAP = "  "


def findings(
    rows: Sequence[FindingRow], width: int, every: Sequence[FindingRow] | None = None
) -> str:
    """A block per rule, costliest first, with its places in the order of the rows.

    Headings count ``every`` row, including those not shown.
    """
    width, text = max(width, _LEAST), list[str]()
    for rule in by_cost(every or rows):
        mine = [row for row in rows if row["rule"] == rule]
        whole = [row for row in every or rows if row["rule"] == rule]
        text.append("\n".join(_block(rule, mine, whole, width)))
    return "\n\n".join(text) + "\n"


def by_cost(rows: Sequence[FindingRow]) -> list[str]:
    """The rules that found something, costliest first."""
    cost: dict[str, float] = {}
    for row in rows:
        cost[row["rule"]] = cost.get(row["rule"], 0) + (row["cost_ms"] or 0)
    return sorted(cost, key=lambda rule: (-cost[rule], rule))


def rule_totals(rows: Sequence[FindingRow], *, bytes: bool = True) -> str:  # noqa: A002
    """The totals of a rule: ``3 matches in 2 places, 12.3 ms to gain (1.5 %)``."""
    count = sum(row["count"] for row in rows)
    matches = f"{count:,} match{'' if count == 1 else 'es'}"
    parts = [f"{matches} in {plural(len(rows), 'place')}"]
    if gains := _gains(rows):
        parts.append(gains)
    if bytes and (moved := sum(row["bytes"] or 0 for row in rows)):
        parts.append(format_quantity(moved, "B"))
    return ", ".join(parts)


def _gains(rows: Sequence[FindingRow]) -> str:
    """What can be gained, with its share of the time; of several ranks, which gain it side by side,
    the most.
    """
    costs: dict[object, float] = {}
    for row in rows:
        if row["cost_ms"] is not None:
            whose = row.get("rank", row.get("trace"))
            costs[whose] = costs.get(whose, 0) + row["cost_ms"]
    if not costs:
        return ""
    most = f"{format_quantity(max(costs.values()), 'ms')} to gain"
    if {*costs} - {None}:
        return f"up to {most} on a {'rank' if 'rank' in rows[0] else 'trace'}"
    shares = [row["share"] for row in rows if row.get("share") is not None]
    return f"{most} ({100 * sum(shares):.3g} %)" if shares else most


def _block(
    rule: str, rows: Sequence[FindingRow], whole: Sequence[FindingRow], width: int
) -> list[str]:
    lines = _wrap(f"{rule}: {rule_totals(whole)}", width, "", "  ")
    shared = len({row["message"] for row in whole}) == 1
    if shared:
        lines += _wrap(whole[0]["message"], width, "  ", "  ")
    columns = [_numbers(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*columns, strict=True)]
    for row, cells in zip(rows, columns, strict=True):
        padded = [cell.rjust(w) for cell, w in zip(cells, widths, strict=True) if w]
        lines += _place(row, _GAP + _GAP.join(padded) + _GAP, width, tell=not shared)
    if left := len(whole) - len(rows):
        lines.append(f"  … and {plural(left, 'more place')}")
    for fix in dict.fromkeys(row["fix"] for row in whole if row["fix"]):
        lines += _wrap(f"fix: {fix}", width, "  ", "       ")
    return lines


def _numbers(row: FindingRow) -> tuple[str, ...]:
    rank = f"rank {row['rank']}" if "rank" in row else escape.line(row.get("trace", ""))
    cost = UNKNOWN if row["cost_ms"] is None else format_quantity(row["cost_ms"], "ms")
    moved = format_quantity(row["bytes"], "B") if row["bytes"] else ""
    return rank, f"×{row['count']:,}", cost, moved


def _place(row: FindingRow, head: str, width: int, *, tell: bool) -> list[str]:
    """The lines of a place."""
    room = width - len(head)
    location, path, module = (escape.line(row[key] or "") for key in ("location", "path", "module"))
    if location == path:  # the line is unknown
        path = ""
    parts = [_tail(location, room) if path else shorten(location, room)] if location else []
    parts += [shorten(path, room)] if path else []
    more = more_modules(module, row["modules"])
    parts += [f"in {_tail(module, room - 3 - len(more))}{more}"] if module else []
    if tell:
        parts += textwrap.wrap(escape.line(row["message"]), room)
    lines = list[str]()
    for part in parts or [UNKNOWN]:
        if lines and width_of(lines[-1]) + len(_GAP) + width_of(part) <= room:
            lines[-1] += _GAP + part
        else:
            lines.append(part)
    return [(head if n == 0 else " " * len(head)) + line for n, line in enumerate(lines)]


def more_modules(module: str | None, modules: int | None) -> str:
    """`` (3 modules)`` after the common path of several, `` and 2 more modules`` after that of the
    first; empty for a single one.
    """
    if (modules or 1) == 1:
        return ""
    if module and "*" in module:
        return f" ({modules} modules)"
    return f" and {plural((modules or 1) - 1, 'more module')}"


def _tail(text: str, width: int) -> str:
    """The end of a location or module, which tells the most."""
    return text if width_of(text) <= width else f"…{end_of(text, width - 1)}"


def wrapped(lines: Iterable[str], width: int) -> str:
    """Text wrapped to this width, line by line."""
    width = max(width, _LEAST)
    return "".join(f"{line}\n" for long in lines for line in _wrap(long, width, "", "  "))


def _wrap(text: str, width: int, first: str, then: str) -> list[str]:
    return textwrap.wrap(
        escape.line(text), width, initial_indent=first, subsequent_indent=then,
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


def gaps(title: str, why: Mapping[str, str]) -> list[str]:
    """``not checked: a, b (no accelerator in this capture); c (recorded without shapes)``.

    >>> gaps("not checked", {"a": "no shapes", "b": "no device", "c": "no shapes"})
    ['not checked: a, c (no shapes); b (no device)']
    """
    reasons: dict[str, list[str]] = {}
    for rule, reason in why.items():
        reasons.setdefault(reason, []).append(rule)
    listed = "; ".join(f"{', '.join(rules)} ({reason})" for reason, rules in reasons.items())
    return [f"{title}: {listed}"] if listed else []


def listing(rows: Iterable[tuple[str, str, str]], width: int) -> str:
    """Name, sentence and details, wrapped beside the names."""
    rows = list(rows)
    indent = max((len(name) for name, _, _ in rows), default=0) + len(_GAP)
    lines = list[str]()
    for name, sentence, details in rows:
        wide = max(width, indent + 20)
        lines += _wrap(sentence, wide, name.ljust(indent), " " * indent)
        if details:
            lines += _wrap(details, wide, " " * indent, " " * indent)
    return "\n".join(lines) + "\n"
