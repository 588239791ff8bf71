"""Time many calls with minimal overhead between them."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Protocol, TypeVar

from pytest_torchprof.capture.collecting import collect
from pytest_torchprof.capture.machine import accelerator, await_device
from pytest_torchprof.capture.unpatched import REAL, no_collection

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
