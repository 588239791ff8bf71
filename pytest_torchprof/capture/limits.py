"""Limits of a run: time, memory, events."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_torchprof.capture.machine import real_torch
from pytest_torchprof.capture.patches import REAL, real_bytes
from pytest_torchprof.core.process import Heap, give_back_memory, heap_of_process
from pytest_torchprof.core.unknown import because

# ---- End a capture that grows without bounds, before it exhausts the machine's memory.

#: Growth of the process that ends a capture. torch 2.13 keeps about 0.3 KB per event while it
#: records, and takes ten times that, and 8 µs per event, when it stops: so this is about a million
#: events, 3 GB and 8 s. Measured on a loop of 2.2 million events.
LIMIT_BYTES = 256 * 2**20
LIMIT_OF_EVENTS = because(
    "limit_of_events",
    (
        "it records more than about a million events, which torch's profiler "
        "cannot hold, or needs so much memory that this cannot be told"
    ),
)
#: What the end of a capture takes, as a multiple of what it has recorded, and as much again for us.
_AT_THE_END = 12

#: torch's profiler keeps 1,024 events a block. Source: AppendOnlyList in torch/csrc/profiler.
_LARGEST_BLOCK_BYTES = 2**20

_INTERVAL_S = 0.02
#: Between two looks into the heap, each of which holds up allocations.
_LOOK_INTERVAL_S = 0.2
#: Between two looks at other processes: less than torch takes to load; and for each one's own time.
_LOOK_NS, _LOOK_SHARE = 50_000_000, 20
_STATM, _MEMINFO = Path("/proc/self/statm"), Path("/proc/meminfo")
_HAS_PROC = _STATM.exists()


def _resident_bytes() -> int:
    return int(real_bytes(_STATM).split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peak_bytes() -> int:
    import resource  # not on every system, as /proc is not

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _available_bytes() -> int:
    """Memory that can be had without swapping; 0 if unknown."""
    for line in real_bytes(_MEMINFO).splitlines():
        if line.startswith(b"MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def growth_of(resident: int, before: Heap | None, now: Heap | None) -> int:
    """Bytes by which what may be recorded events has grown, of ``resident`` bytes of growth.

    What is free between pieces in use does not count. What the C library did not hand out, as other
    allocators do, counts in full. Blocks that are larger than any of the profiler's are the test's
    own.
    """
    if before is None or now is None:
        return resident
    blocks = max(now.mapped_blocks - before.mapped_blocks, 0)
    mapped = now.mapped_bytes - before.mapped_bytes
    large = max(mapped - blocks * _LARGEST_BLOCK_BYTES, 0)
    return max(now.used_bytes - before.used_bytes, resident - now.free_bytes) - large


class Watchdog:
    """Calls ``on_exceed`` in the main thread once the process has grown by `LIMIT_BYTES`.

    Within a backward pass, the call waits for its end. The limit is beyond the process's
    previous peak, which tells what the test itself needs, as long as the machine's memory bears the
    end of such a capture. Also once nobody waits for the capture: it is ``over``.
    ``looks`` is called all the time. Does nothing without ``/proc``.
    """

    def __init__(
        self,
        on_exceed: Callable[[], None],
        over: Callable[[], bool] = lambda: False,
        looks: Callable[[], None] = lambda: None,
    ) -> None:
        self._looks = looks
        self._called = False
        self._done = threading.Event()
        self._on_exceed, self._over = on_exceed, over
        # A profiler session can only end on the thread that began it, so that thread makes the
        # call.
        self._pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._call)
        self._thread: threading.Thread | None = None
        self._start = 0
        self._heap: Heap | None = None

    def start(self) -> None:
        """Begin to watch."""
        if not _HAS_PROC:
            return
        give_back_memory()  # else the capture fills that first, and the process does not grow
        self._start, self._heap = _resident_bytes(), heap_of_process()
        self._thread = threading.Thread(target=self._watch, args=(self._limit(),), daemon=True)
        REAL.start(self._thread)

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
        """Bytes of growth that end the capture."""
        # After a large capture the peak is so high that the next one could record ten times that.
        bearable = _available_bytes() // _AT_THE_END
        peak = _peak_bytes() - self._start + LIMIT_BYTES
        return max(LIMIT_BYTES, min(peak, bearable))

    def _watch(self, limit: int) -> None:
        interval_s = _INTERVAL_S
        next_look = 0
        while not self._done.wait(interval_s):
            if REAL.clock() >= next_look:
                began = REAL.thread_clock()
                with suppress(Exception):
                    self._looks()
                took = REAL.thread_clock() - began
                next_look = REAL.clock() + max(_LOOK_NS, _LOOK_SHARE * took)
            is_over, interval_s = False, _INTERVAL_S
            with suppress(OSError):  # the test may replace the file system
                resident = _resident_bytes() - self._start
                if resident > limit:
                    is_over = growth_of(resident, self._heap, heap_of_process()) > limit
                    interval_s = _LOOK_INTERVAL_S
            if (unwanted := self._over()) or is_over:
                ctypes.pythonapi.Py_AddPendingCall(self._pending, None)
                # A process that waits in native code must not seem to work for later tests.
                interval_s = 1.0 if unwanted else _INTERVAL_S
            if self._called:
                return

    def _call(self, _: object) -> int:
        if not (real_torch().in_backward() or self._called or self._done.is_set()):
            self._called = True
            self._on_exceed()
        return 0


# ---- A time limit for a block of other people's code.

#: Repeat until it takes effect, since other code may catch the exception.
_AGAIN_S = 1.0
#: Without the enums around these functions, which take longer than the functions.
_signals: Any = getattr(signal, "_signal", signal)


class Limited:
    """Within the block, raises ``error()`` after ``limit_s`` seconds, wherever the code is.

    In the main thread, on POSIX; elsewhere there is no limit, because it takes a signal. Blocks may
    be nested: the one that is due first ends, and the outer one's time goes on.
    """

    __slots__ = ("_before", "_began", "_error", "_is_set", "_limit_s", "_outer")

    def __init__(self, limit_s: float, error: Callable[[], BaseException]) -> None:
        self._limit_s, self._error = limit_s, error
        self._is_set = False

    def _ring(self, _: int, __: FrameType | None) -> None:
        if self._is_set:
            raise self._error()

    def __enter__(self) -> None:
        here = REAL.current_thread() == threading.main_thread().ident
        if not (here and hasattr(signal, "setitimer")):
            return
        self._outer = _signals.getitimer(signal.ITIMER_REAL)
        if 0 < self._outer[0] <= self._limit_s:
            return
        self._is_set, self._began = True, REAL.clock()
        self._before = _signals.signal(signal.SIGALRM, self._ring)
        _signals.setitimer(signal.ITIMER_REAL, self._limit_s, _AGAIN_S)

    def __exit__(self, *_: object) -> None:
        if not self._is_set:
            return
        self._is_set = False
        _signals.setitimer(signal.ITIMER_REAL, 0)
        ours = _signals.getsignal(signal.SIGALRM) == self._ring
        # A signal still pending, because the test blocks signals, would end the process.
        if ours and self._before is not None and signal.SIGALRM not in _signals.sigpending():
            _signals.signal(signal.SIGALRM, self._before)
            left_s, again_s = self._outer
            if left_s:
                spent_s = (REAL.clock() - self._began) / 1e9
                _signals.setitimer(signal.ITIMER_REAL, max(left_s - spent_s, 1e-6), again_s)
