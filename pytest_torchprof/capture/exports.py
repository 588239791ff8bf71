"""A temporary file for a trace that torch writes and we read back."""

from __future__ import annotations

import io
import os
import secrets
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import IO, Any

from pytest_torchprof.capture.unpatched import REAL
from pytest_torchprof.core.errors import StorageError
from pytest_torchprof.core.files import system_message

_NEXT_STEP = "free some space there, or set TMPDIR to a folder with more"
#: An in-memory folder, where creating and deleting a file takes a third of the time, and the folder
#: that it replaces: a folder chosen by the user is not replaced.
_MEMORY, _INSTEAD_OF = "/dev/shm", "/tmp"  # noqa: S108 - only its owner can read or replace a file
#: Bytes that must be free there: more than a small trace can have.
_ROOM = 2**25
#: A file up to this size stays in memory after it is read.
SMALL_BYTES = 2**20
#: Without the enums around these functions, which take longer than the functions.
_signals: Any = getattr(signal, "_signal", signal)


@contextmanager
def passing_file(parent: Path | None = None, *, small: bool = False) -> Iterator[Path]:
    """A private file with an unguessable name, which is deleted at the end of the block.

    It is in this folder, or in the system's folder for temporary files; a ``small`` one in memory,
    if there is room for it. A SIGTERM that would end the process deletes the file first. The test
    cannot see our handler: the block runs our code, not a test's.

    Raises:
        StorageError: the system has no folder for temporary files.
    """
    try:
        folder = parent or Path(_folder(small=small))
    except OSError as error:
        raise StorageError("cannot write a trace", system_message(error), _NEXT_STEP) from error
    path = folder / f"torchprof-{secrets.token_hex(16)}.pt.trace.json"

    def end(number: int, _: FrameType | None) -> None:
        _clear(path)
        _signals.signal(number, _signals.SIG_DFL)
        os.kill(os.getpid(), number)

    ours = REAL.current_thread() == threading.main_thread().ident
    ours = ours and _signals.getsignal(signal.SIGTERM) == signal.SIG_DFL
    try:
        if ours:
            _signals.signal(signal.SIGTERM, end)
        yield path
    finally:
        _clear(path)
        if ours:
            _signals.signal(signal.SIGTERM, _signals.SIG_DFL)


def _folder(*, small: bool) -> str:
    folder = tempfile.gettempdir()
    return _MEMORY if small and folder == _INSTEAD_OF and _has_memory() else folder


def _has_memory() -> bool:
    """Whether a small file fits in memory."""
    if not memory_works():
        return False
    try:
        found = REAL.statvfs(_MEMORY)
    except OSError:
        return False
    return bool(found.f_bavail * found.f_frsize >= _ROOM)


@cache
def memory_works() -> bool:
    """Whether there is a usable in-memory folder; tried once, before the tests."""
    path = Path(_MEMORY, f"torchprof-{secrets.token_hex(16)}")
    try:
        reserve(path)
        os.unlink(_unfinished(path))  # noqa: PTH108 - as below
    except OSError:
        return False
    return REAL.statvfs is not None


def _clear(path: Path) -> None:
    for name in (path, _unfinished(path)):
        with suppress(OSError):  # never made, or renamed
            os.unlink(name)  # noqa: PTH108 - quick


def _unfinished(path: Path) -> str:
    """The file that Kineto writes to, and renames at the end."""
    return f"{path}.tmp"


def reserve(path: Path) -> None:
    """Make the file that torch is about to write, private to its owner and not somebody's link."""
    handle = os.open(_unfinished(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    REAL.close(handle)


def no_room(path: Path, error: Exception | str) -> StorageError:
    """The error for a trace that could not be written completely."""
    found = system_message(error) if isinstance(error, Exception) else error
    return StorageError(f"cannot write a trace to {path.parent}", found, _NEXT_STEP)


def hold(path: Path, text: bytes | None = None) -> IO[bytes]:
    """The file, open; it may be unlinked. Its ``text`` is used instead if given."""
    if text is not None:
        return io.BytesIO(text)
    if os.name == "nt":  # an open file cannot be unlinked
        return io.BytesIO(path.read_bytes())
    file: IO[bytes] = REAL.open(path, "rb")
    return file
