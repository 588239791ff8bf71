"""`torchprof lint` and `rules`: anti-patterns of a trace, the costliest first."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytest_torchprof.analysis.communication import collectives
from pytest_torchprof.analysis.rank_waits import rank_calls, waits_between
from pytest_torchprof.commands.inputs import SHOWN, part_of, rule_book, warn
from pytest_torchprof.commands.tables import (
    FAILED,
    FINDINGS,
    OK,
    added_fields,
    ask,
    at_steps,
    columns_of,
    document,
    limited,
    merged,
    print_table,
    rows_of_each,
    terminal_width,
    write,
)
from pytest_torchprof.core.errors import SettingsError, near
from pytest_torchprof.core.units import plural
from pytest_torchprof.core.values import Finding
from pytest_torchprof.render import ci as reports
from pytest_torchprof.render import findings as text
from pytest_torchprof.render.ci import MOST_ANNOTATIONS, plain_line, workflow_commands
from pytest_torchprof.render.findings import defaults, page, page_of
from pytest_torchprof.render.table import Table, fields_of, to_json
from pytest_torchprof.rules.exposed_communication import exposed_communication
from pytest_torchprof.rules.registry import check_chosen
from pytest_torchprof.rules.rule import codes, parse_thresholds, span_ns
from pytest_torchprof.trace.names import Kind, communicates
from pytest_torchprof.trace.nesting import among

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Collection, Mapping, Sequence

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.inputs import Body, Parts
    from pytest_torchprof.render.table import Row
    from pytest_torchprof.rules.check import Checked
    from pytest_torchprof.rules.rule import Rule
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


# ---- Formats of `torchprof lint` that services of CI read.

CI_FORMATS = ("github", "gitlab", "sarif")


def print_for_ci(
    options: Namespace,
    parts: Row,
    worth: list[Row],
    rules: Sequence[Rule],
    *,
    log: Sequence[str],
    hidden: Sequence[str],
) -> None:
    """Print findings that gain enough, the costliest first; lines are relative to this folder.

    ``log`` has the lines below annotations. ``hidden``: how many findings gain too little.
    """
    here = Path.cwd()
    if options.format == "github":
        most = min(options.limit or MOST_ANNOTATIONS, MOST_ANNOTATIONS)
        lines = workflow_commands(reports.annotations_of(worth, here), most)
        write("".join(f"{line}\n" for line in (*lines, *map(plain_line, log))))
        return
    shown, left = limited(options, worth)
    if options.format == "gitlab":
        text, placeless = reports.code_quality(shown, here)
        write(text)
        if placeless:
            what = f"{plural(placeless, 'finding')} without a line of a file here"
            warn(f"left out: {what}; --format table shows all")
        if left:
            warn(f"left out: {plural(left, 'finding')}; --limit 0 shows all")
        return
    unchecked = {**parts["unchecked"], **parts["errors"]}
    told = [f"left out: {plural(left, 'finding')}; --limit 0 shows all"] if left else []
    write(
        reports.sarif(
            shown, rules, here, unchecked=unchecked, notes=[*told, *hidden, *parts["notes"]]
        )
    )


# ---- `torchprof lint`: anti-patterns of a trace, the costliest first.

#: Formats with all fields of a finding.
_WHOLE = ("csv", "parquet")
#: A finding that waits for other ranks may make.
_EXPOSED = exposed_communication.code
_GAIN = exposed_communication.thresholds["gain"].default
#: Columns of a finding in a Markdown table.
_MARKDOWN = (
    *("rule", "count", "cost_ms", "share", "bytes"),
    *("location", "module", "path", "message", "fix"),
)


def run_lint(options: Namespace) -> int:
    """Anti-patterns, the costliest first."""
    book = rule_book()
    ignored = codes(options.ignore, book)
    parse_thresholds(options.thresholds, book.values())  # report errors before a long read
    found = ask(
        options,
        "commands.lint:lint_part",
        ignored=sorted(ignored),
        thresholds=options.thresholds,
    )
    _without_waits(found)
    rows, added = _by_cost(rows_of_each(found, found.each("findings"))), tuple[str, ...]()
    if options.merge:
        rows, added = _merged(found), added_fields(FINDINGS, found)
    unchecked = _reasons(found, found.each("gaps"))
    errors = _reasons(found, found.each("errors"))
    wanted = len(book.keys() - ignored)
    idle = not wanted or wanted in found.each("unchecked").values()
    blind = blind_lines(found, found.each("blind"), wanted)
    worth = _worth(options, rows, {code for code, rule in book.items() if rule.memory})
    shown, left = _limited(options, worth)
    parts: Row = {
        "findings": shown,
        "unchecked": unchecked,
        "errors": errors,
        "left_out": left,
    }
    hidden = _hidden([row for row in rows if row not in worth], options.min_gain)
    parts["notes"] = blind
    # What no stored trace can tell is on the rule's page, not below each result.
    stored = {code: why for code, why in unchecked.items() if "live" not in book[code].needs}
    told = {**parts, "unchecked": stored}
    if options.format == "json":
        write(to_json(document("lint", found, parts)))
    elif options.format in CI_FORMATS:
        rules = [rule for code, rule in book.items() if code not in ignored]
        log = _notes({**told, "left_out": 0}, [], ignored, hidden, idle=idle)
        print_for_ci(options, parts, worth, rules, log=log, hidden=hidden)
    elif options.format == "table":
        width = terminal_width()
        body = text.findings(shown, width, worth) if worth else "" if rows else "no findings\n"
        notes = _notes(told, worth, ignored, hidden, idle=idle)
        blocks = [found.heading + "\n", body, text.wrapped(notes, width)]
        write("\n".join(block for block in blocks if block))
    else:
        every = (*fields_of(Finding), "page", "share")
        shown_fields = every if options.format in _WHOLE else _MARKDOWN
        fields = [*shown_fields, *added] if added else columns_of(found, shown_fields)
        notes = _notes(told, worth, ignored, hidden, idle=idle)
        table = Table(shown, fields)
        print_table(options, table, head=found.heading, notes=notes, several=found)
    return found.status(FAILED if options.fail and (rows or errors or blind) else OK)


def lint_part(trace: Trace, settings: Mapping[str, Any]) -> Body:
    """What is needed of one trace."""
    trace = at_steps(trace, settings)
    found = check_chosen(trace.events, settings["ignored"], settings["thresholds"])
    return part_of(
        trace,
        findings=finding_rows(trace, found),
        span_ms=span_ns(trace.events) / 1e6,
        exposed=_exposed(trace.events, found),
        calls=rank_calls(trace.events) if communicates(trace.events) else None,
        gaps={rule: why.text for rule, why in found.gaps.items()},
        errors=dict(found.errors),
        unchecked=len(found.unchecked),
        blind=what_was_blind(trace, found),
    )


def _exposed(trace: Events, found: Checked) -> dict[str, tuple[Ints, Ints, Ints]]:
    """By kind, of collectives that are not hidden: when each ended, how long it took, and what is
    to gain, in ns.
    """
    if _EXPOSED not in found.counts:
        return {}
    each = collectives(trace)
    mine = {kind: np.flatnonzero(among(each.kind, [kind])) for kind in {*each.kind}}
    ends, took = trace.ts[each.event] + trace.dur[each.event], trace.dur[each.event]
    return {kind: (ends[at], took[at], each.gain_ns[at]) for kind, at in mine.items()}


def _without_waits(found: Parts) -> None:
    """Of what is not hidden, only the transfer counts: a wait for another rank would still be one.

    What then gains too little is no finding.
    """
    calls = {rank: one for rank, one in found.each("calls").items() if one is not None}
    if found.apart or len(calls) < 2 or not any(found.each("exposed").values()):
        return
    waited = waits_between(calls).own_ns
    for rank, exposed in found.each("exposed").items():
        share = dict[str, float]()
        for kind, (end, took, gain) in exposed.items():
            at = np.minimum(calls[rank].end.searchsorted(end), len(calls[rank]) - 1)
            known = (calls[rank].end[at] == end) & (waited[rank][at] >= 0)
            left = np.where(known, np.minimum(gain, took - waited[rank][at]), gain)
            share[kind] = float(left.clip(0).sum() / max(gain.sum(), 1))
        kept = []
        for row in found[rank].body.values["findings"]:
            kinds = [one for one in share if row["message"].startswith(f"{one} ")]
            if row["rule"] == _EXPOSED and kinds and row["cost_ms"] is not None:
                row["cost_ms"] *= share[kinds[0]]
                row["share"] = _share(row["cost_ms"], found[rank].body.values["span_ms"])
                if share[kinds[0]] < 1 and (row["share"] or 0) < _GAIN:
                    continue
            kept.append(row)
        found[rank].body.values["findings"] = _by_cost(kept)


def finding_rows(trace: Trace, found: Checked) -> list[Row]:
    """Findings of one trace, the costliest first."""
    span_ms = span_ns(trace.events) / 1e6
    # What dynamo recorded is from an earlier run.
    noted = trace.events.facts.compiled is not None
    elsewhere = {rule.code for rule in found.matches if noted and rule.gated_by is not None}
    rows = [
        {
            **vars(finding),
            "page": page_of(finding.rule),
            "share": None if finding.rule in elsewhere else _share(finding.cost_ms, span_ms),
        }
        for finding in found.findings()
    ]
    return _by_cost(rows)


def _merged(found: Parts) -> list[Row]:
    """Findings over all traces; shares are of the time of all."""
    rows = merged(FINDINGS, found, found.each("findings"))
    span_ms = math.fsum(found.each("span_ms").values())
    return _by_cost([{**row, "share": _share(row["cost_ms"], span_ms)} for row in rows])


def _by_cost(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: 1 if row["cost_ms"] is None else -row["cost_ms"])


def _share(cost_ms: float | None, span_ms: float) -> float | None:
    """Of the time, from 0 to 1."""
    return None if cost_ms is None or not span_ms else cost_ms / span_ms


def _worth(options: Namespace, rows: list[Row], memory: Collection[str]) -> list[Row]:
    """Those that gain enough to be shown, an unknown time, or memory, as these rules say.

    JSON and CSV have all.
    """
    if options.format in ("json", *_WHOLE):
        return rows
    least = options.min_gain / 100
    return [
        row
        for row in rows
        if row["rule"] in memory or row["share"] is None or row["share"] >= least
    ]


def _hidden(rows: list[Row], min_gain: float) -> list[str]:
    """How many findings gain too little to be shown, and their rules, if any do."""
    if not rows:
        return []
    gains = "gains" if len(rows) == 1 else "gain"
    less = f"{gains} less than {min_gain:g} % of the time"
    rules = ", ".join(dict.fromkeys(row["rule"] for row in rows))
    return [f"hidden: {plural(len(rows), 'place')} that {less} (--min-gain 0 shows all): {rules}"]


def _limited(options: Namespace, rows: list[Row]) -> tuple[list[Row], int]:
    """The rows that are printed, and how many are not. A table has the costliest of each rule."""
    if options.format != "table":
        return limited(options, rows)
    before: Counter[str] = Counter()
    places = []
    for row in rows:
        places.append(before[row["rule"]])
        before[row["rule"]] += 1
    order = sorted(range(len(rows)), key=places.__getitem__)
    chosen, left = limited(options, [{"at": at} for at in order])
    return [rows[at] for at in sorted(row["at"] for row in chosen)], left


def _reasons(several: Parts, why: Mapping[int, Mapping[str, str]]) -> dict[str, str]:
    """Reasons by rule, with the rank unless all ranks agree."""
    reason_by_rule: dict[str, str] = {}
    for rule in dict.fromkeys(rule for reasons in why.values() for rule in reasons):
        whose = {rank: reasons[rule] for rank, reasons in why.items() if rule in reasons}
        distinct = set(whose.values())
        if len(whose) == len(several) and len(distinct) == 1:
            reason_by_rule[rule] = distinct.pop()
            continue
        each = [f"{several.label(rank)}: {reason}" for rank, reason in whose.items()]
        more = [f"and on {len(each) - SHOWN} more"] if len(each) > SHOWN else []
        reason_by_rule[rule] = ", ".join([*each[:SHOWN], *more])
    return reason_by_rule


class Blind(NamedTuple):
    """Why a result without findings is not clean: ``unchecked`` rules, or the trace's own."""

    unchecked: int
    why: str
    own: str


