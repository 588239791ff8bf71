"""Findings and failures for CI: annotations, Markdown comments, SARIF and their like."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import quote

from pytest_torchprof.core.errors import keep_others
from pytest_torchprof.core.files import head_of
from pytest_torchprof.core.units import UNKNOWN, format_quantity, plural
from pytest_torchprof.core.version import __version__
from pytest_torchprof.render import escape
from pytest_torchprof.render.escape import shorten, shorten_text
from pytest_torchprof.render.findings import (
    SourceLine,
    digest,
    fingerprints,
    more_modules,
    source_line,
)
from pytest_torchprof.render.report import SharedCause, StoredTest, shared_causes
from pytest_torchprof.render.trackers import Series, series_of

if TYPE_CHECKING:
    from pytest_torchprof.render.report import StoredReport
    from pytest_torchprof.rules.rule import Rule


# ---- Annotations of GitHub Actions: lines of a log that the runner shows beside the code.
#
# The syntax is that of GitHub's documentation, "Workflow commands for GitHub Actions"; what is
# escaped is that of ``escapeData`` and ``escapeProperty`` in ``@actions/core``.

#: GitHub shows ten annotations of each kind per step.
MOST_ANNOTATIONS = 10
#: A longer title or message hides the others.
_TITLE, _MESSAGE = 200, 2_000


class Annotation(NamedTuple):
    """A message on a line of the user's file, or on none; ``key``: what stays as files change."""

    level: Literal["error", "warning", "notice"]
    title: str
    message: str
    place: SourceLine | None = None
    key: str = ""


def workflow_commands(found: Sequence[Annotation], most: int = MOST_ANNOTATIONS) -> list[str]:
    """The lines to print: at most so many annotations, and how many are left.

    >>> place = SourceLine("train.py", 21)
    >>> print(*workflow_commands([Annotation("warning", "host-sync", "100 % slow", place)]))
    ::warning file=train.py,line=21,title=host-sync::100 %25 slow
    """
    lines = [command_of(one) for one in found[:most]]
    if left := len(found) - most:
        lines += [f"torchprof: … and {plural(left, 'more annotation')}"] if left > 0 else []
    return lines


def command_of(annotation: Annotation) -> str:
    """One annotation, as the runner reads it."""
    level, title, message, place, _ = annotation
    properties = {} if place is None else {"file": place.path, "line": str(place.line)}
    properties["title"] = shorten(escape.line(title), _TITLE)
    named = ",".join(f"{name}={_property(text)}" for name, text in properties.items())
    return f"::{level} {named}::{_data(shorten_text(escape.block(message), _MESSAGE))}"


def plain_line(text: str) -> str:
    """A line of the log that the runner takes for no command, whatever it says."""
    shown = escape.line(text).replace("##[", "# #[")
    return shown.replace("::", ": :", 1) if shown.lstrip().startswith("::") else shown


def _data(text: str) -> str:
    text = escape.block(text)
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(escape.line(text)).replace(":", "%3A").replace(",", "%2C")


# ---- Findings of a stored trace as services of CI show them beside the code.
#
# GitHub's workflow commands, GitLab's Code Quality report, and SARIF 2.1.0.

FindingRow = Mapping[str, Any]


class Severity(NamedTuple):
    """How much a finding matters, in the words of GitLab and of SARIF."""

    gitlab: str
    sarif: str


#: By the least share of the time to gain, from 0 to 1, the largest first.
_SEVERITIES = (
    (0.10, Severity("major", "warning")),
    (0.01, Severity("minor", "warning")),
    (0.00, Severity("info", "note")),
)
#: A gain that is unknown is not a small one.
_UNKNOWN_GAIN = Severity("minor", "warning")

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
#: Beside a finding in SARIF.
_PROPERTIES = ("rank", "trace", "cost_ms", "share", "bytes", "module", "modules", "path")


def severity_of(row: FindingRow) -> Severity:
    """The severity of a finding, by the share of the time to gain."""
    share = row["share"]
    if share is None:
        return _UNKNOWN_GAIN
    return next(severity for least, severity in _SEVERITIES if share >= least)


