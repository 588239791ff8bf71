"""Write files atomically, keeping their kind, owner and mode.

Also open files that may be pipes, without waiting forever.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

if sys.platform != "win32":
    import fcntl

#: Prefix of temporary file names.
TEMPORARY_PREFIX = ".torchprof-"
#: A merge takes milliseconds; a process that takes longer is suspended, so give up.
_LOCK_S = 30.0
#: A writer must open a named pipe within this time.
_PIPE_S = 5.0
#: Errors of folders or mounts that forbid renaming over a file that is itself writable.
_FIXED = {errno.EACCES, errno.EPERM, errno.EBUSY}


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write a file atomically: a reader sees the old bytes or the new.

    The bytes go to an unnamed or randomly named file beside the target, which is renamed over it.
    Owner, group, mode and extended attributes are kept. If a rename would lose one of them or break
    a hard link, or is not allowed, the complete bytes are copied over the old ones. If that fails,
    the old bytes are restored; only a process killed during the copy leaves a partial file.

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
    with _Draft(target, old) as draft:
        yield draft.file
        draft.publish()


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


class _Draft:
    """The new content of the target: a file in its folder, unnamed if the system supports that."""

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
            import tempfile  # with what it imports, 1 MiB that a reader does not need

            self._beside = False  # the folder is not writable, but the file may be
            self.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed on leaving

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a full disk refuses once more what could not be written
            self.file.close()
        if self._name is not None:
            with suppress(OSError):
                os.unlink(self._name)  # noqa: PTH108 - as `os.replace`

    def publish(self) -> None:
        """Make this the target's content."""
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
        """Give the file a name, without following or replacing an existing file of that name."""
        name = str(self._target.parent / f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}.tmp")
        folder = os.open(self._target.parent, os.O_RDONLY)
        try:
            # With dst_dir_fd, Python calls linkat(), which can name an unnamed file.
            os.link(f"/proc/self/fd/{self.file.fileno()}", name, dst_dir_fd=folder)
            self._name = name
        except OSError:  # the system makes unnamed files, but cannot name them
            self._make_named()
        finally:
            os.close(folder)

    def _make_named(self) -> None:
        import tempfile

        handle, self._name = tempfile.mkstemp(".tmp", TEMPORARY_PREFIX, self._target.parent)
        if self._old is None and os.name == "posix":
            os.fchmod(handle, 0o666 & ~_umask())
        nameless = getattr(self, "file", None)
        self.file = os.fdopen(handle, "w+b")
        if nameless is not None:
            with nameless:
                _fill(self.file, nameless)

    def _is_like(self, old: os.stat_result) -> bool:
        """Copy the old file's owner, mode and attributes; False if that is not fully possible."""
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
        except OSError:  # the file system has none
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
    import shutil

    source.seek(0)
    file.seek(0)
    shutil.copyfileobj(source, file)
    file.truncate()
    file.flush()
    os.fsync(file.fileno())


def _unnamed(folder: str) -> int | None:
    """Open an unnamed file, which vanishes with the process; None if not supported."""
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
