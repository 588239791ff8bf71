"""End a capture that grows without bounds, before it exhausts the machine's memory."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pytest_torchprof.core.heap import give_back_memory
from pytest_torchprof.core.reasons import Why, because

#: Growth of the process that ends a capture. torch 2.13 keeps about 0.3 KB per event while it
#: records, and takes ten times that, and 8 µs per event, when it stops: so this is about a million
#: events, 3 GB and 8 s. Measured on a loop of 2.2 million events.
LIMIT_BYTES = 256 * 2**20
LIMIT_OF_EVENTS = because(Why.LIMIT_OF_EVENTS)
#: What the end of a capture takes, as a multiple of what it has recorded, and as much again for us.
_AT_THE_END = 12

_INTERVAL_S = 0.02
_STATM, _MEMINFO = Path("/proc/self/statm"), Path("/proc/meminfo")


def _resident_bytes() -> int:
    return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peak_bytes() -> int:
    import resource  # not on every system, as /proc is not

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _available_bytes() -> int:
    """Memory that can be had without swapping; 0 if unknown."""
    for line in _MEMINFO.read_bytes().splitlines():
        if line.startswith(b"MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


class Growth:
    """By how much the process grows in a block without the profiler: what the block itself needs.

    The process's peak tells if it rises. If it does not, as earlier tests took more, only looking
    tells: ``sampled``.
    """

    def __init__(self, *, sampled: bool) -> None:
        self._known = _STATM.exists()
        if not self._known:
            return
        self._start, self._peak = _resident_bytes(), _peak_bytes()
        self._most = self._start
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        if sampled:
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()

    def _sample(self) -> None:
        with suppress(OSError):  # the test may replace the file system
            while not self._done.wait(_INTERVAL_S):
                self._most = max(self._most, _resident_bytes())
            return
        self._known = False

    def end(self) -> int | None:
        """The growth in bytes, at the end of the block; None if unknown."""
        if not self._known:
            return None
        peak = _peak_bytes()
        if self._thread is not None:
            self._done.set()
            self._thread.join()
        if peak > self._peak:
            return peak - self._start
        return self._most - self._start if self._thread is not None and self._known else None


class Watchdog:
    """Calls ``on_exceed`` in the main thread once the process has grown by `LIMIT_BYTES`.

    That is beyond ``own_bytes``, by which the test itself grows. Where these are unknown, growth is
    measured from the process's previous peak, as long as the machine's memory bears the end of such
    a capture. Also once nobody waits for the capture: it is ``over``. Does nothing without
    ``/proc``.
    """

    def __init__(
        self,
        on_exceed: Callable[[], None],
        over: Callable[[], bool] = lambda: False,
        own_bytes: int | None = None,
    ) -> None:
        self._own_bytes = own_bytes
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
        give_back_memory()  # else the capture fills that first, and the process does not grow
        self._thread = threading.Thread(target=self._watch, args=(self._limit(),), daemon=True)
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

    def _limit(self) -> int:
        """Resident bytes that end the capture."""
        now = _resident_bytes()
        if self._own_bytes is not None:
            return now + self._own_bytes + LIMIT_BYTES
        # After a large capture the peak is so high that the next one could record ten times that.
        bearable = max(LIMIT_BYTES, _available_bytes() // _AT_THE_END)
        return min(_peak_bytes() + LIMIT_BYTES, now + bearable)

    def _watch(self, limit: int) -> None:
        while not self._done.wait(_INTERVAL_S):
            grown = False
            with suppress(OSError):  # the test may replace the file system
                grown = _resident_bytes() > limit
            if grown or self._over():
                ctypes.pythonapi.Py_AddPendingCall(self._pending, None)
                return

    def _call(self, _: object) -> int:
        if not self._done.is_set():
            self._on_exceed()
        return 0
