"""What hooks do: plan the tests, run each, and write at the end what the session found."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import asdict, replace

from pytest_torchprof.baseline.inline import Sources
from pytest_torchprof.capture.machine import (
    Machine,
    early_machine,
    is_torch,
    probe_machine,
    require_torch,
)
from pytest_torchprof.capture.profiler import prime
from pytest_torchprof.capture.sessions import OTHERS
from pytest_torchprof.capture.threads import expect_threads, threads_now
from pytest_torchprof.core.errors import BaselineError, TorchprofError
from pytest_torchprof.core.unknown import because
from pytest_torchprof.render import escape
from pytest_torchprof.rules.registry import warm_up
from pytest_torchprof.session import reports as junit_properties
from pytest_torchprof.session.faults import SessionErrors, message_of
from pytest_torchprof.session.known import rules_of
from pytest_torchprof.session.markers import is_ours
from pytest_torchprof.session.measurement import Gatherer, RecentLaps
from pytest_torchprof.session.options import require_folder
from pytest_torchprof.session.plan import Plan, plan_of
from pytest_torchprof.session.reports import (
    Attachments,
    BaselineFiles,
    Collected,
    Results,
    WorkerOutput,
    accept,
    begin_report,
    end_report,
    has_attachment,
    has_news,
    header,
    relation_lines,
    service_of,
    summarize,
    wanted,
)
from pytest_torchprof.session.runs import Runner, RunningHooks, hide_own_frames, is_strict_xfail
from pytest_torchprof.session.seeds import ImportingHooks, ImportSeeds, seeded_name
from pytest_torchprof.session.verdicts import Judge, Outcome, OwnFailure
from pytest_torchprof.verdict.metrics import measure_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchprof.capture.machine import Machine
    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.core.values import Settings


# ---- Plan the tests of a session, once everybody has added their markers.

PLAN = pytest.StashKey[Plan]()
#: Our markers that a test had when it was planned.
_MARKS = pytest.StashKey[list[pytest.Mark]]()
#: Invalid markers that are shown.
_SHOWN = 10


def plan_tests(items: Iterable[pytest.Item], settings: Settings, sources: Sources | None) -> None:
    """Plan each test; and while accepting, read the sources with inline expectations.

    Raises:
        pytest.UsageError: invalid markers, with their tests.
    """
    problems = []
    for item in items:
        try:
            plan_again(item, settings)
        except TorchprofError as error:
            problems.append(f"{item.nodeid}: {error}")
            continue
        if sources is not None and "torchprof" in getattr(item, "fixturenames", ()):
            with suppress(BaselineError):  # reported where the literal is compared
                sources.of(str(item.path))
    if problems:
        more = len(problems) - _SHOWN
        shown = problems[:_SHOWN] + ([f"… and {more} more"] if more > 0 else [])
        raise pytest.UsageError("torchprof: " + "\n".join(map(escape.line, shown)))


def plan_late(
    item: pytest.Item, settings: Settings, machine: Machine, *, prepared: bool
) -> Plan | None:
    """The plan of a test to which hooks or fixtures have added markers since; None if none have.

    A test that was not ``prepared`` to be measured is left out, and its limits are unchecked.

    Raises:
        OwnFailure: one of the markers is invalid.
    """
    try:
        plan = plan_again(item, settings)
    except TorchprofError as error:
        raise OwnFailure(escape.block(f"torchprof: {error}")) from None
    if plan is None:
        return None
    plan = plan.on(machine)
    item.stash[PLAN] = plan = plan if prepared else replace(plan, left_out=True)
    return plan


def plan_again(item: pytest.Item, settings: Settings) -> Plan | None:
    """Plan a test whose markers are not those that it was planned by; None for others, and for one
    that is not profiled.

    Raises:
        SettingsError: an invalid marker.
    """
    known = item.stash.get(_MARKS, None)
    if known is not None and not _new([*filter(is_ours, item.iter_markers())], known):
        return None
    own = item.own_markers
    if known is not None:
        # A fixture adds its marker each time that it is set up.
        item.own_markers = [one for one in own if not is_ours(one)] + _distinct(
            [one for one in own if is_ours(one)], known
        )
    try:
        item.stash[_MARKS] = [*filter(is_ours, item.iter_markers())]
        plan = plan_of(item, settings)
    finally:
        item.own_markers = own
    if plan is not None:
        item.stash[PLAN] = plan
    return plan


def _new(now: list[pytest.Mark], known: list[pytest.Mark]) -> list[pytest.Mark]:
    """Markers that are not among others; their arguments, which may be anything, do not matter."""
    ids = set(map(id, known))
    return [one for one in now if id(one) not in ids]


def _distinct(own: list[pytest.Mark], known: list[pytest.Mark]) -> list[pytest.Mark]:
    """Without new markers that say what an earlier one has said."""
    new, said, out = set(map(id, _new(own, known))), set[str](), list[pytest.Mark]()
    for one in own:
        text = repr((one.name, one.args, one.kwargs))
        if id(one) not in new or text not in said:
            out.append(one)
        said.add(text)
    return out


# ---- The hooks of a pytest session with profiling on: collection, one test, reports, the end.

GATHERER = pytest.StashKey["Gatherer | None"]()


# ---- The machine that a session runs on: first as it looks, then as torch says.


class KnownMachine:
    """Base class of a session's plugin object."""

    settings: Settings
    _machine: Machine | None = None

    @property
    def machine(self) -> Machine:
        """The machine, as torch describes it; asked once, which initializes the device."""
        if self._machine is None:
            before = threads_now()
            self._machine = probe_machine(self.settings.threads)
            expect_threads(threads_now() - before)  # the driver's, which no test has started
        return self._machine

    def first_look(self) -> dict[str, Any]:
        """The environment, as far as it can be told before tests are collected.

        Raises:
            CaptureError: torch is not installed or cannot be imported.
        """
        return self._environment(early_machine(self.settings.threads))

    def closer_look(self) -> dict[str, Any]:
        """The environment as it is."""
        return self._environment(self.machine)

    def _environment(self, machine: Machine) -> dict[str, Any]:
        chip = self.settings.device
        return {
            **asdict(machine),
            "key": machine.key,
            **({} if chip is None else {"chip": chip}),
        }


