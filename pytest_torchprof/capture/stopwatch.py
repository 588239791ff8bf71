"""Time unprofiled runs."""

from __future__ import annotations

import sys
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


class Round(Frozen, frozen=True):
    """One unprofiled run: wall and process CPU time in ns, instructions or why there are none.

    ``page_faults``: how often memory was requested from the system, 0 if unknown.
    """

    wall_ns: int
    cpu_ns: int
    instructions: int | Reason
    page_faults: int = 0


class Stopwatch:
    """Times a block, including device work; ``result`` is available after the block.

    ``first``: the block also decides the test's outcome, so the collector and the intra-op
    ``threads`` are left alone.
    """

    result: Round | None = None

    def __init__(self, *, first: bool = False, threads: int | None = None) -> None:
        self._first = first
        self._threads = None if first else threads

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

    def __exit__(self, *exc: object) -> None:
        """Stop the clocks if they still run, and restore the settings."""
        self.stop()
        assert self._stopped is not None  # noqa: S101 - they were stopped just now
        wall, cpu = self._stopped
        instructions = _end_instructions(self._counter)
        faults = _page_faults() - self._faults
        self._undo.close()
        self.result = Round(wall, cpu, instructions, faults)


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