def sentence(row: FindingRow, *, place: bool) -> str:
    """What was found, how often, what there is to gain, and what to do instead.

    With ``place`` also where, for an output that has no line.
    """
    found = [f"{row['message']} (×{row['count']:,})"]
    if row["cost_ms"] is not None:
        found.append(f"{format_quantity(row['cost_ms'], 'ms')} to gain")
    if row["share"] is not None:
        found[-1] += f" ({100 * row['share']:.3g} % of the time)"
    if row["bytes"]:
        found.append(format_quantity(row["bytes"], "B"))
    text = ", ".join(found)
    if row["module"]:
        text += f", in {row['module']}{more_modules(row['module'], row['modules'])}"
    if place and row["location"]:
        text += f", at {row['location']}"
    for column in ("rank", "trace"):
        text = f"{column} {row[column]}: {text}" if column in row else text
    return f"{text}. Fix: {row['fix']}." if row["fix"] else f"{text}."


def annotations_of(rows: Iterable[FindingRow], root: Path) -> list[Annotation]:
    """One warning per finding, in their order, at the line below ``root``, if it is known."""
    made = []
    for row in rows:
        at = source_line(row["location"], row["path"], root)
        title = f"torchprof: {row['rule']}"
        made.append(Annotation("warning", title, sentence(row, place=at is None), at))
    return made


# -------------------------------------------------------------------- GitLab


def code_quality(rows: Sequence[FindingRow], root: Path) -> tuple[str, int]:
    """GitLab's Code Quality report, and how many findings it cannot have, for want of a line."""
    issues = []
    for row, fingerprint in zip(rows, fingerprints(rows, root), strict=True):
        if at := source_line(row["location"], row["path"], root):
            text, severity = sentence(row, place=False), severity_of(row).gitlab
            issues.append(_issue(text, row["rule"], fingerprint, severity, at))
    return escape.json_text(issues, indent=1) + "\n", len(rows) - len(issues)


def _issue(
    description: str, name: str, fingerprint: str, severity: str, at: SourceLine
) -> dict[str, Any]:
    """As GitLab's documentation says, "Code Quality report format"."""
    return {
        "description": description,
        "check_name": name,
        "fingerprint": fingerprint,
        "severity": severity,
        "location": {"path": at.path, "lines": {"begin": at.line}},
    }


# -------------------------------------------------------------------- SARIF


def sarif(
    rows: Sequence[FindingRow],
    rules: Sequence[Rule],
    root: Path,
    *,
    unchecked: Mapping[str, str],
    notes: Sequence[str],
) -> str:
    """A log in SARIF 2.1.0: the rules with their pages as help, and the findings.

    ``unchecked`` maps rules to the reason; these and the ``notes`` are notifications of the run.
    """
    number = {rule.code: index for index, rule in enumerate(rules)}
    marks = fingerprints(rows, root)
    results = [_result(row, number, mark, root) for row, mark in zip(rows, marks, strict=True)]
    told = [
        {
            "level": "note",
            "message": {"text": f"not checked: {why}"},
            "associatedRule": {"id": code, **_index(code, number)},
        }
        for code, why in unchecked.items()
    ]
    told += [{"level": "warning", "message": {"text": note}} for note in notes]
    driver = {
        "name": "torchprof",
        "semanticVersion": __version__,
        "rules": [_rule(rule) for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": told}],
        "results": results,
    }
    log = {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return escape.json_text(log, indent=1) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "shortDescription": {"text": rule.summary},
        "help": {"text": rule.page, "markdown": rule.page},
    }


def _index(code: str, number: Mapping[str, int]) -> dict[str, int]:
    return {"index": number[code]} if code in number else {}


def _result(
    row: FindingRow, number: Mapping[str, int], fingerprint: str, root: Path
) -> dict[str, Any]:
    at = source_line(row["location"], row["path"], root)
    code = row["rule"]
    index = {"ruleIndex": number[code]} if code in number else {}
    known = {name: row[name] for name in _PROPERTIES if row.get(name) is not None}
    return {
        "ruleId": code,
        **index,
        "level": severity_of(row).sarif,
        "message": {"text": sentence(row, place=at is None)},
        **({} if at is None else {"locations": [_place(at, row["module"])]}),
        "occurrenceCount": row["count"],
        "partialFingerprints": {"torchprof/v1": fingerprint},
        **({"properties": known} if known else {}),
    }


def _place(at: SourceLine, module: str | None) -> dict[str, Any]:
    uri = quote(posixpath.normpath(at.path), safe="/", errors="backslashreplace")
    place: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": uri},
            "region": {"startLine": at.line},
        }
    }
    if module:
        place["logicalLocations"] = [{"fullyQualifiedName": module, "kind": "module"}]
    return place


