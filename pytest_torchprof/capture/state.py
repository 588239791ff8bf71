"""Save and restore process state that a rerun must not change."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pytest_torchprof.capture.generators import NUMPY, PYTHON
from pytest_torchprof.capture.patch_guard import PATCH_GUARD


class RandomState:
    """The generators' states, so that a rerun neither sees nor leaves other random numbers."""

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy.random")
        self._python = PYTHON.now(random.getstate)
        self._numpy = NUMPY.now(numpy.get_state) if numpy is not None else None
        torch = sys.modules.get("torch")
        self._torch = torch.default_generator.get_state() if torch is not None else None
        device = getattr(torch, "cuda", None)
        self._cuda = device.get_rng_state_all() if device and device.is_initialized() else None

    def restore(self) -> None:
        """Restore the generators' states."""
        PYTHON.restore(self._python, random.setstate)
        if self._numpy is not None:
            NUMPY.restore(self._numpy, sys.modules["numpy.random"].set_state)
        if self._torch is not None:
            sys.modules["torch"].default_generator.set_state(self._torch)
        if self._cuda is not None:
            sys.modules["torch"].cuda.set_rng_state_all(self._cuda)


class World:
    """State that a test may change for later tests, but its reruns must not."""

    def __init__(self) -> None:
        self._random = RandomState()
        self._filters = list(warnings.filters)
        self._environ = dict(_variables())
        self._depth = PATCH_GUARD.depth_of_test
        self._folder: str | None = None
        with suppress(OSError):  # a test has deleted it
            self._folder = os.getcwd()  # noqa: PTH109 - nothing of this is a Path

    def restore(self) -> None:
        """Put it back."""
        self._random.restore()
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
