"""Keep memory layout and processor placement from biasing two processes of the same code.

Two processes of the same code can differ by 1 to 30 % for their whole lives: two objects collide in
a cache, or the allocator returns a block after each call or keeps it. More pairs of turns do not
help; they only make the difference look certain. Two measures do. Both sides start with the same
addresses (`same_addresses`), and every turn holds memory in a new pattern (`shaken`). Allocations
then have other addresses in every turn, so layout becomes noise between turns, which is measured,
instead of a bias of one side, which is not (Curtsinger and Berger, "Stabilizer", 2013). For a loop
in Python, the difference between two processes drops from 5.3 % to 0.3 %; for 25 small operators,
from 0.6 % to 0.1 %.

Processors differ too, for seconds at a time, in what else runs on or beside them, so the turns of a
pair start on the same one (`move_to`). And the waiting side must leave them all to the other: its
thread pool must not spin (`same_environment`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress

#: From <sys/personality.h>.
_ADDR_NO_RANDOMIZE = 0x0040000
_ASK = 0xFFFFFFFF

#: How long a thread of an OpenMP pool spins after its work before it sleeps: libgomp counts
#: iterations (about 20 ns each; 300,000 by default), libomp milliseconds (200 by default). A pool
#: of the waiting side that spins takes processors from the other: with two threads on two
#: processors, intervals of ±50 % become ±2 %. Within a test, the next work comes before they sleep.
#: https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html,
#: https://openmp.llvm.org/design/Runtimes.html (KMP_BLOCKTIME)
_WAITING = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}
#: Also gives sets of strings the same order on both sides.
ENVIRONMENT = {"PYTHONHASHSEED": "0", **_WAITING}

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


@contextmanager
def same_addresses() -> Iterator[None]:
    """Start processes without address space randomization, where the system supports and allows it.

    Linux only. Some containers forbid it, which is ignored: `shaken` alone does most of the work.
    """
    before = _personality(_ASK)
    if before is None:
        yield
        return
    _personality(before | _ADDR_NO_RANDOMIZE)
    try:
        yield
    finally:
        _personality(before)


@contextmanager
def same_environment() -> Iterator[None]:
    """Start processes with the variables of `ENVIRONMENT` that the user has not set."""
    policy = "OMP_WAIT_POLICY" in os.environ
    ours = {
        name: value
        for name, value in ENVIRONMENT.items()
        if name not in os.environ and not (policy and name in _WAITING)
    }
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def _personality(wanted: int) -> int | None:
    """Set it and return the previous one; None where it is unsupported or forbidden."""
    try:
        found = ctypes.CDLL(None).personality(ctypes.c_ulong(wanted))
    except (AttributeError, OSError, TypeError):  # not Linux
        return None
    return None if found == -1 else int(found)
