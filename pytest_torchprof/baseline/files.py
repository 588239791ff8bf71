"""Replacing a file as a whole, so that it is never lost or half-written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pytest_torchprof.errors import BaselineError


def replace_file(path: Path, text: str, *, what: str, next_step: str) -> None:
    """Write beside the file, then rename over it: a reader sees the old text or the new.

    Raises:
        BaselineError: it cannot be written; the old file is as it was.
    """
    target = path.resolve()
    temporary = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(13, "Permission denied", str(target))
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(target)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        found = f"{why(error)} (nothing was changed)"
        raise BaselineError(f"{what} cannot be written", found, next_step) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def why(error: Exception) -> str:
    """The system's own words, without its number and the path."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
