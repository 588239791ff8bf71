"""Replace a text file as a whole, with errors that name what could not be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pytest_torchprof.core.errors import BaselineError
from pytest_torchprof.core.files import locked, replacing, system_message


@contextmanager
def alone(path: Path, *, make: bool = False) -> Iterator[None]:
    """Keep other torchprof processes from merging this file; ``make`` its folder if needed.

    Raises:
        BaselineError: another process does not release it.
    """
    if make:
        with suppress(OSError):  # the write reports it
            path.resolve().parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path))
        except OSError as error:
            next_step = "stop that process, then accept again"
            raise BaselineError(
                f"{path} cannot be written", system_message(error), next_step
            ) from error
        yield


def replace_file(
    path: Path, text: str, *, what: str, next_step: str, encoding: str = "utf-8"
) -> None:
    """Write it atomically: a reader sees the old text or the new.

    Raises:
        BaselineError: it cannot be written; the old file is unchanged.
    """
    try:
        with replacing(path) as file:
            file.write(text.encode(encoding))
    except OSError as error:
        found = f"{system_message(error)} (nothing was changed)"
        raise BaselineError(f"{what} cannot be written", found, next_step) from error
