"""Findings: which match, which are compared, and how those that only advise are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Say, say
from support.plain_traces import write, x

__all__ = ["say"]  # a fixture

#: An object of a trace or a report.
Json = dict[str, Any]
#: A user's rule whose matches time decides, as it says.
ADVISES = """
import pytest_torchprof

@pytest_torchprof.rule("slow-add", fix="add less", triggers="aten::add", timed=True)
def slow_add(trace):
    "An addition."
    return trace.operators("aten::add")

def pytest_torchprof_rules():
    return [slow_add]
"""
ADDS = """
def adds(x):
    for _ in range({times}):
        x + 1
"""
OF_ADDS = """
import torch
from lib import adds

def test_adds(torchprof):
    x = torch.ones(1_000_000)  # else what is added is too little to be listed
    with torchprof("loop"):
        adds(x)
"""


def test_advice_that_no_baseline_has_is_told_and_never_called_accepted(
    pytester: pytest.Pytester,
) -> None:
    """In the failure that it explains, in the table, and in each report; and once accepted, too."""
    pytester.makeconftest(ADVISES)
    pytester.makepyfile(test_adds=OF_ADDS, lib=ADDS.format(times=1))
    pytester.runpytest("--accept").assert_outcomes(passed=1)
    pytester.makepyfile(lib=ADDS.format(times=3))
    pytester.makeini("[pytest]\ntorchprof_ci = github")
    files = [f"--torchprof-{kind}=r.{kind}" for kind in ("json", "html", "markdown")]
    said = pytester.runpytest("--torchprof", *files).stdout.str()
    json_text, html, markdown = (
        (pytester.path / one.partition("=")[2]).read_text() for one in files
    )
    assert "  slow-add ×3 (advice)" in said
    assert "lib.py:3 (3×): An addition." in said
    assert "fix: add less" in said
    assert "slow-add ×3 (advice)\n" in said
    assert "3 accepted" not in said
    assert "· advice" in html
    assert "<td>advice: An addition." in html
    assert "advice: An addition." in markdown
    assert "::notice file=lib.py,line=3,title=torchprof%3A slow-add (advice)::" in said
    (test,) = json.loads(json_text)["tests"]
    assert test["status"] == "regressed"
    region = test["regions"]["loop"]
    assert "regressed" not in (test["metrics"]["findings"], region["metrics"]["findings"])
    for (found,) in (test["findings"], region["findings"]):
        assert (found["accepted"], found["gated"], found["count"]) == (False, False, 3)
    pytester.runpytest("--accept").assert_outcomes(passed=1)
    later = pytester.runpytest("--torchprof", *files).stdout.str()
    assert "slow-add ×3 (advice)\n" in later
    (test,) = json.loads((pytester.path / "r.json").read_text())["tests"]
    assert ("ok", False) == (test["status"], test["findings"][0]["accepted"])


@pytest.mark.parametrize(("marker", "failed"), [("", 0), ('("sync-dataloader")', 1)])
def test_a_loop_over_a_loader_without_workers_is_advice_however_short(
    pytester: pytest.Pytester, marker: str, failed: int
) -> None:
    """Only a marker makes it red; that workers would not pay is said beside it."""
    decorated = f"@pytest.mark.no_antipatterns{marker}\n" if marker else ""
    pytester.makepyfile(
        "import pytest\nfrom torch.utils.data import DataLoader\n"
        f"{decorated}def test_one():\n    for batch in DataLoader([1.0, 2.0, 3.0], batch_size=2):\n"
        "        batch + 1\n"
    )
    done = pytester.runpytest("--torchprof", "--torchprof-json=r.json", "-v")
    done.assert_outcomes(passed=1 - failed, failed=failed)
    done.stdout.fnmatch_lines([f"*sync-dataloader ×3{'!' if failed else ' (advice)'}"])
    (test,) = json.loads((pytester.path / "r.json").read_text())["tests"]
    (found,) = test["findings"]
    assert (found["cost_ms"], "workers would not pay" in found["fix"]) == (0, True)


#: A layer that is recognized only in a run that identifies tensors, which does something else.
OTHERWISE = """
import os, torch

