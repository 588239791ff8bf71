"""Threads and tasks that a test leaves, and forks while the profiler's threads run."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Collection, Iterable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture.dynamo import is_users
from pytest_torchprof.capture.patches import REAL
from pytest_torchprof.core.records import Frozen

if TYPE_CHECKING:
    from threading import Thread


# ---- Find threads that a test, or one before it, starts and neither joins nor leaves idle.
#
# How much of their work falls into the measured run is chance.

#: A thread that has told the test that it is done has this long to end, or to wait for work.
_GRACE_S = 0.003
#: A thread that used this much CPU time meanwhile is at work; one that polls uses less.
_AT_WORK_NS = 500_000
#: On a busy machine, a thread may have to wait this many times as long for a CPU.
_MOST_WAITS = 10
#: Functions, by module and name, in whose own frame a worker waits for its next task.
_WORKERS = {
    ("concurrent.futures.thread", "_worker"),
    ("multiprocessing.pool", "worker"),
}
#: Functions that wait for a task or a message, through functions of these modules.
_RECEIVERS = {
    ("queue", "get"),
    ("multiprocessing.queues", "get"),
    *(("selectors", name) for name in ("select", "_select")),
}
_WAITING = {module for module, _ in _RECEIVERS} | {
    "threading",
    "multiprocessing.connection",
    "multiprocessing.synchronize",
}
#: Functions in whose own frame a thread waits for whatever it may be.
_WAITS = {("threading", "wait"), ("threading", "join"), ("threading", "acquire")}


class LeftThreads(Frozen, frozen=True):
    """Threads at the end of a region.

    ``left``: the native ids of those that were started since it began and neither had ended nor
    waited for work a moment later, and of those that ran code of the user's before it began.
    ``at_work``: one of the former was running such code.
    """

    left: tuple[int, ...] = ()
    at_work: bool = False


class StartedThreads:
    """Python's threads that are started from `begin` on."""

    def __init__(self) -> None:
        self._before: frozenset[int | None] = frozenset()
        #: Older ones that are at work already.
        self._older: list[Thread] = []

    def begin(self) -> None:
        """Watch from here on."""
        threads = REAL.threads()
        self._before = frozenset(thread.native_id for thread in threads)
        self._older = self._working(threads) if len(threads) > 1 else []

    def end(self, *, any_started: bool) -> LeftThreads:
        """Those that have not ended; waits a moment if there were any at work."""
        older = self._working(self._older) if self._older else []
        late, at_work = self._new() if any_started else [], False
        used_ns = _used_ns(late)
        for _ in range(_MOST_WAITS if late else 0):
            REAL.sleep(_GRACE_S)
            late = self._new()
            running = self._working(late)
            at_work = any(
                ns - used_ns.get(one, ns) >= _AT_WORK_NS for one, ns in _used_ns(running).items()
            )
            if at_work or not running:
                break
        left = (*(one.native_id for one in (*late, *older) if one.native_id is not None),)
        return LeftThreads(left, at_work)

    def _new(self) -> list[Thread]:
        return _busy(one for one in REAL.threads() if one.native_id not in self._before)

    def _working(self, threads: Iterable[Thread]) -> list[Thread]:
        """Those that run code of the user's in another thread than this one."""
        me, alive = REAL.current_thread(), {*REAL.threads()}
        busy = _busy(one for one in threads if one.ident != me and one in alive)
        frames = REAL.frames()
        return [one for one in busy if _runs_users_code(frames.get(one.ident))]


def _busy(threads: Iterable[Thread]) -> list[Thread]:
    frames = REAL.frames()
    return [one for one in threads if not _waits_for_work(frames.get(one.ident))]


def _place(frame: FrameType) -> tuple[str, str]:
    return str(frame.f_globals.get("__name__")), frame.f_code.co_name


def _waits_for_work(frame: FrameType | None) -> bool:
    """Whether a thread, by its innermost frame, waits for its next task."""
    if frame is None:
        return False
    if _place(frame) in _WORKERS:
        return True
    inner: FrameType | None = frame
    while inner is not None and _place(inner)[0] in _WAITING:
        if _place(inner) in _RECEIVERS:
            return True
        inner = inner.f_back
    return False


def _runs_users_code(frame: FrameType | None) -> bool:
    """Whether a thread, by its innermost frame, runs code of the user's, or is about to."""
    if frame is None or _place(frame) in _WAITS:
        return False
    starting = True
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return True
        starting &= _place(frame)[0] == "threading"
        frame = frame.f_back
    return starting


def _used_ns(threads: Iterable[Thread]) -> dict[Thread, int]:
    """CPU time in ns of each thread; without those for which the system does not tell."""
    used: dict[Thread, int] = {}
    for thread in threads:
        with suppress(OSError, TypeError):  # it has just ended, or there is no such clock
            used[thread] = REAL.any_clock((~(thread.native_id or 0) << 3) | 6)
    return used if sys.platform == "linux" else {}


# ---- Detect work of other threads of this process, which the profiler does not see.

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


# ---- Forks while the profiler's threads run, which Python warns about since 3.12.

_SAID = r"This process \(pid=\d+\) is multi-threaded, use of \w+\(\) may lead to deadlocks"

_PYTHON: tuple[int, ...] = sys.version_info[:2]
_ignore = warnings.filterwarnings

#: Threads that the first profiler session leaves running, by native id.
_PROFILERS: set[str] = set()


def threads_now() -> set[str]:
    """Native ids of this process's threads; empty if the system does not list them."""
    try:
        return set(REAL.listdir("/proc/self/task"))
    except OSError:
        return set()


def expect_threads(started: Iterable[str]) -> None:
    """Declare these threads as the profiler's: a fork is still warned about for all others."""
    if not (started := set(started)) or _PYTHON < (3, 12):
        return
    if not _PROFILERS:
        os.register_at_fork(before=_ignore_if_alone)
    _PROFILERS.update(started)


def _ignore_if_alone() -> None:
    """Until the next fork, or until pytest or a block of the test restores the filters."""
    filters: Any = warnings.filters
    for one in [one for one in filters if getattr(one[1], "pattern", None) == _SAID]:
        filters.remove(one)
    if len(threads_now() - _PROFILERS) <= 1:
        _ignore("ignore", _SAID, DeprecationWarning)
