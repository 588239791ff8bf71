"""The command as a user types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_torchprof.cli import main

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run the command; exit status, stdout, stderr."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        return status, *capsys.readouterr()

    return run


def document(say: Say, *words: str | Path) -> dict[str, Any]:
    """What a command prints as JSON."""
    status, out, err = say(*words, "--format", "json")
    assert 0 == status, err
    found: dict[str, Any] = json.loads(out)
    return found
