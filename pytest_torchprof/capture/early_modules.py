"""The libraries that we use, as they were before test files were imported.

A test file may put a mock into ``sys.modules["torch"]`` and leave it there, where all later files
find it, and so would we.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from pytest_torchprof.capture.originals import ROOTS

_MISSING: Any = object()


class EarlyModules:
    """The modules of these libraries that were loaded when this was made."""

    def __init__(self) -> None:
        self._modules = {
            name: module
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] in ROOTS
        }

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Find them where they were; afterwards, what replaced them is back."""
        now = sys.modules
        replaced = {
            name: now.get(name, _MISSING)
            for name, module in self._modules.items()
            if now.get(name, _MISSING) is not module
        }
        now.update({name: self._modules[name] for name in replaced})
        try:
            yield
        finally:
            for name, other in replaced.items():
                if other is _MISSING:
                    now.pop(name, None)
                else:
                    now[name] = other


def is_torch(module: object) -> bool:
    """Whether it is torch, not what somebody has put in its place."""
    # A mock's class says what it stands for, and its type what it is.
    return all(issubclass(type(one), ModuleType) for one in (module, getattr(module, "_C", None)))
