"""States of random generators, decoded only if they changed, which few tests cause.

Decoding a state takes as long as a small test, and restoring it just as long. The generators of
CPython and NumPy keep all of their state inside C objects, whose bytes show whether it changed. If
that does not hold, which is tried out, each check decodes the state.
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
    """A state, and a fingerprint of it; None if there is none."""

    fingerprint: tuple[Any, ...] | None
    whole: Any


class Generator:
    """One generator of the process; ``tell`` returns the fingerprint of its state."""

    def __init__(self, tell: Callable[[], tuple[Any, ...] | None]) -> None:
        self._tell = tell
        self._last = State(None, None)

    def now(self, decode: Callable[[], Any]) -> State:
        """Its state, which ``decode`` reads."""
        fingerprint = self._tell()
        if fingerprint is None or fingerprint != self._last.fingerprint:
            self._last = State(fingerprint, decode())
        return self._last

    def restore(self, state: State, put: Callable[[Any], object]) -> None:
        """Restore the state, unless it is unchanged."""
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
    return _numpy(generator, bits) if kinds == _KINDS else None  # else replaced functions


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
    """Whether the fingerprint changes with each drawn number, and only then."""
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
