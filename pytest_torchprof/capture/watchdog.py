"""End a capture that grows without bounds, before it exhausts the machine's memory."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path

from pytest_torchprof.core.reasons import Why, because

#: Growth of the process that ends a capture. torch 2.13 keeps about 0.3 KB per event while it
#: records, and takes ten times that, and 8 µs per event, when it stops: so this is about a million
#: events, 3 GB and 8 s. Measured on a loop of 2.2 million events.
LIMIT_BYTES = 256 * 2**20
LIMIT_OF_EVENTS = because(Why.LIMIT_OF_EVENTS)

_INTERVAL_S = 0.02
_STATM = Path("/proc/self/statm")


class Watchdog:
    """Calls ``on_exceed`` in the main thread once the process has grown by `LIMIT_BYTES`.

    Growth is measured from the process's previous peak, so memory of the test itself, which ran
    without the profiler first, does not count. Also once nobody waits for the capture: it is
    ``over``. Does nothing without ``/proc``.
    """

    def __init__(
        self, on_exceed: Callable[[], None], over: Callable[[], bool] = lambda: False
    ) -> None:
        self._done = threading.Event()
        self._on_exceed, self._over = on_exceed, over
        # A profiler session can only end on the thread that began it, so that thread makes the
        # call.
        self._pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._call)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch."""
        if not _STATM.exists():
            return
        import resource  # not on every system, as /proc is not

        limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + LIMIT_BYTES
        self._thread = threading.Thread(target=self._watch, args=(limit,), daemon=True)
        self._thread.start()

    @property
    def native_ids(self) -> list[int]:
        """The native ids of its threads."""
        return [self._thread.native_id] if self._thread and self._thread.native_id else []

    def stop(self) -> None:
        """Stop watching; nothing is called after this returns."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, limit: int) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while not self._done.wait(_INTERVAL_S):
            grown = int(_STATM.read_bytes().split()[1]) * page > limit
            if grown or self._over():
                ctypes.pythonapi.Py_AddPendingCall(self._pending, None)
                return

    def _call(self, _: object) -> int:
        if not self._done.is_set():
            self._on_exceed()
        return 0