class TorchprofSession(KnownMachine, ImportingHooks, RunningHooks):
    """The plugin object that is registered while profiling is on."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.runner = Runner()
        self.imports = ImportSeeds.of(config)
        self.collected = Collected()
        self.results = Results()
        self.attachments = Attachments()
        self.errors = SessionErrors()
        self.messages: list[str] = []
        self.annotations: list[str] = []  #: for the runner of GitHub Actions
        self.interrupted = False  #: whether the session was cut short
        self.environment: dict[str, Any] = {}
        #: Why no test is profiled: a file has put something in torch's place.
        self.blind: Reason | None = None
        self._baselines = BaselineFiles(settings.baselines, config.rootpath)
        #: While accepting: the sources of the test files, where inline expectations are rewritten.
        self.sources = Sources(settings.started_ns) if settings.accept else None
        self._laps = RecentLaps()
        names = self._baselines.of, self.collected.is_shared, self.collected.gone
        self.verdicts = Judge(config, settings, *names, is_worker=self.is_worker)

    # ---------------------------------------------------------------- who and where

    @property
    def is_worker(self) -> bool:
        """Whether this is an xdist worker: it runs tests, and the controller writes files."""
        return hasattr(self.config, "workerinput")

    @property
    def is_controller(self) -> bool:
        """Whether this is the xdist controller, which runs no tests."""
        return not self.is_worker and self.config.pluginmanager.hasplugin("dsession")

    def gatherer_of(self, item: pytest.Item) -> Gatherer | None:
        """The gatherer of a test that is being profiled."""
        return item.stash.get(GATHERER, None)

    # ---------------------------------------------------------------- collection

    def pytest_sessionstart(self) -> None:
        """Fail early if torch is missing."""
        self.runner.progress.open(self.config)
        try:
            rules_of(self.config)
            if self.is_controller:  # it needs no torch
                require_torch()
            else:
                self.environment = self.first_look()
        except Exception as error:  # noqa: BLE001 - a conftest.py may have replaced anything
            raise pytest.UsageError(escape.line(message_of(error))) from None
        if self.settings.json is not None and not self.is_worker:
            begin_report(self.settings.json, self.environment)

    def pytest_report_header(self) -> str:
        """One line: what is measured here, and how often a test runs."""
        return header(self.settings, self.environment.get("key", "profiling in workers"))

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Skip baseline folders that may not be read, instead of failing collection."""
        if not self._baselines.is_folder(collection_path):
            return None
        return None if os.access(collection_path, os.R_OK | os.X_OK) else True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        """Plan each test, also by the markers that others add here; reject files as folders."""
        for item in items:
            self.collected.add(item)
        plan_tests(items, self.settings, self.sources)
        self.collected.leave_out_by_options(self.config)
        yield
        plan_tests(items, self.settings, self.sources)
        if not self.is_worker:  # xdist breaks off without the message; there, each test has it
            files = {item.path for item in items if PLAN in item.stash}
            for folder in sorted({self._baselines.of(file).parent for file in files}):
                require_folder(self.config, "baselines", folder)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """A file with deselected tests does not run in full."""
        self.collected.leave_out({str(item.path) for item in items})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file with collection errors does not run in full."""
        if report.failed:
            file = report.nodeid.partition("::")[0]
            self.collected.leave_out([str(self.config.rootpath / file)])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Pay for torch's first profiler session outside any test."""
        plans = [item.stash[PLAN] for item in session.items if PLAN in item.stash]
        plans = [plan for plan in plans if not plan.left_out]
        if plans and not self.is_controller and not self.config.option.collectonly:
            if not is_torch(sys.modules.get("torch")):
                self.blind = because(
                    "torch_replaced", "a test file has put something else in the place of torch"
                )
                return
            with self.errors.careful:  # what test files have replaced for good is in its place
                self.environment = self.closer_look()
                prime(whole=any(plan.kinds[0] != "warmup" for plan in plans))
                measure_all(warm_up(), known={"findings": 0})  # the rules have run already
                OTHERS.watch()

    # ---------------------------------------------------------------- one test

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Create the gatherer before fixtures run."""
        plan = item.stash.get(PLAN, None)
        if plan is not None and self.blind is None and not self.runner.rerunning:
            with self.errors.careful:
                item.stash[PLAN] = plan = plan.on(self.machine)
                if not plan.left_out:
                    wants_lines = self.verdicts.begin(item)
                    item.stash.setdefault(GATHERER, None)
                    item.stash[GATHERER] = Gatherer(
                        plan,
                        self.machine,
                        own_files=(str(item.path),),
                        wants_lines=wants_lines,
                        accepted=self.verdicts.accepted_times(item, self.machine),
                        laps=self._laps,
                        name=seeded_name(item),
                    )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """All runs of the test, then the verdict, inside its one call phase."""
        gatherer = item.stash.get(GATHERER, None)
        if self.blind is None and not self.runner.rerunning:
            late = plan_late(item, self.settings, self.machine, prepared=gatherer is not None)
            if late is not None and late.left_out:
                gatherer = item.stash[GATHERER] = None
            elif late is not None and gatherer is not None:
                gatherer.replan(late)
        if gatherer is None or self.runner.rerunning:
            result = yield
            plan = item.stash.get(PLAN, None)
            if plan is not None and plan.left_out:
                message = self.verdicts.leave_out(item, plan)
                if message is not None:
                    raise OwnFailure(escape.block(message))
            return result
        try:
            result = yield from self.runner.call(item, gatherer)
        except (AssertionError, pytest.fail.Exception) as error:
            if gatherer.fails_by_numbers:
                self._judge(item, gatherer)
                self.verdicts.mark_failed(item, error)
            raise
        message = self._judge(item, gatherer)
        # A strict xfail would take our failure for the expected one.
        if message is not None and not is_strict_xfail(item):
            raise OwnFailure(escape.block(message))
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """Release the test's trace, once it has been judged."""
        if not self.runner.rerunning:
            with self.errors.careful:
                self.verdicts.forget()

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> list[str] | None:
        """Explain a failed comparison of regions."""
        with self.errors.careful:
            if lines := relation_lines(op, left, right):
                return list(map(escape.line, lines))
        return None

    def pytest_enter_pdb(self) -> None:
        """Do not rerun a test that is being debugged."""
        self.runner.entered_debugger()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the record to the report, which xdist sends to the controller."""
        if call.excinfo is not None:
            with self.errors.careful:
                hide_own_frames(call.excinfo)
        report = yield
        gatherer = item.stash.get(GATHERER, None)
        faulty = gatherer if call.when != "setup" else None
        if has_news(report) or (faulty is not None and faulty.faults):
            with self.errors.careful:
                plan, attached = item.stash.get(PLAN, None), Outcome()
                if has_news(report) and plan is not None:
                    attached = self.verdicts.final(item, call, report, plan, gatherer, self.blind)
                    raised = call.excinfo.value if call.excinfo is not None else None
                    crash = getattr(report.longrepr, "reprcrash", None)
                    if attached.ours and isinstance(raised, OwnFailure) and crash is not None:
                        crash.message = str(raised)  # the short summary has its first line
                    if self.settings.junit and attached.record is not None:
                        junit_properties.note(item, report, attached.record)
                if faulty is not None and faulty.faults:
                    # Also to the teardown's report: the last rerun ends in that phase.
                    attached = replace(attached, faults=tuple(dict.fromkeys(faulty.faults)))
                    faulty.faults.clear()
                if attached != Outcome():
                    self.attachments.attach(report, attached)
        if call.when == "teardown":
            self.verdicts.release(item, GATHERER)
        return report

    def _judge(self, item: pytest.Item, gatherer: Gatherer) -> str | None:
        """Compare what was measured, store the verdict, and return the failure message, if any."""
        return self.verdicts.judge(item, gatherer)

    # ---------------------------------------------------------------- gathering

    @pytest.hookimpl(trylast=True)  # others see what is attached
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect records; under xdist they come from the workers."""
        if has_attachment(report) or has_news(report):
            with self.errors.careful:
                attached = self.attachments.take(report)
                for fault in attached.faults:
                    self.errors.add_fault(fault, report.nodeid)
                if has_news(report):
                    self.runner.reported(report)
                    self.results.take(report, attached)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what an xdist worker knows about collection and the machine."""
        if (output := WorkerOutput.of(node)) is not None:
            self.environment = output.environment
            self.collected = Collected(output.names, output.partial)
            self.errors.add(*output.errors)

    # ---------------------------------------------------------------- the end

    def pytest_keyboard_interrupt(self) -> None:
        """Ctrl-C, `pytest.exit`, or a collection error: earlier measurements are kept."""
        self.interrupted = True

    def pytest_internalerror(self) -> None:
        """An error that ends the session."""
        self.interrupted = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write baselines and the report, in one process only."""
        OTHERS.forget()
        self.runner.progress.close()
        self._finish(session)

    def _finish(self, session: pytest.Session) -> None:
        if self.is_worker:
            known, lines = self.collected, self.errors.lines
            own = known.names, sorted(known.partial)
            WorkerOutput(self.environment, lines, *own).leave_with(self.config)
            return
        if self.settings.accept:
            self._accept()
        self.messages += self.results.unstable_lines
        with suppress(TorchprofError):  # reported at collection
            self.messages += rules_of(self.config).errors
        for fault in self.results.rule_faults:
            self.errors.add_fault(fault)
        self.errors.settle_faults()
        self.messages += [self.runner.interrupted] if self.runner.interrupted else []
        records, gone = self.results.records, self.interrupted
        if (path := self.settings.json) is not None:
            self.errors.add(*end_report(path, self.environment, records, interrupted=gone))
        if (path := self.settings.html) is not None:
            with self.errors.careful:
                from pytest_torchprof.session.reports import write_page

                self.errors.add(*write_page(path, self.config, self.environment, records, gone))
        if wanted(self.settings):
            self._report_to_ci()
        harmless = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if self.errors.lines and session.exitstatus in harmless:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def say(self, *lines: str) -> None:
        """Have the summary print these lines."""
        self.messages += lines

    def _report_to_ci(self) -> None:
        """The comment that is asked for, and what the service shows."""
        from pytest_torchprof.session.reports import CiReport

        report = CiReport(self.results, self.environment, self.config, interrupted=self.interrupted)
        if (path := self.settings.markdown) is not None:
            self.errors.add(*report.write_comment(path))
        service = service_of(self.settings.ci, os.environ) if self.results.records else "off"
        if service == "github":
            self.messages += report.add_summary(os.environ)
            self.annotations = report.annotations(os.environ)
        elif service == "gitlab":
            self.messages += report.write_for_gitlab(os.environ)

    def _accept(self) -> None:
        """Write what tests offer, and report it."""
        files, collected = self._baselines, self.collected
        done, errors = accept(
            self.results.offers,
            files.full(collected, self.results.ran),
            environment=self.environment.get("key", ""),
            root=self.config.rootpath,
            project=files.project,
        )
        self.messages += done
        told = {record.reason.text for record in self.results.records if record.reason}
        self.errors.add(*(error for error in errors if error not in told))
        if not collected.partial:
            self.messages += files.left_behind(collected)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table, what was accepted, what went wrong, and one line of totals."""
        summarize(
            terminalreporter,
            self.results,
            self.settings,
            messages=self.messages,
            errors=self.errors.lines,
            verbosity=self.config.get_verbosity(),
        )
        for line in self.annotations:
            terminalreporter.write_line(escape.line(line))
