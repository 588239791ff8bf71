"""Replacing a file of text as a whole, with an error that says what was to be written."""

from __future__ import annotations

from pathlib import Path

from pytest_torchprof.errors import BaselineError
from pytest_torchprof.files import replacing, why


def replace_file(path: Path, text: str, *, what: str, next_step: str) -> None:
    """Write it at once, as UTF-8: a reader sees the old text or the new.

    Raises:
        BaselineError: it cannot be written; the old file is as it was.
    """
    try:
        with replacing(path) as file:
            file.write(text.encode())
    except OSError as error:
        found = f"{why(error)} (nothing was changed)"
        raise BaselineError(f"{what} cannot be written", found, next_step) from error
