"""Workers that are killed, and parents: nothing is lost, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.fleets import save_ranks

from pytest_torchprof.fleet.mapping import Question, answer
from pytest_torchprof.fleet.sources import Source, find_sources
from pytest_torchprof.fleet.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = {"by": "name", "depth": None, "step": None, "step_name": None, "format": "json"}
QUESTION = Question("commands.ops:ops_part", SETTINGS)
#: Starting a process takes seconds on a busy machine.
LONG_S = 60

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes"),
]


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """A file whose reader waits for more: a named pipe."""
    path = tmp_path / "rank9.json"
    os.mkfifo(path)
    handle = os.open(path, os.O_RDWR)
    os.write(handle, b"{")
    yield path
    os.close(handle)


def sources_of(*paths: Path) -> list[Source]:
    return find_sources([str(path) for path in paths])


def wait_until(happens: object) -> None:
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        if happens():  # type: ignore[operator]
            return
        time.sleep(0.05)
    raise AssertionError("it has not happened in time")


def test_workers_answer_as_one_process_does(tmp_path: Path) -> None:
    sources = sources_of(*save_ranks(tmp_path, 5))
    workers = Workers(QUESTION, sources, 2)
    found = dict(workers.answers())
    assert {at: answer(QUESTION, source) for at, source in enumerate(sources)} == found
    assert not any(worker.process.is_alive() for worker in workers._workers)


def test_a_trace_that_ends_its_workers_is_a_row_with_the_reason(tmp_path: Path, pipe: Path) -> None:
    sources = sources_of(pipe, *save_ranks(tmp_path / "job", 2))
    workers = Workers(QUESTION, sources, 2)
    done = threading.Event()

    def kill_what_reads_the_pipe() -> None:
        while not done.wait(0.2):
            for one in list(workers._workers):
                if one.task == 0 and one.started:
                    os.kill(one.process.pid or 0, signal.SIGKILL)

    killer = threading.Thread(target=kill_what_reads_the_pipe)
    killer.start()
    try:
        found = dict(workers.answers())
    finally:
        done.set()
        killer.join()
    assert {0, 1, 2} == found.keys()
    assert str(found[0].error) == (
        f"{pipe}: its worker ended 2 times: killed by SIGKILL; it may need more memory"
    )
    assert [None, None] == [found[at].error for at in (1, 2)]


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
    return [int(child) for child in found.split()]


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="this system has no /proc")
def test_workers_end_with_a_parent_that_is_killed_and_the_next_run_goes_on(
    tmp_path: Path, pipe: Path
) -> None:
    save_ranks(tmp_path / "job", 3)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "pytest_torchprof", "ops", "--jobs", "2", "--format", "json"]
    parent = subprocess.Popen(
        [*command, str(tmp_path / "job"), str(pipe)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    parts = tmp_path / "cache" / "torchprof" / "parts"
    wait_until(lambda: parts.exists() and len(list(parts.glob("*.part"))) == 3)
    children = children_of(parent.pid)
    assert children
    parent.kill()
    parent.wait()
    wait_until(lambda: not any(map(runs, children)))
    before = {path: path.stat().st_mtime_ns for path in parts.glob("*.part")}
    again = subprocess.run(
        [*command, str(tmp_path / "job")], env=environment, capture_output=True, check=True
    )
    assert b"aten::mm" in again.stdout
    assert before.keys() == set(parts.glob("*.part"))
