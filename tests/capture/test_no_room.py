"""Where the profiler may write: nothing stays there, and no room there is no pass."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.live import captured_file
from support.sessions import ADD, run

from pytest_torchprof.capture import profiler
from pytest_torchprof.capture.profiler import Capture, hold, passing_file, reserve
from pytest_torchprof.trace.facts import Facts


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def nothing(*_: Any, **__: Any) -> None:
    """What torch does on a full disk: it leaves no file, and says nothing."""


def half(self: Any, path: str) -> None:
    text = '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}, {"ph'
    Path(path).write_text(text, "utf-8")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("call", "fake", "why"),
    [
        ("pytest_torchprof.capture.profiler.reserve", full, "No space left on device"),
        ("torch.profiler._KinetoProfile.export_chrome_trace", full, "No space left on device"),
        ("torch.profiler._KinetoProfile.export_chrome_trace", nothing, "torch wrote no file"),
        ("torch.profiler._KinetoProfile.export_chrome_trace", half, "part of it is missing"),
    ],
)
def test_a_folder_without_room_fails_the_run_in_one_line(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, call: str, fake: Any, why: str
) -> None:
    pytester.makepyfile(test_it=ADD)
    folder = pytester.mkdir("temporary")
    monkeypatch.setattr(profiler, "_temporary", lambda: str(folder))
    monkeypatch.setattr(call, fake)
    ran = run(pytester, "--torchprof", "-pno:tmpdir")
    monkeypatch.undo()
    assert (pytest.ExitCode.TESTS_FAILED, {"passed": 1}) == (ran.ret, ran.outcomes)
    assert {"test_add": "not_profiled"} == ran.statuses
    (line,) = (line for line in ran.result.outlines if line.startswith("ERROR"))
    assert line.startswith(f"ERROR: cannot write a trace to {folder}: {why}")
    assert "free some space there, or set TMPDIR to a folder with more (in 1 test: " in line
    assert [] == list(folder.iterdir())


def test_no_folder_for_temporary_files_fails_the_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it=ADD)

    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr("pytest_torchprof.capture.profiler._temporary", none)
    ran = run(pytester, "--torchprof", "-pno:tmpdir")
    monkeypatch.undo()
    assert (1, {"passed": 1}) == (ran.ret, ran.outcomes)
    assert "ERROR: cannot write a trace: No usable temporary directory found; " in ran.out


def test_the_file_is_there_for_its_owner_only_and_goes_with_the_block(tmp_path: Path) -> None:
    with passing_file(tmp_path) as path:
        reserve(path)
        with pytest.raises(FileExistsError):
            reserve(path)
        (unfinished,) = tmp_path.iterdir()
        assert 0o600 == unfinished.stat().st_mode & 0o777
        unfinished.rename(path)
        path.write_bytes(b"text")
        file = hold(path)
    assert [] == list(tmp_path.iterdir())
    with file:
        assert b"text" == file.read()
    with pytest.raises(KeyError), passing_file(tmp_path) as path:  # noqa: PT012
        reserve(path)
        raise KeyError
    assert [] == list(tmp_path.iterdir())


def test_torch_writes_to_what_was_reserved(tmp_path: Path) -> None:
    captured_file(lambda: None, tmp_path)
    (trace,) = tmp_path.glob("*.json")
    assert 0o600 == trace.stat().st_mode & 0o777


def test_while_a_test_runs_no_files_exist_that_could_be_left(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import os, signal, tempfile
        import torch

        def test_a():
            torch.ones(1) + 1

        def test_b():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
            assert [n for n in os.listdir(tempfile.gettempdir()) if "torchprof-" in n] == []
        """
    )
    folder = pytester.mkdir("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.setattr(profiler, "_temporary", lambda: str(folder))
        ran = run(pytester, "--torchprof", "--torchprof-traces=traces", "--torchprof-traces-of=all")
    assert {"passed": 2} == ran.outcomes
    assert 2 == len(list((pytester.path / "traces").iterdir()))


@pytest.mark.parametrize(("limit", "kept"), [(0, False), (2**20, True)])
def test_of_a_large_trace_no_text_is_kept_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: int, kept: bool
) -> None:
    monkeypatch.setattr("pytest_torchprof.capture.profiler.SMALL_BYTES", limit)
    capture = Capture()
    capture.start()
    recording = capture.stop(tmp_path, Facts())
    recording.path.write_bytes(b"the file")
    with recording.hold() as file:
        assert file.read() == (recording.text if kept else b"the file")
