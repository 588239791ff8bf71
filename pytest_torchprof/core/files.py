"""Write files atomically, keeping their kind, owner and mode.

Also open files that may be pipes, without waiting forever.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

if sys.platform != "win32":
    import fcntl

#: What a file is written to until it is whole begins with this, where it has a name at all.
TEMPORARY_PREFIX = ".torchprof-"
#: A merge takes milliseconds; a process that takes longer is suspended, so give up.
_LOCK_S = 30.0
#: A writer must open a named pipe within this time.
_PIPE_S = 5.0
#: Errors of folders or mounts that forbid renaming over a file that is itself writable.
_FIXED = {errno.EACCES, errno.EPERM, errno.EBUSY}


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file as a whole: a reader sees the old bytes or the new.

    The bytes go to a file without a name, or with one that nobody can guess, beside the target, and
    that is renamed over it. Owner, group, mode and extended attributes stay. Where a rename would
    lose one of them, or another name of a file with several, or is not allowed, the bytes are
    copied over the old ones once they are all there; if that fails, the old ones are put back, and
    only a process killed within the copy leaves a part.

    Devices, pipes, standard streams and other special files are written to directly. Of a link,
    the target is replaced. Folders are made as needed.

    Raises:
        OSError: it cannot be written; an old file is as it was.
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
    with _Draft(target, old) as draft:
        yield draft.file
        draft.publish()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes of ours from this file, and from its folder, while it is merged.

    The lock is on the folder, because the file is replaced, so it leaves nothing behind. Where the
    system has no such locks (Windows, some network file systems), nothing is locked.

    Raises:
        OSError: another process has held the lock for half a minute.
    """
    folder = path.resolve().parent
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # no folders on Windows, one that may not be read, or none yet
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
                message = "another process that accepts still holds the lock of this folder"
                raise OSError(errno.EAGAIN, message, str(folder)) from None
            time.sleep(0.005)
        except OSError:
            return
        else:
            return


class _Draft:
    """What is to become the target: a file in its folder, without a name if the system can."""

    def __init__(self, target: Path, old: os.stat_result | None) -> None:
        self._target, self._old = target, old
        self._name: str | None = None
        self._beside = True
        self.file: IO[bytes]
        try:
            handle = _unnamed(str(target.parent))
            if handle is None:
                self._make_named()
            else:
                self.file = os.fdopen(handle, "w+b")
        except PermissionError:
            if old is None:
                raise
            self._beside = False  # the folder may not be written to, the file may
            self.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed on leaving

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        if self._name is not None:
            with suppress(OSError):
                os.unlink(self._name)  # noqa: PTH108 - as `os.replace`

    def publish(self) -> None:
        """Let the target have these bytes."""
        self.file.flush()
        os.fsync(self.file.fileno())
        if not self._beside or (self._old is not None and self._old.st_nlink > 1):
            self._copy_over()
            return
        if self._name is None:
            self._take_name()
        if self._old is not None and not self._is_like(self._old):
            self._copy_over()
            return
        if os.name == "nt":
            self.file.close()  # an open file cannot be renamed
        try:
            os.replace(self._name or "", self._target)  # noqa: PTH105
        except OSError as error:
            if self._old is None or error.errno not in _FIXED or self.file.closed:
                raise
            self._copy_over()
        else:
            self._name = None

    def _take_name(self) -> None:
        """Give the file a name; what has it already is neither followed nor replaced."""
        name = str(self._target.parent / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}.tmp")
        folder = os.open(self._target.parent, os.O_RDONLY)
        try:
            # With a folder given, Python asks for linkat(), which can name a nameless file.
            os.link(f"/proc/self/fd/{self.file.fileno()}", name, dst_dir_fd=folder)
            self._name = name
        except OSError:  # a system that makes such files, and cannot name them
            self._make_named()
        finally:
            os.close(folder)

    def _make_named(self) -> None:
        handle, self._name = tempfile.mkstemp(".tmp", TEMPORARY_PREFIX, self._target.parent)
        if self._old is None and os.name == "posix":
            os.fchmod(handle, 0o666 & ~_umask())
        nameless = getattr(self, "file", None)
        self.file = os.fdopen(handle, "w+b")
        if nameless is not None:
            with nameless:
                _fill(self.file, nameless)

    def _is_like(self, old: os.stat_result) -> bool:
        """Give the file what the old one has besides bytes; False if it cannot have all of it."""
        if os.name != "posix":
            return True
        handle = self.file.fileno()
        mine = os.fstat(handle)
        try:
            if (mine.st_uid, mine.st_gid) != (old.st_uid, old.st_gid):
                os.fchown(handle, old.st_uid, old.st_gid)
            os.fchmod(handle, stat.S_IMODE(old.st_mode))
            return self._has_attributes(handle)
        except OSError:
            return False

    def _has_attributes(self, handle: int) -> bool:
        if sys.platform != "linux":
            return True
        try:
            names = os.listxattr(self._target)
        except OSError:  # a file system without any
            return True
        for name in names:
            value = os.getxattr(self._target, name)
            with suppress(OSError):
                if os.getxattr(handle, name) == value:
                    continue
            os.setxattr(handle, name, value)
        return True

    def _copy_over(self) -> None:
        with self._target.open("r+b") as file:
            before = file.read()
            size = self.file.seek(0, os.SEEK_END)
            try:
                if hasattr(os, "posix_fallocate") and size > len(before):
                    os.posix_fallocate(file.fileno(), 0, size)  # a full disk fails here
                _fill(file, self.file)
            except BaseException:
                file.seek(0)
                file.write(before)
                file.truncate()
                raise


def _fill(file: IO[bytes], source: IO[bytes]) -> None:
    source.seek(0)
    file.seek(0)
    shutil.copyfileobj(source, file)
    file.truncate()
    file.flush()
    os.fsync(file.fileno())


def _unnamed(folder: str) -> int | None:
    """A file without a name, gone with the process, however that ends; None if there is no such."""
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None or not os.path.isdir("/proc/self/fd"):  # noqa: PTH112
        return None
    try:
        return os.open(folder, flag | os.O_RDWR, 0o666)
    except OSError:  # the file system has none; the next attempt reports other errors
        return None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _descriptor(path: Path) -> int | None:
    """The number of our open file that a name such as /dev/stdout stands for; None for others."""
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
    """A file to read. A named pipe without a writer is an error, not waited for.

    Raises:
        OSError: it cannot be opened.
    """
    # An inherited pipe such as /dev/stdin has a writer already, which may take its time.
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
    """Whether both names lead to one file that is there."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def system_message(error: Exception) -> str:
    """The system's own words, without its number and the path."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
