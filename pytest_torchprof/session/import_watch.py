"""Tells when a file of the project begins and ends to be imported, unseen by what it imports."""

from __future__ import annotations

import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.machinery import SourceFileLoader
from types import FunctionType
from typing import Any, Final

from _pytest.assertion.rewrite import AssertionRewritingHook

#: What imports Python's files: Python itself, and pytest, where it rewrites asserts.
_LOADERS: Final = (SourceFileLoader, AssertionRewritingHook)
#: Tracebacks and warnings skip frames of this file, as they do without us.
_PYTHON_FILE: Final = "<frozen importlib._bootstrap_external>"
#: Modules that have a generator of the process.
_WITH_GENERATORS: Final = {"torch", "numpy.random"}


@contextmanager
def watching(
    begin: Callable[[str], None], end: Callable[[str], None], loaded: Callable[[], None]
) -> Iterator[None]:
    """Call ``begin`` and ``end`` with the path of each file of the project that is imported here.

    ``loaded`` is called after the import of a module with random generators. Installed files are
    none of the project's. Imports of other threads are not told.
    """
    here = threading.get_ident()
    with ExitStack() as undo:
        for loader in _LOADERS:
            original: Any = loader.exec_module

            def exec_module(own: Any, module: Any, original: Any = original) -> None:
                name, path = getattr(module, "__name__", ""), str(getattr(module, "__file__", ""))
                ours = threading.get_ident() == here and path != ""
                is_told = ours and name not in _WITH_GENERATORS and _is_projects(path)
                if is_told:
                    begin(path)
                try:
                    original(own, module)
                except BaseException as error:
                    # From Python 3.11 on, this shows no frame of ours.
                    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                    raise
                finally:
                    if is_told:
                        end(path)
                if ours and name in _WITH_GENERATORS:
                    loaded()

            unseen = _unseen(exec_module)
            inherited = "exec_module" not in vars(loader)
            loader.exec_module = unseen  # type: ignore[method-assign]
            undo.callback(_put_back, loader, unseen, None if inherited else original)
        yield


def _unseen(function: Any) -> Any:
    """The function, with a frame that looks like one of Python's own imports."""
    code = function.__code__.replace(co_filename=_PYTHON_FILE)
    return FunctionType(
        code, function.__globals__, "exec_module", function.__defaults__, function.__closure__
    )


def _put_back(loader: Any, ours: Any, original: Any) -> None:
    """Undo a replacement, unless somebody has replaced it since."""
    if vars(loader).get("exec_module") is not ours:
        return
    if original is None:
        del loader.exec_module
    else:
        loader.exec_module = original


@cache
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _is_projects(path: str) -> bool:
    return not (path.startswith(_installed()) or "site-packages" in path or "dist-packages" in path)
