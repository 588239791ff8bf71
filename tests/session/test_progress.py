"""On a terminal, a slow test says which run it is in; elsewhere, nothing does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support.sessions import NO_OTHER_PLUGINS

if TYPE_CHECKING:
    from pathlib import Path

pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")

TEST = """
import torch

def test_it():
    torch.ones(3).add(1)
    print("printed by the test")
"""
#: As if each test took seconds.
SLOW = (
    "import sys, pytest; import pytest_torchprof.session.runs as p; p.AFTER_S = 0.0;"
    "sys.exit(pytest.main())"
)


def session(folder: Path, *options: str, terminal: bool = True) -> str:
    """All that a session writes to its stdout, a terminal of 80 columns or a pipe."""
    (folder / "test_it.py").write_text(TEST, "utf-8")
    command = [sys.executable, "-c", SLOW, *NO_OTHER_PLUGINS, "-p", "no:cacheprovider", *options]
    env = {**os.environ, "COLUMNS": "80", "TERM": "xterm", "PYTEST_ADDOPTS": ""}
    ours, theirs = pty.openpty() if terminal else os.pipe()
    process = subprocess.Popen(command, stdout=theirs, cwd=folder, env=env)
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side of a terminal is closed
            break
        if not part:
            break
        said += part
    os.close(ours)
    assert 0 == process.wait()
    return said.decode()


def on_screen(said: str) -> list[str]:
    """The lines that a terminal shows in the end."""
    lines = []
    for line in re.sub(r"\x1b\[[0-9;]*m", "", said).split("\n"):
        cells: list[str] = []
        at = 0
        for char in line:
            if char in "\r\b":
                at = 0 if char == "\r" else max(at - 1, 0)
                continue
            cells[at : at + 1] = char
            at += 1
        lines.append("".join(cells).rstrip())
    return lines


@pytest.mark.thorough
def test_each_run_is_named_and_nothing_stays(tmp_path: Path) -> None:
    said = session(tmp_path, "--torchprof")
    runs = re.findall(r" run (\d+), ([a-z ]+) …", said)
    assert [("2", "timed"), ("3", "profiled")] == runs
    shown = on_screen(said)
    assert "…" not in "".join(shown)
    assert "test_it.py .                                                             [100%]" in [
        re.sub(r" +\[100%\]", f"{' ' * 61}[100%]", line) for line in shown
    ]
    assert "printed by the test" not in said


@pytest.mark.thorough
@pytest.mark.parametrize("options", [("--torchprof", "-s"), ()])
def test_where_tests_write_themselves_or_nothing_is_profiled_it_is_silent(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    assert " run 2" not in session(tmp_path, *options)


@pytest.mark.thorough
def test_a_log_has_none_of_it(tmp_path: Path) -> None:
    said = session(tmp_path, "--torchprof", terminal=False)
    assert "1 passed" in said
    assert not {"…", "\b", "\r"} & set(said)
