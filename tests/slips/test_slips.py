"""A small library, with a slip in it: some test turns red, and its failure says what was done.

All of it takes minutes, so but one slip is left to ``make test-all``. To try one of them::

    pytest tests/slips -m "" -k lost_cache
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from slips.slips import HARMLESS, PROJECT, SLIPS, Slip, line_of, plant

#: Other plugins that happen to be installed are not what this is about.
OTHERS = (
    "anyio",
    "asyncio",
    "cacheprovider",
    "hypothesispytest",
    "rerunfailures",
    "timeout",
    "xdist",
)
#: What may differ from machine to machine, or comes from the session around this one.
UNSET = (
    "CI",
    "BUILD_NUMBER",
    "GITHUB_ACTIONS",
    "GITHUB_STEP_SUMMARY",
    "GITLAB_CI",
    "PYTEST_ADDOPTS",
)

#: A failure has no more lines, and its first ones say the cause.
MOST_LINES = 12
FIRST_LINES = 3
SAME = "same cause as "


@dataclass(frozen=True)
class Session:
    """What a session of pytest over the library has left."""

    status: int
    output: str
    tests: list[dict[str, Any]]
    failures: dict[str, str]

    @property
    def red(self) -> list[dict[str, Any]]:
        return [test for test in self.tests if test["status"] == "regressed"]


def session(root: Path, *args: str) -> Session:
    """Run pytest as a user would, in a process of its own."""
    command = [sys.executable, "-m", "pytest", *(f"-pno:{name}" for name in OTHERS)]
    files = ("--torchprof-json=report.json", "--junitxml=junit.xml")
    env = {key: value for key, value in os.environ.items() if not key.startswith(UNSET)}
    ran = subprocess.run(
        [*command, *files, *args], cwd=root, env=env, capture_output=True, text=True, check=False
    )
    output = ran.stdout + ran.stderr
    assert ran.returncode in (0, 1), output
    tests = json.loads((root / "report.json").read_text("utf-8"))["tests"]
    return Session(ran.returncode, output, tests, failures(root / "junit.xml"))


def failures(file: Path) -> dict[str, str]:
    """The texts of the failures, by the ids of the tests."""
    found = {}
    for case in ET.parse(file).iter("testcase"):
        module = case.attrib["classname"].replace(".", "/")
        for failure in case.iter("failure"):
            found[f"{module}.py::{case.attrib['name']}"] = (failure.text or "").strip("\n")
    return found


@pytest.fixture(scope="session")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library with its numbers accepted, once for all workers."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    root = shared / "minilm"
    with FileLock(shared / "minilm.lock"):
        if not root.exists():
            new = copied(PROJECT, shared / "minilm.new")
            ran = session(new, "--accept")
            assert 0 == ran.status, ran.output
            assert {"new"} == {test["status"] for test in ran.tests}
            new.rename(root)
    return root


def copied(source: Path, target: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", ".*", "*.xml", "report.json")
    shutil.copytree(source, target, ignore=ignored)
    return target


def edited(name: str, source: Path, target: Path) -> Path:
    """A copy with a slip, or with a harmless change."""
    copied(source, target)
    plant((SLIPS.get(name) or HARMLESS[name]).edits, target)
    return target


@pytest.mark.parametrize("name", [*SLIPS, *HARMLESS])
def test_an_edit_fits_the_library(name: str, tmp_path: Path) -> None:
    root = edited(name, PROJECT, tmp_path / "minilm")
    for path in root.rglob("*.py"):
        compile(path.read_text("utf-8"), path, "exec")
    for place in SLIPS[name].places if name in SLIPS else ():
        assert line_of(place, root) > 0
    for test in (SLIPS.get(name) or HARMLESS[name]).tests:
        file, _, function = test.partition("::")
        assert (root / file).exists()
        assert not function or f"def {function}(" in (root / file).read_text("utf-8")


@pytest.mark.one_in(len(SLIPS))
@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_is_named(name: str, accepted: Path, tmp_path: Path) -> None:
    """Each red test says its kind, file, line and function, and the first one says it in full."""
    slip = SLIPS[name]
    root = edited(name, accepted, tmp_path / "minilm")
    ran = session(root, "--torchprof", *slip.tests)
    assert ran.red, ran.output
    assert {test["nodeid"] for test in ran.red} == set(ran.failures), ran.output
    told = defaultdict(list)
    for test in ran.red:
        causes = test.get("causes") or []
        assert causes, ran.output
        cause = causes[0]
        assert cause["kind"] in slip.kinds, causes
        assert place_of(cause) in places(slip, root), causes
        assert cause["metrics"], cause
        told[place_of(cause), cause["kind"]].append(ran.failures[test["nodeid"]])
    for (place, _), texts in told.items():
        first, *others = texts
        head = "\n".join(first.splitlines()[:FIRST_LINES])
        assert f"{place[0]}:{place[1]} ({place[2]})" in head
        assert re.search(slip.says, head, re.IGNORECASE), head
        assert all(SAME in text.partition("\n")[0] for text in others), others
    for text in ran.failures.values():
        assert len(text.splitlines()) <= MOST_LINES, text


def place_of(cause: dict[str, Any]) -> tuple[str, int, str]:
    return cause["file"], cause["line"], cause["function"]


def places(slip: Slip, root: Path) -> set[tuple[str, int, str]]:
    """Where the slip may be said to be."""
    return {(place.file, line_of(place, root), place.function) for place in slip.places}


@pytest.mark.thorough
@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_change_is_green(name: str, accepted: Path, tmp_path: Path) -> None:
    root = edited(name, accepted, tmp_path / "minilm")
    ran = session(root, "--torchprof", *HARMLESS[name].tests)
    assert [] == [(test["nodeid"], test["metrics"]) for test in ran.red]
    assert 0 == ran.status, ran.output
    assert {"ok"} == {test["status"] for test in ran.tests}, ran.output


@pytest.mark.thorough
def test_the_library_is_green_as_it_is(accepted: Path, tmp_path: Path) -> None:
    ran = session(copied(accepted, tmp_path / "minilm"), "--torchprof")
    assert 0 == ran.status, ran.output
    assert {"ok"} == {test["status"] for test in ran.tests}, ran.output
