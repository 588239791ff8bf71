"""The command as a user types it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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
