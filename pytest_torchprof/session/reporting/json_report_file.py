"""The JSON report of a session: emptied when it begins, written when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.files import system_message
from pytest_torchprof.render.json_report import report_document, test_of, write_document
from pytest_torchprof.render.session_table import raised_rules

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Record


def session_document(
    environment: Mapping[str, Any], records: Sequence[Record], *, interrupted: bool
) -> dict[str, Any]:
    """The report of a session."""
    raised = list(raised_rules(records).values())
    return report_document(environment, map(test_of, records), raised, interrupted=interrupted)


def begin_report(path: Path, environment: Mapping[str, Any]) -> None:
    """Empty the file, so that an old report is not taken for this session's if pytest is killed."""
    with suppress(OSError):  # reported at the end
        if path.is_file():
            write_document(path, report_document(environment, (), interrupted=True))


def end_report(
    path: Path, environment: Mapping[str, Any], records: Sequence[Record], *, interrupted: bool
) -> list[str]:
    """Write the results; return an error message if that fails."""
    try:
        write_document(path, session_document(environment, records, interrupted=interrupted))
    except OSError as error:
        what = f"report {path} cannot be written: {system_message(error)}"
        return [f"{what}; name another with --torchprof-json"]
    return []
