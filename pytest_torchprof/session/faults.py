"""Errors that no test is to blame for, told from those that are the user's to mend."""

from __future__ import annotations

from pathlib import Path

from pytest_torchprof.core.errors import StorageError, TorchprofError


def is_fault(error: Exception) -> bool:
    """Whether it is ours, or the system's: such a one ends the session with a failure."""
    return isinstance(error, StorageError) or not isinstance(error, TorchprofError)


def said(error: Exception) -> str:
    """Our own errors speak for themselves; anything else is a fault to report."""
    if isinstance(error, TorchprofError):
        return str(error)
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = f", {Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}" if at else ""
    message = str(error).partition("\n")[0]
    return f"internal error, please report it: {type(error).__name__}: {message}{where}"
