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
def passing_folder(parent: Path | None = None) -> Iterator[Path]:
    """A name for a folder of one's own that is gone at the end of the block, with what is in it.

    Whoever needs it makes it, with `made`. A SIGTERM that would end the process ends it after the
    folder. Nobody sees that we wait for one: the block is ours, not a test's.

    Raises:
        StorageError: the system has no folder for temporary files.
    """
    try:
        folder = (parent or Path(tempfile.gettempdir())) / f"torchprof-{secrets.token_hex(8)}"
    except OSError as error:
        raise StorageError("no trace can be written", why(error), _NEXT_STEP) from error

    def end(number: int, _: FrameType | None) -> None:
        _clear(folder)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    ours = REAL.current_thread() == threading.main_thread().ident
    ours = ours and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    try:
        if ours:
            signal.signal(signal.SIGTERM, end)
        yield folder
    finally:
        _clear(folder)
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _clear(folder: Path) -> None:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - quick
    except OSError:  # nobody needed it
        return
    for name in names:
        with suppress(OSError):
            os.unlink(os.path.join(folder, name))  # noqa: PTH108, PTH118
    with suppress(OSError):
        os.rmdir(folder)  # noqa: PTH106


def made(folder: Path) -> Path:
    """The folder, there for nobody but us."""
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)  # noqa: PTH102
    return folder


def no_room(folder: Path, error: Exception | str) -> StorageError:
    """What is said where a trace could not be written, or not all of it."""
    found = why(error) if isinstance(error, Exception) else error
    return StorageError(f"no trace can be written to {folder.parent}", found, _NEXT_STEP)


def hold(path: Path) -> IO[bytes]:
    """The file, open; it may lose its name."""
    if os.name == "nt":  # where an open file keeps it
        return io.BytesIO(path.read_bytes())
    file: IO[bytes] = REAL.open(path, "rb")
    return file
