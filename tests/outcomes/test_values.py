"""A test may replace any value of a module (not a function): our code does not depend on it."""

from __future__ import annotations

import pytest
from support.outcomes import same

REPLACING = """
import os
import sys
import tempfile
import pytest
import torch

def work(): torch.ones(4, 4) @ torch.ones(4, 4)

def no_folder(m, tmp_path): m.setattr(tempfile, "tempdir", str(tmp_path / "none"))
def folder_of_its_own(m, tmp_path): m.setattr(tempfile, "tempdir", str(tmp_path))
def folder_asked_anew(m, tmp_path):
    m.setattr(tempfile, "tempdir", None)
    m.setenv("TMPDIR", str(tmp_path))
def other_system(m, tmp_path):
    m.setattr(sys, "platform", "win32")
    m.setattr(os, "sep", ";")
def no_null(m, tmp_path): m.setattr(os, "devnull", str(tmp_path / "none"))

HOWS = [value for value in list(globals().values()) if getattr(value, "__module__", "") == __name__
        and value is not work]

@pytest.fixture(params=HOWS, ids=lambda how: how.__name__)
def replaced(request, monkeypatch, tmp_path):
    request.param(monkeypatch, tmp_path)
    # Whoever writes there leaves a mark, though the file be gone.
    os.utime(tmp_path, (1, 1))
    yield
    assert os.stat(tmp_path).st_mtime == 1
    assert not os.listdir(tmp_path)

def test_by_a_fixture(replaced): work()

@pytest.mark.parametrize("how", HOWS, ids=lambda how: how.__name__)
def test_by_itself(how, monkeypatch, tmp_path):
    work()
    how(monkeypatch, tmp_path)

def test_afterwards(): work()
"""


@pytest.mark.thorough
def test_values_that_a_test_replaces_are_not_ours(pytester: pytest.Pytester) -> None:
    seen = same(pytester, REPLACING)
    assert len(seen.records) == 11
    assert {"new"} == set(seen.statuses.values()), seen.statuses
    assert {3} == {seen.metric(name, "ops") for name in seen.records}  # two fills and a product
    assert {11} == {seen.metric(name, "dispatches") for name in seen.records}
