"""Replacing a file as a whole, so that it is never lost or half-written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write beside the file, then rename over it: a reader sees the old bytes or the new.

    What is no ordinary file, such as a pipe, is written to as it is. Folders are made as needed.

    Raises:
        OSError: it cannot be written; an old file is as it was.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(13, "Permission denied", str(target))
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def same_file(one: Path, other: Path) -> bool:
    """Whether both names lead to one file that is there."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def why(error: Exception) -> str:
    """The system's own words, without its number and the path."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
