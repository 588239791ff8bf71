"""A time limit for a block of other people's code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

from pytest_torchprof.capture.signal_timer import SignalTimer

#: Repeat until it takes effect, since other code may catch the exception.
_AGAIN_S = 1.0


class Limited:
    """Within the block, raises ``error()`` after ``limit_s`` seconds, wherever the code is.

    In the main thread, on POSIX; elsewhere there is no limit, because it takes a signal.
    """

    __slots__ = ("_error", "_is_over", "_timer")

    def __init__(self, limit_s: float, error: Callable[[], BaseException]) -> None:
        self._error = error
        self._is_over = False
        here = threading.current_thread() is threading.main_thread()
        possible = here and hasattr(signal, "setitimer")
        self._timer = SignalTimer(limit_s, _AGAIN_S, self._ring) if possible else None

    def _ring(self) -> None:
        if not self._is_over:
            raise self._error()

    def __enter__(self) -> None:
        if self._timer is not None:
            self._timer.__enter__()

    def __exit__(self, *exc: object) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.__exit__(*exc)
