"""The document of a session in a history of runs: its commit is asked at the start, as it may move.

Whatever goes wrong is a line in the summary, and never changes how the session ends.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchprof.capture.patch_guard import PATCH_GUARD
from pytest_torchprof.core.errors import TorchprofError
from pytest_torchprof.core.version import __version__
from pytest_torchprof.history.document import RUN_SCHEMA, Run, encode, run_tests
from pytest_torchprof.history.git import NO_COMMIT, Commit, Git, GitError
from pytest_torchprof.history.sources import source_hashes
from pytest_torchprof.history.stores import new_name, now, store_of

if TYPE_CHECKING:
    from pytest_torchprof.session.hooks import TorchprofSession

#: Packages whose versions explain a step; those that are not installed are left out.
_PACKAGES = ("torch", "triton", "numpy", "pytest")


class RunHistory:
    """The run of this session: a plugin beside it, registered while a history is asked for."""

    def __init__(self, session: TorchprofSession) -> None:
        self._session, self._config = session, session.config
        self._address = session.settings.history or ""
        self._started = now()
        self._why = ""
        self._commit: Commit = NO_COMMIT

    def pytest_sessionstart(self) -> None:
        """Ask git for the commit."""
        session, root = self._session, self._config.rootpath
        ours = [session.settings.baselines]
        ours += [] if "://" in self._address else [self._address]
        try:
            self._commit = Git(root).commit(root, os.environ, ours)
        except Exception as error:  # noqa: BLE001 - a history is never worth a session
            self._why = _line(error)

    def pytest_sessionfinish(self) -> None:
        """Write the document; the session has gathered all results, and prints its messages."""
        with PATCH_GUARD:
            self._session.say(*self._write())

    def _write(self) -> list[str]:
        """Write the document, if a test was planned; return what to say about it."""
        if not self._session.results.records:
            return []
        try:
            run = self._run()
            store = store_of(self._address)
            name = new_name(self._started, run.commit)
            store.write(name, encode(run))
        except Exception as error:  # noqa: BLE001 - a history is never worth a session
            return [f"WARNING: {_line(error)}"]
        if self._why:
            return [f"history: {name} in {store.shown}, without a commit: {self._why}"]
        return [f"history: {name} in {store.shown}"]

    def _run(self) -> Run:
        at, session = self._commit, self._session
        sources = source_hashes(session.results.lines, Path(self._config.rootpath))
        return Run(
            schema=RUN_SCHEMA,
            repository=at.repository,
            commit=at.commit,
            parents=at.parents,
            merge_base=at.merge_base,
            branch=at.branch,
            dirty=at.dirty,
            ci=ci_job(os.environ),
            started=self._started,
            environment=dict(session.environment),
            versions={"torchprof": __version__, "python": platform.python_version(), **_versions()},
            tests=run_tests(session.results.records, sources),
            workers=max(len(self._config.getoption("tx", None) or ()), 1),
            interrupted=session.interrupted,
        )


def _line(error: Exception) -> str:
    if isinstance(error, GitError | TorchprofError):
        return str(error)
    return f"the run is not in the history: {type(error).__name__}: {' '.join(str(error).split())}"


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def ci_job(environ: Mapping[str, str]) -> dict[str, str | None] | None:
    """The service of CI and the address of the job, None elsewhere.

    The variables are those that the services document for their jobs.
    """
    if environ.get("GITHUB_ACTIONS") == "true":
        names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
        server, repository, run = (environ.get(name) for name in names)
        whole = server and repository and run
        url = f"{server}/{repository}/actions/runs/{run}" if whole else None
        return {"service": "github", "url": url}
    if environ.get("GITLAB_CI"):
        return {"service": "gitlab", "url": environ.get("CI_JOB_URL")}
    if environ.get("JENKINS_URL"):
        return {"service": "jenkins", "url": environ.get("BUILD_URL")}
    return {"service": "other", "url": None} if environ.get("CI") else None
