"""Limits of a run: time, memory, events; and what is undone at the end of a block."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture.compiling import CUDA_GRAPHS
from pytest_torchprof.capture.machine import CACHING_ALLOCATOR, real_torch
from pytest_torchprof.capture.patches import REAL, real_bytes
from pytest_torchprof.core.process import Heap, give_back_memory, heap_of_process
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import because

if TYPE_CHECKING:
    from typing_extensions import Self


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
        self._known = _HAS_PROC
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
            REAL.start(self._thread)

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
        if not _HAS_PROC:
            return
        give_back_memory()  # else the capture fills that first, and the process does not grow
        self._start, self._heap = _resident_bytes(), heap_of_process()
        self._bearable_holes = _available_bytes() // _HOLES_SHARE or 2**62
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


# ---- What is watched of the device while a test runs, because torch does not tell afterwards.

_WATCHED = (CUDA_GRAPHS, CACHING_ALLOCATOR)


def watch_device() -> None:
    """Watch from now on."""
    for one in _WATCHED:
        one.watch()


def leave_device() -> None:
    """Watch no more."""
    for one in _WATCHED:
        one.stop()


# ---- A timer that calls back in the main thread, on a signal that tests do not use.
#
# A test could mistake a visible alarm for its own: `signal.alarm(0)` reports whether there is
# one, and stops it. So this uses a separate timer (`timer_create`) that sends a real-time signal.
# On systems without such timers it falls back to the alarm.

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


# ---- A time limit for a block of other people's code.

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
        here = REAL.current_thread() == threading.main_thread().ident
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


# ---- Callbacks to run at the end of a block: a faster `contextlib.ExitStack`.


class Undo:
    """Runs its callbacks, last first, even if one of them raises."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def callback(self, call: Callable[..., object], *arguments: Any) -> None:
        """Add a callback."""
        self._calls.append((call, arguments))

    def enter_context(self, context: Any) -> None:
        """Enter a context now, and leave it at the end; it does not see exceptions."""
        context.__enter__()
        self._calls.append((context.__exit__, (None, None, None)))

    def pop_all(self) -> Undo:
        """Move all callbacks to a new instance."""
        other = Undo()
        other._calls, self._calls = self._calls, []
        return other

    def close(self) -> None:
        """Call them, each once."""
        calls = self._calls
        while calls:
            call, arguments = calls.pop()
            try:
                call(*arguments)
            except BaseException:
                self.close()
                raise
