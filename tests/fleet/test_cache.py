"""What was found in a trace is kept, and found again only where nothing has changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.fleets import save_ranks

from pytest_torchprof.core.errors import TraceError
from pytest_torchprof.fleet import mapping as caches
from pytest_torchprof.fleet.mapping import Answer, Cache, Question, answer, remove_old
from pytest_torchprof.fleet.sources import find_sources

SETTINGS = {"by": "name", "depth": None, "step": None, "step_name": None, "format": "json"}


@pytest.fixture
def question(tmp_path: Path) -> Question:
    return Question("commands.ops:ops_part", SETTINGS, cache=str(tmp_path / "cache"))


def asked(question: Question, path: Path) -> Answer:
    (source,) = find_sources([str(path)])
    return answer(question, source)


def kept(question: Question) -> list[Path]:
    return sorted(Path(question.cache or "").iterdir())


def test_the_same_content_is_read_once_whatever_its_name(
    question: Question, tmp_path: Path
) -> None:
    (path,) = save_ranks(tmp_path, 1)
    first = asked(question, path)
    again = asked(question, path.rename(tmp_path / "rank5.json.gz"))
    assert (False, True) == (first.cached, again.cached)
    assert first.part == again.part
    assert 1 == len(kept(question))


def test_another_question_content_or_code_is_not_in_the_cache(
    question: Question, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = save_ranks(tmp_path, 2)
    asked(question, one)
    assert not asked(question, other).cached
    by_shape = question._replace(settings={**SETTINGS, "by": "shape"})
    assert not asked(by_shape, one).cached
    monkeypatch.setattr(caches, "code_digest", lambda: "newer")
    assert not asked(question, one).cached
    assert 4 == len(kept(question))


@pytest.mark.parametrize("content", [b"", b"short", b"\0" * 100], ids=["empty", "short", "other"])
def test_a_damaged_entry_is_made_anew(question: Question, tmp_path: Path, content: bytes) -> None:
    (path,) = save_ranks(tmp_path, 1)
    first = asked(question, path)
    (entry,) = kept(question)
    entry.write_bytes(content)
    again = asked(question, path)
    assert (False, first.part) == (again.cached, again.part)
    assert asked(question, path).cached


def test_where_nothing_can_be_kept_the_answer_is_the_same(
    question: Question, tmp_path: Path
) -> None:
    (path,) = save_ranks(tmp_path, 1)
    (tmp_path / "file").touch()
    nowhere = question._replace(cache=str(tmp_path / "file"))
    assert asked(question, path).part == asked(nowhere, path).part


def test_a_file_that_is_no_trace_is_not_kept(question: Question, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("no")
    found = asked(question, path)
    assert isinstance(found.error, TraceError)
    assert not Path(question.cache or "").exists()


def test_entries_that_nobody_used_for_a_month_are_removed(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), "question")
    for content in ("old", "new"):
        cache.store(content, {"rows": []})
    other = tmp_path / "not-ours.txt"
    other.touch()
    for path in (cache.path_of("old"), other):
        os.utime(path, (0, 0))
    remove_old(str(tmp_path))
    loaded: list[Any] = [cache.load("old"), cache.load("new")]
    assert [None, ({"rows": []},)] == loaded
    assert other.exists()


def test_entries_are_the_users_alone(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "parts"), "question")
    cache.store("a", 1)
    assert 0o700 == (tmp_path / "parts").stat().st_mode & 0o777
