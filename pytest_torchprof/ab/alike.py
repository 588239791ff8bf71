"""Two processes that run the same code should be as fast: what makes them differ by chance.

Where the kernel puts libraries, heap and stack, and how Python mixes hashes, is drawn anew for each
process, and moves the time of a short test by up to 5 % for as long as the process lives; no number
of turns would average that out. (Mytkowicz et al., Producing wrong data without doing anything
obviously wrong, 2009.)
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_HASHES = "PYTHONHASHSEED"
#: Of Linux's personality(2).
_ADDR_NO_RANDOMIZE = 0x0040000
_ASK = 0xFFFFFFFF


@contextmanager
def alike() -> Iterator[None]:
    """Processes that are started within are laid out alike, as far as the system allows."""
    mine = _HASHES in os.environ
    if not mine:
        os.environ[_HASHES] = "0"
    before = _personality(_ASK)
    if before is not None:
        _personality(before | _ADDR_NO_RANDOMIZE)
    try:
        yield
    finally:
        if before is not None:
            _personality(before)
        if not mine:
            del os.environ[_HASHES]


def _personality(flags: int) -> int | None:
    """What it was before; None where there is no such thing, or a sandbox forbids it."""
    if sys.platform != "linux":
        return None
    try:
        found = int(ctypes.CDLL(None).personality(ctypes.c_ulong(flags)))
    except (OSError, AttributeError):
        return None
    return None if found == -1 else found
