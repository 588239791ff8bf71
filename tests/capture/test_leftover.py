"""Processes that a run has left behind are ended; older ones and helpers stay."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_torchprof.capture import started as leftover
from pytest_torchprof.capture.patches import REAL
from pytest_torchprof.capture.processes import ticks_now
from pytest_torchprof.capture.started import is_alive

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are told by /proc"),
]

WAITS = "print(flush=True); input()"
IGNORES = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS
#: A server of forks, which has forked a process.
SERVES = "import os; os.fork(); os.setpgid(0, 0); from multiprocessing.forkserver import main; "

Started = subprocess.Popen[str]


@pytest.fixture
def start() -> Iterator[Callable[[str], Started]]:
    """Starts a program, which has begun to wait."""
    started: list[Started] = []

    def one(code: str) -> Started:
        program = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(program)
        assert program.stdout is not None
        assert "\n" == program.stdout.readline()
        return program

    yield one
    for program in started:
        program.kill()
        program.communicate()


def test_those_of_the_run_are_ended_whatever_they_do_on_sigterm(
    start: Callable[[str], Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftover, "_PATIENCE_S", 0.1)
    older = start(WAITS)
    REAL.sleep(0.05)  # more than the ticks by which the system counts
    began = ticks_now()
    hears, ignores = start(WAITS), start(IGNORES)
    leftover.end_processes(began)
    assert (-15, -9, None) == (hears.wait(60), ignores.wait(60), older.poll())


def test_helpers_stay_and_what_a_server_has_forked_does_not(
    start: Callable[[str], Started],
) -> None:
    began = ticks_now()
    server = start(SERVES + WAITS)
    (forked,) = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text("ascii").split()
    leftover.end_processes(began)
    assert server.poll() is None
    assert not is_alive(int(forked))
