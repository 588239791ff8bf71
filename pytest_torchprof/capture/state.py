"""Save and restore process state that a rerun must not change."""

from __future__ import annotations

import ctypes
import os
import random
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pytest_torchprof.capture.generators import NUMPY, PYTHON, State
from pytest_torchprof.capture.patch_guard import PATCH_GUARD
from pytest_torchprof.capture.seeding import accelerators, mps


class Differing(NamedTuple):
    """Which generators two states differ in; ``torch``: on any device."""

    python: bool
    numpy: bool
    torch: bool


class RandomState:
    """The generators' states, so that a rerun neither sees nor leaves other random numbers."""

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy.random")
        self._python = PYTHON.now(random.getstate)
        self._numpy = NUMPY.now(numpy.get_state) if numpy is not None else None
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
            PYTHON.restore(self._python, random.setstate)
        if self._numpy is not None and (but is None or not but.numpy):
            NUMPY.restore(self._numpy, sys.modules["numpy.random"].set_state)
        if but is not None and but.torch:
            return
        if self._torch is not None:
            sys.modules["torch"].default_generator.set_state(self._torch)
        with suppress(RuntimeError):  # as above
            for module, states in self._devices:
                module.set_rng_state_all(states)
        if self._mps is not None:
            sys.modules["torch"].mps.set_rng_state(self._mps)

    def complete(self, later: RandomState) -> None:
        """Take over the states of generators that did not exist when this one was taken."""
        if self._numpy is None:
            self._numpy = later._numpy
        if self._torch is None:
            self._torch, self._devices, self._mps = later._torch, later._devices, later._mps

    def differs(self, other: RandomState) -> Differing:
        """Which generators are in another state; those that cannot tell count as such."""
        ours, theirs = (self._numpy, other._numpy)
        devices = [[s for _, states in one._devices for s in states] for one in (self, other)]
        return Differing(
            python=_differ(self._python, other._python),
            numpy=_differ(ours, theirs) if ours and theirs else theirs is not ours,
            torch=_unequal([self._torch], [other._torch])
            or _unequal(*devices)
            or _unequal([self._mps], [other._mps]),
        )


def _differ(one: State, other: State) -> bool:
    return one.fingerprint is None or one.fingerprint != other.fingerprint


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
        self._depth = PATCH_GUARD.depth_of_test
        self._folder: str | None = None
        with suppress(OSError):  # a test has deleted it
            self._folder = os.getcwd()  # noqa: PTH109 - nothing of this is a Path

    def restore(self, but: Differing | None = None) -> None:
        """Put it back; the generators named by ``but`` stay as they are."""
        self.random.restore(but)
        if PATCH_GUARD.depth_of_test != self._depth:
            PATCH_GUARD.set_depth_of_test(self._depth)
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
