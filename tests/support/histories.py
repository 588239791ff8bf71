"""Histories of runs, made by hand, and repositories with their commits."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_torchprof.history.runs import RUN_SCHEMA, Run, RunTest, encode
from pytest_torchprof.history.stores import new_name

_NUMBERS = itertools.count()

WHO = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def git(folder: Path, *words: str) -> str:
    """Git's answer in a folder."""
    done = subprocess.run(
        ["git", *words], cwd=folder, env={**os.environ, **WHO}, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


class Repository:
    """A repository in a folder, whose commits are empty unless they are given a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "-q", "-b", "main")

    def commit(self, **files: str) -> str:
        """A new commit of these files."""
        for name, text in files.items():
            (self.folder / f"{name}.py").write_text(text, "utf-8")
        git(self.folder, "add", "-A")
        git(self.folder, "commit", "-q", "--allow-empty", "-m", f"commit {next(_NUMBERS)}")
        return git(self.folder, "rev-parse", "HEAD")

    def switch(self, branch: str) -> None:
        """Check out this branch, made here if there is none."""
        known = git(self.folder, "branch", "--list", branch)
        git(self.folder, "checkout", "-q", *([] if known else ["-b"]), branch)

    def merge(self, branch: str) -> str:
        """Merge this branch in a commit of its own."""
        git(self.folder, "merge", "-q", "--no-ff", "-m", "merge", branch)
        return git(self.folder, "rev-parse", "HEAD")


def run(commit: str | None, metrics: Mapping[str, Any], **values: Any) -> Run:
    """A run of one test, ``t.py::test_a``, with these metrics; each starts a minute later."""
    minutes = next(_NUMBERS)
    clock = f"{1 + minutes // 1440:02}T{minutes // 60 % 24:02}:{minutes % 60:02}:00Z"
    tests = values.pop("tests", [RunTest("t.py::test_a", "ok", "passed", "0" * 16, dict(metrics))])
    known: dict[str, Any] = {
        "schema": RUN_SCHEMA,
        "repository": "repo",
        "commit": commit,
        "parents": None,
        "merge_base": None,
        "branch": "main",
        "dirty": False,
        "ci": None,
        "started": f"2026-01-{clock}",
        "environment": {"key": "cpu, torch 2.13", "host": "runner-1"},
        "versions": {"torchprof": "0.1", "python": "3.11"},
        "tests": tests,
    }
    return Run(**{**known, **values})


def save(folder: Path, *runs: Run) -> list[str]:
    """Put documents of these runs into a history; their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for one in runs:
        names.append(new_name(one.started, one.commit))
        (folder / names[-1]).write_bytes(encode(one))
    return names
