"""What a service of CI and a comment on a pull request show of a session."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchprof.core.files import replacing, system_message
from pytest_torchprof.render.json_report import REPORT_SCHEMA, test_of
from pytest_torchprof.render.markdown_comment import (
    COMMENT_BYTES,
    SUMMARY_BYTES,
    comment,
)
from pytest_torchprof.render.session_annotations import session_annotations
from pytest_torchprof.render.session_table import session_totals
from pytest_torchprof.render.stored_report import StoredReport, of_document
from pytest_torchprof.render.workflow_commands import workflow_commands

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.session.reporting.report_attachments import Results

#: Annotates failed tests itself: https://pypi.org/project/pytest-github-actions-annotate-failures
_ANNOTATES = "pytest_github_actions_annotate_failures"


class CiReport:
    """The session as it ended, for the outputs that are asked for."""

    def __init__(
        self,
        results: Results,
        environment: Mapping[str, Any],
        config: pytest.Config,
        *,
        interrupted: bool,
    ) -> None:
        records = results.records
        self._totals = session_totals(records, results.runs)
        self._lines, self._config = results.lines, config
        document = {
            "schema": REPORT_SCHEMA,
            "environment": dict(environment),
            "tests": [test_of(record) for record in records],
            "interrupted": interrupted,
        }
        self._report: StoredReport = of_document(document, "this session")

    def write_comment(self, path: Path) -> list[str]:
        """Write the Markdown file; return an error message if that fails."""
        try:
            with replacing(path) as file:
                file.write(comment(self._report, self._totals, COMMENT_BYTES).encode())
        except OSError as error:
            what = f"comment {path} cannot be written: {system_message(error)}"
            return [f"{what}; name another with --torchprof-markdown"]
        return []

    def add_summary(self, environ: Mapping[str, str]) -> list[str]:
        """Append to the summary of GitHub's step, if there is one; return why it was not."""
        if not (name := environ.get("GITHUB_STEP_SUMMARY")):
            return []
        path = Path(name)
        try:
            taken = path.stat().st_size if path.exists() else 0
            room = SUMMARY_BYTES - taken
            if room < COMMENT_BYTES // 8:
                return ["the step's summary is full: nothing was added"]
            with path.open("ab") as file:
                file.write(f"\n{comment(self._report, self._totals, room - 2)}".encode())
        except OSError as error:
            return [f"the step's summary cannot be written: {system_message(error)}"]
        return []

    def annotations(self, environ: Mapping[str, str]) -> list[str]:
        """The lines to print for GitHub's runner."""
        root = self._config.rootpath
        found = session_annotations(
            self._report,
            self._lines,
            root,
            Path(environ.get("GITHUB_WORKSPACE") or root),
            failures=not self._config.pluginmanager.hasplugin(_ANNOTATES),
        )
        return workflow_commands(found)
