"""`torchprof lint --format github|gitlab|sarif`, with a rule made for the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.command_line import Say, say
from support.hostile import EVERY, assert_terminal
from support.sessions import replaced_rules
from support.trace_builder import TraceBuilder

from pytest_torchprof.rules.rule import Matches, rule
from pytest_torchprof.trace.names import selected_operators

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

__all__ = ["say"]  # a fixture

#: The number of places that the rule finds.
PLACES = 12


@rule("slow-add", fix="add less", triggers="aten::add$")
def slow_add(trace: Events) -> Matches:
    """Additions, each on a line of its own, the later the costlier.

    ## What it does

    Finds `aten::add`.
    """
    found = selected_operators(trace, "aten::add")
    lines = [f"train.py:{n + 1}" for n in range(len(found))]
    return Matches(found, "100 % slow", cost_ns=np.arange(len(found)) * 100 + 100, location=lines)


@rule("slow-mul", fix="", triggers="aten::mul$", needs="device")
def slow_mul(trace: Events) -> Matches:
    """Multiplications."""
    return Matches(selected_operators(trace, "aten::mul"), "a product")


@pytest.fixture(autouse=True)
def two_rules() -> Iterator[None]:
    """Only the rules above."""
    with replaced_rules() as known:
        known.update({one.code: one for one in (slow_add, slow_mul)})
        yield


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    b = TraceBuilder(None)
    for _ in range(PLACES):
        b.op("aten::add", [[4], [4]])
    b.op("aten::mul", [[4], [4]])
    return b.save(tmp_path / "step.json")


def test_github_shows_the_costliest_and_counts_the_rest(say: Say, trace: Path) -> None:
    status, out, err = say("lint", trace, "--format", "github")
    lines = out.splitlines()
    shown = [line for line in lines if line.startswith("::warning ")]
    assert (0, "", 10) == (status, err, len(shown))
    assert shown[0].startswith(
        f"::warning file=train.py,line={PLACES},title=torchprof%3A slow-add::100 %25 slow (×1)"
    )
    assert "torchprof: … and 2 more annotations" == lines[10]
    assert any(line.startswith("not checked: slow-mul (") for line in lines[11:])


def test_a_limit_means_fewer_annotations_never_more(say: Say, trace: Path) -> None:
    for limit, shown in (("3", 3), ("0", 10), ("50", 10)):
        out = say("lint", trace, "--format", "github", "--limit", limit)[1]
        assert shown == out.count("::warning ")


def test_gitlab_has_all_findings(say: Say, trace: Path) -> None:
    status, out, err = say("lint", trace, "--format", "gitlab")
    issues = json.loads(out)
    assert (0, "", PLACES) == (status, err, len(issues))
    assert PLACES == len({issue["fingerprint"] for issue in issues})
    assert [PLACES, PLACES - 1] == [i["location"]["lines"]["begin"] for i in issues[:2]]


def test_findings_that_gitlab_cannot_show_are_counted_on_stderr(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    with b.op("aten::mul", [[4], [4]]):
        b.launch("kernel")
    path = b.save(tmp_path / "mul.json")
    status, out, err = say("lint", path, "--format", "gitlab")
    assert (0, []) == (status, json.loads(out))
    assert 1 == err.count("\n")
    assert "left out: 1 finding without a line of a file here" in err


def test_sarif_has_the_rules_the_findings_and_what_was_not_checked(say: Say, trace: Path) -> None:
    status, out, err = say("lint", trace, "--format", "sarif", "--limit", "5")
    run = json.loads(out)["runs"][0]
    assert (0, "", 5) == (status, err, len(run["results"]))
    assert ["slow-add", "slow-mul"] == [one["id"] for one in run["tool"]["driver"]["rules"]]
    told = run["invocations"][0]["toolExecutionNotifications"]
    assert "slow-mul" == told[0]["associatedRule"]["id"]
    assert f"left out: {PLACES - 5} findings; --limit 0 shows all" == told[1]["message"]["text"]


@pytest.mark.parametrize("style", ["github", "gitlab", "sarif"])
def test_a_check_fails_as_in_other_formats(say: Say, trace: Path, style: str) -> None:
    assert 1 == say("lint", trace, "--fail", "--format", style)[0]


@pytest.mark.parametrize("style", ["github", "gitlab", "sarif"])
def test_hostile_names_in_a_trace_stay_names(say: Say, tmp_path: Path, style: str) -> None:
    b = TraceBuilder(None)
    with b.annotation(EVERY.replace("\ud800", "").replace("\udcff", "") + "x" * 10_000):
        b.op("aten::add", [[4], [4]])
    status, out, _ = say("lint", b.save(tmp_path / "odd.json"), "--format", style)
    assert 0 == status
    assert_terminal(out)


@pytest.mark.parametrize("style", ["github", "gitlab", "sarif"])
def test_a_file_that_is_no_trace_is_one_line_on_stderr(
    say: Say, tmp_path: Path, style: str
) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}", "utf-8")
    status, out, err = say("lint", path, "--format", style)
    assert (2, "", 1) == (status, out, err.count("\n"))
