"""Time unprofiled runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture.machine import lend_threads, synchronize, uses_accelerator
from pytest_torchprof.capture.undo import Undo
from pytest_torchprof.capture.unpatched import REAL, muted, no_collection
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.structs import Frozen

if sys.platform != "win32":
    import resource

if TYPE_CHECKING:
    from typing_extensions import Self

#: What torch's counter returns without a hardware counter.
_NO_INSTRUCTIONS = 2**64 - 1
NO_COUNTER = because(Why.NO_COUNTER)
COUNTER_LOST = because(Why.COUNTER_STOPPED)
REGION_ON_DEVICE = because(Why.REGION_ON_DEVICE)


class LapTime(Frozen, frozen=True):
    """One lap of a named region, unprofiled: wall and process CPU time in ns."""

    wall_ns: int
    cpu_ns: int


class Round(Frozen, frozen=True):
    """One unprofiled run: wall and process CPU time in ns, instructions or why there are none.

    ``page_faults``: how often memory was requested from the system, 0 if unknown. ``laps``: those
    of each named region in order, or why the time of one is unknown.
    """

    wall_ns: int
    cpu_ns: int
    instructions: int | Reason
    page_faults: int = 0
    laps: Mapping[str, tuple[LapTime | Reason, ...]] = {}


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
        self._laps.append(because(Why.REGION_OPEN, name=self._region))
        self._cpu = REAL.cpu_clock()
        self._wall = REAL.clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Stop, maybe with an error, which leaves the time of a part."""
        wall, cpu = REAL.clock() - self._wall, REAL.cpu_clock() - self._cpu
        lap: LapTime | Reason = LapTime(wall, cpu)
        if kind is not None:
            lap = because(Why.REGION_RAISED, name=self._region, error=kind.__name__)
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
        self._undo = Undo()
        self._stopped: tuple[int, int] | None = None
        self._wall = self._cpu = self._faults = 0
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
        self._counter = _start_instructions()
        self._faults = _page_faults()
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
            self._stopped = now - self._wall, REAL.cpu_clock() - self._cpu

    def lap(self, region: str) -> LapWatch:
        """A context that times a lap of a named region."""
        return LapWatch(region, self._laps.setdefault(region, []))

    def __exit__(self, *exc: object) -> None:
        """Stop the clocks if they still run, and restore the settings."""
        try:
            self.stop()
            assert self._stopped is not None  # noqa: S101 - they were stopped just now
            wall, cpu = self._stopped
            instructions = _end_instructions(self._counter)
            faults = _page_faults() - self._faults
        finally:
            self._undo.close()
        laps = {region: tuple(times) for region, times in self._laps.items()}
        self.result = Round(wall, cpu, instructions, faults, laps)


def _page_faults() -> int:
    if sys.platform == "win32":
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@cache
def counts_instructions() -> bool:
    """Whether torch and the machine have a counter; a failed attempt prints to stderr."""
    import torch

    counter = getattr(torch._C, "_instruction_counter", None)
    if counter is None:
        return False
    with muted(2):
        try:
            return bool(counter.end(counter.start()) != _NO_INSTRUCTIONS)
        except RuntimeError:
            return False


def _start_instructions() -> Any:
    import torch

    return torch._C._instruction_counter.start() if counts_instructions() else None


def _end_instructions(counter: Any) -> int | Reason:
    import torch

    if counter is None:
        return NO_COUNTER
    try:
        count = int(torch._C._instruction_counter.end(counter))
    except RuntimeError:
        return COUNTER_LOST
    return COUNTER_LOST if count == _NO_INSTRUCTIONS else count
