"""Begins a capture in a process that a measured test has started, once it imports torch.

Loaded by its path, not as a part of the package, which the process need not be able to import.
Until torch is imported, nothing else is.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any

#: Python's own helper processes, and torch's, that run no operators of a test. A server of forks
#: runs none either: the processes that it forks are told by their parent.
HELPERS = (
    "from multiprocessing.forkserver import",
    "resource_tracker import main",
    "semaphore_tracker import main",
    "torch_shm_manager",
    "torch._inductor.compile_worker",
    "_inductor/compile_worker",
)


def arm(handed: str, *, served: bool = False) -> None:
    """Begin a capture when torch is imported, or now if it is; ``handed`` is ``NUMBER:FOLDER``.

    ``served``: a server has forked this process. Only the first call counts.
    """
    helps = not served and any(one in " ".join(sys.orig_argv) for one in HELPERS)
    if _Armed.handed is not None or helps:
        return
    _Armed.handed = handed
    number, _, folder = handed.partition(":")
    with contextlib.suppress(OSError):
        Path(folder, f"{number}-{os.getpid()}.seen").touch(0o600)
    if "torch" in sys.modules:
        begin()
    else:
        sys.meta_path.insert(0, _Finder)


class _Armed:
    handed: str | None = None


def begin() -> None:
    """Begin the capture; whatever goes wrong is for the parent to notice."""
    number, _, folder = (_Armed.handed or "").partition(":")
    root = str(Path(__file__).parents[3])
    before = list(sys.path)
    try:
        sys.path.insert(0, root)
        # By name: this file is no part of the package.
        child = importlib.import_module("pytest_torchprof.capture.children")
        child.begin_capture(Path(folder), number)
    except Exception:  # noqa: BLE001, S110 - as said
        pass
    finally:
        sys.path[:] = before


class _Finder:
    """Finds torch as the others do, with a loader that calls `begin` behind it."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of torch; None for anything else."""
        if name != "torch":
            return None
        if cls in sys.meta_path:
            sys.meta_path.remove(cls)
        for finder in sys.meta_path:
            found = finder.find_spec(name, path, target)
            if found is not None:
                found.loader = _Loader(found.loader)  # type: ignore[assignment]
                return found
        return None


class _Loader:
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        begin()
