"""The pytest plugin of a worker: runs tests on the controller's command."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_torchprof.ab.messages import Collection, Profiled
from pytest_torchprof.ab.neutral_options import neutralize, refuse
from pytest_torchprof.ab.selection import matches
from pytest_torchprof.ab.turns import TurnRunner, WorkerCommand
from pytest_torchprof.capture.machine import Machine, imported_torch, probe_machine
from pytest_torchprof.capture.other_sessions import OTHERS
from pytest_torchprof.capture.patch_guard import PATCH_GUARD
from pytest_torchprof.capture.priming import prime
from pytest_torchprof.core.errors import CaptureError, TorchprofError, error_line
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import MissingValue
from pytest_torchprof.rules.engine.registry import warm_up
from pytest_torchprof.session.faults import reason_for
from pytest_torchprof.session.importing import ImportingHooks, Outside, early_imports
from pytest_torchprof.session.known_rules import rules_of
from pytest_torchprof.session.markers import overrides_of
from pytest_torchprof.session.options import build_settings
from pytest_torchprof.session.plan import Plan
from pytest_torchprof.session.runs.gather import Gatherer
from pytest_torchprof.session.runs.outcome import hide_own_frames
from pytest_torchprof.session.runs.rerun_hooks import RunningHooks
from pytest_torchprof.session.runs.seeds import seeded_name
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from pytest_torchprof.core.settings import Settings

_PLAN = pytest.StashKey[Plan]()
_GATHERER = pytest.StashKey[Gatherer]()


class _Once(Plan, frozen=True):
    """One warm-up and one profiled run, whatever the test requests from its fixture."""

    def with_counts(self, **_: float | None) -> _Once:
        return self


class WorkerPlugin(ImportingHooks, RunningHooks):
    """Replaces our own session's plugin: profiles each test, compares nothing, and times it."""

    settings: Settings
    #: Nothing is accepted here, so no sources are kept.
    sources = None

    def __init__(
        self,
        exchange: Callable[[WorkerCommand], WorkerCommand],
        folder: Path,
        found: Callable[[], dict[str, Any]],
        wanted: Sequence[str],
    ) -> None:
        """``exchange`` sends a message to the controller, and returns the next command.

        ``found`` is called once tests are collected. ``wanted``: see `matches`.
        """
        #: The name that pytest registers and that our fixture looks for.
        self.__name__ = "torchprof-session"
        self._exchange = exchange
        self.folder = folder
        self._found = found
        self._wanted = wanted
        self._machine: Machine | None = None
        self._errors: dict[str, Reason] = {}
        self._reports: list[pytest.TestReport] = []
        self.runner: TurnRunner = TurnRunner(self._profiled, exchange)
        #: The loop was reached, so pytest itself reported no error.
        self.reached = False

    # ---------------------------------------------------------------- options

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(
        self, early_config: pytest.Config
    ) -> Generator[None, None, None]:
        """Some plugins read their options this early; both sides draw the same at imports."""
        neutralize(early_config.known_args_namespace)
        with early_imports(early_config):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Generator[None, Any, Any]:
        """The other plugins read theirs from here on."""
        accepts = config.getoption("torchprof_accept", default=False)
        has_us = config.pluginmanager.hasplugin("torchprof")
        args = [str(arg) for arg in config.invocation_params.args]
        refuse(args, accepts=bool(accepts), has_us=has_us)
        neutralize(config.option)
        config.option.basetemp = str(self.folder / "tmp")
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Read the user's settings for profiled runs."""
        settings = build_settings(config)
        self.settings = dataclasses.replace(
            settings, accept=False, strict=False, json=None, traces=None, time="off"
        )
        self.outside = Outside.of(config, self.settings)

    # ---------------------------------------------------------------- collection

    def pytest_sessionstart(self) -> None:
        """See what test files may replace for good; without torch, the loop says so."""
        with suppress(CaptureError):
            imported_torch()
        PATCH_GUARD.learn()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep collection errors."""
        if report.failed:
            self._errors[report.nodeid] = _error(report)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        """Plan each test, after other plugins have selected them."""
        yield
        items[:] = [item for item in items if matches(item.nodeid, self._wanted, config.rootpath)]
        for item in items:
            item.stash[_PLAN] = self._plan(item)

    def _plan(self, item: pytest.Item) -> _Once:
        """A first run, which decides the outcome, and a profiled one."""
        rules = rules_of(item.config, item).rules
        s = self.settings
        return _Once(
            1,
            0,
            s.threads,
            rules=tuple(rule for rule in rules.values() if rule.code not in s.ignore),
            thresholds=s.thresholds,
            ignored=s.ignore,
            compares=False,
            seed=s.seed,
        )

    # ---------------------------------------------------------------- the loop

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run what the controller requests, until it ends."""
        self.reached = True
        if session.items:  # not before: a device is initialized once tests have chosen theirs
            with PATCH_GUARD:
                self._machine = probe_machine(self.settings.threads)
                prime()
                warm_up()
                OTHERS.watch()
                PATCH_GUARD.learn()
        self.runner.settle()
        items: dict[str, pytest.Item] = {}
        for item in session.items:
            items.setdefault(item.nodeid, item)
        collected = Collection(list(items), self._errors, self._found())
        command = self._exchange(("collected", collected.sent()))
        while command[0] == "test":
            finished = self._run(items, command[1], command[2])
            command = self._exchange(("finished", finished.sent()))
        return True

    def _run(self, items: dict[str, pytest.Item], nodeid: str, following: str | None) -> Profiled:
        """Run one test; return its outcome: an error if it cannot be timed."""
        item = items[nodeid]
        self._reports.clear()
        following_item = items.get(following) if following else None
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following_item)
        item.session.shouldfail = item.session.shouldstop = False
        finished = outcome_of(self._reports)
        gatherer = item.stash.get(_GATHERER, None)
        if finished.outcome == "passed" and gatherer is not None and not gatherer.timed:
            return Profiled("error", gatherer.reason)
        return finished

    # ---------------------------------------------------------------- one test

    def gatherer_of(self, item: pytest.Item) -> Gatherer | None:
        """The test's gatherer, for the fixture."""
        return item.stash.get(_GATHERER, None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Prepare a gatherer before fixtures run."""
        if self.runner.rerunning or self._machine is None:
            return
        files = (str(item.path),)
        gatherer = Gatherer(
            item.stash[_PLAN],
            self._machine,
            self.folder,
            own_files=files,
            frozen=True,
            name=seeded_name(item),
        )
        try:
            if not overrides_of(item).get("enabled", True):
                gatherer.refuse(because(Why.LEFT_OUT_BY_MARKER))
        except TorchprofError as error:
            gatherer.refuse(reason_for(error))
        item.stash[_GATHERER] = gatherer

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """All runs and turns of the test, inside its one call phase."""
        gatherer = item.stash.get(_GATHERER, None)
        if gatherer is None or self.runner.rerunning:
            return (yield)
        return (yield from self.runner.call(item, gatherer))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Leave the test's traceback as it is."""
        if call.excinfo is not None:
            hide_own_frames(call.excinfo)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the test's reports."""
        self.runner.reported(report)
        self._reports.append(report)

    def _profiled(self, item: pytest.Item, gatherer: Gatherer) -> WorkerCommand:
        """Report the profiled run to the controller."""
        metrics = exact_metrics(gatherer)
        profiled = Profiled(
            "passed",
            repeatable=_is_plain(item),
            metrics=metrics,
            note=gatherer.reason,
            chip=gatherer.plan.chip,
        )
        return self._exchange(("profiled", profiled.sent()))


def exact_metrics(gatherer: Gatherer) -> dict[str, int | float]:
    """The metrics that were measured, are compared and are not times."""
    if gatherer.trace is None:
        return {}
    try:
        values = gatherer.values()
    except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
        gatherer.refuse(because(Why.ERROR, message=error_line(error)))
        return {}
    return {
        name: value if isinstance(value, int) else float(value)
        for name, value in values.items()
        if name in METRICS and METRICS[name].stored and not isinstance(value, MissingValue)
    }


def outcome_of(reports: list[pytest.TestReport]) -> Profiled:
    """Passed, failed or skipped, and the reason."""
    finished = Profiled("passed")
    for report in reports:
        if report.failed:
            why = _error(report)
            if report.when != "call":
                why = because(Why.FAILED_IN_PHASE, why=why, phase=str(report.when))
            return Profiled("failed", why)
        if report.skipped:
            finished = Profiled("skipped", _why_skipped(report))
    return finished


def _why_skipped(report: pytest.TestReport) -> Reason | None:
    """None where pytest was given an empty reason."""
    if hasattr(report, "wasxfail"):
        text = str(report.wasxfail).rstrip(": ")
        return because(Why.XFAILED_BECAUSE, text=text) if text else because(Why.XFAILED)
    place = report.longrepr
    if not isinstance(place, tuple):
        return _error(report)
    text = str(place[2]).removeprefix("Skipped: ")
    return because(Why.SOMEBODY_SAID, text=text) if text else None


def _error(report: pytest.CollectReport | pytest.TestReport) -> Reason:
    """The last line of a report's error: the exception, where a traceback marks it."""
    lines = [line for line in report.longreprtext.splitlines() if line.strip()]
    marked = [line[1:].strip() for line in lines if line.startswith("E ")]
    if not lines:
        return because(Why.NO_REASON_GIVEN)
    message = (marked[0] if marked else lines[-1]).strip()
    if message.startswith('File "') and len(marked) > 1:  # of a SyntaxError, whose text is last
        message = f"{marked[-1]} ({message})"
    return because(Why.ERROR, message=message)


def _is_plain(item: pytest.Item) -> bool:
    """Whether it may be called twice on the same fixtures: unittest and doctests may not."""
    if not isinstance(item, pytest.Function) or hasattr(item, "_testcase"):
        return False
    from _pytest.unittest import TestCaseFunction

    drawn = getattr(item.obj, "is_hypothesis_test", False)
    return not isinstance(item, TestCaseFunction) and not drawn
