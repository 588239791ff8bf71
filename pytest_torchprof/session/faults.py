"""Errors that no test is to blame for: told from others, collected, and told at the end."""

from __future__ import annotations

from pathlib import Path

from pytest_torchprof.capture.patch_guard import PATCH_GUARD
from pytest_torchprof.core.errors import NotCapturedError, StorageError, TorchprofError
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.render.session_table import fault_lines


def is_fault(error: Exception) -> bool:
    """Whether it is ours, or the system's: such a one ends the session with a failure."""
    return isinstance(error, StorageError) or not isinstance(error, TorchprofError)


def said(error: Exception) -> str:
    """Our own errors speak for themselves; anything else is a fault to report."""
    return in_words(reason_for(error))


def reason_for(error: Exception) -> Reason:
    """The error as a reason."""
    if isinstance(error, NotCapturedError):
        return error.reason
    if isinstance(error, TorchprofError):
        return because(Why.ERROR, message=str(error))
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = f", {Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}" if at else ""
    message = str(error).partition("\n")[0]
    kind = type(error).__name__
    return because(Why.INTERNAL_ERROR, error=kind, message=message, where=where)


class SessionErrors:
    """The errors of a session, each of which fails it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        #: Fault → the tests that it hit.
        self._hit: dict[str, list[str]] = {}
        #: To be entered around our part of a hook: `PATCH_GUARD`, and what is raised is noted here.
        self.careful = _Careful(self)

    @property
    def lines(self) -> list[str]:
        """A line for each; of faults that hit tests, once they are settled."""
        return list(self._lines)

    def settle_faults(self) -> None:
        """All tests are over: a line for each fault, with the number of tests that it hit."""
        self._lines += fault_lines(self._hit)
        self._hit.clear()

    def add(self, *lines: str) -> None:
        """Errors beside any test."""
        self._lines += lines

    def add_error(self, error: Exception) -> None:
        """One that was raised beside any test, noted once."""
        if (text := said(error)) not in self._lines:
            self._lines.append(text)

    def add_fault(self, fault: str, *nodeids: str) -> None:
        """A fault that hit these tests too."""
        self._hit.setdefault(fault, []).extend(nodeids)


class _Careful:
    """Around our part of a hook: a fault of ours is noted, never raised."""

    def __init__(self, errors: SessionErrors) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        PATCH_GUARD.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        PATCH_GUARD.__exit__()
        if not isinstance(error, Exception):
            return False
        self._errors.add_error(error)
        return True
