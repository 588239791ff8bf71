"""The table at the end of a session, and the tests whose numbers vary."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.units import (
    UNKNOWN,
    format_pair,
    format_quantity,
    format_spread,
    plural,
)
from pytest_torchprof.core.unknown import Why
from pytest_torchprof.core.values import NOISY, OWN_COLUMNS, MissingValue, Record, RegionRecord
from pytest_torchprof.render import escape
from pytest_torchprof.render.escape import shorten, tail, width_of
from pytest_torchprof.render.report import shared_causes
from pytest_torchprof.render.table import aligned_columns
from pytest_torchprof.verdict.own import metric_of

if TYPE_CHECKING:
    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.core.values import Range, Unstable, Verdict


# ---- The summary table at the end of the session, and its totals.

#: Default of ``--torchprof-columns``; columns without any value are left out.
DEFAULT_COLUMNS = (
    "wall_ms",
    "self_cuda_ms",
    "flops",
    "ops",
    "kernels",
    "syncs",
    "peak_cpu_bytes",
    "peak_cuda_bytes",
)
_MARKS = {"regressed": "!", "over_budget": "!", "improved": "*", "advisory": "~"}
_ORDER = ("over_budget", "regressed", "not_profiled", "improved", "new", "ok")
_NARROWEST_TEST, _WIDEST_TEST = 36, 60
#: Columns of users' own metrics, unless ``--torchprof-columns`` asks for more.
_MOST_OWN = 4
_MOST_NOTES, _MOST_NAMES, _MOST_CAUSES = 12, 3, 10
#: A column is at least this much wider than its heading.
_PADDING = 2


def summary_table(
    records: Sequence[Record],
    columns: Sequence[str],
    sort: str | None,
    top: int,
    width: int,
    *,
    every: bool = False,
) -> list[str]:
    """Lines of the table, what needs attention first; ``top`` rows, 0 for all.

    Skipped tests have no row. The reasons below it are those of all tests. ``every``: with the
    findings that are not listed.
    """
    known = sorted(records, key=lambda r: _rank(r, sort))
    ordered = [record for record in known if record.outcome != "skipped"]
    shown = ordered[:top] if top else ordered
    own = _own_columns(shown)
    asked = [name for c in columns for name in (own if c == OWN_COLUMNS else [c])]
    columns = asked or [
        *(c for c in DEFAULT_COLUMNS if any(_value(r, c) is not None for r in shown)),
        *own[:_MOST_OWN],
    ]
    rows: list[tuple[str, Record | RegionRecord]] = []
    for record in shown:
        rows.append((record.nodeid, record))
        rows += [(name, region) for name, region in record.regions.items()]
    found = [_findings(r, every=every) for _, r in rows]
    findings = any(found)
    cells = [
        [
            _status(r) if isinstance(r, Record) else "",
            *(_cell(r, c) for c in columns),
            *([text] if findings else []),
        ]
        for (_, r), text in zip(rows, found, strict=True)
    ]
    headers = ["test", "status", *columns, *(["findings"] if findings else [])]
    columns_cells = zip((header + " " * _PADDING for header in headers[1:]), *cells, strict=True)
    rest = sum(max(map(width_of, column)) + 2 for column in columns_cells)
    room = min(_WIDEST_TEST, max(_NARROWEST_TEST, width - rest - 2))
    folder = _common_folder([r.nodeid for r in records])
    body = [
        [
            _shortened(escape.line(name[len(folder) :]), room)
            if isinstance(r, Record)
            else f"  {shorten(escape.line(name), room - 2)}",
            *row,
        ]
        for (name, r), row in zip(rows, cells, strict=True)
    ]
    left = [header not in columns for header in headers]
    lines = aligned_columns(headers, body, left, padding=_PADDING) if body else []
    if more := len(ordered) - len(shown):
        lines.append(f"… and {plural(more, 'more test')}: --torchprof-top=0 shows all")
    return list(map(escape.line, [*lines, *_unprofiled(known, folder), *_notes(known, folder)]))


def _own_columns(shown: Sequence[Record]) -> list[str]:
    """The metrics of users' own that any of these tests or their regions has a value of."""
    found: dict[str, None] = {}
    for record in shown:
        parts: list[Record | RegionRecord] = [record, *record.regions.values()]
        for part in parts:
            for name, verdict in part.metrics.items():
                whole = verdict.own is not None and verdict.scope is None
                if whole and not isinstance(verdict.value, MissingValue):
                    found[name if verdict.region is None else verdict.metric] = None
    return list(found)


