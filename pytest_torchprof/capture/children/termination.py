"""Hand over before SIGTERM ends a process, as pools end their workers with it.

Python runs a handler between two steps of its own, so a process that waits in native code would no
longer end. A thread then ends it as the system would have.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from pytest_torchprof.capture.unpatched import REAL

#: A process that has not handled the signal by then waits in native code.
_PATIENCE_S = 1.0
#: libc's SIG_DFL.
_DEFAULT = ctypes.c_void_p(0)


def on_termination(call: Callable[[], None], is_ending: Callable[[], bool]) -> None:
    """Call it when SIGTERM would end this process, which then ends as it would have.

    A process that ``is_ending`` already, and is handing over, ends in its own way.

    Does nothing if the program handles the signal itself, or outside the main thread.
    """
    mine = REAL.getpid()
    if threading.current_thread() is not threading.main_thread() or os.name == "nt":
        return
    before = signal.getsignal(signal.SIGTERM)
    if before != signal.SIG_DFL and getattr(before, "__module__", None) != __name__:
        return
    handled = threading.Event()

    def handle(number: int, _: FrameType | None) -> None:
        if REAL.getpid() == mine:
            handled.set()
            if is_ending():
                return
            with suppress(Exception):
                call()
        signal.signal(number, signal.SIG_DFL)
        os.kill(REAL.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
    read, write = os.pipe()
    os.set_blocking(write, False)
    if (theirs := signal.set_wakeup_fd(write, warn_on_full_buffer=False)) != -1:
        signal.set_wakeup_fd(theirs)  # an event loop's
        os.close(read)
        os.close(write)
        return

    def wait() -> None:
        while os.read(read, 1) != bytes([signal.SIGTERM]):
            pass
        if not handled.wait(_PATIENCE_S):
            ctypes.CDLL(None).signal(signal.SIGTERM, _DEFAULT)
            os.kill(REAL.getpid(), signal.SIGTERM)

    REAL.thread(target=wait, name="torchprof-termination", daemon=True).start()
