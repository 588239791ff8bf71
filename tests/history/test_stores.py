"""Where documents lie: folders, and object stores through fsspec."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_torchprof.core.errors import HistoryError
from pytest_torchprof.history.stores import Store, new_name, store_of

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")


@pytest.fixture(params=["folder", "file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    if request.param == "memory":
        system = fsspec.filesystem("memory")
        system.store.clear()
        yield store_of("memory://bucket/history")
        system.store.clear()
    else:
        prefix = "file://" if request.param == "file" else ""
        yield store_of(f"{prefix}{tmp_path}/history")


def test_what_is_written_is_read_and_deleted(store: Store) -> None:
    assert [] == list(store.read())
    store.write("b.run.json", b"22")
    store.write("a.run.json", b"1")
    assert [("a.run.json", b"1"), ("b.run.json", b"22")] == list(store.read())
    store.write("b.run.json", b"44")
    store.delete("a.run.json")
    store.delete("a.run.json")
    assert [("b.run.json", b"44")] == list(store.read())


def test_only_json_files_may_be_documents(tmp_path: Path) -> None:
    for name in ("a.json", "b.txt", ".hidden.json", ".torchprof-1.tmp", ".torchprof-1.json"):
        (tmp_path / name).write_text("x")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "gone.json").symlink_to("nothing")
    assert [("a.json", b"x"), ("gone.json", None)] == list(store_of(str(tmp_path)).read())


def test_a_relative_folder_is_below_the_base(tmp_path: Path) -> None:
    assert str(tmp_path / "h") == store_of("h", tmp_path).shown


def test_a_plain_folder_needs_no_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "fsspec"]:
        monkeypatch.delitem(sys.modules, name)
    store_of(str(tmp_path)).write("a.json", b"1")
    assert "fsspec" not in sys.modules


def test_names_have_the_time_the_commit_and_are_unique() -> None:
    names = {new_name("2026-11-25T22:10:21.123Z", "abcdef0123456789") for _ in range(100)}
    assert 100 == len(names)
    assert all(name.startswith("20261125T221021Z-abcdef012345-") for name in names)
    assert new_name("2026-11-25T22:10:21Z", None).startswith("20261125T221021Z-none-")


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = store_of(str(tmp_path / "file" / "history"))
    with pytest.raises(HistoryError, match=r"not in the history .*: .*file is a file"):
        store.write("a.json", b"1")
    with pytest.raises(HistoryError, match="cannot be read"):
        list(store_of(str(tmp_path / "file")).read())


@pytest.mark.skipif(os.name != "posix" or os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(HistoryError, match="Permission denied"):
        store_of(str(tmp_path)).write("a.json", b"1")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HistoryError, match="No space left on device"):
        store_of(str(tmp_path)).write("a.json", b"1")
    monkeypatch.undo()
    assert [] == list(tmp_path.iterdir())


def test_a_read_only_object_store_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of("memory://bucket/history")

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("access denied")

    monkeypatch.setattr(type(store._system), "pipe_file", refuse)  # type: ignore[attr-defined]
    with pytest.raises(HistoryError, match="PermissionError: access denied; check the address"):
        store.write("a.json", b"1")


def test_an_unknown_scheme_is_said() -> None:
    with pytest.raises(HistoryError, match=r"cannot be opened: .*Protocol not known"):
        store_of("nowhere://bucket")


@pytest.mark.parametrize(("scheme", "extra"), [("s3", "history-s3"), ("gs", "history-gs")])
def test_a_missing_package_is_named(
    scheme: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("s3fs", "gcsfs"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(HistoryError, match=rf"pip install 'pytest-torchprof\[{extra}\]'"):
        store_of(f"{scheme}://bucket/history")


def test_credentials_are_not_shown() -> None:
    store = store_of("memory://user:secret@bucket/history")
    assert "memory://bucket/history" == store.shown