def cause_lines(records: Sequence[Record]) -> list[str]:
    """A line for each cause, with how many tests it fails and what it costs them."""
    lines = []
    for one in shared_causes(records):
        place = f" at {one.cause.place}" if one.cause.place else ""
        parts = [plural(len(one.tests), "test"), *one.costs[:1]]
        lines.append(f"{one.cause.message}{place}: {', '.join(parts)}")
    left = len(lines) - _MOST_CAUSES
    more = (
        [f"… and {plural(left, 'more cause')}: --torchprof-json=FILE has all"] if left > 0 else []
    )
    return [*map(escape.line, lines[:_MOST_CAUSES]), *more]


def session_totals(records: Sequence[Record], runs: int) -> str:
    """``12 tests profiled in 36 runs: 1 regressed, 11 ok``."""
    counts: Counter[str] = Counter(r.status for r in records)
    profiled = len(records) - counts["not_profiled"]
    parts = [f"{counts[s]} {s.replace('_', ' ')}" for s in _ORDER if counts[s]]
    unchecked = sum(
        v.status == "not_measured" and v.limited for r in records for v in r.metrics.values()
    )
    if unchecked:
        parts.append(f"{plural(unchecked, 'budget')} not checked")
    if strict := sum(r.strict and r.outcome != "skipped" for r in records):
        parts.append(f"{strict} failed by --torchprof-strict")
    in_runs = f" in {plural(runs, 'run')}" if runs else ""
    listed = f": {', '.join(parts)}" if parts else ""
    return f"torchprof: {plural(profiled, 'test')} profiled{in_runs}{listed}"


def _status(record: Record) -> str:
    """``ok``, or ``ok, fails`` for a test that fails all the same, under strict mode."""
    return record.status.replace("_", " ") + (", fails" if record.strict else "")


def _common_folder(nodeids: Sequence[str]) -> str:
    """The folder that all tests share, with its slash; omitted to save space."""
    folders = [nodeid.partition("::")[0].split("/")[:-1] for nodeid in nodeids]
    parts = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))
    return "".join(f"{level[0]}/" for level in parts)


def _rank(record: Record, sort: str | None) -> tuple[float, str]:
    if sort is not None:
        return -(_value(record, sort) or 0), record.nodeid
    return _ORDER.index(record.status), ""


def _value(record: Record | RegionRecord, column: str) -> float | None:
    verdict = record.metrics.get(column)
    return None if verdict is None or isinstance(verdict.value, MissingValue) else verdict.value


def _cell(record: Record | RegionRecord, column: str) -> str:
    verdict = record.metrics.get(column)
    if verdict is None or isinstance(verdict.value, MissingValue):
        return UNKNOWN
    number = format_quantity(verdict.value, metric_of(verdict).unit)
    spread = format_spread(_spread(verdict))
    # A time that only advises is said in words, from a multiple on.
    told = verdict.status == "advisory" and metric_of(verdict).klass == "time"
    mark = "" if told else _MARKS.get(verdict.status, "")
    return " ".join(filter(None, (number, spread))) + mark


def _spread(verdict: Verdict | None) -> float | None:
    sample = verdict.sample if verdict is not None else None
    return None if sample is None else sample.spread


def unlisted(records: Sequence[Record]) -> list[str]:
    """A line on the findings that are not listed."""
    count = sum(not (one.listed or one.accepted) for r in records for one in r.findings)
    text = f"{plural(count, 'more finding')} in tests' own files or under 1 ms: -v"
    return [text] if count else []


def _findings(record: Record | RegionRecord, *, every: bool) -> str:
    """``host-sync ×3!, gc-pause ×1 (advice), 2 accepted``: unaccepted findings by name, marked if
    they fail the test or are advice; only those that are listed, unless ``every`` one is asked for.
    """
    counts: Counter[tuple[str, bool]] = Counter()
    accepted = 0
    for finding in record.findings:
        if finding.accepted:
            accepted += finding.count
        elif every or finding.listed:
            counts[finding.rule, finding.gated] += finding.count
    whole = record.metrics.get("findings")
    total = _MARKS.get(whole.status, "") if whole is not None else ""
    by_rule: dict[str, str] = {}
    for verdict in record.metrics.values():
        if verdict.scope is not None and (mark_of_it := _MARKS.get(verdict.status)):
            by_rule |= dict.fromkeys(verdict.scope.rules, mark_of_it)

    # A budget counts findings that the baseline accepts too, and advice.
    over = whole is not None and whole.status == "over_budget"

    def mark(rule: str, gated: bool) -> str:
        return by_rule.get(rule) or (total if gated or over else " (advice)")

    parts = [f"{rule} ×{n}{mark(rule, gated)}" for (rule, gated), n in counts.items()]
    accepted_text = f"{accepted} accepted{total if over else ''}"
    return escape.line(", ".join(parts + [accepted_text] * bool(accepted)))


