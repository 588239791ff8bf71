"""Findings of a stored trace as services of CI show them beside the code.

GitHub's workflow commands, GitLab's Code Quality report, and SARIF 2.1.0.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from pytest_torchprof.core.units import format_quantity
from pytest_torchprof.core.version import __version__
from pytest_torchprof.render import escape
from pytest_torchprof.render.findings import more_modules
from pytest_torchprof.render.source_lines import SourceLine, fingerprints, source_line
from pytest_torchprof.render.workflow_commands import Annotation

if TYPE_CHECKING:
    from pytest_torchprof.rules.engine.rule import Rule

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
    """GitLab's Code Quality report, and how many findings it cannot have, for want of a line.

    The format is that of GitLab's documentation, "Code Quality report format".
    """
    issues = []
    for row, fingerprint in zip(rows, fingerprints(rows, root), strict=True):
        at = source_line(row["location"], row["path"], root)
        if at is None:
            continue
        issues.append(
            {
                "description": sentence(row, place=False),
                "check_name": row["rule"],
                "fingerprint": fingerprint,
                "severity": severity_of(row).gitlab,
                "location": {"path": at.path, "lines": {"begin": at.line}},
            }
        )
    text = escape.strict_json_text(issues, indent=1)
    return text + "\n", len(rows) - len(issues)


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
    return escape.strict_json_text(log, indent=1) + "\n"


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
