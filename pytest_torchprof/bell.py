"""Rings in the main thread after some seconds, on a signal that tests have no use for.

An alarm that a test can see is one that it can take for its own: `signal.alarm(0)` says whether
there is one, and stops it. So this is a timer of its own (`timer_create`), which sends a real-time
signal. Where the system has none, the bell is that alarm after all.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Any

#: Not the last one, which somebody may take because it is the last.
_NUMBER = getattr(signal, "SIGRTMAX", 0) - 1
_CLOCK_MONOTONIC = 1  # as Linux numbers it
_SIGEV_SIGNAL = 0


class _Event(ctypes.Structure):
    """``struct sigevent`` of Linux, 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * (56 - ctypes.sizeof(ctypes.c_void_p))),
    )


class _Times(ctypes.Structure):
    """``struct itimerspec``: seconds and nanoseconds of the interval, and until the first ring."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("again_s", "again_ns", "s", "ns"))


@contextmanager
def bell(after_s: float, again_s: float, ring: Callable[[], None]) -> Iterator[None]:
    """Call ``ring`` in the main thread, in which we are, after so many seconds and again."""

    def heard(_: int, __: FrameType | None) -> None:
        ring()

    timer = _timer()
    number = signal.SIGALRM if timer is None else _NUMBER
    before = signal.signal(number, heard)
    if timer is None:
        signal.setitimer(signal.ITIMER_REAL, after_s, again_s)
    else:
        times = _Times(*_split(again_s), *_split(after_s))
        _TIMERS.settime(timer, 0, _TIMERS.at(times), None)
    try:
        yield
    finally:
        if timer is None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        else:
            _TIMERS.delete(timer)
        # What has rung and was not heard, as the test blocks signals, would end the process.
        ours = signal.getsignal(number) is heard and number not in signal.sigpending()
        if ours and before is not None:
            signal.signal(number, before)


def _timer() -> ctypes.c_void_p | None:
    """A timer of this process, not set; None where there can be none."""
    made = ctypes.c_void_p()
    if _TIMERS is None or _TIMERS.create(_CLOCK_MONOTONIC, _TIMERS.event, _TIMERS.at(made)):
        return None
    return made


def _split(seconds: float) -> tuple[int, int]:
    ns = max(int(seconds * 1e9), 1)  # of zeros none would ring
    return ns // 1_000_000_000, ns % 1_000_000_000


def _library() -> Any:
    """The C library's timers; None where it has none."""
    if (
        sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8
    ):  # only there are the structures so
        return None
    names = {"create": "timer_create", "settime": "timer_settime", "delete": "timer_delete"}
    for file in (None, "librt.so.1"):  # before glibc 2.34
        try:
            library = ctypes.CDLL(file)
            calls = {name: getattr(library, theirs) for name, theirs in names.items()}
        except (AttributeError, OSError):
            continue
        event = ctypes.byref(_Event(signo=_NUMBER, notify=_SIGEV_SIGNAL))
        return SimpleNamespace(**calls, event=event, at=ctypes.byref)
    return None


#: Bound before the tests, which may replace what ctypes offers.
_TIMERS = _library()
