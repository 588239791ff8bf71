"""Change points of the same values are found once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof.analysis.steps import ChangePoint, change_points
from pytest_torchprof.history import question as module
from pytest_torchprof.history.index import Index
from pytest_torchprof.history.question import Finder

if TYPE_CHECKING:
    import pytest

VALUES = [10 + at % 3 / 10 + (3 if at >= 20 else 0) for at in range(40)]


def test_what_was_found_is_remembered_until_the_values_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(values: list[float]) -> list[ChangePoint]:
        calls.append(len(values))
        return change_points(values)

    monkeypatch.setattr(module, "change_points", counted)
    index = Index(tmp_path / "index.sqlite")
    expected = change_points(VALUES)
    for _ in range(3):
        finder = Finder(index)
        assert expected == finder.of(1)(VALUES)
        finder.keep()
    assert [40] == calls
    finder = Finder(index)
    finder.of(1)(VALUES[:-1])
    finder.of(2)(VALUES)
    finder.keep()
    assert [40, 39, 40] == calls
    index.close()
