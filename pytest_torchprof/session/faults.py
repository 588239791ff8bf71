"""Errors that no test caused: recognized, collected, and reported at the end."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

from pytest_torchprof.capture.machine import is_torch
from pytest_torchprof.core.errors import (
    NotCapturedError,
    StorageError,
    TorchprofError,
    error_line,
)
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.render.summary import fault_lines

#: Whose modules raise errors that are no test's, beside the standard library's.
_LIBRARIES = {"torch", "triton", "sympy", "numpy", "msgspec", "jinja2", "expecttest", "tqdm"}
_ROOMS = _LIBRARIES | {"pytest_torchprof", "pytest", "_pytest", "pluggy"}


def is_fault(error: Exception) -> bool:
    """Whether the plugin or the system caused it, so that the session fails."""
    if isinstance(error, TorchprofError):
        return isinstance(error, StorageError)
    return not _is_of_test(error)


def _is_of_test(error: Exception) -> bool:
    """Whether it was raised in code of neither ours nor a library's: what a test has replaced."""
    replaced = "torch" in sys.modules and not is_torch(sys.modules["torch"])
    if replaced or (isinstance(error, ImportError) and "in sys.modules" in str(error)):
        return True
    at = _innermost(error)
    module = at.tb_frame.f_globals.get("__name__", "") if at is not None else __name__
    root = module.partition(".")[0]
    return module == "unittest.mock" or not (root in _ROOMS or root in sys.stdlib_module_names)


def _innermost(error: Exception) -> TracebackType | None:
    """Where it was raised."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at


def message_of(error: Exception) -> str:
    """The error's text; for an unexpected one, a request to report it."""
    return reason_for(error).text


def reason_for(error: Exception) -> Reason:
    """The error as a reason."""
    if isinstance(error, NotCapturedError):
        return error.reason
    if isinstance(error, TorchprofError):
        return because(*Why.ERROR, message=str(error))
    if _is_of_test(error):
        return because(
            "replaced_by_test",
            "the test has replaced what the profiler needs: {error}",
            error=error_line(error),
        )
    at = _innermost(error)
    where = f", {Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}" if at else ""
    message = str(error).partition("\n")[0]
    kind = type(error).__name__
    return because(
        "internal_error",
        "internal error, please report it: {error}: {message}{where}",
        error=kind,
        message=message,
        where=where,
    )


class SessionErrors:
    """The errors of a session, each of which fails it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        #: Fault → the tests that it hit.
        self._hit: dict[str, list[str]] = {}
        #: Context for the plugin's part of a hook: its errors are recorded here.
        self.careful = _Careful(self)

    @property
    def lines(self) -> list[str]:
        """One line per error; faults that hit tests are included once settled."""
        return list(self._lines)

    def settle_faults(self) -> None:
        """After all tests, add a line for each fault, with the number of tests that it hit."""
        self._lines += fault_lines(self._hit)
        self._hit.clear()

    def add(self, *lines: str) -> None:
        """Add errors that belong to no test."""
        self._lines += lines

    def add_error(self, error: Exception) -> None:
        """Add an error that was raised outside any test, once."""
        if (text := message_of(error)) not in self._lines:
            self._lines.append(text)

    def add_fault(self, fault: str, *nodeids: str) -> None:
        """Add a fault that hit these tests."""
        self._hit.setdefault(fault, []).extend(nodeids)


class _Careful:
    """Context for the plugin's part of a hook: its faults are recorded, never raised."""

    def __init__(self, errors: SessionErrors) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._errors.add_error(error)
        return True
