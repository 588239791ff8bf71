"""States of random generators, decoded only if they changed, which most tests do not do.

To decode one takes as long as a small test, and to put it back as long again. CPython's generator
and numpy's keep all of it within objects of C, whose bytes tell whether it is another one. Where
that does not hold, which is tried out, each look decodes.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

_HEAD = object.__basicsize__
_read = ctypes.string_at


class State(NamedTuple):
    """A state, and what tells it from others; None where nothing does."""

    fingerprint: tuple[Any, ...] | None
    whole: Any


class Generator:
    """One generator of the process; ``tell`` says what tells its states apart."""

    def __init__(self, tell: Callable[[], tuple[Any, ...] | None]) -> None:
        self._tell = tell
        self._last = State(None, None)

    def now(self, decode: Callable[[], Any]) -> State:
        """Its state, which ``decode`` knows."""
        fingerprint = self._tell()
        if fingerprint is None or fingerprint != self._last.fingerprint:
            self._last = State(fingerprint, decode())
        return self._last

    def restore(self, state: State, put: Callable[[Any], object]) -> None:
        """Put the state back, unless it is there."""
        if state.fingerprint is None or state.fingerprint != self._tell():
            put(state.whole)


def _bytes_of(thing: Any, kind: Any) -> bytes:
    return _read(id(thing) + _HEAD, kind.__basicsize__ - _HEAD)


def _tell_python() -> tuple[Any, ...] | None:
    return _python(random._inst) if _python_tells() else None


def _python(generator: Any) -> tuple[Any, ...]:
    return _bytes_of(generator, random.Random.__base__), generator.gauss_next


def _tell_numpy() -> tuple[Any, ...] | None:
    if not _numpy_tells():
        return None
    generator = getattr(sys.modules["numpy.random"].get_state, "__self__", None)
    bits = getattr(generator, "_bit_generator", None)
    kinds = type(generator).__name__, type(bits).__module__, type(bits).__name__
    return _numpy(generator, bits) if kinds == _KINDS else None  # a user set other functions


_KINDS = "RandomState", "numpy.random._mt19937", "MT19937"


def _numpy(generator: Any, bits: Any) -> tuple[Any, ...]:
    return _bytes_of(generator, type(generator)), _bytes_of(bits, type(bits)), bits


PYTHON, NUMPY = Generator(_tell_python), Generator(_tell_numpy)


@cache
def _python_tells() -> bool:
    mine = random.Random(1)  # noqa: S311 - nothing is a secret here
    try:
        return _tells(
            lambda: _python(mine),
            [mine.random, mine.gauss, mine.gauss, mine.gauss],
            lambda: mine.setstate(mine.getstate()),
        )
    except (AttributeError, TypeError):
        return False


@cache
def _numpy_tells() -> bool:
    try:
        room = sys.modules["numpy.random"]
        mine = room.RandomState(1)
        bits = mine._bit_generator
        return _tells(
            lambda: _numpy(mine, bits),
            [mine.rand, mine.normal, mine.normal, mine.normal, bits.random_raw],
            lambda: mine.set_state(mine.get_state()),
        )
    except (AttributeError, KeyError, TypeError):
        return False


def _tells(
    tell: Callable[[], tuple[Any, ...]],
    draws: list[Callable[[], object]],
    same: Callable[[], object],
) -> bool:
    """Whether it tells of each drawn number, and of nothing else."""
    if sys.implementation.name != "cpython":
        return False
    for draw in draws:
        before = tell()
        if before != tell():
            return False
        draw()
        after = tell()
        same()
        if before == after or after != tell():
            return False
    return True