# ---- A session as a comment on a pull request, or as the summary of a job: what failed first.

#: The first line, which nobody sees: a job finds its comment by it, and we our file.
MARK = "<!-- torchprof -->"
#: GitHub's limits: 65,536 characters for a comment, 1 MiB for the summary of a step.
COMMENT_BYTES, SUMMARY_BYTES = 64_000, 1_000_000

#: The longest name or sentence in a cell.
_NAME, _TEXT = 120, 300
#: Room for the line that says what was cut.
_LAST_LINE = 200


class _Table(NamedTuple):
    heading: str
    columns: tuple[str, ...]
    rows: list[list[str]]


def comment(report: StoredReport, totals: str, most_bytes: int) -> str:
    """The Markdown, in at most so many bytes of UTF-8; what does not fit is counted.

    ``totals``: the line with the number of tests, by status.
    """
    lines = [MARK, f"### {escape.escape_markdown(totals)}", ""]
    if key := report.environment.get("key"):
        lines += [escape.escape_markdown(shorten_text(escape.line(str(key)), _TEXT)), ""]
    if report.interrupted:
        lines += ["The session was interrupted: tests are missing.", ""]
    room = most_bytes - _LAST_LINE - _size(lines)
    cut = 0
    for table in _tables(report):
        head = [
            f"**{table.heading}**",
            "",
            _row(table.columns),
            _row("---" for _ in table.columns),
        ]
        shown: list[str] = []
        room -= _size(head) + 1
        for cells in table.rows:
            line = _row(cells)
            room -= _size([line])
            if room < 0:
                break
            shown.append(line)
        lines += [*head, *shown, ""] if shown else []
        cut += len(table.rows) - len(shown)
    if cut:
        lines.append(f"… and {plural(cut, 'more row')} than fit here; the report has all")
    return "\n".join(lines).rstrip("\n") + "\n"


def check_comment(path: Path) -> None:
    """Reject a name for the comment that is the name of another kind of file.

    Raises:
        SettingsError: such a file exists.
    """
    ours = MARK.encode()
    keep_others(path, lambda path: head_of(path).startswith(ours), "a comment of torchprof")


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str | None, longest: int = _NAME) -> str:
    return escape.table_cell(escape.code(shorten(escape.line(text or ""), longest)))


def _words(text: str | None) -> str:
    return escape.table_cell(escape.escape_markdown(shorten_text(escape.line(text or ""), _TEXT)))


# -------------------------------------------------------------------- what is shown


def _tables(report: StoredReport) -> Iterator[_Table]:
    """The most important first; empty ones are left out, and what the causes say."""
    series = list(series_of(report))
    causes = shared_causes(report.tests)
    explained = {test for one in causes for test in one.tests}
    failed = [
        one
        for one in series
        if one.metric.status == "over_budget"
        or (one.metric.status == "regressed" and one.nodeid not in explained)
    ]
    improved = [one for one in series if one.metric.status == "improved"]
    told = [one for one in series if one.metric.status == "advisory" and one.metric.reason]
    unchecked = [
        one
        for one in series
        if one.metric.status == "not_measured"
        and (one.metric.limits or one.metric.baseline is not None)
    ]
    others = [test for test in report.tests if test.status == "not_profiled"]
    new = [test for test in report.tests if test.status == "new"]
    compared = ("test", "metric", "status", "baseline", "now", "change", "limit")
    tables = (
        _Table("Causes", ("cause", "place", "tests", "cost"), [_cause(one) for one in causes]),
        _Table("Regressed, or over a limit", compared, [_compared(one) for one in failed]),
        _Table(
            "Findings", ("rule", "test", "where", "count", "to gain", "what"), _findings(report)
        ),
        _Table("Improved", compared, [_compared(one) for one in improved]),
        _Table(
            "Differs, and only advises",
            (*compared[:-1], "why"),
            [[*_compared(one)[:-1], _words(one.metric.reason)] for one in told],
        ),
        _Table(
            "Not measured",
            ("test", "metric", "why"),
            [
                [_code(one.benchmark), _code(one.label), _words(one.metric.reason)]
                for one in unchecked
            ],
        ),
        _Table(
            "Not profiled",
            ("test", "outcome", "why"),
            [[_code(t.nodeid), _words(t.outcome), _words(t.reason)] for t in others],
        ),
        _Table(
            "New, without a baseline",
            ("test", "why"),
            [[_code(t.nodeid), _words(t.reason)] for t in new],
        ),
    )
    return (table for table in tables if table.rows)


