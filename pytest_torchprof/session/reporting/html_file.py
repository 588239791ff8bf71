"""The page of a session, written when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.files import system_message
from pytest_torchprof.render.html.report_page import report_page
from pytest_torchprof.render.html.sources import Sources
from pytest_torchprof.render.html.target import write_text
from pytest_torchprof.render.stored_report import of_document
from pytest_torchprof.session.reporting.json_report_file import session_document

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.core.results import Record


def write_page(
    path: Path,
    config: pytest.Config,
    environment: Mapping[str, Any],
    records: Sequence[Record],
    interrupted: bool,
) -> list[str]:
    """Write it, with lines of files of the project; return an error message if that fails."""
    document = session_document(environment, records, interrupted=interrupted)
    sources = Sources(config.rootpath)
    try:
        write_text(path, report_page(of_document(document, "this session"), sources))
    except (OSError, ValueError) as error:
        what = f"page {path} cannot be written: {system_message(error)}"
        return [f"{what}; name another with --torchprof-html"]
    return []
