"""Start the processes of both sides alike, and keep one's threads out of the other's turns.

Two processes of the same code can differ for their whole lives, see `capture.memory_layout`. So
both start with the same addresses (`same_addresses`), and the waiting side must leave the
processors to the other: its thread pool must not spin (`same_environment`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

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
