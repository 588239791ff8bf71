"""What a rerun may change of the process is put back, and nothing else is touched."""

from __future__ import annotations

import os

import pytest

from pytest_torchprof.capture.state import World


@pytest.mark.parametrize("kept_as_text", [False, True])
def test_the_environment_is_as_it_was(
    monkeypatch: pytest.MonkeyPatch, *, kept_as_text: bool
) -> None:
    if kept_as_text:  # a mapping of somebody's own
        monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setenv("TORCHPROF_KEPT", "ä")
    monkeypatch.setenv("TORCHPROF_CHANGED", "before")
    monkeypatch.setenv("TORCHPROF_DELETED", "before")
    before = dict(os.environ)
    world = World()
    world.restore()
    assert before == dict(os.environ)
    os.environ.update(TORCHPROF_CHANGED="now", TORCHPROF_NEW="now")
    del os.environ["TORCHPROF_DELETED"]
    world.restore()
    assert before == dict(os.environ)
