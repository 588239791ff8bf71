"""Detect work of other threads of this process, which the profiler does not see."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

from pytest_torchprof.capture.unpatched import REAL

#: An OpenMP pool spins for a while after its work; OpenBLAS's spins after its import for 2**26
#: cycles, or until a fork ends it: 20 to 35 ms that are not the test's.
_SPIN_NS = 50_000_000
#: CPU time of a thread that has worked, and CPU time that is negligible: clocks are read in turn.
_STARTED_NS, _NOTHING_NS = 50_000, 5_000
#: The end of a child wakes any thread, during a system call that Python then repeats.
_WOKEN_NS = 500_000

_FOLDER = "/proc/self/task"
#: Names of autograd's threads, whose work is profiled with their caller's, begin so.
_TORCHS = (b"pt_autograd", b"cuda")


class _ProcessTasks:
    """The threads of this process; one for the process, as their list is."""

    def __init__(self) -> None:
        #: The threads found when the folder was last listed: counting its links is faster.
        self._listed: list[int] = []
        self._seen: frozenset[int] = frozenset()

    def clocks(self) -> dict[int, int]:
        """CPU time in ns of each thread, by native id; empty if unsupported."""
        clocks: dict[int, int] = {}
        with suppress(OSError, TypeError):
            # The same number as then, and each one exists.
            if self._listed and REAL.stat(_FOLDER).st_nlink - 2 == len(self._listed):
                return {task: REAL.any_clock((~task << 3) | 6) for task in self._listed}
        with suppress(OSError):
            for entry in REAL.listdir(_FOLDER):
                with suppress(OSError):  # it has just ended
                    clocks[int(entry)] = REAL.any_clock((~int(entry) << 3) | 6)
        self._listed = list(clocks)
        return clocks

    def see(self, tasks: Iterable[int]) -> frozenset[int]:
        """Return those of these threads that were seen last time; from here on, these are."""
        before, self._seen = self._seen, frozenset(tasks)
        return before & self._seen


PROCESS_TASKS = _ProcessTasks()


class Threads:
    """CPU time of this process's threads other than the one that measures, Python's or not."""

    def __init__(self) -> None:
        self._me = self._mine = self._total = 0
        self._tasks: dict[int, int] = {}
        self._settled: frozenset[int] = frozenset()
        self._ours: set[int] = set()
        #: Set by `end`: older Python threads have worked, which do not spin.
        self.pool_worked = False

    @staticmethod
    def settle() -> None:
        """Assign the current threads to no test."""
        PROCESS_TASKS.see(PROCESS_TASKS.clocks())

    def begin(self, ours: Collection[int] = ()) -> None:
        """Watch from here on; ``ours`` are native ids of our own threads."""
        self._ours, self._me = set(ours), REAL.native_id()
        self._tasks = PROCESS_TASKS.clocks()
        self._settled = PROCESS_TASKS.see(self._tasks)
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
        if total - mine < _NOTHING_NS or not (now := PROCESS_TASKS.clocks()):
            return False, False
        self._tasks.pop(self._me, None)
        now.pop(self._me, None)
        used_ns = {task: ns - self._tasks.get(task, 0) for task, ns in now.items()}
        ended = total - mine - sum(used_ns.values())
        python = {thread.native_id for thread in REAL.threads()}
        # Includes the spinning of a shrinking pool; other threads of the previous run may end late.
        gone = len(self._settled - now.keys() - {self._me})
        started = ended > _STARTED_NS + gone * _SPIN_NS
        others = False
        for task, ns in used_ns.items():
            if task in self._ours:
                continue
            # One that has just ended is not autograd's: those live as long as the process.
            name = _name(task)
            if name is not None and name.startswith(_TORCHS):
                continue
            if task not in self._tasks:
                started |= ns > _STARTED_NS
            elif name is not None:
                idle_ns = _WOKEN_NS if woken else 0
                others |= ns > (idle_ns if task in python else _SPIN_NS)
                self.pool_worked |= task in python and ns > _STARTED_NS
        return started, others


def _name(task: int) -> bytes | None:
    """The name that the system has for a thread; None if it has just ended."""
    try:
        with REAL.open(f"{_FOLDER}/{task}/comm", "rb") as file:
            return bytes(file.read())
    except OSError:
        return None
