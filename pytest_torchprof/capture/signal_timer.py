"""A timer that calls back in the main thread, on a signal that tests do not use.

A test could mistake a visible alarm for its own: `signal.alarm(0)` reports whether there is one,
and stops it. So this uses a separate timer (`timer_create`) that sends a real-time signal. On
systems without such timers it falls back to the alarm.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

from pytest_torchprof.capture.unpatched import REAL

#: Not the last signal, which other code may choose for the same reason.
_NUMBER = getattr(signal, "SIGRTMAX", 0) - 1
_CLOCK_MONOTONIC = 1  # as Linux numbers it
_SIGEV_SIGNAL = 0

_getpid = os.getpid  # bound here, as a test may replace it
#: Without the enums around these functions, which take longer than the functions.
_signals: Any = getattr(signal, "_signal", signal)


class _Event(ctypes.Structure):
    """``struct sigevent`` of Linux, 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * (56 - ctypes.sizeof(ctypes.c_void_p))),
    )


class _Times(ctypes.Structure):
    """``struct itimerspec``: seconds and ns of the interval, and until the first signal."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("again_s", "again_ns", "s", "ns"))


class SignalTimer:
    """Within the block: calls ``ring`` in the main thread, where we are, and again later.

    Blocks may be nested: the one that is due first rings, and an outer one goes on afterwards.
    """

    __slots__ = (
        "_after_s",
        "_again_s",
        "_before",
        "_began",
        "_number",
        "_outer",
        "_ring",
        "_timer",
    )

    def __init__(self, after_s: float, again_s: float, ring: Callable[[], None]) -> None:
        self._after_s, self._again_s, self._ring = after_s, again_s, ring

    def _heard(self, _: int, __: FrameType | None) -> None:
        self._ring()

    def __enter__(self) -> None:
        self._timer = timer = _timer()
        self._number = signal.SIGALRM if timer is None else _NUMBER
        self._outer = _armed(timer)
        if self._outer_is_first:
            return
        self._began = REAL.clock()
        self._before = _signals.signal(self._number, self._heard)
        _arm(timer, self._after_s, self._again_s)

    def __exit__(self, *_: object) -> None:
        if self._outer_is_first:
            return
        number, before = self._number, self._before
        if self._timer is None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        else:
            _set(self._timer, 0, 0, 0, 0)
        # A signal still pending, because the test blocks signals, would end the process.
        ours = _signals.getsignal(number) == self._heard and number not in _signals.sigpending()
        if ours and before is not None:
            _signals.signal(number, before)
            left_s, again_s = self._outer
            if left_s:
                spent_s = (REAL.clock() - self._began) / 1e9
                _arm(self._timer, max(left_s - spent_s, 1e-6), again_s)

    @property
    def _outer_is_first(self) -> bool:
        return 0 < self._outer[0] <= self._after_s


def _armed(timer: ctypes.c_void_p | None) -> tuple[float, float]:
    """Seconds until the timer of an outer block is due, 0 if there is none, and its interval."""
    if timer is None:
        return signal.getitimer(signal.ITIMER_REAL)
    times = _Times()
    _TIMERS.gettime(timer, _TIMERS.at(times))
    return times.s + times.ns / 1e9, times.again_s + times.again_ns / 1e9


def _arm(timer: ctypes.c_void_p | None, after_s: float, again_s: float) -> None:
    if timer is None:
        signal.setitimer(signal.ITIMER_REAL, after_s, again_s)
    else:
        _set(timer, *_split(again_s), *_split(after_s))


#: The timer, and the process that owns it: a forked child has none.
_MADE: list[tuple[int, ctypes.c_void_p]] = []


def _timer() -> ctypes.c_void_p | None:
    """This process's timer, not armed; None if unsupported."""
    if _TIMERS is None:
        return None
    if _MADE and _MADE[0][0] == _getpid():
        return _MADE[0][1]
    made = ctypes.c_void_p()
    if _TIMERS.create(_CLOCK_MONOTONIC, _TIMERS.event, _TIMERS.at(made)):
        return None
    _MADE[:] = [(_getpid(), made)]
    return made


def _set(timer: ctypes.c_void_p, *times: int) -> None:
    _TIMERS.settime(timer, 0, _TIMERS.at(_Times(*times)), None)


def _split(seconds: float) -> tuple[int, int]:
    ns = max(int(seconds * 1e9), 1)  # zero would disarm it
    return ns // 1_000_000_000, ns % 1_000_000_000


def _library() -> Any:
    """The C library's timers; None where it has none."""
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        # The structures are those of 64-bit Linux.
        return None
    names = {"create": "timer_create", "settime": "timer_settime", "gettime": "timer_gettime"}
    for file in (None, "librt.so.1"):  # before glibc 2.34
        try:
            library = ctypes.CDLL(file)
            calls = {name: getattr(library, theirs) for name, theirs in names.items()}
        except (AttributeError, OSError):
            continue
        event = ctypes.byref(_Event(signo=_NUMBER, notify=_SIGEV_SIGNAL))
        return SimpleNamespace(**calls, event=event, at=ctypes.byref)
    return None


#: Bound before the tests, which may replace ctypes functions.
_TIMERS = _library()
