"""Which files words of a command line stand for."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from pytest_torchprof.core.errors import TraceError
from pytest_torchprof.core.urls import shown_address
from pytest_torchprof.fleet.sources import find_sources, is_many, local_copy

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("job/rank2.json", "job/rank10.json.gz", "job/notes.txt", "odd[1].json"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["job"], ["job/rank2.json", "job/rank10.json.gz"]),
        (["job/*"], ["job/rank2.json", "job/rank10.json.gz"]),
        (["job/*.gz"], ["job/rank10.json.gz"]),
        (["job/*.txt"], ["job/notes.txt"]),
        (["**/rank*"], ["job/rank2.json", "job/rank10.json.gz"]),
        (["jo*"], ["job/rank2.json", "job/rank10.json.gz"]),
        (["odd[1].json"], ["odd[1].json"]),
        (["job/notes.txt"], ["job/notes.txt"]),
        (["job/rank2.json", "job", "job/../job/*2*"], ["job/rank2.json", "job/rank10.json.gz"]),
        (["missing.json", "job/*.gz"], ["missing.json", "job/rank10.json.gz"]),
    ],
)
def test_each_file_is_found_once_and_in_order(
    folder: Path, words: list[str], names: list[str]
) -> None:
    assert names == [source.address for source in find_sources(words)]


def test_a_file_that_is_named_and_found_is_named(folder: Path) -> None:
    named = {source.address: source.named for source in find_sources(["job", "job/rank2.json"])}
    assert {"job/rank2.json": True, "job/rank10.json.gz": False} == named


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("*.nothing", r"^\*\.nothing: no file matches; give a "),
        ("s3://bucket/a.json", "^s3://bucket/a.json: cannot be opened: .*history-s3"),
        ("nonsense://a.json", "^nonsense://a.json: cannot be opened: .*nonsense"),
        ("zip://*.json::missing.zip", "missing.zip"),
    ],
)
def test_what_cannot_be_listed_is_said(folder: Path, word: str, message: str) -> None:
    if word.startswith("s3") and find_spec("s3fs") is not None:
        pytest.skip("s3fs is installed here")
    with pytest.raises(TraceError, match=message):
        find_sources([word])


def test_a_url_may_be_a_file_a_folder_or_a_glob(folder: Path) -> None:
    with zipfile.ZipFile("all.zip", "w") as archive:
        for name in ("a/rank2.json", "a/rank10.json", "a/notes.txt", "b.json"):
            archive.writestr(name, name)
    both = [f"zip://a/rank{n}.json::all.zip" for n in (2, 10)]
    for word in ("zip://a::all.zip", "zip://a/*::all.zip", "zip://**/rank*.json::all.zip"):
        assert both == [source.address for source in find_sources([word])]
    (one,) = find_sources(["zip://b.json::all.zip", "zip://b.json::all.zip"])
    assert (True, True, 6) == (one.named, one.remote, one.size)
    with local_copy(one.address, str(folder)) as path:
        assert (b"b.json", folder) == (path.read_bytes(), path.parent.parent)
    assert not path.exists()


def test_a_url_of_a_file_is_its_path(folder: Path) -> None:
    (one,) = find_sources([f"file://{folder}/job/rank2.json"])
    assert (str(folder / "job/rank2.json"), False) == (one.address, one.remote)


def test_credentials_are_not_shown() -> None:
    assert "https://host/a.json" == shown_address("https://me:secret@host/a.json?sig=x")
    assert "zip://*.json::s3://b/a.zip" == shown_address("zip://*.json::s3://k:v@b/a.zip")


def test_a_folder_or_a_file_is_not_many_by_itself(folder: Path) -> None:
    assert [False, False, True, True] == [
        is_many([word]) for word in ("job", "odd[1].json", "job/*", "s3://b")
    ]