#: The most unchecked rules that a line names for one reason.
_SHOWN_RULES = 4


def unchecked_rules(records: Sequence[Record]) -> list[str]:
    """One line on the rules that were not checked in some test, except those that raised."""
    reasons: dict[Reason, dict[str, None]] = {}
    for record in records:
        for rule, why in record.unchecked.items():
            if why.code != Why.RULE_RAISED.code:
                reasons.setdefault(why, {})[rule] = None
    parts = [f"{_few(list(rules))} ({why.text})" for why, rules in reasons.items()]
    return [escape.line(f"rules not checked here: {'; '.join(parts)}")] if parts else []


def _few(rules: list[str]) -> str:
    """The first few; the report has all."""
    shown, left = rules[:_SHOWN_RULES], len(rules) - _SHOWN_RULES
    return ", ".join(shown) + (f" and {left} more" if left > 0 else "")


def fault_lines(found: Mapping[str, Sequence[str]]) -> list[str]:
    """A line for each error that no test caused, with the number of tests affected."""
    lines = []
    for fault, nodeids in found.items():
        more = ", …" if nodeids[1:] else ""
        where = f" (in {plural(len(nodeids), 'test')}: {nodeids[0]}{more})" if nodeids else ""
        lines.append(escape.line(f"{fault}{where}"))
    return lines


def raised_rules(records: Sequence[Record]) -> dict[str, str]:
    """A line for each rule that raised, with the first test in which it did."""
    first: dict[str, str] = {}
    for record in records:
        for rule, why in record.unchecked.items():
            if why.code == Why.RULE_RAISED.code:
                first.setdefault(
                    rule, f"{rule}: {why.text} ({record.nodeid}); the rule was skipped"
                )
    return {rule: escape.line(text) for rule, text in first.items()}


def lost_baselines(records: Sequence[Record]) -> list[str]:
    """The tests that were measured when accepted and are not now, by name: a line a reason."""
    reasons: dict[str, list[str]] = {}
    for record in records:
        if record.is_lost and record.reason:
            reasons.setdefault(record.reason.text, []).append(record.nodeid)
    text = "not profiled, so not compared with the baseline"
    return [escape.line(f"{text}: {why} ({', '.join(of)})") for why, of in reasons.items()]


def _unprofiled(records: Sequence[Record], folder: str) -> list[str]:
    """Why the other tests are not profiled: a line a kind of reason, with the first one's words.

    Not those that their failures tell.
    """
    kinds: dict[object, list[Record]] = {}
    for record in records:
        if record.status == "not_profiled" and record.reason and not record.is_lost:
            if record.reason.code == Why.BAD_BASELINE.code:
                continue
            general = record.reason.code in (Why.ERROR.code, Why.SOMEBODY_SAID.code)
            kinds.setdefault(record.reason if general else record.reason.code, []).append(record)
    lines = []
    for found in kinds.values():
        words = list(dict.fromkeys(one.reason.text for one in found if one.reason))
        alike = " or alike" if words[1:] else ""
        names = _several([_short_name(one, folder) for one in found])
        lines.append(f"not profiled: {words[0]}{alike} ({names})")
    return sorted(lines)


def _short_name(record: Record, folder: str) -> str:
    return _shortened(escape.line(record.nodeid[len(folder) :]), _WIDEST_TEST)


def _shortened(nodeid: str, width: int) -> str:
    """Cut before the test's own name, which stays; only if that is too long, in its middle.

    >>> _shortened("unit/test_a.py::TestLong::test_step[1::2]", 20)
    '…ng::test_step[1::2]'
    >>> _shortened("test_a.py::test_step[many parameters]", 20)
    'test_step…arameters]'
    """
    name, bracket, parameters = nodeid.partition("[")
    own = name.rpartition("::")[2] + bracket + parameters
    return tail(nodeid, width) if width_of(own) < width else shorten(own, width)


