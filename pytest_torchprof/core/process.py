"""This process: what glibc's heap holds, and patterns that are compiled on first use."""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, AnyStr, Final, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Iterator


# ---- The memory that the C library has reserved for the process.

#: Parameters of glibc's mallopt, see its malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: The largest limit that glibc takes, on 64 bits, and the limit for trimming that it derives.
_LARGEST: Final = 32 * 2**20
_OF_THE_USER = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


class Heap(NamedTuple):
    """What the C library has handed out, and what is free between that, given back or not.

    ``mapped_bytes`` in ``mapped_blocks`` of those handed out are large blocks, each apart.
    """

    used_bytes: int
    free_bytes: int
    mapped_bytes: int = 0
    mapped_blocks: int = 0


def heap_of_process() -> Heap | None:
    """The heap of this process; None if the C library does not tell (glibc does, from 2.33).

    Source: ``man 3 mallinfo2``. It walks all free pieces, so it is not for each moment.
    """
    told = call() if (call := _function("mallinfo2")) is not None else None
    if told is None:
        return None
    return Heap(told.uordblks + told.hblkhd, told.fordblks, told.hblkhd, told.hblks)


def give_back_memory() -> None:
    """Return what is free within this process to the system, where the C library can (glibc).

    It otherwise keeps what was needed for a while between the pieces that are still in use.
    """
    if (trim := _function("malloc_trim")) is not None:
        trim(0)


@contextmanager
def blocks_apart(least: int) -> Iterator[None]:
    """Blocks of at least so many bytes are apart from others meanwhile, where the C library can
    (glibc).

    One that grows does so in place, and one that ends leaves no hole. Once glibc has seen a block
    end, it would have those of its size among the others. Does nothing if the user has set a limit.
    """
    place_apart(least)
    try:
        yield
    finally:
        place_apart()


def place_apart(least: int = _LARGEST) -> None:
    """Have blocks of at least so many bytes apart from here on, unless the user has set a limit.

    By default that is what glibc comes to by itself, as blocks that come and go take longer apart.
    """
    if (choose := _function("mallopt")) is not None and not _chosen_by_user():
        choose(_MMAP_THRESHOLD, least)
        choose(_TRIM_THRESHOLD, 2 * _LARGEST)


@cache
def _chosen_by_user() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    named = any(f"{one}_threshold" in tunables for one in ("mmap", "trim"))
    return named or not os.environ.keys().isdisjoint(_OF_THE_USER)


@cache
def _function(name: str) -> Any:
    """A function of glibc; None elsewhere. It is found once, as a test may replace `ctypes`."""
    if sys.platform != "linux":
        return None
    import ctypes

    try:
        found = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    if name == "mallinfo2":
        names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
        fields = [(one, ctypes.c_size_t) for one in names.split()]
        found.restype = type(name, (ctypes.Structure,), {"_fields_": fields})
    return found


# ---- Regular expressions compiled on first use, since most sessions need few of them.


class _Late:
    """Compiles the expression on the first access to a method."""

    def __init__(self, pattern: Any, flags: int) -> None:
        self._given = pattern, flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self._given), name)
        setattr(self, name, value)
        return value


def late(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Like `re.compile`, but deferred, because it costs every session about 0.1 ms each.

    Call the expression's own methods: the functions of `re` do not accept it.

    >>> late(r"a+").match("aab")[0]
    'aa'
    """
    return cast("re.Pattern[AnyStr]", _Late(pattern, flags))
