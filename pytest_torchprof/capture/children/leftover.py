"""End the processes that a run has left behind, once it is given up or has failed.

Its test would have ended them itself, or waited for them. They would work during later tests, and
Python waits at its end for those of ``multiprocessing``.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Any

from pytest_torchprof.capture.children.parent import is_alive
from pytest_torchprof.capture.processes import STARTED, descendants, fields_of, helps
from pytest_torchprof.capture.unpatched import REAL

#: A process that does not end upon SIGTERM by then is killed. In ours, a thread ends one that waits
#: in native code after 1 s: see `capture.children.termination`.
_PATIENCE_S = 2.0
#: The system ends a killed process soon.
_KILLED_S = 1.0
_POLL_S = 0.01


def end_processes(ticks: int) -> None:
    """End the descendants that were started since then, see `ticks_now`; on Linux.

    Helpers of Python and torch stay, as they serve later tests: servers of forks, trackers, and
    compilers.
    """
    born = _born_since(ticks)
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


def _born_since(ticks: int) -> list[int]:
    found = []
    for pid in descendants():
        with suppress(OSError, ValueError, IndexError):  # it has just ended
            if int(fields_of(pid)[STARTED]) >= ticks and not helps(pid):
                found.append(pid)
    return found
