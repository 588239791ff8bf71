"""A Dask cluster of two worker processes, one of which is killed half way."""

from __future__ import annotations

import builtins
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.fleets import save_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.command_line import Say

LONG_S = 120


def test_without_dask_it_is_one_line(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_ranks(tmp_path, 1)
    original = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "distributed":
            raise ImportError(f"No module named {name!r}")
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    status, out, err = say("ops", tmp_path, "--dask", "tcp://127.0.0.1:1")
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert "pip install 'pytest-torchprof[dask]'" in err


@pytest.fixture
def port() -> int:
    """A free one."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def scheduler(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """It runs until the end of the test."""
    pytest.importorskip("distributed")
    words = ("--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    process = _dask("scheduler", *words)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def address(scheduler: subprocess.Popen[bytes], port: int) -> str:
    """The scheduler's."""
    return f"tcp://127.0.0.1:{port}"


def _dask(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "dask", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _worker(address: str) -> subprocess.Popen[bytes]:
    return _dask("worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard")


def _wait_for_workers(address: str, count: int) -> None:
    import distributed

    connect: Any = distributed.Client
    with connect(address, timeout=LONG_S, set_as_default=False) as client:
        if count:
            client.wait_for_workers(count, timeout=LONG_S)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # of Dask's, about connections that a killed worker had
def test_the_traces_of_a_worker_that_is_killed_go_to_the_other(
    address: str, tmp_path: Path
) -> None:
    save_ranks(tmp_path / "job", 40)
    command = [sys.executable, "-m", "pytest_torchprof", "ops", str(tmp_path / "job")]
    command += ["--merge", "--format", "json", "--limit", "0"]
    workers = [_worker(address) for _ in range(2)]
    try:
        _wait_for_workers(address, 2)
        run = subprocess.Popen([*command, "--dask", address], stdout=subprocess.PIPE)
        time.sleep(3)
        workers[0].send_signal(signal.SIGKILL)
        out, _ = run.communicate(timeout=LONG_S)
        assert 0 == run.returncode
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    alone = subprocess.run(command, capture_output=True, check=True)
    assert json.loads(alone.stdout) == json.loads(out)
    assert alone.stdout == out


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_without_workers_is_one_line(say: Say, address: str, tmp_path: Path) -> None:
    save_ranks(tmp_path / "job", 1)
    _wait_for_workers(address, 0)
    status, out, err = say("ops", tmp_path / "job", "--dask", address)
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert f"--dask {address}: the cluster has no workers; start some: dask worker" in err


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_ends_ends_the_command(
    scheduler: subprocess.Popen[bytes], address: str, tmp_path: Path
) -> None:
    """What was found until then is no table of all traces."""
    os.mkfifo(tmp_path / "rank9.json")
    handle = os.open(tmp_path / "rank9.json", os.O_RDWR)  # whose reader waits for more
    worker = _worker(address)
    command = [sys.executable, "-m", "pytest_torchprof", "ops", "--dask", address]
    command += [*map(str, save_ranks(tmp_path, 3)), str(tmp_path / "rank9.json")]
    try:
        _wait_for_workers(address, 1)
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(8)
        scheduler.kill()
        out, said = run.communicate(timeout=LONG_S)
        assert (2, b"", 1) == (run.returncode, out, said.count(b"\n")), said
    finally:
        os.close(handle)
        worker.kill()
        worker.wait()
