"""The JSON report of a session: emptied when it begins, written when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.files import system_message
from pytest_torchprof.render.json_report import test_of, write_report
from pytest_torchprof.render.session_table import raised_rules

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Record


def begin_report(path: Path, environment: Mapping[str, Any]) -> None:
    """Empty the file, so that an old report is not taken for this session's if pytest is killed."""
    with suppress(OSError):  # reported at the end
        if path.is_file():
            write_report(path, environment, (), interrupted=True)


def end_report(
    path: Path, environment: Mapping[str, Any], records: Sequence[Record], *, interrupted: bool
) -> list[str]:
    """Write the results; return an error message if that fails."""
    raised = list(raised_rules(records).values())
    try:
        write_report(path, environment, map(test_of, records), raised, interrupted=interrupted)
    except OSError as error:
        what = f"report {path} cannot be written: {system_message(error)}"
        return [f"{what}; name another with --torchprof-json"]
    return []
