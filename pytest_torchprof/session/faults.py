"""Errors that no test caused: recognized, collected, and reported at the end."""

from __future__ import annotations

from pathlib import Path

from pytest_torchprof.core.errors import NotCapturedError, StorageError, TorchprofError
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.render.summary import fault_lines


def is_fault(error: Exception) -> bool:
    """Whether the plugin or the system caused it, so that the session fails."""
    return isinstance(error, StorageError) or not isinstance(error, TorchprofError)


def message_of(error: Exception) -> str:
    """The error's text; for an unexpected one, a request to report it."""
    return reason_for(error).text


def reason_for(error: Exception) -> Reason:
    """The error as a reason."""
    if isinstance(error, NotCapturedError):
        return error.reason
    if isinstance(error, TorchprofError):
        return because(*Why.ERROR, message=str(error))
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
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
