"""The memory that the C library has reserved for the process."""

from __future__ import annotations

import sys
from contextlib import suppress


def give_back_memory() -> None:
    """Return what is free within this process to the system, where the C library can (glibc).

    It otherwise keeps what was needed for a while between the pieces that are still in use.
    """
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