def _compared(one: Series) -> list[str]:
    metric = one.metric
    before, now, change = metric.in_words
    return [
        _code(one.benchmark),
        _code(one.label),
        f"**{_words(metric.status.replace('_', ' '))}**",
        _words(before if metric.baseline is not None else ""),
        _words(now),
        _words(change),
        _words(metric.limits),
    ]


def _cause(one: SharedCause) -> list[str]:
    more = f" and {len(one.tests) - 1:,} more" if one.tests[1:] else ""
    cause = one.cause
    tests = f"{_code(one.tests[0])}{more}"
    return [_words(cause.message), _code(cause.place), tests, _words(", ".join(one.costs))]


def _findings(report: StoredReport) -> list[list[str]]:
    """Those that are not accepted and no cause, the costliest first, those of unknown cost last."""
    found = [
        (test.nodeid, finding)
        for test in report.tests
        for finding in test.findings
        if not finding.accepted
        and (finding.rule, finding.location) not in {(c.finding, c.place) for c in test.causes}
    ]
    found.sort(key=lambda pair: 1 if pair[1].cost_ms is None else -pair[1].cost_ms)
    return [
        [
            _code(finding.rule),
            _code(nodeid),
            _code(finding.location),
            f"{finding.count:,}",
            UNKNOWN if finding.cost_ms is None else format_quantity(finding.cost_ms, "ms"),
            _words(finding.message if finding.gated else f"advice: {finding.message}"),
        ]
        for nodeid, finding in found
    ]


def sentences(failed: Sequence[Series]) -> str:
    """What failed, in a line: ``ops 3 → 5 (+66.7 %); kernels 9, limit: at most 4``."""
    parts = []
    for one in failed:
        label = one.label if one.region is None else f"{one.label} of {one.region}"
        before, now, change = one.metric.in_words
        if one.metric.status == "over_budget":
            parts.append(f"{label} {now}, limit: {one.metric.limits}")
        else:
            parts.append(f"{label} {before} → {now} ({change})")
    return "; ".join(parts)


# ---- What failed in a session, and where, as annotations of GitHub Actions.


def session_annotations(
    report: StoredReport,
    lines: Mapping[str, tuple[str, int]],
    root: Path,
    repository: Path,
    *,
    failures: bool = True,
) -> list[Annotation]:
    """An error per cause of what tests failed for, or per test, then a warning or, for advice, a
    notice per line with findings.

    ``lines`` has the file, relative to ``root``, and the line, from 1, of tests by node id.
    Without ``failures``, only findings: another plugin shows the failed tests.
    """

    def place(location: str | None, operators: str | None = None) -> SourceLine | None:
        found = None if location == operators else location
        return None if not found else source_line(str(root / found), None, repository)

    tests = {
        test: place(f"{lines[test][0]}:{lines[test][1]}") if test in lines else None
        for test in dict.fromkeys(test.nodeid for test in report.tests)
    }
    made: list[Annotation] = []
    bad: dict[str, list[Series]] = {}
    for one in series_of(report):
        if one.metric.status in ("regressed", "over_budget"):
            bad.setdefault(one.nodeid, []).append(one)
    told: set[tuple[str | None, str | None]] = set()
    for same in _failed(report) if failures else ():
        cause = same[0].causes[0] if same[0].causes else None
        first = same[0].nodeid
        text, at, key = _told(same, bad.get(first, ())), tests[first], ""
        if cause is not None:
            key = repr((cause.kind, cause.function, *cause.key[3:]))
            told.update((one.causes[0].finding, one.causes[0].place) for one in same)
            if cause.file and (root / cause.file).is_file():
                at = place(cause.place) or at
        name = plural(len(same), "test") if same[1:] else _own_name(first)
        made.append(Annotation("error", f"torchprof: {name}", text, at, key))
    for nodeid, row in _annotated_findings(report):
        if (row["rule"], row["location"]) in told:
            continue
        at = place(row["location"], row["path"])
        title = f"torchprof: {row['rule']}"
        text, where = sentence(row, place=at is None), at or tests[nodeid]
        if row.get("gated", True):
            made.append(Annotation("warning", title, text, where))
        else:
            made.append(Annotation("notice", f"{title} (advice)", text, where))
    return made


