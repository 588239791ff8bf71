"""Performance tests of eleven projects, retold: green as they are, red with a slip in them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from retold.slips import PROJECT, SLIPS, planted
from support.sessions import run

#: Slips that a clock must find; other work on the machine can hide them.
TIMED = {
    name
    for name, slip in SLIPS.items()
    if any("slower" in word or word == "tokens_per_s" for word in slip.says)
}
#: Files whose tests compile a lot.
COMPILING = ("test_torchrec.py", "test_torchtune.py", "test_vllm.py")
COMPILED = {name for name, slip in SLIPS.items() if slip.file in COMPILING}

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def project(pytester: pytest.Pytester) -> Path:
    """A copy of the project, where the session of the test begins."""
    shutil.copytree(
        PROJECT, pytester.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__*", ".*")
    )
    return pytester.path


def failures(output: str) -> str:
    """What was printed of the tests that failed."""
    return re.split(r"=+ (?:torchprof|warnings summary) =+", output.partition(" FAILURES ")[2])[0]


def test_each_source_is_retold() -> None:
    files = {path.name for path in PROJECT.glob("test_*.py")}
    assert len(files) == 11
    assert files == {slip.file for slip in SLIPS.values()}


@pytest.mark.thorough
def test_the_project_is_green(pytester: pytest.Pytester) -> None:
    ran = run(pytester, "--torchprof", "-k", "not warm_start and not slower and not as_fast")
    skipped = 0 if torch.cuda.is_available() else 3
    assert {"passed": 15 - skipped, "skipped": skipped, "deselected": 3} == ran.outcomes, ran.out
    if skipped:
        reasons = {t["reason"] for t in ran.tests.values() if t["status"] == "not_profiled"}
        assert {"skipped"} == reasons


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.thorough if name in TIMED | COMPILED else ())
        for name in SLIPS
    ],
)
def test_a_slip_turns_its_test_red(name: str, pytester: pytest.Pytester) -> None:
    """It fails for its numbers, and says in which region, and which operator, line, or module."""
    slip = planted(name, pytester.path)
    off = run(pytester, slip.file, "-k", slip.test)
    assert {"passed": 1} == {key: n for key, n in off.outcomes.items() if key == "passed"}, off.out
    ran = run(pytester, "--torchprof", slip.file, "-k", slip.test)
    assert 1 == ran.outcomes.get("failed"), ran.out
    said = failures(ran.out)
    assert [] == [word for word in slip.says if word not in said], said


@pytest.mark.thorough
@pytest.mark.parametrize("options", [(), ("-n2",)], ids=["one process", "two workers"])
def test_the_whole_project_is_green_twice(
    options: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    if options:
        pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    needs = ("xdist",) if options else ()
    skipped = 0 if torch.cuda.is_available() else 3
    for command in ("--accept", "--torchprof"):
        ran = run(pytester, command, *options, needs=needs, subprocess=True)
        outcomes = {key: ran.outcomes.get(key, 0) for key in ("passed", "skipped", "failed")}
        assert {"passed": 18 - skipped, "skipped": skipped, "failed": 0} == outcomes, ran.out
