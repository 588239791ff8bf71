"""Wall and CPU time of rounds, of calls, and of two callables in turn."""

from __future__ import annotations

import gc
import mmap
import os
import random
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pytest_torchprof.capture.limits import Limited
from pytest_torchprof.capture.machine import (
    accelerator,
    await_device,
    lend_threads,
    synchronize,
    uses_accelerator,
)
from pytest_torchprof.capture.patches import REAL, muted, no_collection
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import Reason, Why, because

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_torchprof.verdict.paired import PairRequest, Side


# ---- Time unprofiled runs.

if sys.platform != "win32":
    import resource


#: What torch's counter returns without a hardware counter.
_NO_INSTRUCTIONS = 2**64 - 1
NO_COUNTER = because("no_counter", "this machine has no hardware counter")
COUNTER_LOST = because("counter_stopped", "the hardware counter stopped")
REGION_ON_DEVICE = because(
    "region_on_device",
    (
        "a device may work on when a region ends; its time there is self_cuda_ms, "
        "or measure the part alone, using `with torchprof:`"
    ),
)


class LapTime(Frozen, frozen=True):
    """One lap of a named region, unprofiled: wall and process CPU time in ns."""

    wall_ns: int
    cpu_ns: int


class Round(Frozen, frozen=True):
    """One unprofiled run: wall and process CPU time in ns, instructions or why there are none.

    ``page_faults``: how often memory was requested from the system, 0 if unknown. ``laps``: those
    of each named region in order, or why the time of one is unknown. ``thread_ns``: CPU time of the
    test's own thread.
    """

    wall_ns: int
    cpu_ns: int
    instructions: int | Reason
    page_faults: int = 0
    laps: Mapping[str, tuple[LapTime | Reason, ...]] = {}
    thread_ns: int | None = None

    @property
    def others(self) -> float:
        """The share of CPU time that other threads took; 0 if unknown."""
        if self.thread_ns is None or not self.cpu_ns:
            return 0.0
        return max(0.0, 1 - self.thread_ns / self.cpu_ns)


class LapWatch:
    """Times a lap of a region, the next one of ``laps``.

    A device is not synchronized for it: that would change the test's own time, and is an error
    while a graph is captured. So beside work on a device, the time is unknown.
    """

    def __init__(self, region: str, laps: list[LapTime | Reason]) -> None:
        self._region, self._laps = region, laps

    def __enter__(self) -> Self:
        """Start."""
        self._number = len(self._laps)
        self._laps.append(
            because(
                "region_open", "region {name} was still open when the run ended", name=self._region
            )
        )
        self._cpu = REAL.cpu_clock()
        self._wall = REAL.clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Stop, maybe with an error, which leaves the time of a part."""
        wall, cpu = REAL.clock() - self._wall, REAL.cpu_clock() - self._cpu
        lap: LapTime | Reason = LapTime(wall, cpu)
        if kind is not None:
            lap = because(*Why.REGION_RAISED, name=self._region, error=kind.__name__)
        elif uses_accelerator():
            lap = REGION_ON_DEVICE
        self._laps[self._number] = lap


class Stopwatch:
    """Times a block, including device work; ``result`` is available after the block.

    ``first``: the block also decides the test's outcome, so the collector and the intra-op
    ``threads`` are left alone.
    """

    result: Round | None = None

    def __init__(self, *, first: bool = False, threads: int | None = None) -> None:
        self._first = first
        self._threads = None if first else threads
        self._laps: dict[str, list[LapTime | Reason]] = {}
        self._undo = ExitStack()
        self._stopped: tuple[int, int, int] | None = None
        self._wall = self._cpu = self._thread = self._faults = 0
        self._counter: Any = None

    def __enter__(self) -> Self:
        """Start the clocks, with the device idle and the collector off.

        Raises:
            NotCapturedError: the device reports an error of earlier work.
        """
        synchronize()
        if not self._first:
            self._undo.enter_context(no_collection())
        lend_threads(self._threads, self._undo)
        counter = instruction_counter()
        self._counter = None if counter is None else counter.start()
        self._faults = _page_faults()
        self._thread = REAL.thread_clock()
        self._cpu = REAL.cpu_clock()
        self._wall = REAL.clock()
        return self

    def stop(self) -> None:
        """Stop the clocks once the device is idle again.

        Raises:
            NotCapturedError: the device reports an error.
        """
        if self._stopped is None:
            synchronize()
            now = REAL.clock()
            cpu = REAL.cpu_clock() - self._cpu
            self._stopped = now - self._wall, cpu, REAL.thread_clock() - self._thread

    def lap(self, region: str) -> LapWatch:
        """A context that times a lap of a named region."""
        return LapWatch(region, self._laps.setdefault(region, []))

    def __exit__(self, *exc: object) -> None:
        """Stop the clocks if they still run, and restore the settings."""
        try:
            self.stop()
            assert self._stopped is not None  # noqa: S101 - they were stopped just now
            wall, cpu, thread = self._stopped
            instructions = _counted(self._counter)
            faults = _page_faults() - self._faults
        finally:
            self._undo.close()
        laps = {region: tuple(times) for region, times in self._laps.items()}
        self.result = Round(wall, cpu, instructions, faults, laps, thread)


def _page_faults() -> int:
    if sys.platform == "win32":
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@cache
def instruction_counter() -> Any:
    """Torch's counter, None if it does not work here; a failed attempt prints to stderr."""
    import torch

    counter: Any = getattr(torch._C, "_instruction_counter", None)
    with muted(2), suppress(AttributeError, RuntimeError):
        return counter if counter.end(counter.start()) != _NO_INSTRUCTIONS else None
    return None


