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
from pytest_torchprof.render.session_annotations import code_quality_of, session_annotations
from pytest_torchprof.render.session_table import session_totals
from pytest_torchprof.render.stored_report import StoredReport, of_document
from pytest_torchprof.render.trackers import EXPORTS
from pytest_torchprof.render.workflow_commands import Annotation, workflow_commands

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.session.reporting.report_attachments import Results

#: Annotates failed tests itself: https://pypi.org/project/pytest-github-actions-annotate-failures
_ANNOTATES = "pytest_github_actions_annotate_failures"


#: Names of the files in the folder of a job of GitLab.
CODE_QUALITY, OPENMETRICS = "torchprof-code-quality.json", "torchprof-metrics.txt"


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
        failures = not self._config.pluginmanager.hasplugin(_ANNOTATES)
        folder = environ.get("GITHUB_WORKSPACE")
        return workflow_commands(self._annotations(folder, failures=failures))

    def write_for_gitlab(self, environ: Mapping[str, str]) -> list[str]:
        """Write the reports that a job of GitLab can name; return why they were not."""
        folder = environ.get("CI_PROJECT_DIR")
        found = self._annotations(folder, failures=True)
        left = sum(one.place is None for one in found)
        texts = {
            CODE_QUALITY: code_quality_of(found),
            OPENMETRICS: EXPORTS["openmetrics"](self._report).text,
        }
        problems = []
        if left:
            where = "whose line is unknown or not in the folder of the job"
            problems.append(f"{CODE_QUALITY} leaves out {left:,} {where}")
        for name, text in texts.items():
            path = Path(folder or self._config.rootpath) / name
            try:
                with replacing(path) as file:
                    file.write(text.encode())
            except OSError as error:
                problems.append(f"{path} cannot be written: {system_message(error)}")
        return problems

    def _annotations(self, folder: str | None, *, failures: bool) -> list[Annotation]:
        root = self._config.rootpath
        repository = Path(folder or root)
        return session_annotations(self._report, self._lines, root, repository, failures=failures)
