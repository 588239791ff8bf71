"""Files that are replaced as a whole."""

from __future__ import annotations

import errno
import importlib
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

# ---- Write files atomically, keeping their kind and mode.
#
# Also open files that may be pipes, without waiting forever.

if sys.platform != "win32":
    import fcntl

#: Prefix of temporary file names.
TEMPORARY_PREFIX = ".torchprof-"
#: A merge takes milliseconds; a process that takes longer is suspended, so give up.
_LOCK_S = 30.0
#: A writer must open a named pipe within this time.
_PIPE_S = 5.0


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file atomically: a reader sees the old bytes or the new.

    The bytes go to a randomly named file beside the target, which is renamed over it; mode and, if
    possible, owner are kept. A killed process may leave that file behind, never a partial target.

    Devices, pipes, standard streams and other special files are written directly. A symbolic link
    is followed. Folders are made as needed.

    Raises:
        OSError: it cannot be written; an old file is unchanged.
    """
    number = _descriptor(path)
    if number is not None:
        # Opening /dev/stdout again would truncate a redirected file.
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
        with os.fdopen(os.dup(number), "wb") as file:
            yield file
        return
    old = _stat(path)
    if old is not None and not stat.S_ISREG(old.st_mode):
        with path.open("wb") as file:
            yield file
        return
    target = path.resolve()
    if old is None:
        target.parent.mkdir(parents=True, exist_ok=True)
    elif not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
    import tempfile  # with what it imports, 1 MiB that a reader does not need

    handle, name = tempfile.mkstemp(".tmp", TEMPORARY_PREFIX, target.parent)
    draft = Path(name)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if old is not None and hasattr(os, "chown"):
            with suppress(OSError):  # of another user: who may write it may not give it away
                os.chown(draft, old.st_uid, old.st_gid)
        draft.chmod(stat.S_IMODE(old.st_mode) if old is not None else 0o666 & ~_umask())
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def is_other_file(path: Path, is_ours: Callable[[Path], bool]) -> bool:
    """Whether there is a file of another kind, which a mistyped name must not replace.

    Empty files, devices, pipes and standard streams are not, and what cannot be read is left to
    the attempt to write it.
    """
    if _descriptor(path) is not None:
        return False
    try:
        found = path.stat()
        return stat.S_ISREG(found.st_mode) and found.st_size > 0 and not is_ours(path)
    except (OSError, ValueError):
        return False


def head_of(path: Path) -> bytes:
    """The first bytes, by which a file may be known as one of ours."""
    with path.open("rb") as file:
        return file.read(1_000)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock out other processes of this plugin while a file in this folder is merged.

    The lock is on the folder, because the file is replaced, so it leaves nothing behind. Where the
    system has no such locks (Windows, some network file systems), nothing is locked.

    Raises:
        OSError: another process has held the lock for half a minute.
    """
    folder = path.resolve().parent
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows cannot open folders; or it is unreadable or missing
        yield
        return
    try:
        _lock(handle, folder)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    if sys.platform == "win32":
        return
    until = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                message = "another process that is accepting holds the lock of this folder"
                raise OSError(errno.EAGAIN, message, str(folder)) from None
            time.sleep(0.005)
        except OSError:
            return
        else:
            return


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _descriptor(path: Path) -> int | None:
    """The file descriptor that a name such as /dev/stdout stands for; None for other names."""
    name = os.path.abspath(path)  # noqa: PTH100 - links are not to be followed
    own = {f"/proc/{os.getpid()}/fd", "/dev/fd"}
    for _ in range(8):
        folder, last = os.path.split(name)
        if last.isdecimal() and os.path.realpath(folder) in own:
            return int(last)
        try:
            name = os.path.join(folder, os.readlink(name))  # noqa: PTH115, PTH118
        except (OSError, ValueError):
            return None
    return None


def opened(path: Path) -> IO[bytes]:
    """Open a file to read. A named pipe without a writer is an error.

    Raises:
        OSError: it cannot be opened.
    """
    if path.is_char_device() and _descriptor(path) is None:  # it may never end
        raise OSError(errno.EINVAL, "it is a device", str(path))
    # An inherited pipe such as /dev/stdin already has a writer, which may be slow.
    if not path.is_fifo() or _descriptor(path) is not None:
        return path.open("rb")
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    if not waiting.poll(_PIPE_S * 1000):
        os.close(handle)
        message = "it is a named pipe without a writer"
        raise OSError(errno.EAGAIN, message, str(path))
    os.set_blocking(handle, True)
    return os.fdopen(handle, "rb")


def same_file(one: Path, other: Path) -> bool:
    """Whether both names are the same existing file."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def in_the_way(folder: Path) -> Path | None:
    """What prevents a folder of this name: a file of its name, or of that of a folder around it."""
    for path in (folder, *folder.parents):
        if os.path.lexists(path):  # never raises
            return None if os.path.isdir(path) else path  # noqa: PTH112 - never raises
    return None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def system_message(error: Exception) -> str:
    """The error's text, without error number and path."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def read_toml(text: str) -> dict[str, Any]:
    """A document of TOML; of Python 3.10 pytest brings the reader."""
    reader = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    document: dict[str, Any] = reader.loads(text)
    return document
