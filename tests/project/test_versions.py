"""`make test-versions`: which releases it takes, and that what was not run is never green."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.metadata import requires
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import versions
from tools.versions import MATRIX, constraints, lower_bound, main


def test_each_dependency_has_a_lower_bound_to_be_tried() -> None:
    needed = [line for line in requires("pytest-torchprof") or [] if 'extra == "dev"' not in line]
    assert not [line for line in needed if lower_bound(line) is None]
    names = {re.split("[=<>]", line)[0] for line in constraints(MATRIX["lowest"])}
    assert {re.split("[ =<>;]", line)[0] for line in needed} <= names


@pytest.mark.parametrize("name", MATRIX)
def test_one_release_of_torch_is_asked_for(name: str) -> None:
    pins = [line for line in constraints(MATRIX[name]) if re.match("torch *=", line)]
    assert [f"torch=={MATRIX[name].torch}"] == pins


def test_an_unknown_name_is_an_error_that_lists_the_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert 2 == main(["torch-9"])
    out, err = capsys.readouterr()
    assert "no versions are called torch-9" in err
    assert all(name in out for name in MATRIX)


def test_without_its_python_a_version_is_not_run_and_not_passed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(versions, "WHERE", tmp_path / "none")
    monkeypatch.setattr(versions, "interpreter", lambda _: None)
    assert 1 == main(["torch-2.15-python-3.13"])
    assert "not run: no Python 3.13 found: put python3.13 on PATH" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


def test_sizes_are_printed_and_a_full_disk_stops_it_before_any_download(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(versions, "WHERE", tmp_path)
    monkeypatch.setattr(versions, "interpreter", lambda _: sys.executable)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    assert 1 == main(["torch-2.6"])
    out = capsys.readouterr().out
    assert "downloads about 2.8 GB, takes 5.4 GB" in out
    assert "not run: too little space on the disk: 1.0 GB are free" in out
    assert [] == list(tmp_path.iterdir())
