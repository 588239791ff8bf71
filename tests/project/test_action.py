"""The action for GitHub: its steps, run as the runner runs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="bash is not installed")

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
PROFILE, UPLOAD, COMMENT = STEPS
#: As the runner calls it for `shell: bash`.
SHELL = (str(BASH), "--noprofile", "--norc", "-eo", "pipefail")

TEST = """
import torch

def test_add(): torch.ones(4).add(1)
def test_fails(): assert not torch.ones(1)
"""


def run(step: dict[str, Any], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step's script in a folder, with these variables and a `bin` of its own."""
    assert set(step["env"]) <= variables.keys(), "a variable has no value"
    script = folder / "step.sh"
    script.write_text(step["run"], "utf-8")
    own = folder / "bin"
    own.mkdir(exist_ok=True)
    python = own / "python"
    if not python.exists():
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', "utf-8")
        python.chmod(0o755)
    known = {"PATH": f"{own}:{os.environ['PATH']}", "GITHUB_OUTPUT": str(folder / "output")}
    known |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    known["PYTEST_ADDOPTS"] = "-p pytest_torchprof.plugin -p no:cacheprovider"
    return subprocess.run(
        [*SHELL, str(script)],
        cwd=folder,
        env={**os.environ, **known, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def profile(
    folder: Path, arguments: str, strict: str = "false"
) -> subprocess.CompletedProcess[str]:
    """Run the first step."""
    return run(
        PROFILE,
        folder,
        TORCHPROF_ARGUMENTS=arguments,
        TORCHPROF_STRICT=strict,
        TORCHPROF_REPORT="out put/report.json",
    )


def test_what_the_workflow_says_is_never_part_of_a_script() -> None:
    assert [] == [step["run"] for step in STEPS if "${{" in step.get("run", "")]
    used = re.findall(r"inputs\.(\w+)", json.dumps(ACTION))
    assert set(ACTION["inputs"]) == set(used)
    outputs = re.findall(r"steps\.(\w+)\.", json.dumps(ACTION))
    assert {"profile"} == set(outputs)


@pytest.mark.thorough
def test_tests_are_profiled_and_the_report_is_an_output(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST, "utf-8")
    done = profile(tmp_path, "test_it.py -k 'add or nothing'")
    assert 0 == done.returncode, done.stdout + done.stderr
    report = json.loads((tmp_path / "out put" / "report.json").read_text("utf-8"))
    assert ["test_it.py::test_add"] == [test["nodeid"] for test in report["tests"]]
    assert (tmp_path / "out put" / "comment.md").exists()
    written = (tmp_path / "output").read_text("utf-8").splitlines()
    assert ["report=out put/report.json", "folder=out put"] == written


@pytest.mark.thorough
@pytest.mark.parametrize(("strict", "status"), [("true", 1), ("false", 0)])
def test_strict_fails_without_baselines(tmp_path: Path, strict: str, status: int) -> None:
    (tmp_path / "test_it.py").write_text(TEST, "utf-8")
    assert status == profile(tmp_path, "-k add", strict).returncode


@pytest.mark.thorough
def test_a_test_that_fails_fails_the_step(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST, "utf-8")
    assert 1 == profile(tmp_path, " ").returncode


def test_arguments_are_words_and_no_commands(tmp_path: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    python = bin_ / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exec "{sys.executable}" "$@"\nprintf "%s\\n" "$@"\n',
        "utf-8",
    )
    python.chmod(0o755)
    done = profile(tmp_path, """a;touch x $(touch y) `touch z` "two  words" * -k 'it''s'""")
    assert 0 == done.returncode, done.stderr
    words = done.stdout.splitlines()
    start = words.index("--torchprof-traces=out put/traces") + 1
    assert words[start:] == [
        "a;touch", "x", "$(touch", "y)", "`touch", "z`", "two  words", "*", "-k", "its"
    ]  # fmt: skip
    assert not {"x", "y", "z"} & {path.name for path in tmp_path.iterdir()}


# -------------------------------------------------------------------- the comment


def comment(
    folder: Path, known: str, *, fork: str = "false", written: bool = True
) -> tuple[str, list[list[str]]]:
    """What the last step says, and the calls of gh that it makes, of which one lists comments."""
    (folder / "bin").mkdir()
    gh = folder / "bin" / "gh"
    gh.write_text(
        '#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word" >> calls; done\n'
        'printf "\\n" >> calls\n'
        'case "$*" in *--paginate*) printf "%s" "$KNOWN";; esac\n',
        "utf-8",
    )
    gh.chmod(0o755)
    (folder / "out put").mkdir()
    if written:
        (folder / "out put" / "comment.md").write_text("<!-- torchprof -->\n", "utf-8")
    done = run(
        COMMENT,
        folder,
        GH_TOKEN="t",
        TORCHPROF_FOLDER="out put",
        TORCHPROF_PULL_REQUEST="7",
        TORCHPROF_FORK=fork,
        GITHUB_REPOSITORY="org/repo",
        KNOWN=known,
    )
    assert 0 == done.returncode, done.stderr
    calls = folder / "calls"
    lines = calls.read_text("utf-8").split("\n")[:-1] if calls.exists() else []
    return done.stdout, [line.split("\0")[:-1] for line in lines]


@pytest.mark.parametrize(
    ("known", "method", "path"),
    [
        ("", "POST", "repos/org/repo/issues/7/comments"),
        ("41", "PATCH", "repos/org/repo/issues/comments/41"),
        ("41\n42\n", "PATCH", "repos/org/repo/issues/comments/41"),
    ],
)
def test_there_is_one_comment(tmp_path: Path, known: str, method: str, path: str) -> None:
    _, calls = comment(tmp_path, known)
    listed, made = calls
    assert ["api", "--paginate", "repos/org/repo/issues/7/comments"] == listed[:3]
    assert 'startswith("<!-- torchprof -->")' in listed[-1]
    assert ["api", "--method", method, path, "-F", "body=@out put/comment.md"] == made[:6]


def test_a_fork_gets_none_and_is_told(tmp_path: Path) -> None:
    out, calls = comment(tmp_path, "", fork="true")
    assert [] == calls
    assert out.startswith(
        "::notice::torchprof: no comment: the token of a pull request from a fork"
    )


def test_without_profiled_tests_there_is_none(tmp_path: Path) -> None:
    out, calls = comment(tmp_path, "", written=False)
    assert [] == calls
    assert out.startswith("::notice::torchprof: no comment: no tests were profiled")
