"""End the processes that a run has left behind, once it is given up or has failed.

Its test would have ended them itself, or waited for them. They would work during later tests, and
Python waits at its end for those of ``multiprocessing``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from pytest_torchprof.capture.children.parent import is_alive
from pytest_torchprof.capture.processes import STARTED, TICKS, descendants, fields_of, helps
from pytest_torchprof.capture.unpatched import REAL

#: A process that does not end upon SIGTERM by then is killed. In ours, a thread ends one that waits
#: in native code after 1 s: see `capture.children.termination`.
_PATIENCE_S = 2.0
#: The system ends a killed process soon.
_KILLED_S = 1.0
_POLL_S = 0.01


def end_processes(began_ns: int) -> None:
    """End the descendants that were started since then, by our clock; on Linux.

    Helpers of Python and torch stay, as they serve later tests: servers of forks, trackers, and
    compilers.
    """
    born = _born_since(began_ns)
    for number, patience_s in ((signal.SIGTERM, _PATIENCE_S), (_KILL, _KILLED_S)):
        for pid in born:
            with suppress(OSError):  # it has just ended
                os.kill(pid, number)
        until = REAL.clock() + int(patience_s * 1e9)
        while (born := [*filter(is_alive, born)]) and REAL.clock() < until:
            REAL.sleep(_POLL_S)
        if not born:
            break
    room: Any = sys.modules.get("multiprocessing.process")
    if room is not None:
        room.active_children()  # waits for those that have ended


_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


def _born_since(began_ns: int) -> list[int]:
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return []
    # A tick earlier, as the system counts whole ones.
    since_ns = began_ns + _boot_offset_ns() - 1_000_000_000 // TICKS
    found = []
    for pid in descendants():
        with suppress(OSError, ValueError, IndexError):  # it has just ended
            started_ns = int(fields_of(pid)[STARTED]) * 1_000_000_000 // TICKS
            if started_ns >= since_ns and not helps(pid):
                found.append(pid)
    return found


def _boot_offset_ns() -> int:
    """What the time since the boot is ahead of our clock.

    The least of some readings: between the two of a pair, the thread may have to wait.
    """
    return min(int(-REAL.clock() + REAL.any_clock(time.CLOCK_BOOTTIME)) for _ in range(5))
