"""Hold the size: lines, modules, circles, and what one small test enters, against `size.toml`.

The limits only go down: whoever needs more edits `size.toml`, and says there why.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
LIMITS = Path(__file__).with_name("size.toml")
PACKAGE = "pytest_torchprof"

#: Two small tests; the second one is counted, as the first one pays for what is done once.
TESTS = """
import torch

def test_first(): torch.ones(4, 4) @ torch.ones(4, 4)
def test_second(): torch.ones(4, 4) @ torch.ones(4, 4)
"""
#: A plugin that notes which functions of ours run during a test. Comprehensions are part of their
#: function, as they are from Python 3.12 on.
COUNTS = """
import sys
import pytest

codes, counting = set(), False

def note(frame, event, arg):
    if counting and event == "call": codes.add(frame.f_code)

sys.setprofile(note)

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol():
    global counting
    codes.clear()
    counting = True
    try: return (yield)
    finally: counting = False

def pytest_unconfigure():
    sys.setprofile(None)
    ours = [one for one in codes if "/pytest_torchprof/" in one.co_filename]
    functions = [one for one in ours if not one.co_name.startswith("<")]
    files = {one.co_filename for one in functions}
    with open("entered.txt", "w") as file: file.write(f"{len(files)} {len(functions)}")
"""


def files_of(folder: str) -> list[Path]:
    """The Python files of a folder, as git knows them."""
    command = ["git", "ls-files", f"{folder}/*.py"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / line for line in done.stdout.splitlines() if (ROOT / line).exists()]


def lines_of(files: list[Path]) -> int:
    """Their lines together."""
    return sum(len(file.read_bytes().splitlines()) for file in files)


def entered() -> tuple[int, int]:
    """The modules and the functions of ours that one small passing test enters."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_small.py").write_text(TESTS, "utf-8")
        Path(folder, "counts.py").write_text(COUNTS, "utf-8")
        environment = {**os.environ, "PYTHONPATH": folder, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        plugins = ["-p", "counts", "-p", "pytest_torchprof.plugin", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", "-q", *plugins, "--torchprof", "test_small.py"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, env=environment)
        modules, functions = Path(folder, "entered.txt").read_text("utf-8").split()
    return int(modules), int(functions)


def measured() -> dict[str, int]:
    """What `size.toml` limits."""
    package = files_of(PACKAGE)
    modules, functions = entered()
    return {
        "package_lines": lines_of(package),
        "package_modules": sum(1 for file in package if file.stat().st_size),
        "tests_lines": lines_of(files_of("tests")),
        "entered_modules": modules,
        "entered_functions": functions,
    }


def main() -> int:
    """Compare, or write smaller limits with ``--write``; the exit status is 1 beyond a limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="lower the limits to what is measured")
    write = parser.parse_args().write
    text = LIMITS.read_text("utf-8")
    limits: dict[str, Any] = tomllib.loads(text)
    beyond = []
    for name, now in measured().items():
        limit = limits[name]
        if now > limit:
            beyond.append(f"{name}: {now:,}, and the limit is {limit:,}")
        elif write:
            text = text.replace(f"{name} = {limit:_}", f"{name} = {now:_}")
    if beyond:
        reason = "remove something, or raise the limit in tools/size.toml and say why there"
        print("larger than allowed:", *beyond, reason, sep="\n  ")
    elif write:
        LIMITS.write_text(text, "utf-8")
    return bool(beyond)


if __name__ == "__main__":
    sys.exit(main())
