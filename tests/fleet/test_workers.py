"""Workers that are killed, and parents: nothing is lost, and nothing is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.fleets import save_ranks

from pytest_torchprof.fleet import workers
from pytest_torchprof.fleet.mapping import Question, answer
from pytest_torchprof.fleet.sources import Source, find_sources
from pytest_torchprof.fleet.workers import process_answers

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = {"by": "name", "depth": None, "step": None, "step_name": None, "format": "json"}
QUESTION = Question("commands.ops:ops_part", SETTINGS)
#: Starting a process takes seconds on a busy machine.
LONG_S = 60

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="this system has no /proc"),
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
    found = dict(process_answers(QUESTION, sources, 2))
    assert {at: answer(QUESTION, source) for at, source in enumerate(sources)} == found
    assert not multiprocessing.active_children()


def test_a_trace_that_ends_its_workers_is_a_row_with_the_reason(tmp_path: Path, pipe: Path) -> None:
    sources = sources_of(pipe, *save_ranks(tmp_path / "job", 3))
    done = threading.Event()

    def kill_what_reads_the_pipe() -> None:
        while not done.wait(0.2):
            for one in multiprocessing.active_children():
                if str(pipe) in open_files(one.pid or 0):
                    one.kill()

    killer = threading.Thread(target=kill_what_reads_the_pipe)
    killer.start()
    try:
        found = dict(process_answers(QUESTION, sources, 2))
    finally:
        done.set()
        killer.join()
    assert {0, 1, 2, 3} == found.keys()
    assert str(found[0].error) == (
        f"{pipe}: its worker ended, also with nothing beside it; it may need more memory"
    )
    assert [None] * 3 == [found[at].error for at in (1, 2, 3)]


def test_as_many_workers_as_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "free_bytes", lambda: 2**30)
    small, large = (
        workers._text_bytes(Source(name, True, 20 * 2**20)) for name in ("a.json", "a.json.gz")
    )
    assert [4, 9, 1] == [
        workers._that_fit(*asked) for asked in ((4, small), (100, small), (4, large))
    ]
    monkeypatch.setattr(workers, "free_bytes", lambda: None)
    assert 4 == workers._that_fit(4, large)


def open_files(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(str(link.readlink()))
    return found


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
    return [int(child) for child in found.split()]


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path, pipe: Path) -> None:
    save_ranks(tmp_path / "job", 3)
    command = [sys.executable, "-m", "pytest_torchprof", "ops", "--jobs", "2"]
    parent = subprocess.Popen([*command, str(tmp_path / "job"), str(pipe)])
    wait_until(lambda: any(str(pipe) in open_files(child) for child in children_of(parent.pid)))
    children = children_of(parent.pid)
    parent.kill()
    parent.wait()
    wait_until(lambda: not any(map(runs, children)))


def test_interrupted_workers_end_without_a_word(tmp_path: Path, pipe: Path) -> None:
    command = [sys.executable, "-m", "pytest_torchprof", "ops", "--jobs", "2"]
    parent = subprocess.Popen(
        [*command, *map(str, save_ranks(tmp_path / "job", 3)), str(pipe)],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_until(lambda: any(str(pipe) in open_files(child) for child in children_of(parent.pid)))
    os.killpg(parent.pid, signal.SIGINT)
    _, said = parent.communicate(timeout=LONG_S)
    assert (True, b"") == (parent.returncode != 0, said)


def test_a_worker_does_not_import_what_started_it(tmp_path: Path) -> None:
    """Neither the command's parsers, nor a user's script, which then needs no guard."""
    paths = save_ranks(tmp_path, 2)
    script = tmp_path / "script.py"
    script.write_text(
        "print('begins')\n"
        "import sys\n"
        "from pytest_torchprof.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, script, "ops", *map(str, paths), "--jobs", "2", "--format", "json"],
        capture_output=True,
        check=False,
        text=True,
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert 1 == done.stdout.count("begins")
