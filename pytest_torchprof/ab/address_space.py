"""Where code runs and its data lies, so that it is no difference between two processes of a code.

Two processes of one code can differ by 1 to 30 % for as long as they live: an object lies where it
collides with another in a cache, a block of the allocator is given back after each call or is not.
More pairs of turns do not help against it, they only make it look certain. Two things do. Both
sides start with the same addresses (`same_addresses`), and before every turn memory is taken and
held in another pattern (`shaken`): what a call allocates then lies elsewhere in every turn, so that
its luck is noise between turns, which is measured, and no longer a bias of a side, which is not
(Curtsinger and Berger, "Stabilizer", 2013). A loop in Python: 5.3 % between two processes without
both, 0.3 % with them; 25 small operators: 0.6 and 0.1 %.

And processors differ, in what else runs on them or beside them, for seconds at a time. So the turns
of a pair start on the same one (`move_to`). And the side that waits has to leave them all to the
other: its pool of threads must not spin on (`same_environment`).
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

#: How long a thread of an OpenMP pool spins after its work before it sleeps: libgomp counts (about
#: 20 ns each; 300,000 by default), libomp has milliseconds (200 by default). The pool of one side
#: that spins through a turn of the other takes its processors: with two threads on two of them,
#: intervals of ±50 % become ±2 %. In a test the next work comes sooner, and finds it awake.
#: https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html,
#: https://openmp.llvm.org/design/Runtimes.html (KMP_BLOCKTIME)
_WAITING = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}
#: And sets of strings are in one order on both sides.
ENVIRONMENT = {"PYTHONHASHSEED": "0", **_WAITING}

#: Of Python's own allocator (every sixteen bytes up to 512), in bytes.
_SMALL = range(1, 480, 16)
_LARGE = (9, 21)  # of the C library's, as powers of two

#: The same patterns on both sides, turn by turn: memory that a library takes once and keeps then
#: lies alike, too, as far as both run the same code.
_random = random.Random(0)  # noqa: S311 - patterns, not secrets


def shaken() -> object:
    """Takes memory in a new pattern; hold the result for as long as a turn. About 0.1 ms.

    Most of it is never touched, so that it costs addresses and not memory.
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
    """Move this thread to a processor, from where the system may move it on at any time.

    The turns of a pair start on the same one, and pairs on different ones. Else a side may be for
    seconds on a processor that has something else to do, or that is a slower kind.
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
    """Processes started within have no random addresses, where the system can do and allows that.

    Linux only; some containers forbid it, and nothing is said then: `shaken` does most of it alone.
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
    """Processes started within have what `ENVIRONMENT` says, and the user has not."""
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
    """The one before; None where there is none or it may not be set."""
    try:
        found = ctypes.CDLL(None).personality(ctypes.c_ulong(wanted))
    except (AttributeError, OSError, TypeError):  # not Linux
        return None
    return None if found == -1 else int(found)
