"""Record series of two alternating processes, and of single ones, for a given time."""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

from benchmarks.times.series import Conditions, Pairs, Series, Session
from benchmarks.times.work import WORK
from pytest_torchprof.ab.sides import same_addresses, same_environment
from pytest_torchprof.verdict.paired import RENEWING_SHARE, orders

ROOT = Path(__file__).parent.parent.parent
#: Calls of the reference kernel after a turn of a session: about a millisecond.
_REFERENCE_CALLS = 4


class Worker:
    """A measured process: set up as by `torchprof ab`, or like any benchmark."""

    def __init__(self, *, as_ab: bool) -> None:
        #: Time spent on setting up works again, so far.
        self.making_ns = 0
        how = "shaken" if as_ab else "plain"
        environment = same_environment() if as_ab else os.environ
        with same_addresses() if as_ab else nullcontext():
            path = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.times.worker", how],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={
                    **environment,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": os.pathsep.join(path),
                },
                text=True,
            )

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def calls(self, work: str) -> int:
        """The number of calls that fill a turn."""
        return self.turn(work, 0)[0]

    def turn(self, work: str, calls: int, pair: int = 0, *, fresh: bool = False) -> list[int]:
        """The durations of this many calls, in ns, in the pair with this number.

        Raises:
            RuntimeError: the process has died.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{work}|{calls}|{pair}|{fresh:d}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a measured process has died with status {self._process.wait()}")
        found: list[int]
        found, making_ns = json.loads(line)
        self.making_ns += making_ns
        return found


def conditions(*, hog: bool, quick: bool) -> Conditions:
    """The conditions of a recording that starts now."""
    return Conditions(
        machine=platform.machine(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        torch=version("torch"),
        started=datetime.now(timezone.utc).isoformat(timespec="minutes"),
        hog=hog,
        quick=quick,
    )


def record(works: Sequence[str], *, seconds: float, each_s: float, hog: bool) -> Iterator[Series]:
    """Series of these works, until the time is over; new processes for each round of all works.

    ``each_s`` is how long a side of a pair is measured; a session takes one second at most.
    """
    started = time.monotonic()
    a_first = orders(random.Random(1))
    number = 0
    with competitor() if hog else nullcontext():
        while not number or time.monotonic() - started < seconds:
            number += 1
            with closing(Worker(as_ab=False)) as alone:
                for work in works:
                    at = time.monotonic() - started
                    yield Session(number, at, work, *_alone(alone, work, min(each_s, 1.0)))
                    if time.monotonic() - started > seconds:
                        return
            with closing(Worker(as_ab=True)) as a, closing(Worker(as_ab=True)) as b:
                for work in works:
                    at = time.monotonic() - started
                    yield Pairs(number, at, work, *_in_turn(a, b, work, each_s, a_first))
                    if time.monotonic() - started > seconds:
                        return


def _alone(worker: Worker, work: str, seconds: float) -> tuple[list[list[int]], list[list[int]]]:
    calls = worker.calls(work)
    turns: list[list[int]] = []
    reference = []
    spent = 0
    while spent < seconds * 1e9:
        turns.append(worker.turn(work, calls))
        reference.append(worker.turn("reference", _REFERENCE_CALLS))
        spent += sum(turns[-1])
    return turns, reference


def _in_turn(
    a: Worker, b: Worker, work: str, seconds: float, a_first: Iterator[bool]
) -> tuple[list[list[int]], list[list[int]], list[bool]]:
    """Turns of both until each has run for its seconds, and which was first in each pair."""
    calls = a.calls(work)
    b.calls(work)  # also lets both start up before the clock runs
    turns: dict[Worker, list[list[int]]] = {a: [], b: []}
    spent = {a: 0, b: 0}
    earlier = {worker: worker.making_ns for worker in (a, b)}
    firsts: list[bool] = []
    while min(spent.values()) < seconds * 1e9:
        firsts.append(next(a_first))
        # Like the renewal of fixtures: for both sides, as long as it takes a small share of the
        # time.
        made = max(worker.making_ns - before for worker, before in earlier.items())
        fresh = made <= RENEWING_SHARE * max(spent.values())
        for worker in (a, b) if firsts[-1] else (b, a):
            turns[worker].append(worker.turn(work, calls, len(firsts), fresh=fresh))
            spent[worker] += sum(turns[worker][-1])
    return turns[a], turns[b], firsts


@contextmanager
def competitor() -> Iterator[None]:
    """A competing process that never rests, until the block ends or this process dies."""
    program = "import os\nof = os.getppid()\nwhile os.getppid() == of: sum(range(100_000))"
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        yield
    finally:
        process.kill()
        process.wait()


ALL = tuple(WORK)
#: For a first look: one short work of each kind.
FEW = ("small ops", "mlp", "convolution", "sort")
