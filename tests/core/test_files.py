"""Writing a file as a whole: what is in its place stays what it is, and keeps what it has."""

from __future__ import annotations

import errno
import io
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_torchprof.core import files
from pytest_torchprof.core.files import locked, replacing

posix = pytest.mark.skipif(os.name != "posix", reason="owners, links and pipes of POSIX")


def write(path: Path, data: bytes = b"new") -> None:
    with replacing(path) as file:
        file.write(data)


class Full(io.FileIO):
    """A file on a full disk."""

    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# -------------------------------------------------------------------- what is no file


@posix
def test_a_device_file_is_not_replaced(tmp_path: Path) -> None:
    write(Path("/dev/null"))
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    write(link)
    assert link.is_symlink()
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@posix
def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write(pipe)
    reader.join()
    assert ([b"new"], True) == (read, pipe.is_fifo())


@posix
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
def test_a_standard_stream_goes_on_where_it_is(tmp_path: Path, name: str) -> None:
    if name.startswith("/proc") and not Path("/proc/self/fd").exists():
        pytest.skip("this system has no /proc")
    (tmp_path / "link").symlink_to("/dev/stdout")
    out = tmp_path / "out"
    code = (
        "import sys\nfrom pathlib import Path\nfrom pytest_torchprof.core.files import replacing\n"
        "print('before')\n"
        f"with replacing(Path({name!r})) as file: file.write(b'new\\n')\n"
        "print('after')\n"
    )
    with out.open("wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, cwd=tmp_path, check=True)
    assert "before\nnew\nafter\n" == out.read_text("utf-8")


def test_a_folder_stays_a_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"Is a directory|Permission denied"):
        write(tmp_path)
    assert tmp_path.is_dir()


@posix
def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "folder" / "target"
    link.symlink_to("folder/target")
    write(link, b"first")  # a link to nothing makes what it leads to
    write(link, b"second")
    assert (b"second", True, False) == (
        target.read_bytes(), link.is_symlink(), target.is_symlink(),
    )  # fmt: skip
    assert [target] == list(target.parent.iterdir())


@posix
def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.symlink_to(other)
    other.symlink_to(one)
    with pytest.raises(OSError, match="symbolic links"):
        write(one)
    assert one.is_symlink()


# -------------------------------------------------------------------- what a file has


@posix
def test_a_new_file_has_the_mode_that_any_has(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write(tmp_path / "new")
    assert (tmp_path / "plain").stat().st_mode == (tmp_path / "new").stat().st_mode
    assert ["new", "plain"] == sorted(path.name for path in tmp_path.iterdir())


@posix
def test_the_mode_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(0o2751)
    write(path)
    assert (0o2751, b"new") == (stat.S_IMODE(path.stat().st_mode), path.read_bytes())


@posix
def test_owner_and_group_stay(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root may give a file away")
    path = tmp_path / "file"
    path.touch()
    os.chown(path, 12345, 23456)
    write(path)
    found = path.stat()
    assert (12345, 23456, b"new") == (found.st_uid, found.st_gid, path.read_bytes())


# -------------------------------------------------------------------- nobody else's file


@pytest.mark.parametrize("error", [OSError(28, "full"), KeyboardInterrupt()])
def test_a_write_that_ends_early_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: BaseException
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(type(error)), replacing(path) as file:  # noqa: PT012 - it is the error
        file.write(b"half")
        raise error
    assert (b"old", [path]) == (path.read_bytes(), list(tmp_path.iterdir()))


@posix
@pytest.mark.parametrize("size", [10, 1_000_000])
@pytest.mark.parametrize("old", [None, b"old"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bytes | None, size: int
) -> None:
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)
    monkeypatch.setattr("os.fdopen", lambda handle, _: io.BufferedRandom(Full(handle, "w+b")))
    with pytest.raises(OSError, match="No space left"), replacing(path) as file:
        file.write(b"x" * size)
    monkeypatch.undo()
    assert ([] if old is None else [path]) == list(tmp_path.iterdir())
    assert old == (path.read_bytes() if path.exists() else None)


def test_the_longest_possible_name_leaves_room_beside_it(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    write(path)
    write(path, b"again")
    assert b"again" == path.read_bytes()


@posix
def test_killed_while_it_writes_it_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    code = (
        "import os, signal\nfrom pathlib import Path\n"
        "from pytest_torchprof.core.files import replacing\n"
        "with replacing(Path('file')) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert (-signal.SIGKILL, b"old") == (ended.returncode, path.read_bytes())


@posix
def test_a_lock_keeps_another_process_out_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    code = (
        "from pathlib import Path\nfrom pytest_torchprof.core.files import locked\n"
        "with locked(Path('file')):\n    print('in', flush=True)\n    input()\n"
    )
    args = [sys.executable, "-c", code]
    with subprocess.Popen(
        args, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert "in\n" == other.stdout.readline()
        monkeypatch.setattr(files, "_LOCK_S", 0.0)
        with pytest.raises(OSError, match="another process"), locked(path):
            pytest.fail("nobody keeps us out")
        other.communicate("\n")
    with locked(path):
        pass
    assert [] == list(tmp_path.iterdir())