#: The severities of GitLab's Code Quality report, by the level of an annotation.
_LEVELS: Final = {"error": "major", "warning": "minor", "notice": "info"}


def code_quality_of(found: Sequence[Annotation]) -> str:
    """GitLab's Code Quality report of these; those without a line cannot be in it.

    Fingerprints are of the title and the file, not of the line, which moves as a file is edited.
    """
    seen: dict[str, int] = {}
    issues = []
    for level, title, message, place, known in found:
        if place is None:
            continue
        key = repr((known or title, place.path))
        number = seen[key] = seen.get(key, 0) + 1
        issues.append(_issue(message, title, digest(f"{key}{number}"), _LEVELS[level], place))
    return escape.json_text(issues, indent=1) + "\n"


def _own_name(nodeid: str) -> str:
    """The test's name without file and class: its parameters may have colons, too.

    >>> _own_name("t.py::TestA::test_b[aten::mm-a]")
    'test_b[aten::mm-a]'
    """
    file, _, name = nodeid.partition("::")
    own, bracket, parameters = (name or file).partition("[")
    return f"{own.rpartition('::')[2]}{bracket}{parameters}"


def _failed(report: StoredReport) -> Iterable[list[StoredTest]]:
    """The tests that failed for what they need; those with one cause together."""
    found: dict[object, list[StoredTest]] = {}
    for test in report.tests:
        if test.outcome == "failed" and test.status != "not_profiled":
            alone = test.status == "over_budget" or not test.causes
            found.setdefault(test.nodeid if alone else test.causes[0].key, []).append(test)
    return found.values()


def _told(same: Sequence[StoredTest], bad: Sequence[Series]) -> str:
    """Why these tests failed: the first line of a failure, or what the first of them is ``bad`` in.

    Several tests are named, and so is what to do about a finding.
    """
    first = same[0]
    if not first.causes:
        return sentences(bad) or first.reason or first.status
    cause = first.causes[0]
    heads = ((test.message or "").partition("\n")[0] for test in same)
    own = (head for head in heads if head and not head.startswith("same cause as "))
    text = next(own, cause.message)
    if same[1:]:
        names = ", ".join([_own_name(test.nodeid) for test in same[:3]] + ["…"] * bool(same[3:]))
        text += f" ({plural(len(same), 'test')}: {names})"
    rules = {(test.causes[0].finding, test.causes[0].place) for test in same}
    found = (one for test in same for one in test.findings)
    fix = next((one.fix for one in found if (one.rule, one.location) in rules), "")
    return f"{text}. Fix: {fix}." if fix else text


def _annotated_findings(report: StoredReport) -> Sequence[tuple[str, dict[str, Any]]]:
    """Those that are not accepted, with the first test that has them, the costliest first."""
    found: dict[tuple[Any, ...], tuple[str, dict[str, Any]]] = {}
    for test in report.document["tests"]:
        for finding in test["findings"]:
            if finding["accepted"] or not finding.get("listed", True):
                continue
            key = finding["rule"], finding["location"] or test["nodeid"], finding["message"]
            known = found.get(key)
            if known is None or (known[1]["cost_ms"] or 0) < (finding["cost_ms"] or 0):
                found[key] = test["nodeid"], {**finding, "share": None}
    return sorted(
        found.values(), key=lambda pair: 1 if pair[1]["cost_ms"] is None else -pair[1]["cost_ms"]
    )
