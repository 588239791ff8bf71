"""Detect work of other threads of this process, which the profiler does not see."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import ClassVar

from pytest_torchprof.capture.real import REAL

#: An OpenMP pool spins for a while after its work; OpenBLAS's spins after its import for 2**26
#: cycles, or until a fork ends it: 20 to 35 ms that are not the test's.
_SPIN_NS = 50_000_000
#: CPU time of a thread that has worked, and CPU time that is negligible: clocks are read in turn.
_STARTED_NS, _NOTHING_NS = 50_000, 5_000
#: The end of a child wakes any thread, during a system call that Python then repeats.
_WOKEN_NS = 500_000


class Threads:
    """CPU time of this process's threads other than the one that measures, Python's or not."""

    #: Threads that existed before all tests, or when the capture before this one began.
    _seen: ClassVar[frozenset[int]] = frozenset()

    def __init__(self) -> None:
        self._me = self._mine = self._total = 0
        self._tasks: dict[int, int] = {}
        self._settled: frozenset[int] = frozenset()
        self._ours: set[int] = set()
        #: Set by `end`: older Python threads have worked, which do not spin.
        self.pool_worked = False

    @classmethod
    def settle(cls) -> None:
        """Assign the current threads to no test."""
        cls._seen = frozenset(_task_clocks())

    def begin(self, ours: Collection[int] = ()) -> None:
        """Watch from here on; ``ours`` are native ids of our own threads."""
        self._ours, self._me = set(ours), REAL.native_id()
        self._tasks = _task_clocks()
        self._settled = Threads._seen.intersection(self._tasks)
        Threads._seen = frozenset(self._tasks)
        # Read in this order, here and at the end, so that time between the two reads counts for
        # neither.
        self._mine, self._total = REAL.thread_clock(), REAL.cpu_clock()

    def end(self, *, woken: bool = False) -> tuple[bool, bool]:
        """Whether threads that were started since `begin` have worked, and whether older ones have.

        ``woken``: a child process has ended since `begin`.
        """
        if REAL.native_id() != self._me:  # the test ends in another thread than it began in
            return False, True
        total, mine = REAL.cpu_clock() - self._total, REAL.thread_clock() - self._mine
        if total - mine < _NOTHING_NS or not (now := _task_clocks()):
            return False, False
        self._tasks.pop(self._me, None)
        now.pop(self._me, None)
        grown = {task: ns - self._tasks.get(task, 0) for task, ns in now.items()}
        ended = total - mine - sum(grown.values())
        python = {thread.native_id for thread in REAL.threads()}
        # Includes the spinning of a shrinking pool; other threads of the previous run may end late.
        gone = len(self._settled - now.keys() - {self._me})
        started = ended > _STARTED_NS + gone * _SPIN_NS
        others = False
        for task, ns in grown.items():
            if task in self._ours or _is_torchs(task):
                continue
            if task not in self._tasks:
                started |= ns > _STARTED_NS
            else:
                idle_ns = _WOKEN_NS if woken else 0
                others |= ns > (idle_ns if task in python else _SPIN_NS)
                self.pool_worked |= task in python and ns > _STARTED_NS
        return started, others


_FOLDER = "/proc/self/task"
#: The threads found when the folder was last listed: counting its links is faster.
_LATEST: list[int] = []


def _task_clocks() -> dict[int, int]:
    """CPU time in ns of each thread of the process, by native id; empty if unsupported."""
    clocks: dict[int, int] = {}
    with suppress(OSError, TypeError):
        # The same number as then, and each one exists.
        if _LATEST and REAL.stat(_FOLDER).st_nlink - 2 == len(_LATEST):
            return {task: REAL.any_clock((~task << 3) | 6) for task in _LATEST}
    with suppress(OSError):
        for entry in REAL.listdir(_FOLDER):
            with suppress(OSError):  # it has just ended
                clocks[int(entry)] = REAL.any_clock((~int(entry) << 3) | 6)
    _LATEST[:] = clocks
    return clocks


def _is_torchs(task: int) -> bool:
    """Whether it is a thread of torch's autograd, whose work is profiled with its caller's."""
    try:
        with REAL.open(f"/proc/self/task/{task}/comm", "rb") as file:
            return bool(file.read().startswith((b"pt_autograd", b"cuda")))
    except OSError:
        return True  # it has just ended
