"""A worker holds no modules that its question does not need: many of them run at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.fleets import save_ranks

#: Of one MiB each, or nearly.
LARGE = {"argparse", "hashlib", "importlib.metadata", "numpy.ma", "numpy.random", "tempfile"}
CODE = """
import sys
from pytest_torchprof.fleet.mapping import Question, answer
from pytest_torchprof.fleet.sources import find_sources

command, by, *paths = sys.argv[1:]
settings = dict(
    step=None, step_name=None, format="table", by=by, depth=None, chips=(), ignored=[],
    thresholds="", timeline=False, points=0,
)
for source in find_sources(paths):
    print(answer(Question(f"commands.{command}:{command}_part", settings), source).error)
print(*sys.modules)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "by"),
    [
        ("summary", ""), ("ops", "name"), ("kernels", "name"), ("lint", ""), ("memory", ""),
        ("idle", "place"), ("collectives", ""), ("ranks", ""),
    ],
)  # fmt: skip
def test_large_modules_stay_out(command: str, by: str, tmp_path: Path) -> None:
    paths = save_ranks(tmp_path, 2)
    done = subprocess.run(
        [sys.executable, "-c", CODE, command, by, *map(str, paths)],
        capture_output=True,
        check=True,
        text=True,
    )
    *errors, modules = done.stdout.splitlines()
    assert {"None"} == set(errors)
    assert set() == LARGE & set(modules.split())
