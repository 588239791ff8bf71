"""Find threads that a test, or one before it, starts and neither joins nor leaves idle.

How much of their work falls into the measured run is chance.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from pytest_torchprof.capture.unpatched import REAL
from pytest_torchprof.capture.user_frames import is_users
from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from threading import Thread

#: A thread that has told the test that it is done has this long to end, or to wait for work.
_GRACE_S = 0.002
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
    """Threads at the end of a region, by native id.

    ``late`` neither had ended nor waited for work; ``left`` did not a moment later either, or were
    running code of the user's before the region began, too; ``at_work``: one of those that were
    started since was running such code.
    """

    late: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    at_work: bool = False


class StartedThreads:
    """Python's threads that are started from `begin` on."""

    def __init__(self) -> None:
        self._before: frozenset[int | None] = frozenset()
        self._late: list[Thread] = []
        #: Older ones that are at work already.
        self._older: list[Thread] = []

    def begin(self) -> None:
        """Watch from here on."""
        threads = REAL.threads()
        self._before = frozenset(thread.native_id for thread in threads)
        self._older = self._working(threads) if len(threads) > 1 else []

    def look(self) -> None:
        """Note those at work at the end of the region, before it ends: they may end at any time."""
        self._late = self._busy(self._alive())

    def end(self) -> LeftThreads:
        """Those that have not ended; waits a moment if there were any at work."""
        late, older = self._late, _ids(self._working(self._older)) if self._older else ()
        if not late:
            return LeftThreads(older, older)
        used_ns = _used_ns(late)
        REAL.sleep(_GRACE_S)
        alive = set(self._alive())
        left = self._busy([one for one in late if one in alive])
        at_work = _at_work(left, used_ns)
        return LeftThreads((*_ids(late), *older), (*_ids(left), *older), at_work)

    def _alive(self) -> list[Thread]:
        return [thread for thread in REAL.threads() if thread.native_id not in self._before]

    def _working(self, threads: Iterable[Thread]) -> list[Thread]:
        """Those that run code of the user's in another thread than this one."""
        me = REAL.current_thread()
        busy = self._busy(one for one in threads if one.ident != me)
        frames = REAL.frames()
        return [one for one in busy if _runs_users_code(frames.get(one.ident))]

    @staticmethod
    def _busy(threads: Iterable[Thread]) -> list[Thread]:
        frames = REAL.frames()
        return [one for one in threads if not _waits_for_work(frames.get(one.ident))]


def _ids(threads: Iterable[Thread]) -> tuple[int, ...]:
    return tuple(thread.native_id for thread in threads if thread.native_id is not None)


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


def _at_work(threads: Iterable[Thread], used_ns: dict[Thread, int]) -> bool:
    """Whether one of these threads runs code of the user's; ``used_ns``: its CPU time before."""
    for _ in range(_MOST_WAITS):
        frames, now_ns = REAL.frames(), _used_ns(threads)
        running = [one for one in now_ns if _runs_users_code(frames.get(one.ident))]
        del frames
        if any(now_ns[one] - used_ns.get(one, now_ns[one]) >= _AT_WORK_NS for one in running):
            return True
        threads = [one for one in running if _is_ready(one)]
        if not threads:
            return False
        REAL.sleep(_GRACE_S)
    return True


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


def _is_ready(thread: Thread) -> bool:
    """Whether a thread runs, or would if a CPU were free."""
    place = f"/proc/self/task/{thread.native_id}/stat"
    with suppress(OSError, IndexError), REAL.open(place, "rb") as file:
        return bool(file.read().rpartition(b")")[2].split()[0] == b"R")
    return False