RUNS = []

def test_thrice():
    RUNS.append(1)
    layer = torch.nn.Linear(8, 8)
    for _ in range(3):
        layer(torch.ones(4, 8))
    if len(RUNS) == int(os.environ.get("ODD", 0)):
        torch.ones(4).exp()
"""


def test_a_finding_does_not_vanish_because_an_extra_run_was_of_no_use(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rule is then not checked, and the numbers are the same."""
    pytester.makepyfile(test_it=OTHERWISE)
    pytester.runpytest("--accept").assert_outcomes(passed=1)
    stored = (pytester.path / "__torchprof__/test_it.json").read_text()
    assert '"missing-no-grad": 1' in stored
    monkeypatch.setenv("ODD", "4")
    pytester.runpytest("--torchprof", "--torchprof-json=r.json").assert_outcomes(passed=1)
    (test,) = json.loads((pytester.path / "r.json").read_text())["tests"]
    assert (test["status"], test["findings"]) == ("ok", [])
    assert "did something else" in test["unchecked"]["missing-no-grad"]


def found_in(say: Say, folder: Path, events: list[Json]) -> list[Json]:
    """What `torchprof lint` finds in these events."""
    status, out, _ = say("lint", write(folder / "trace.json", events), "--format", "json")
    assert status == 0
    findings: list[Json] = json.loads(out)["findings"]
    return findings


def launched(name: str, at: int, dur: int, number: int) -> list[Json]:
    """A kernel that a launch of so long starts."""
    launch = x("cuda_runtime", "cudaLaunchKernel", at, dur, number)
    return [launch, x("kernel", name, at + dur, 5, number)]


@pytest.mark.parametrize("operators", [[], [x("cpu_op", "aten::relu", 1, 2)]])
def test_idle_time_that_nothing_explains_is_no_warm_up(
    say: Say, tmp_path: Path, operators: list[Json]
) -> None:
    """Of 400 ms before a first launch of 7 ms, in 3 s, only the launch is."""
    events = launched("first", 0, 5, 1) + launched("second", 400_000, 7_000, 2)
    events += launched("first", 2_999_990, 5, 3)
    assert found_in(say, tmp_path, events + operators) == []


@pytest.mark.parametrize(("compiles", "wanted"), [([], []), ([1], [1])])
def test_a_variant_is_recompiled_only_where_the_trace_has_its_compilation(
    say: Say, tmp_path: Path, compiles: list[int], wanted: list[int]
) -> None:
    """Variants that run in turn were compiled before; one that is compiled costs that time."""
    events = [
        x("cpu_op", f"Torch-Compiled Region: 0/{variant}", 1000 * turn + 400 * variant, 300)
        for turn in range(1, 7)
        for variant in range(2)
    ]
    events += [x("cpu_op", "_compile.compile_inner (dynamo_timed)", 1301, 90) for _ in compiles]
    found = found_in(say, tmp_path, events)
    assert [(one["rule"], one["count"]) for one in found] == [("recompile", n) for n in wanted]
    assert all(one["cost_ms"] == pytest.approx(0.09) for one in found)


def test_what_two_regions_do_alike_is_found_in_both(pytester: pytest.Pytester) -> None:
    """A finding that spans repeated layers is of each region in which they run."""
    pytester.makepyfile(
        """
        import torch

        model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])

        def test_it(torchprof):
            for name in ("first", "second"):
                x = torch.randn(4096, 256)
                with torchprof(name):
                    model(x)
        """
    )
    pytester.runpytest("--torchprof", "--torchprof-json=r.json").assert_outcomes(passed=1)
    regions: Json = json.loads(Path("r.json").read_text())["tests"][0]["regions"]
    assert [one["metrics"]["findings"]["value"] for one in regions.values()] == [1, 1]
    for (found,) in (one["findings"] for one in regions.values()):
        assert found["rule"] == "missing-no-grad"
        assert found["location"].endswith(".py:9")