def _counted(started: Any) -> int | Reason:
    """The instructions since the counter was started."""
    if started is None:
        return NO_COUNTER
    try:
        count = int(instruction_counter().end(started))
    except RuntimeError:
        return COUNTER_LOST
    return COUNTER_LOST if count == _NO_INSTRUCTIONS else count


# ---- Collect garbage, in which a process group of gloo may end.
#
# The end of a DDP model ends its process group, if the test has destroyed the group before. That
# waits for gloo's threads, and holds Python's lock. A thread that has just ended its work may
# wait for that lock, to release the Python objects of the work: then both wait forever. It takes
# less than a millisecond, or as long as a busy machine does not let the thread run, so a test is
# unlikely to collect just then. We do, right after it.
#
# Source: torch/csrc/distributed/c10d, where ``~ProcessGroupGloo`` joins its threads. The binding
# of ``ProcessGroup`` releases the lock for it, and that of ``Reducer``, which a DDP model has,
# does not.

_FOLDER = "/proc/self/task"
#: The name of the threads that run the operations of a group.
_GLOO = b"pt_gloo_runloop"
#: A thread that is done needs less, unless the machine is busy.
_PAUSE_S, _MOST_S = 0.001, 1.0


def collect(generation: int = 2) -> None:
    """Collect garbage up to this generation, once gloo's threads, if there are any, are at rest."""
    if tasks := _gloo_tasks():
        until, before = REAL.clock() + int(_MOST_S * 1e9), None
        while REAL.clock() < until:
            now = [_used_ns(task) for task in tasks]
            if now == before and all(map(_sleeps, tasks)):
                break
            before = now
            REAL.sleep(_PAUSE_S)  # without Python's lock
    REAL.collect(generation)


#: The threads of this process when none was gloo's.
_OTHERS: set[str] = set()


def _gloo_tasks() -> list[str]:
    try:
        tasks = set(REAL.listdir(_FOLDER))
    except OSError:  # not on Linux
        return []
    found = [task for task in tasks - _OTHERS if _read(task, "comm").strip() == _GLOO]
    _OTHERS.intersection_update(tasks)
    if not found:
        _OTHERS.update(tasks)
    return found


def _used_ns(task: str) -> int | None:
    """CPU time of a thread; None if it has ended."""
    with suppress(OSError):
        return int(REAL.any_clock((~int(task) << 3) | 6))
    return None


def _sleeps(task: str) -> bool:
    """Whether a thread neither runs nor waits for a processor; also if it has ended."""
    return _read(task, "stat").rpartition(b") ")[2][:1] in b"SI"


def _read(task: str, what: str) -> bytes:
    try:
        with REAL.open(f"{_FOLDER}/{task}/{what}", "rb", buffering=0) as file:
            return bytes(file.read())
    except OSError:  # it has just ended
        return b""


# ---- Time many calls with minimal overhead between them.

_Result = TypeVar("_Result")

#: After this many tests, the collector checks all objects once.
_AFRESH = 100


class Regions(Protocol):
    """The ``torchprof`` fixture's interface while a test's calls are timed."""

    def enter(self) -> None:
        """The region of a call begins: earlier work does not count."""

    def leave(self) -> None:
        """It ends: later work does not count."""

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Call the function that is the test's region, as often as needed."""