def what_was_blind(trace: Trace, found: Checked) -> Blind:
    """What a result of this trace does not cover."""
    why = next((why.text for why in found.unchecked.values()), "")
    own = ""
    if trace.events.region is None and not trace.events.is_kind(Kind.OP).any():
        own = "recorded without operators: rules about operators had nothing to check"
    elif trace.events.cut:
        own = "the file is truncated: the missing part was not checked"
    return Blind(len(found.unchecked), why, own)


def blind_lines(several: Parts, each: Mapping[int, Blind], wanted: int) -> list[str]:
    """Why a result without findings is not clean, of so many rules."""
    if not wanted:
        return ["nothing was checked: every rule is ignored"]
    lines = several.unread
    for rank, one in each.items():
        if one.unchecked == wanted:
            lines.append(f"{several.mark(rank)}nothing was checked: {one.why}")
        elif one.own:
            lines.append(f"{several.mark(rank)}{one.own}")
    return lines


def _notes(
    parts: Row,
    rows: list[Row],
    ignored: frozenset[str],
    hidden: list[str],
    *,
    idle: bool,
) -> list[str]:
    """The notes below the findings; ``idle``: nothing was checked, in one file at least.

    ``hidden``: how many findings are not shown, in words.
    """
    lines: list[str] = []
    if left := parts["left_out"]:
        lines.append(f"… and {plural(left, 'more place')}: --limit 0 shows all")
    if rows:
        every = {row["rule"] for row in rows}
        # Several rules may count the same bytes.
        lines.append(f"{text.rule_totals(rows, bytes=False)}, by {plural(len(every), 'rule')}")
    lines += hidden
    if not idle:
        lines += text.gaps("not checked", parts["unchecked"])
    if ignored:
        lines.append(f"ignored: {', '.join(sorted(ignored))}")
    lines += text.gaps("failed, so not checked", parts["errors"])
    lines += parts["notes"]
    if rows:
        lines.append(f"torchprof rules {text.by_cost(rows)[0]} explains it with examples")
    return lines


# ---- `torchprof rules`: the anti-pattern rules, or the page of one.


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
        return write(to_json({"schema": "torchprof-rules/1", "rows": rows}))
    if options.code is not None and options.format != "csv":
        return write(page(chosen[0]).partition("\n\n")[2])
    for row, rule in zip(rows, chosen, strict=True):
        row["needs"], row["thresholds"] = " ".join(row["needs"]), ", ".join(defaults(rule))
    if options.format == "table":
        listed = [(row["rule"], row["summary"], _details(row)) for row in rows]
        return write(
            text.listing(listed, terminal_width()) + "\ntorchprof rules RULE explains one\n"
        )
    fields = ("rule", "summary", "needs", "thresholds", "fix", "page")
    return print_table(options, Table(rows, fields))


def _row(rule: Rule) -> Row:
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


def _details(row: Row) -> str:
    needs = f"needs {row['needs'].replace(' ', ', ')}" if row["needs"] else ""
    return "; ".join(filter(None, [needs, row["thresholds"]]))
