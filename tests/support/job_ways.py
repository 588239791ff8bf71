"""The ways in which a test starts the ranks of a job of `jobs`."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import unittest
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from support import jobs
from torch.multiprocessing.spawn import start_processes


def _by_torch(method: str, job: str, ranks: int, store: str) -> None:
    start = partial(start_processes, nprocs=ranks, start_method=method)
    start(jobs.rank_of_job, (job, ranks, store))


def _by_python(method: str, job: str, ranks: int, store: str) -> None:
    context = multiprocessing.get_context(method)
    processes = [
        context.Process(target=jobs.rank_of_job, args=(rank, job, ranks, store))  # type: ignore[attr-defined]
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [0] * ranks == [process.exitcode for process in processes]


def _as_programs(job: str, ranks: int, store: str) -> None:
    command = [sys.executable, "-m", "support.jobs", job]
    processes = [
        subprocess.Popen([*command, str(rank), str(ranks), store]) for rank in range(ranks)
    ]
    assert [0] * ranks == [process.wait() for process in processes]


def _by_an_agent(job: str, ranks: int, store: str) -> None:
    """torchrun, whose agent is a process that starts the ranks, and watches them."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run([*run, f"--nproc-per-node={ranks}", "-m", "support.jobs", job], check=True)


def _as_a_case(job: str, ranks: int, store: str) -> None:
    """A test of torch's ``MultiProcessTestCase``."""
    from support.job_case import JOB, RANKS, JobCase

    os.environ |= {JOB: job, RANKS: str(ranks)}
    result = unittest.TestResult()
    JobCase("test_job").run(result)  # type: ignore[no-untyped-call]
    assert result.wasSuccessful(), result.errors + result.failures


#: Each takes the name of a job, the number of ranks, and a file for them to meet.
WAYS: Mapping[str, Callable[[str, int, str], None]] = {
    "fork": partial(_by_torch, "fork"),
    "mp.spawn": partial(_by_torch, "spawn"),
    "multiprocessing fork": partial(_by_python, "fork"),
    "multiprocessing spawn": partial(_by_python, "spawn"),
    "multiprocessing forkserver": partial(_by_python, "forkserver"),
    "MultiProcessTestCase": _as_a_case,
    "torch.distributed.run": _by_an_agent,
    "subprocess": _as_programs,
}


def start(way: str, job: str, ranks: int, folder: Path) -> None:
    """Run the job in this way, to its end; ``folder`` is an own one of the call.

    Raises:
        Exception: a rank failed.
    """
    WAYS[way](job, ranks, str(folder / "store"))