class Meter:
    """Wall and process CPU time in ns of calls; of their marked regions if they have any.

    For several regions in a call, the sum.
    """

    def __init__(self) -> None:
        self.wall_ns = array("q")
        self.cpu_ns = array("q")
        #: Of whole calls, with or without regions.
        self.spent_ns = 0
        self._region: list[int] | None = None
        #: The call's region is a function, whose calls are timed separately.
        self.elsewhere = False
        self._started = (0, 0)

    def take(self) -> tuple[array[int], array[int], int]:
        """Wall and CPU times of calls since the last `take`, and their total duration, in ns."""
        taken = self.wall_ns, self.cpu_ns, self.spent_ns
        self.wall_ns, self.cpu_ns, self.spent_ns = array("q"), array("q"), 0
        return taken

    @contextmanager
    def one(self) -> Iterator[None]:
        """Time the block as one call."""
        with no_collection():
            await_device()
            cpu, wall = REAL.cpu_clock(), REAL.clock()
            yield
            await_device()
            now = REAL.clock()
            if not self.elsewhere:
                self.spent_ns += now - wall
            self._keep(now - wall, REAL.cpu_clock() - cpu)

    def time(self, call: Callable[[], object], count: int) -> None:
        """Call it ``count`` times, with the device idle before and after, and the collector off.

        CPU time is the mean of the calls: reading its clock takes as long as a short call.
        """
        __tracebackhide__ = True
        if not count:
            return
        clock, wall = REAL.clock, self.wall_ns.append
        wait = await_device if accelerator() is not None else None
        with no_collection():
            known = len(self.cpu_ns)
            cpu_0, begun = REAL.cpu_clock(), clock()
            for _ in repeat(None, count):
                if wait is not None:
                    wait()
                wall_0 = clock()
                call()
                if wait is not None:
                    wait()
                wall_1 = clock()
                if self._region is None:
                    wall(wall_1 - wall_0)
                else:
                    self._keep(0, 0)
            self.spent_ns += clock() - begun
            if len(self.cpu_ns) == known:
                self.cpu_ns.append((REAL.cpu_clock() - cpu_0) // count)

    def enter(self) -> None:
        """Start the clocks of a region."""
        await_device()
        self._region = self._region or [0, 0]
        cpu = REAL.cpu_clock()
        self._started = REAL.clock(), cpu

    def leave(self) -> None:
        """Stop them."""
        await_device()
        wall, cpu = REAL.clock(), REAL.cpu_clock()
        if self._region is not None:
            self._region[0] += wall - self._started[0]
            self._region[1] += cpu - self._started[1]

    def _keep(self, wall_ns: int, cpu_ns: int) -> None:
        """Record a call, or its region instead."""
        if self.elsewhere:
            self.elsewhere = False
            return
        region, self._region = self._region or [wall_ns, cpu_ns], None
        self.wall_ns.append(region[0])
        self.cpu_ns.append(region[1])


class GarbageControl:
    """Garbage collection in a long session: old objects stay, and new garbage is freed between
    turns.

    Frozen objects are skipped, so a collection takes microseconds, instead of a tenth of a second
    for everything that torch has loaded. Frozen objects that have become garbage wait for the next
    full collection.
    """

    def __init__(self) -> None:
        self._settled = 0

    def settle(self) -> None:
        """Collect, and freeze what is left; occasionally, collect everything."""
        if self._settled % _AFRESH == 0:
            gc.unfreeze()
        self._settled += 1
        collect()
        gc.freeze()


# ---- Keep memory layout and processor placement from biasing one of two sides.
#
# Two processes of the same code can differ by 1 to 30 % for their whole lives: two objects
# collide in a cache, or the allocator returns a block after each call or keeps it. More pairs of
# turns do not help; they only make the difference look certain. So every turn holds memory in a
# new pattern (`shaken`). Allocations then have other addresses in every turn, and layout becomes
# noise between turns, which is measured, instead of a bias of one side, which is not (Curtsinger
# and Berger, "Stabilizer", 2013). For a loop in Python, the difference between two processes
# drops from 5.3 % to 0.3 %; for 25 small operators, from 0.6 % to 0.1 %.
#
# Processors differ too, for seconds at a time, in what else runs on or beside them, so the turns
# of a pair start on the same one (`move_to`).

#: Block sizes of Python's own allocator (every sixteen bytes up to 512), in bytes.
_SMALL = range(1, 480, 16)
_LARGE = (9, 21)  # block sizes of the C library, as powers of two

#: The same patterns on both sides, turn by turn: memory that a library takes once and keeps then
#: has the same layout too, as long as both run the same code.
_random = random.Random(0)  # noqa: S311 - patterns, not secrets


def shaken() -> object:
    """Allocate memory in a new pattern; hold the result for the length of a turn. About 0.1 ms.

    Most of it is never touched, so it costs address space, not memory.
    """
    import numpy as np

    number = _random.randrange
    small = [[bytes(size) for _ in range(number(24))] for size in _SMALL]
    plain = [[object() for _ in range(number(64))], [2**33 + i for i in range(number(128))]]
    large = [np.empty(1 << number(*_LARGE), np.uint8) for _ in range(8)]
    large += [np.empty(number(1 << 9, 1 << 20), np.uint8) for _ in range(4)]
    _random.shuffle(large)
    del large[::2]  # holes of many sizes
    return small, plain, large, mmap.mmap(-1, mmap.PAGESIZE * number(1, 1024))


def move_to(number: int) -> None:
    """Move this thread to a processor; the system may move it away at any time.

    The turns of a pair start on the same one, and pairs on different ones. Otherwise one side may
    run for seconds on a slower processor, or on one that is busy with something else.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = os.sched_getaffinity(0)
    processors = sorted(allowed)
    with suppress(OSError):
        os.sched_setaffinity(0, {processors[number % len(processors)]})
        os.sched_setaffinity(0, allowed)


class TurnLayout:
    """The memory layout and the processor of the current turn."""

    def __init__(self) -> None:
        # What is made before the first turn has other addresses each time too.
        self._held: object = shaken()

    def renew(self, processor: int, *, generation: int = 2) -> None:
        """Choose a new layout and this processor, and leave no garbage to collect during calls.

        ``generation``: of garbage, as `gc.collect` has it. Collecting all takes a tenth of a second
        where old objects are not frozen.
        """
        self._held = None
        collect(generation)
        self._held = shaken()
        move_to(processor)


# ---- Turns of two callables in this process.


class CallableTurn(Frozen, frozen=True):
    """A turn of one side, see `TakenTurn`."""

    wall_ns: array[int]
    cpu_ns: array[int]
    spent_ns: int


@dataclass(frozen=True)
class Callables:
    """Two callables and their arguments.

    ``setup`` makes the arguments of each call, instead of ``args``. A turn may take ``limit_s``
    seconds, after which ``overdue`` makes the error for the side; so it does for a single call.
    """

    sides: Mapping[Side, Callable[..., object]]
    limit_s: float
    overdue: Callable[[Side], BaseException]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    setup: Callable[[], tuple[Any, ...]] | None = None

    def limited(self, side: Side) -> Limited:
        """Within the block, the side may take its time, but not more."""
        return Limited(self.limit_s, partial(self.overdue, side))

    def call_once(self, side: Side) -> None:
        """Call a side untimed. Raises whatever it raises, or that it is overdue."""
        __tracebackhide__ = True
        args = self.args if self.setup is None else self.setup()
        self.sides[side](*args, **self.kwargs)

    def timed(self, side: Side, meter: Meter) -> Callable[[], object]:
        """What a turn of this side calls; with fresh arguments, only the call itself counts."""
        function, args, kwargs, setup = self.sides[side], self.args, self.kwargs, self.setup
        if setup is None:
            return partial(function, *args, **kwargs)

        def call() -> None:
            __tracebackhide__ = True
            fresh = setup()
            meter.enter()
            function(*fresh, **kwargs)
            meter.leave()

        return call


class CallableTurns:
    """Takes the turns of two callables, each with another memory layout."""

    def __init__(self, callables: Callables) -> None:
        self._callables = callables
        self._layout = TurnLayout()
        self._meter = Meter()

    def take(self, wanted: PairRequest) -> tuple[dict[Side, CallableTurn], None]:
        """A turn of each side.

        Raises whatever they raise, or that one is overdue.
        """
        __tracebackhide__ = True
        turns: dict[Side, CallableTurn] = {}
        for side in wanted.order:
            # Old objects are not frozen here, and garbage of calls is young.
            self._layout.renew(wanted.processor, generation=1)
            call = self._callables.timed(side, self._meter)
            with self._callables.limited(side):
                self._meter.time(call, wanted.calls)
            turns[side] = CallableTurn(*self._meter.take())
        return turns, None
