"""Where torch writes a trace, for as long as it takes to read it."""

from __future__ import annotations

import io
import os
import secrets
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

from pytest_torchprof.capture.real import REAL
from pytest_torchprof.errors import StorageError
from pytest_torchprof.files import why

_NEXT_STEP = "free some room there, or set TMPDIR to a folder with more"


@contextmanager
def passing_file(parent: Path | None = None) -> Iterator[Path]:
    """A file of one's own that nobody can guess, whose name is gone at the end of the block.

    A SIGTERM that would end the process ends it after the file. Nobody sees that we wait for one:
    the block is ours, not a test's.

    Raises:
        StorageError: the system has no folder for temporary files.
    """
    try:
        folder = parent or Path(tempfile.gettempdir())
    except OSError as error:
        raise StorageError("no trace can be written", why(error), _NEXT_STEP) from error
    path = folder / f"torchprof-{secrets.token_hex(16)}.pt.trace.json"

    def end(number: int, _: FrameType | None) -> None:
        _clear(path)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    ours = REAL.current_thread() == threading.main_thread().ident
    ours = ours and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    try:
        if ours:
            signal.signal(signal.SIGTERM, end)
        yield path
    finally:
        _clear(path)
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _clear(path: Path) -> None:
    for name in (path, _unfinished(path)):
        with suppress(OSError):  # never made, or renamed
            os.unlink(name)  # noqa: PTH108 - quick


def _unfinished(path: Path) -> str:
    """What Kineto writes to, and renames at the end."""
    return f"{path}.tmp"


def reserve(path: Path) -> None:
    """Have the file that torch is about to write be its owner's only, and nobody else's link."""
    handle = os.open(_unfinished(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    REAL.close(handle)


def no_room(path: Path, error: Exception | str) -> StorageError:
    """What is said where a trace could not be written, or not all of it."""
    found = why(error) if isinstance(error, Exception) else error
    return StorageError(f"no trace can be written to {path.parent}", found, _NEXT_STEP)


def hold(path: Path) -> IO[bytes]:
    """The file, open; it may lose its name."""
    if os.name == "nt":  # where an open file keeps it
        return io.BytesIO(path.read_bytes())
    file: IO[bytes] = REAL.open(path, "rb")
    return file