def _notes(records: Sequence[Record], folder: str) -> list[str]:
    """Reasons that do not fit in a cell: unchecked budgets, noise.

    Tests with the same reason share a line, without the folder that all share.
    """
    reasons: dict[str, list[str]] = {}
    for record in records:
        name = _short_name(record, folder)
        if record.status != "not_profiled" and record.reason:
            why, beside = record.reason.text, ""
            if record.reason.code == "other_environment":  # what differs is the test's own
                why, _, own = why.partition(": ")
                beside = own.removesuffix("nothing")
            names = reasons.setdefault(why, [])
            names.insert(0 if beside else len(names), f"{name} {beside}".rstrip())
        for reason in _of_times(record):
            reasons.setdefault(reason, []).append(name)
        if (spread := _spread(record.metrics.get("wall_ms")) or 0) > NOISY:
            reasons.setdefault(_NOISE, []).append(f"{name} {format_spread(spread)}")
        of_regions = (v for one in record.regions.values() for v in one.metrics.values() if v.own)
        for verdict in (*record.metrics.values(), *of_regions):
            if verdict.status != "not_measured":
                continue
            if verdict.limited:
                key = f"budget {_marker(verdict)} not checked: {_why(verdict)}"
                reasons.setdefault(key, []).append(name)
            elif verdict.baseline is not None:
                key = f"baseline {verdict.label} not compared: {_why(verdict)}"
                reasons.setdefault(key, []).append(name)
    lines = [f"{key} ({_several(names)})" for key, names in sorted(reasons.items())]
    left = len(lines) - _MOST_NOTES
    more = f"… and {plural(left, 'more reason')}: --torchprof-json=FILE has all"
    return lines[:_MOST_NOTES] + ([more] if left > 0 else [])


def _why(verdict: Verdict) -> str:
    return "" if verdict.reason is None else verdict.reason.text


def _marker(verdict: Verdict) -> str:
    """The marker that set the limit."""
    if verdict.scope is not None and verdict.scope.rules:
        return f"no_antipatterns({','.join(verdict.scope.rules)})"
    limits = {"max": verdict.limit, "min": verdict.least}
    kinds = [kind for kind, n in limits.items() if n is not None]
    if verdict.own is not None:
        return ", ".join(f"{kind}_metric of {verdict.label}" for kind in kinds)
    return ", ".join(f"{kind}_{verdict.label.removeprefix('max_')}" for kind in kinds)


_NOISE = (
    "wall_ms is noisy: use more rounds (--torchprof-min-time=1) or a quieter machine, or compare "
    "with `torchprof ab`, which copes with noise"
)


def _of_times(record: Record) -> dict[str, None]:
    """Why the time gate only advises, or is incomplete; each reason once."""
    times = (v for v in record.metrics.values() if metric_of(v).klass == "time")
    checked = (v.reason for v in times if v.reason and v.status != "not_measured")
    return dict.fromkeys(f"time: {why.text}" for why in checked if why != record.reason)


def _several(names: Sequence[str]) -> str:
    """``test_a.py::test_x``, or ``5 tests: …`` with the first of them."""
    if len(names) == 1:
        return names[0]
    left = ", …" if names[_MOST_NAMES:] else ""
    return f"{plural(len(names), 'test')}: {', '.join(names[:_MOST_NAMES])}{left}"


# ---- The tests whose numbers vary, named under the summary table, and what to do about each
# kind.

_MOST_TESTS, _MOST_METRICS, _MOST_OPERATORS = 10, 3, 3

_DRAWN: Final = (
    "with the values drawn; what varies is compared as a range",
    "to compare it exactly, fix the sizes and branches that its values decide",
)
_SAME: Final = (
    "with the same seed: a race, a cache, the time, or its own generator; that only advises",
    "to compare it, seed its own generators; --torchprof-strict compares it with the range",
)


def unstable_tests(found: Mapping[str, Unstable]) -> list[str]:
    """Lines for tests by node id: first those that vary with drawn values, then the others."""
    drawn = {test: one for test, one in found.items() if one.drawn}
    same = {test: one for test, one in found.items() if not one.drawn}
    return [*_lines(drawn, *_DRAWN), *_lines(same, *_SAME)]


def _lines(found: Mapping[str, Unstable], how: str, remedy: str) -> list[str]:
    if not found:
        return []
    lines = [f"{plural(len(found), 'test')} {'varies' if len(found) == 1 else 'vary'} {how}:"]
    lines += [f"  {test}: {_numbers(one)}" for test, one in list(found.items())[:_MOST_TESTS]]
    if (more := len(found) - _MOST_TESTS) > 0:
        lines.append(f"  … and {plural(more, 'more test')}")
    return [*lines, f"  {remedy}"]


def _numbers(one: Unstable) -> str:
    metrics = [f"{name} {_range(r, one.units[name])}" for name, r in one.ranges.items()]
    operators = [f"{name} {_range(r, '1')}" for name, r in _widest(one.operators)]
    by = f" ({_listed(operators, _MOST_OPERATORS)})" if operators else ""
    return f"{_listed(metrics, _MOST_METRICS)}{by}"


def _widest(operators: Mapping[str, Range]) -> list[tuple[str, Range]]:
    return sorted(operators.items(), key=lambda one: (one[1].low - one[1].high, one[0]))


def _range(one: Range, unit: str) -> str:
    return " to ".join(format_pair(one.low, one.high, unit))


def _listed(words: list[str], most: int) -> str:
    more = len(words) - most
    return ", ".join(words[:most]) + (f", {more} more" if more > 0 else "")
