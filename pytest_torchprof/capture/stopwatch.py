"""Time unprofiled runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture.machine import lend_threads, synchronize
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


class LapTime(Frozen, frozen=True):
    """One lap of a named region, unprofiled: wall and process CPU time in ns."""

    wall_ns: int
    cpu_ns: int


class Round(Frozen, frozen=True):
    """One unprofiled run: wall and process CPU time in ns, instructions or why there are none.

    ``page_faults``: how often memory was requested from the system, 0 if unknown. ``laps``: those
    of each named region, in the order in which they ended.
    """

    wall_ns: int
    cpu_ns: int
    instructions: int | Reason
    page_faults: int = 0
    laps: Mapping[str, tuple[LapTime, ...]] = {}


class LapWatch:
    """Times a lap of a region, including device work, and appends it to ``laps``."""

    def __init__(self, laps: list[LapTime]) -> None:
        self._laps = laps

    def __enter__(self) -> Self:
        """Start, with the device idle."""
        synchronize()
        self._cpu = REAL.cpu_clock()
        self._wall = REAL.clock()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop, once the device is idle again."""
        synchronize()
        now = REAL.clock()
        self._laps.append(LapTime(now - self._wall, REAL.cpu_clock() - self._cpu))


class Stopwatch:
    """Times a block, including device work; ``result`` is available after the block.

    ``first``: the block also decides the test's outcome, so the collector and the intra-op
    ``threads`` are left alone.
    """

    result: Round | None = None

    def __init__(self, *, first: bool = False, threads: int | None = None) -> None:
        self._first = first
        self._threads = None if first else threads
        self._laps: dict[str, list[LapTime]] = {}

    def __enter__(self) -> Self:
        """Start the clocks, with the device idle and the collector off."""
        self._stopped: tuple[int, int] | None = None
        synchronize()
        self._undo = Undo()
        if not self._first:
            self._undo.enter_context(no_collection())
        lend_threads(self._threads, self._undo)
        self._counter = _start_instructions()
        self._faults = _page_faults()
        self._cpu = REAL.cpu_clock()
        self._wall = REAL.clock()
        return self

    def stop(self) -> None:
        """Stop the clocks once the device is idle again."""
        if self._stopped is None:
            synchronize()
            now = REAL.clock()
            self._stopped = now - self._wall, REAL.cpu_clock() - self._cpu

    def lap(self, region: str) -> LapWatch:
        """A context that times a lap of a named region."""
        return LapWatch(self._laps.setdefault(region, []))

    def __exit__(self, *exc: object) -> None:
        """Stop the clocks if they still run, and restore the settings."""
        self.stop()
        assert self._stopped is not None  # noqa: S101 - they were stopped just now
        wall, cpu = self._stopped
        instructions = _end_instructions(self._counter)
        faults = _page_faults() - self._faults
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
