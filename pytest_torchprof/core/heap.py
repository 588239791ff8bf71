"""The memory that the C library has reserved for the process."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import NamedTuple


class Heap(NamedTuple):
    """What the C library has handed out, and what is free between that, given back or not."""

    used_bytes: int
    free_bytes: int


def heap_of_process() -> Heap | None:
    """The heap of this process; None if the C library does not tell (glibc does, from 2.33).

    Source: ``man 3 mallinfo2``. It walks all free pieces, so it is not for each moment.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    fields = [(name, ctypes.c_size_t) for name in names.split()]
    with suppress(OSError, AttributeError):
        call = ctypes.CDLL(None).mallinfo2
        call.restype = type("mallinfo2", (ctypes.Structure,), {"_fields_": fields})
        told = call()
        return Heap(used_bytes=told.uordblks + told.hblkhd, free_bytes=told.fordblks)
    return None


def give_back_memory() -> None:
    """Return what is free within this process to the system, where the C library can (glibc).

    It otherwise keeps what was needed for a while between the pieces that are still in use.
    """
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
