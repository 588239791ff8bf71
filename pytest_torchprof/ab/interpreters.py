"""Find the Python of a side, and check that a worker can run in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pytest_torchprof.core.errors import AbError
from pytest_torchprof.core.version import __version__

_ASKING_S = 60.0
_QUESTION = """
import json, sys
sys.path[:] = [entry for entry in sys.path if entry]
answer = {"python": "%d.%d.%d" % sys.version_info[:3]}
import importlib.metadata as m
for name in ("pytest", "torch"):
    try:
        answer[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
try:
    import pytest_torchprof as t
    answer["own"], answer["file"] = t.__version__, t.__file__
except (ImportError, AttributeError):
    pass
print("\\n" + json.dumps(answer))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python, its display name, and the folder that contains its ``pytest_torchprof``."""

    path: str
    label: str
    tool: Path


def ours() -> Interpreter:
    """The Python running this process; it needs no check."""
    return Interpreter(sys.executable, "", Path(__file__).parents[2])


def interpreter(given: str, option: str, cwd: Path) -> Interpreter:
    """The interpreter that a user named: a file, a virtual environment's folder, or a command.

    Raises `AbError` if it does not run, or lacks what a worker needs.
    """
    path = _path(given, option, cwd)
    try:
        done = subprocess.run(  # noqa: S603 - the user's own interpreter
            [path, "-c", _QUESTION],
            cwd=Path(path).anchor,  # outside of the trees, whose code it would find first
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_ASKING_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AbError(f"{option} {given}: does not run as Python", str(error)) from None
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        output = done.stderr.decode("utf-8", "replace").splitlines() or ["no answer"]
        raise AbError(f"{option} {given}: does not run as Python", output[-1]) from None
    version = __version__
    install = f"install pytest-torchprof {version} there, with {path} -m pip"
    needs = {"pytest": "pytest", "torch": "torch", "own": "pytest-torchprof"}
    lacks = [package for key, package in needs.items() if key not in answer]
    if lacks:
        raise AbError(f"{option} {given}: lacks {' and '.join(lacks)}", next_step=install)
    if answer["own"] != version:
        raise AbError(
            f"{option} {given}: has pytest-torchprof {answer['own']}",
            f"both sides need {version}, the version running this command",
            install,
        )
    label = f"Python {answer['python']}, torch {answer['torch']}"
    return Interpreter(path, label, Path(answer["file"]).parents[1])


def _path(given: str, option: str, cwd: Path) -> str:
    """An absolute path; links are kept, because the link's location identifies an environment."""
    place = Path(os.path.abspath(cwd / Path(given).expanduser()))  # noqa: PTH100 - resolve follows links
    if place.is_dir():
        for inside in ("bin/python", "bin/python3", "Scripts/python.exe", "python.exe"):
            if (place / inside).exists():
                return str(place / inside)
        raise AbError(
            f"{option} {given}: is not a virtual environment", "the folder has no bin/python"
        )
    if place.exists():
        return str(place)
    command = shutil.which(given) if Path(given).name == given else None
    if command is None:
        raise AbError(f"{option} {given}: no such interpreter or environment")
    return os.path.abspath(command)  # noqa: PTH100 - as above
