"""Generators and other state of the process that a rerun must not change."""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pytest_torchprof.capture.patches import REAL

# ---- Seeds for the random generators of the process: Python's, NumPy's, and torch's on all
# devices.

#: Backends whose modules keep a generator for each device.
_BACKENDS = ("cuda", "xpu")


def seed_for(number: int, name: str, *, other: bool = False) -> int:
    """The seed of a test's runs: 63 bits of a digest, the same on every machine.

    ``name`` is the test's; ``other``: the seed of the run that shows what varies.

    >>> seed_for(0, "test_a.py::test_a") == seed_for(0, "test_a.py::test_a")
    True
    >>> seed_for(0, "test_a.py::test_a") == seed_for(0, "test_a.py::test_b")
    False
    """
    text = f"{number} {4 * other} {name}".encode(errors="backslashreplace")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def accelerators() -> Iterator[Any]:
    """The modules of backends in use, such as ``torch.cuda``; none is initialized by asking."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    own = getattr(torch._C, "_get_privateuse1_backend_name", str)()
    for name in (*_BACKENDS, own):
        module = getattr(torch, name, None) if name else None
        started = getattr(module, "is_initialized", None)
        if started is not None and hasattr(module, "get_rng_state_all") and started():
            yield module


def seed_generators(
    seed: int, *, python: bool = True, numpy: bool = True, torch: bool = True
) -> None:
    """Seed torch's generators on all devices in use, Python's, and NumPy's if it is loaded.

    A generator that somebody made, such as a `torch.Generator`, stays as it is.
    """
    if python:
        random.seed(seed)
    room = sys.modules.get("numpy.random") if numpy else None
    if room is not None:
        with suppress(AttributeError, TypeError):  # another bit generator, which has no such seed
            room.seed(seed % 2**32)
    loaded = sys.modules.get("torch") if torch else None
    if loaded is not None:
        loaded.default_generator.manual_seed(seed)
        for module in accelerators():
            module.manual_seed_all(seed)
        if (metal := mps()) is not None:
            metal.manual_seed(seed)


def mps() -> Any | None:
    """``torch.mps`` on a machine that has Metal; else None."""
    torch = sys.modules.get("torch")
    has_it = getattr(getattr(torch, "_C", None), "_has_mps", False)
    return torch.mps if torch is not None and has_it else None


# ---- Save and restore process state that a rerun must not change.


class Differing(NamedTuple):
    """Which generators two states differ in; ``torch``: on any device."""

    python: bool
    numpy: bool
    torch: bool


class RandomState:
    """The generators' states, so that a rerun neither sees nor leaves other random numbers."""

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy.random")
        self._python = random.getstate()
        self._numpy = numpy.get_state() if numpy is not None else None
        torch = sys.modules.get("torch")
        self._torch = torch.default_generator.get_state() if torch is not None else None
        self._devices: list[tuple[Any, list[Any]]] = []
        with suppress(RuntimeError):  # a device reports an error of earlier work
            self._devices = [(module, module.get_rng_state_all()) for module in accelerators()]
        metal = mps()
        self._mps = metal.get_rng_state() if metal is not None else None

    def restore(self, but: Differing | None = None) -> None:
        """Restore the generators' states, ``but`` these."""
        if but is None or not but.python:
            random.setstate(self._python)
        if self._numpy is not None and (but is None or not but.numpy):
            sys.modules["numpy.random"].set_state(self._numpy)
        if but is not None and but.torch:
            return
        if self._torch is not None:
            sys.modules["torch"].default_generator.set_state(self._torch)
        with suppress(RuntimeError):  # as above
            for module, states in self._devices:
                module.set_rng_state_all(states)
        if self._mps is not None:
            sys.modules["torch"].mps.set_rng_state(self._mps)

    def differs(self, other: RandomState) -> Differing:
        """Which generators are in another state; those that cannot tell count as such."""
        devices = [[s for _, states in one._devices for s in states] for one in (self, other)]
        return Differing(
            python=self._python != other._python,
            numpy=_words(self._numpy) != _words(other._numpy),
            torch=_unequal([self._torch], [other._torch])
            or _unequal(*devices)
            or _unequal([self._mps], [other._mps]),
        )


def _words(numpy: Any) -> object:
    """NumPy's state as a value that can be compared, whatever its bit generator."""
    return repr(numpy) if isinstance(numpy, dict) else numpy and (numpy[1].tobytes(), numpy[2:])


def _unequal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether states of torch's generators differ: tensors of bytes on the host."""
    if len(some) != len(others):
        return True
    return any(
        a is not b and (a is None or b is None or bytes_of(a) != bytes_of(b))
        for a, b in zip(some, others, strict=True)
    )


def bytes_of(state: Any) -> bytes:
    """A generator's state, read without an operator: a mode that a test left may refuse those.

    Raises:
        TypeError: it is a mock's, which has no address.
    """
    address, count = state.data_ptr(), state.nbytes
    if type(address) is not int or type(count) is not int:
        raise TypeError(f"an address is needed, not {type(address).__name__}")
    return ctypes.string_at(address, count)


class World:
    """State that a test may change for later tests, but its reruns must not."""

    def __init__(self) -> None:
        self.random = RandomState()
        self._filters = list(warnings.filters)
        self._environ = dict(_variables())
        self._depth = REAL.recursion_limit()
        self._folder: str | None = None
        with suppress(OSError):  # a test has deleted it
            self._folder = os.getcwd()  # noqa: PTH109 - nothing of this is a Path

    def restore(self, but: Differing | None = None) -> None:
        """Put it back; the generators named by ``but`` stay as they are."""
        self.random.restore(but)
        if REAL.recursion_limit() != self._depth:
            REAL.set_recursion_limit(self._depth)
        warnings.filters[:] = self._filters  # type: ignore[index]
        if _variables() != self._environ:
            _restore_variables(self._environ)
        warnings._filters_mutated()  # type: ignore[attr-defined]
        if self._folder is not None:
            with suppress(OSError):
                os.chdir(self._folder)


def _variables() -> Mapping[Any, Any]:
    """The environment in the system's encoding, if Python keeps it so, to avoid decoding it."""
    found: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
    return found


def _restore_variables(before: Mapping[Any, Any]) -> None:
    """Restore only what differs: pytest itself sets a variable in each phase."""
    now = _variables()
    for key in [key for key in now if key not in before]:
        del os.environ[os.fsdecode(key)]
    for key, value in before.items():
        if now.get(key) != value:
            os.environ[os.fsdecode(key)] = os.fsdecode(value)
