"""Forks while the profiler's threads run, which Python warns about since 3.12."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from typing import Any

from pytest_torchprof.capture.unpatched import REAL

_SAID = r"This process \(pid=\d+\) is multi-threaded, use of \w+\(\) may lead to deadlocks"

_catch, _ignore, _warn = warnings.catch_warnings, warnings.filterwarnings, warnings.warn

_PYTHON: tuple[int, ...] = sys.version_info[:2]

#: Threads that the first profiler session leaves running, by native id.
_PROFILERS: set[str] = set()
_HELD: list[warnings.catch_warnings[None]] = []


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
        if _PYTHON >= (3, 13):  # warns last, about the remaining threads
            os.register_at_fork(after_in_parent=_ignore_once)
        else:  # warns before the parent's hooks run
            os.register_at_fork(before=_hold, after_in_parent=_say, after_in_child=_release)
    _PROFILERS.update(started)


def _alone() -> bool:
    return len(threads_now() - _PROFILERS) <= 1


def _ignore_once() -> None:
    """Until the next fork, or until pytest or a block of the test restores the filters."""
    filters: Any = warnings.filters
    for one in [one for one in filters if getattr(one[1], "pattern", None) == _SAID]:
        filters.remove(one)
    if _alone():
        _ignore("ignore", _SAID, DeprecationWarning)


def _hold() -> None:
    held = _catch()
    held.__enter__()
    _HELD.append(held)
    _ignore("ignore", _SAID, DeprecationWarning)


def _release() -> None:
    if _HELD:
        _HELD.pop().__exit__(None, None, None)


def _say() -> None:
    _release()
    if not _alone():
        _warn(
            f"This process (pid={REAL.getpid()}) is multi-threaded, use of fork() may lead to "
            "deadlocks in the child.",
            DeprecationWarning,
            stacklevel=2,
        )
