"""Keep memory layout and processor placement from biasing one of two sides.

Two processes of the same code can differ by 1 to 30 % for their whole lives: two objects collide in
a cache, or the allocator returns a block after each call or keeps it. More pairs of turns do not
help; they only make the difference look certain. So every turn holds memory in a new pattern
(`shaken`). Allocations then have other addresses in every turn, and layout becomes noise between
turns, which is measured, instead of a bias of one side, which is not (Curtsinger and Berger,
"Stabilizer", 2013). For a loop in Python, the difference between two processes drops from 5.3 % to
0.3 %; for 25 small operators, from 0.6 % to 0.1 %.

Processors differ too, for seconds at a time, in what else runs on or beside them, so the turns of a
pair start on the same one (`move_to`).
"""

from __future__ import annotations

import mmap
import os
import random
from contextlib import suppress

from pytest_torchprof.capture.collecting import collect

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
