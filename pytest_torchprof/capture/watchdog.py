"""End a capture that grows without bounds, before it exhausts the machine's memory."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pytest_torchprof.capture.machine import real_torch
from pytest_torchprof.capture.unpatched import REAL
from pytest_torchprof.core.heap import Heap, give_back_memory, heap_of_process
from pytest_torchprof.core.reasons import Why, because
from pytest_torchprof.core.structs import Frozen

#: Growth of the process that ends a capture. torch 2.13 keeps about 0.3 KB per event while it
#: records, and takes ten times that, and 8 µs per event, when it stops: so this is about a million
#: events, 3 GB and 8 s. Measured on a loop of 2.2 million events.
LIMIT_BYTES = 256 * 2**20
LIMIT_OF_EVENTS = because(Why.LIMIT_OF_EVENTS)
#: Growth beyond that limit for which the end of a backward pass is awaited: a session that ends
#: within one comes back, without its backend, when the autograd engine restores the thread's state.
POSTPONED_BYTES = LIMIT_BYTES // 2
#: What the end of a capture takes, as a multiple of what it has recorded, and as much again for us.
_AT_THE_END = 12
#: Of the memory that can be had, what may be free between pieces in use: other tests need some.
_HOLES_SHARE = 4

#: torch's profiler keeps 1,024 events a block. Source: AppendOnlyList in torch/csrc/profiler.
_LARGEST_BLOCK_BYTES = 2**20

_INTERVAL_S = 0.02
#: Between two looks into the heap, each of which holds up allocations.
_LOOK_INTERVAL_S = 0.2
#: Between two looks at other processes: less than torch takes to load; and for each one's own time.
_LOOK_NS, _LOOK_SHARE = 50_000_000, 20
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


class Need(Frozen, frozen=True):
    """By how much the process grows in a block without the profiler.

    ``is_all``: nothing of it came from memory that was free in the process before; otherwise the
    block needs at least these bytes.
    """

    grown_bytes: int = 0
    is_all: bool = False

    def after(self, one: Need) -> Need:
        """What one more run showed: the larger one, except that one that is all replaces others."""
        if one.is_all > self.is_all or one.grown_bytes > self.grown_bytes:
            return Need(grown_bytes=one.grown_bytes, is_all=one.is_all or self.is_all)
        return self


NEED_UNKNOWN = Need()


class Growth:
    """What a block needs without the profiler.

    The process's peak tells if it rises. If it does not, as earlier tests took more, only looking
    tells: with ``is_long``, a thread looks, and what is free in the process is given back before,
    as it is before a capture.
    """

    def __init__(self, *, is_long: bool) -> None:
        self._known = _STATM.exists()
        if not self._known:
            return
        if is_long:
            give_back_memory()  # else the block fills that first, and the process does not grow
        self._start, self._peak = _resident_bytes(), _peak_bytes()
        self._most = self._start
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        if is_long:
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()

    def _sample(self) -> None:
        with suppress(OSError):  # the test may replace the file system
            while not self._done.wait(_INTERVAL_S):
                self._most = max(self._most, _resident_bytes())
            return
        self._known = False

    def end(self) -> Need:
        """What it needs, at the end of the block."""
        if not self._known:
            return NEED_UNKNOWN
        peak, is_long = _peak_bytes(), self._thread is not None
        if self._thread is not None:
            self._done.set()
            self._thread.join()
        if peak > self._peak:
            return Need(grown_bytes=peak - self._start, is_all=is_long)
        if is_long and self._known:
            return Need(grown_bytes=self._most - self._start, is_all=True)
        return NEED_UNKNOWN


def growth_of(resident: int, before: Heap | None, now: Heap | None, holes: int = 2**62) -> int:
    """Bytes by which what may be recorded events has grown, of ``resident`` bytes of growth.

    The C library may leave ``holes`` between the pieces in use, and more than these count. What it
    did not hand out, as other allocators do, counts in full. Blocks that are larger than any of the
    profiler's are the test's own.
    """
    if before is None or now is None:
        return resident
    blocks = max(now.mapped_blocks - before.mapped_blocks, 0)
    mapped = now.mapped_bytes - before.mapped_bytes
    large = max(mapped - blocks * _LARGEST_BLOCK_BYTES, 0)
    free = min(now.free_bytes, holes)
    return max(now.used_bytes - before.used_bytes, resident - free) - large


class Watchdog:
    """Calls ``on_exceed`` in the main thread once the process has grown by `LIMIT_BYTES`.

    Within a backward pass, the call waits for its end, as long as `POSTPONED_BYTES` allow. The
    limit is beyond what the test itself ``needs``. Where not all of this is known, growth is
    measured from the process's previous peak, as long as the machine's memory bears the end of such
    a capture. Also once holes between pieces in use take much of that memory, and once nobody waits
    for the capture: it is ``over``. ``looks`` is called all the time. Does nothing without
    ``/proc``.
    """

    def __init__(
        self,
        on_exceed: Callable[[], None],
        over: Callable[[], bool] = lambda: False,
        needs: Need = NEED_UNKNOWN,
        looks: Callable[[], None] = lambda: None,
    ) -> None:
        self._needs, self._looks = needs, looks
        self._called = self._is_urgent = False
        self._done = threading.Event()
        self._on_exceed, self._over = on_exceed, over
        # A profiler session can only end on the thread that began it, so that thread makes the
        # call.
        self._pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._call)
        self._thread: threading.Thread | None = None
        self._start = 0
        self._heap: Heap | None = None
        self._bearable_holes = 0

    def start(self) -> None:
        """Begin to watch."""
        if not _STATM.exists():
            return
        give_back_memory()  # else the capture fills that first, and the process does not grow
        self._start, self._heap = _resident_bytes(), heap_of_process()
        self._bearable_holes = _available_bytes() // _HOLES_SHARE or 2**62
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
        """Bytes of growth that end the capture."""
        own_bytes = self._needs.grown_bytes + LIMIT_BYTES
        if self._needs.is_all:
            return own_bytes
        # After a large capture the peak is so high that the next one could record ten times that.
        bearable = max(LIMIT_BYTES, _available_bytes() // _AT_THE_END)
        return max(own_bytes, min(_peak_bytes() - self._start + LIMIT_BYTES, bearable))

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
                    heap = heap_of_process()
                    growth = growth_of(resident, self._heap, heap, self._bearable_holes)
                    is_over, self._is_urgent = growth > limit, growth > limit + POSTPONED_BYTES
                    interval_s = _LOOK_INTERVAL_S
            if (unwanted := self._over()) or is_over:
                ctypes.pythonapi.Py_AddPendingCall(self._pending, None)
                # A process that waits in native code must not seem to work for later tests.
                interval_s = 1.0 if unwanted else _INTERVAL_S
            if self._called:
                return

    def _call(self, _: object) -> int:
        waits = real_torch().in_backward() and not self._is_urgent
        if not (waits or self._called or self._done.is_set()):
            self._called = True
            self._on_exceed()
        return 0
