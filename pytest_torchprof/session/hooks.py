"""One pytest session with profiling on: planning, one test, gathering, the end."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import asdict, replace

from pytest_torchprof.baseline import store
from pytest_torchprof.baseline.sources import Sources
from pytest_torchprof.capture.machine import Machine, probe_machine, require_torch
from pytest_torchprof.capture.profiler import OTHERS, prime
from pytest_torchprof.capture.shelter import SHELTER
from pytest_torchprof.core.errors import BaselineError, TorchprofError
from pytest_torchprof.core.files import why
from pytest_torchprof.core.results import Record
from pytest_torchprof.render import escape
from pytest_torchprof.render.json_report import test_of, write_report
from pytest_torchprof.render.summary import (
    faults,
    raised_rules,
    summary_table,
    totals,
    unchecked_rules,
)
from pytest_torchprof.rules.engine.registry import CODES, warm_up
from pytest_torchprof.session.accept import Offer, ab_command_for, accept, command_for, shown
from pytest_torchprof.session.faults import said
from pytest_torchprof.session.gather import Gatherer
from pytest_torchprof.session.judge import Judge, Subject
from pytest_torchprof.session.known_rules import rules_of
from pytest_torchprof.session.markers import (
    antipatterns_of,
    beside_leaving_out,
    budgets_of,
    is_marked,
    overrides_of,
)
from pytest_torchprof.session.outcome import hide_us, is_strict_xfail
from pytest_torchprof.session.own_failure import OwnFailure
from pytest_torchprof.session.plan import Plan
from pytest_torchprof.session.rerun_deadline import HOW_TO_LEAVE_OUT
from pytest_torchprof.session.rerun_hooks import RunningHooks
from pytest_torchprof.session.reruns import Runner
from pytest_torchprof.session.timed_rounds import RecentLaps
from pytest_torchprof.verdict.found import RAISED
from pytest_torchprof.verdict.judgement import all_unchecked
from pytest_torchprof.verdict.metrics import measure_all

if TYPE_CHECKING:
    from pytest_torchprof.core.settings import Settings

PLAN = pytest.StashKey[Plan]()
GATHERER = pytest.StashKey["Gatherer | None"]()
RECORD = pytest.StashKey["Record | None"]()
OFFER = pytest.StashKey["Offer | None"]()
SUBJECT = pytest.StashKey[Subject]()


@dataclass
class Collected:
    """The tests of each file as collected, and the files of which only a part runs."""

    names: dict[str, list[str]] = field(default_factory=dict)
    partial: set[str] = field(default_factory=set)
    #: File and name of tests, and of those that several of a file share.
    _known: set[tuple[str, str]] = field(default_factory=set)
    _shared: set[tuple[str, str]] = field(default_factory=set)

    def add(self, file: str, name: str) -> None:
        """One more test."""
        self.names.setdefault(file, []).append(name)
        (self._shared if (file, name) in self._known else self._known).add((file, name))

    def is_shared(self, file: str, name: str) -> bool:
        """Whether several tests of the file have this name."""
        return (file, name) in self._shared


class _Careful:
    """Around our part of a hook: `SHELTER`, and a fault of ours is noted, never raised."""

    def __init__(self, errors: list[str]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        SHELTER.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        SHELTER.__exit__()
        if not isinstance(error, Exception):
            return False
        if (text := said(error)) not in self._errors:
            self._errors.append(text)
        return True


class TorchprofSession(RunningHooks):
    """The plugin object that is registered while profiling is on."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.runner = Runner()
        self.records: dict[str, Record] = {}
        self.offers: dict[str, Offer] = {}
        self.collected = Collected()
        self.ran: set[str] = set()
        self.runs = 0
        #: What went wrong that no test is to blame for: text → tests.
        self.faults: dict[str, list[str]] = {}
        #: The current test was failed by us.
        self._failed = False
        #: The session has not come to its end.
        self.interrupted = False
        self.environment: dict[str, Any] = {}
        self.messages: list[str] = []
        self.errors: list[str] = []
        self._machine: Machine | None = None
        #: By test file.
        self._baselines: dict[Path, Path] = {}
        self._careful = _Careful(self.errors)
        #: While accepting: what inline expectations are rewritten in.
        self.sources = Sources(settings.started_ns) if settings.accept else None
        self._laps = RecentLaps()
        self.judge = Judge(settings, config.rootpath, is_worker=self.is_worker)

    # ---------------------------------------------------------------- who and where

    @property
    def is_worker(self) -> bool:
        """A worker of xdist: it runs tests, and the controller writes."""
        return hasattr(self.config, "workerinput")

    @property
    def is_controller(self) -> bool:
        """The controller of xdist: it runs no tests."""
        return not self.is_worker and self.config.pluginmanager.hasplugin("dsession")

    @property
    def machine(self) -> Machine:
        """The machine, asked of torch once."""
        if self._machine is None:
            self._machine = probe_machine(self.settings.threads)
        return self._machine

    def gatherer_of(self, item: pytest.Item) -> Gatherer | None:
        """The gatherer of a test that is being profiled."""
        return item.stash.get(GATHERER, None)

    # ---------------------------------------------------------------- collection

    def pytest_sessionstart(self) -> None:
        """Find out at once whether there is a torch to profile."""
        SHELTER.forget()
        try:
            rules_of(self.config)
            if self.is_controller:  # which itself can do without
                require_torch()
            else:
                self.environment = {**asdict(self.machine), "key": self.machine.key}
        except TorchprofError as error:
            raise pytest.UsageError(escape.line(str(error))) from None
        # That of an earlier session is not to be taken for ours, should the process be killed.
        report = self.settings.json
        with suppress(OSError):  # it is said at the end
            if report is not None and report.is_file() and not self.is_worker:
                write_report(report, self.environment, (), interrupted=True)

    def pytest_report_header(self) -> str:
        """One line: what is measured here, and how often a test runs."""
        s = self.settings
        where = self.environment.get("key", "profiling in workers")
        seconds = s.min_time or s.gate_time_s
        timed = f"{s.rounds} timed" if not seconds else f"timed for {seconds:g} s"
        runs = f"{s.warmup} warm-up, {timed}, 1 profiled"
        return escape.line(f"torchprof: {where}; runs a test: {runs}")

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """No tests are looked for among baselines that may not be entered: theirs say so."""
        named = collection_path.name == Path(self.settings.baselines).name
        return True if named and not os.access(collection_path, os.R_OK | os.X_OK) else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        """Plan each test; refuse markers that make no sense, naming their tests."""
        problems = []
        for item in items:
            self.collected.add(str(item.path), name_of(item))
            try:
                plan = self._plan(item)
            except TorchprofError as error:
                problems.append(f"{item.nodeid}: {error}")
                continue
            if plan is not None:
                item.stash[PLAN] = plan
            if self.sources is not None and "torchprof" in getattr(item, "fixturenames", ()):
                with suppress(BaselineError):  # it is said of the literal that needs it
                    self.sources.of(str(item.path))
        if problems:
            shown = problems[:10] + ([f"… and {len(problems) - 10} more"] if problems[10:] else [])
            raise pytest.UsageError("torchprof: " + "\n".join(map(escape.line, shown)))
        self.collected.partial |= {
            os.path.abspath(self.config.invocation_params.dir / arg.split("::")[0])  # noqa: PTH100
            for arg in self.config.args
            if "::" in arg
        }
        # --lf leaves tests out without a word to anybody, and --pyargs names no files.
        by_name = self.config.getoption("pyargs", False) and "::" in " ".join(self.config.args)
        if by_name or self.config.getoption("lf", False):
            self.collected.partial |= self.collected.names.keys()
        yield

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """A file of which tests were deselected is not a full run of it."""
        self.collected.partial |= {str(item.path) for item in items}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Neither is one in which something could not be collected."""
        if report.failed:
            file = report.nodeid.partition("::")[0]
            self.collected.partial.add(str(self.config.rootpath / file))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Pay for torch's first profiler session outside any test."""
        plans = [item.stash[PLAN] for item in session.items if PLAN in item.stash]
        plans = [plan for plan in plans if not plan.left_out]
        if plans and not self.is_controller and not self.config.option.collectonly:
            prime(whole=any(plan.kinds[0] != "warmup" for plan in plans))
            measure_all(warm_up(), known={"findings": 0})  # these it has looked for
            OTHERS.watch()
            SHELTER.learn()

    def _plan(self, item: pytest.Item) -> Plan | None:
        overrides = overrides_of(item)
        budgets = tuple(budgets_of(item))
        forbidden, allowed = antipatterns_of(item)
        known = {budget.label for budget in budgets}
        budgets += tuple(budget for budget in forbidden if budget.label not in known)
        if not overrides.pop("enabled", True):
            kept = beside_leaving_out(item, budgets, forbidden)
            return Plan(0, 0, budgets=kept, left_out=True) if kept else None
        if self.settings.select == "marked" and not is_marked(item):
            return None
        s, rules = self.settings, rules_of(self.config, item).rules
        base = Plan(
            s.warmup,
            s.rounds,
            s.threads,
            budgets,
            rules=tuple(rule for rule in rules.values() if rule.code not in s.ignore),
            thresholds=s.thresholds,
            allowed=allowed,
            ignored=s.ignore,
            min_time_s=s.min_time,
            gate_time_s=s.gate_time_s,
            time=s.time,
            shares_laps=s.time == "advisory" and not s.accept,
        )
        return base.with_counts(**overrides)

    # ---------------------------------------------------------------- one test

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Have a gatherer ready before fixtures run."""
        plan = item.stash.get(PLAN, None)
        if plan is not None and not plan.left_out and not self.runner.rerunning:
            with self._careful:
                self._prepare(item, plan)

    def _prepare(self, item: pytest.Item, plan: Plan) -> None:
        SHELTER.learn_more()
        item.stash[RECORD], item.stash[OFFER] = None, None
        item.stash.setdefault(GATHERER, None)
        subject, own_files = self._subject(item), (str(item.path),)
        item.stash[GATHERER] = Gatherer(
            plan,
            self.machine,
            own_files=own_files,
            wants_lines=partial(self.judge.wants_lines, subject),
            laps=self._laps,
        )
        with suppress(BaselineError):  # it is judged later
            self.judge.load(subject.baseline)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """All runs of the test, then the verdict, inside its one call phase."""
        gatherer = item.stash.get(GATHERER, None)
        if gatherer is None or self.runner.rerunning:
            result = yield
            plan = item.stash.get(PLAN, None)
            if plan is not None and plan.left_out:
                with SHELTER:
                    message = self.judge.left_out(plan)
                self._failed = message is not None
                if message is not None:
                    raise OwnFailure(escape.block(message))
            return result
        try:
            result = yield from self.runner.call(item, gatherer)
        except OwnFailure:  # an inline expectation's
            with SHELTER:
                self._judge(item, gatherer)
            self._failed = True
            raise
        with SHELTER:
            message = self._judge(item, gatherer)
        # Our failure would be the one that a strict xfail expects.
        if message is not None and not is_strict_xfail(item):
            raise OwnFailure(escape.block(message))
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Tear down what the last rerun has left, unnoticed."""
        if not self.runner.rerunning:
            with self._careful:
                self.judge.forget()
        return (yield from super().pytest_runtest_teardown(item))

    def pytest_enter_pdb(self) -> None:
        """A test that somebody steps through is not run again."""
        self.runner.entered_debugger()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Let the record ride on the report, which crosses to xdist's controller by itself."""
        if call.excinfo is not None:
            with self._careful:
                hide_us(call.excinfo)
        report = yield
        gatherer = item.stash.get(GATHERER, None)
        faulty = gatherer if call.when != "setup" else None
        if _tells(report) or (faulty is not None and faulty.has_faults):
            with self._careful:
                if _tells(report):
                    self._attach(item, call, report)
                if faulty is not None and faulty.has_faults:
                    riding: Any = report  # of the teardown's, too, in which a last run ends
                    riding.torchprof_faults = faulty.take_faults()
        return report

    def _attach(
        self, item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
    ) -> None:
        if PLAN in item.stash:
            gatherer = item.stash.get(GATHERER, None)
            own = call.excinfo is not None and isinstance(call.excinfo.value, OwnFailure)
            ours = own and self._failed
            if call.when == "call" and report.failed and not ours:
                # Failed by somebody else: a strict xfail that passed, another plugin's checks.
                item.stash[RECORD], item.stash[OFFER] = None, None
            left_out = HOW_TO_LEAVE_OUT if item.stash[PLAN].left_out else None
            reason = (gatherer.reason if gatherer else left_out) or _why_not(report)
            record = item.stash.get(RECORD, None) or Record(
                item.nodeid,
                "not_profiled",
                reason,
                {v.label: v for v in all_unchecked(item.stash[PLAN].budgets, reason)},
                # A test that failed by its own comparison of measured numbers has one.
                trace=self._kept(item.nodeid, gatherer, failed=report.failed),
            )
            riding: Any = report
            riding.torchprof = record.sent()
            riding.torchprof_ours = ours
            offer = item.stash.get(OFFER, None)
            riding.torchprof_offer = offer.sent() if offer is not None else None
            riding.torchprof_runs = gatherer.runs if gatherer and call.when == "call" else 0

    def _kept(self, nodeid: str, gatherer: Gatherer | None, *, failed: bool) -> str | None:
        """Keep the trace of a test that was not judged; where it is then."""
        if gatherer is None:
            return None
        kept = self.judge.traces.keep(nodeid, gatherer.export, failed=failed)
        gatherer.blame(*kept.faults)
        return kept.path

    def _judge(self, item: pytest.Item, gatherer: Gatherer) -> str | None:
        """Compare what was measured and note it; why the test fails, if it does."""
        if self.collected.is_shared(str(item.path), name_of(item)):
            gatherer.refuse("another test has the same name, so one baseline cannot serve both")
        message = None
        try:
            judged = self.judge.judge(
                self._subject(item),
                gatherer.result(),
                edits=gatherer.asked.edits,
                export=gatherer.export,
            )
            gatherer.blame(*judged.faults)
            item.stash[RECORD], item.stash[OFFER] = judged.record, judged.offer
            message = judged.message
        except BaselineError as error:
            gatherer.refuse(str(error))
            message = escape.line(f"torchprof: {error}")
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            gatherer.give_up(error)
        self._failed = message is not None
        return message

    def _subject(self, item: pytest.Item) -> Subject:
        if (known := item.stash.get(SUBJECT, None)) is not None:
            return known
        if (path := self._baselines.get(item.path)) is None:
            path = store.path_for(item.path, self.settings.baselines, self.config.rootpath)
            self._baselines[item.path] = path
        commands = (
            partial(make, self.config, item.nodeid) for make in (command_for, ab_command_for)
        )
        item.stash[SUBJECT] = made = Subject(item.nodeid, name_of(item), path, *commands)
        return made

    # ---------------------------------------------------------------- gathering

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather records; under xdist they come from the workers."""
        if "torchprof_faults" in report.__dict__ or _tells(report):
            with self._careful:
                for fault in dict.fromkeys(getattr(report, "torchprof_faults", ())):
                    self.faults.setdefault(fault, []).append(report.nodeid)
                if _tells(report):
                    self._gather(report)

    def _gather(self, report: pytest.TestReport) -> None:
        self.runner.reported(report)
        self.ran.add(report.nodeid)
        record = getattr(report, "torchprof", None)
        if record is not None:
            self.records[report.nodeid] = Record.read(record)
            self.offers.pop(report.nodeid, None)
            if (offer := getattr(report, "torchprof_offer", None)) is not None:
                self.offers[report.nodeid] = Offer.read(offer)
            self.runs += getattr(report, "torchprof_runs", 0)
        known = self.records.get(report.nodeid)
        if known is None:
            return
        self.records[report.nodeid] = replace(known, outcome=_outcome(report))
        if report.failed and not getattr(report, "torchprof_ours", False):
            self.offers.pop(report.nodeid, None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker of xdist knows of collection and machine."""
        sent = getattr(node, "workeroutput", {}).get("torchprof")
        if sent:
            self.environment = sent["environment"]
            self.collected = Collected(sent["names"], set(sent["partial"]))
            self.errors += sent["errors"]

    # ---------------------------------------------------------------- the end

    def pytest_keyboard_interrupt(self) -> None:
        """Ctrl-C, `pytest.exit`, or errors of collection: what was measured until then is kept."""
        self.interrupted = True

    def pytest_internalerror(self) -> None:
        """An error that ends the session."""
        self.interrupted = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write baselines and report, in one process only."""
        OTHERS.forget()
        with SHELTER:
            self._finish(session)

    def _finish(self, session: pytest.Session) -> None:
        if self.is_worker:
            self.config.workeroutput["torchprof"] = {  # type: ignore[attr-defined]
                "environment": self.environment,
                "names": self.collected.names,
                "partial": sorted(self.collected.partial),
                "errors": self.errors,
            }
            return
        if self.settings.accept:
            done, errors = accept(
                self.offers.values(),
                self._full_files(),
                environment=self.environment.get("key", ""),
                root=self.config.rootpath,
                project=store.project_of(self.settings.baselines, self.config.rootpath),
            )
            self.messages += done
            self.errors += errors
            if not self.collected.partial:
                self.messages += self._left_behind()
        with suppress(TorchprofError):  # said at collection
            self.messages += rules_of(self.config).errors
        for rule, line in raised_rules(list(self.records.values()), RAISED).items():
            if rule in CODES:  # a user's own is the user's
                self.faults[f"internal error, please report it: {line}"] = []
        self.errors += faults(self.faults)
        self.messages += [self.runner.interrupted] if self.runner.interrupted else []
        if self.settings.json is not None:
            try:
                records = list(self.records.values())
                raised = list(raised_rules(records, RAISED).values())
                write_report(
                    self.settings.json,
                    self.environment,
                    map(test_of, records),
                    raised,
                    interrupted=self.interrupted,
                )
            except OSError as error:
                what = f"report {self.settings.json} cannot be written: {why(error)}"
                self.errors.append(f"{what}; name another with --torchprof-json")
        if self.errors and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _full_files(self) -> dict[str, list[str]]:
        """Baseline path → all tests, of files that ran as a whole."""
        ran: dict[str, set[str]] = {}
        for nodeid in self.ran:
            file, _, name = nodeid.partition("::")
            ran.setdefault(str(self.config.rootpath / file), set()).add(name or nodeid)
        full = {}
        for file, names in self.collected.names.items():
            if file in self.collected.partial or not set(names) <= ran.get(file, set()):
                continue
            path = store.path_for(Path(file), self.settings.baselines, self.config.rootpath)
            if os.path.exists(path):  # noqa: PTH110 - never raises
                full[str(path)] = names
        return full

    def _left_behind(self) -> list[str]:
        """Baselines whose test files are gone; another branch may want them, so they stay."""
        root = self.config.rootpath
        files = [Path(file) for file in self.collected.names]
        folders = {
            (file.parent, store.path_for(file, self.settings.baselines, root).parent)
            for file in files
        }
        project = store.project_of(self.settings.baselines, root)
        found = sorted({path for pair in folders for path in store.orphans(*pair, project)})
        return [f"{shown(path, root)}: its test file is gone; delete it too" for path in found]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table, what was accepted, what went wrong, and one line of totals."""
        with SHELTER:
            self._summarize(terminalreporter)

    def _summarize(self, terminalreporter: pytest.TerminalReporter) -> None:
        verbosity = self.config.get_verbosity()
        records = list(self.records.values())

        def write(line: str, **markup: bool) -> None:
            terminalreporter.write_line(escape.line(line), **markup)

        if self.errors or self.messages or (records and verbosity >= 0):
            terminalreporter.write_sep("=", "torchprof")
        if records and verbosity >= 0:
            s = self.settings
            width = terminalreporter._tw.fullwidth  # noqa: SLF001 - the only place that knows
            for line in summary_table(records, s.columns, s.sort, s.top, width):
                write(line)
            for line in unchecked_rules(records, RAISED):
                write(line)
        for rule, line in raised_rules(records, RAISED).items():
            if rule not in CODES:
                write(line, yellow=True)
        for line in self.messages:
            write(line)
        for line in self.errors:
            write(f"ERROR: {line}", red=True)
        if verbosity > -2:
            write(totals(records, self.runs))


def name_of(item: pytest.Item) -> str:
    """A test's name within its file: node id after the file, parameters included."""
    return item.nodeid.partition("::")[2] or item.nodeid


def _tells(report: pytest.TestReport) -> bool:
    """Whether there is something to note: of a phase around the call only if it went wrong."""
    return report.when == "call" or not report.passed


def _why_not(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail") and report.skipped:
        return "xfailed"
    if report.when == "setup":
        return "setup failed" if report.failed else "skipped"
    return "failed" if report.failed else "skipped" if report.skipped else "was not measured"


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return "error" if report.failed and report.when != "call" else report.outcome
