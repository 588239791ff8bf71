"""What failed in a session, and where, as annotations of GitHub Actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_torchprof.render import escape
from pytest_torchprof.render.finding_reports import sentence
from pytest_torchprof.render.markdown_comment import sentences
from pytest_torchprof.render.source_lines import SourceLine, digest, source_line
from pytest_torchprof.render.trackers import series_of
from pytest_torchprof.render.workflow_commands import Annotation

if TYPE_CHECKING:
    from pytest_torchprof.render.stored_report import StoredReport


def session_annotations(
    report: StoredReport,
    lines: Mapping[str, tuple[str, int]],
    root: Path,
    repository: Path,
    *,
    failures: bool = True,
) -> list[Annotation]:
    """An error per test that failed for what it needs, then a warning or, for advice, a
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
    made = _failures(report, tests) if failures else []
    rows = _findings(report)
    for nodeid, row in rows:
        at = place(row["location"], row["path"])
        title = f"torchprof: {row['rule']}"
        text, where = sentence(row, place=at is None), at or tests[nodeid]
        made.append(
            Annotation("warning" if row.get("gated", True) else "notice", title, text, where)
        )
    return made


#: The severities of GitLab's Code Quality report, by the level of an annotation.
_SEVERITIES: Final = {"error": "major", "warning": "minor", "notice": "info"}


def code_quality_of(found: Sequence[Annotation]) -> str:
    """GitLab's Code Quality report of these; those without a line cannot be in it.

    The format is that of GitLab's documentation, "Code Quality report format". Fingerprints are of
    the title and the file, not of the line, which moves as a file is edited.
    """
    seen: dict[str, int] = {}
    issues = []
    for level, title, message, place in found:
        if place is None:
            continue
        key = repr((title, place.path))
        number = seen[key] = seen.get(key, 0) + 1
        issues.append(
            {
                "description": message,
                "check_name": title,
                "fingerprint": digest(f"{key}{number}"),
                "severity": _SEVERITIES[level],
                "location": {"path": place.path, "lines": {"begin": place.line}},
            }
        )
    return escape.strict_json_text(issues, indent=1) + "\n"


def _own_name(nodeid: str) -> str:
    """The test's name without file and class: its parameters may have colons, too.

    >>> _own_name("t.py::TestA::test_b[aten::mm-a]")
    'test_b[aten::mm-a]'
    """
    file, _, name = nodeid.partition("::")
    own, bracket, parameters = (name or file).partition("[")
    return f"{own.rpartition('::')[2]}{bracket}{parameters}"


def _failures(report: StoredReport, tests: Mapping[str, SourceLine | None]) -> list[Annotation]:
    bad: dict[str, list[Any]] = {}
    for one in series_of(report):
        if one.metric.status in ("regressed", "over_budget"):
            bad.setdefault(one.nodeid, []).append(one)
    return [
        Annotation(
            "error",
            f"torchprof: {_own_name(test.nodeid)}",
            sentences(bad.get(test.nodeid, ())) or test.reason or test.status,
            tests[test.nodeid],
        )
        for test in report.tests
        if test.outcome == "failed" and test.status != "not_profiled"
    ]


def _findings(report: StoredReport) -> Sequence[tuple[str, dict[str, Any]]]:
    """Those that are not accepted, with the first test that has them, the costliest first."""
    found: dict[tuple[Any, ...], tuple[str, dict[str, Any]]] = {}
    for test in report.document["tests"]:
        for finding in test["findings"]:
            if finding["accepted"]:
                continue
            key = finding["rule"], finding["location"] or test["nodeid"], finding["message"]
            known = found.get(key)
            if known is None or (known[1]["cost_ms"] or 0) < (finding["cost_ms"] or 0):
                found[key] = test["nodeid"], {**finding, "share": None}
    return sorted(
        found.values(), key=lambda pair: 1 if pair[1]["cost_ms"] is None else -pair[1]["cost_ms"]
    )
