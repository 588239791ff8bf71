"""One pytest session with profiling on: plans, verdicts, records, and what is written at the end."""

from __future__ import annotations

import gzip
import re
import shlex
import shutil
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_torchprof.baseline import inline, store
from pytest_torchprof.capture import Machine, prime, probe_machine
from pytest_torchprof.compare import GATED_TIMES, Policy, compare, failures, status_of
from pytest_torchprof.errors import BaselineError, TorchprofError
from pytest_torchprof.metrics import METRICS, measure, measure_all
from pytest_torchprof.options import (
    antipatterns_of,
    budgets_of,
    is_marked,
    overrides_of,
)
from pytest_torchprof.render.failure import failure_message
from pytest_torchprof.render.json_report import record_of, write_report
from pytest_torchprof.render.summary import summary_table, totals
from pytest_torchprof.render.text import plural
from pytest_torchprof.runs import Plan, Recorder, Runner
from pytest_torchprof.settings import Settings
from pytest_torchprof.stats import Baseline, NotMeasured, Profile, Value, Verdict
from pytest_torchprof.units import format_quantity

PLAN = pytest.StashKey[Plan]()
RECORDER = pytest.StashKey[Recorder]()
RECORD = pytest.StashKey[dict[str, Any]]()
OFFER = pytest.StashKey[dict[str, Any]]()

_STORED_COLUMNS = (
    "calls",
    "flops",
    "accumulations",
    "kernels",
    "allocated_cpu_bytes",
    "allocated_cuda_bytes",
    "peak_cpu_bytes",
    "peak_cuda_bytes",
    "leaked_cpu_bytes",
    "leaked_cuda_bytes",
)


@dataclass
class Collected:
    """The tests of each file as collected, and the files of which only a part runs."""

    names: dict[str, list[str]] = field(default_factory=dict)
    partial: set[str] = field(default_factory=set)


class TorchprofSession:
    """The plugin object that is registered while profiling is on."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.runner = Runner()
        self.records: dict[str, dict[str, Any]] = {}
        self.offers: dict[str, dict[str, Any]] = {}
        self.collected = Collected()
        self.runs = 0
        self.environment: dict[str, Any] = {}
        self.messages: list[str] = []
        self.errors: list[str] = []
        self._machine: Machine | None = None
        self._folder: Path | None = None
        self._baselines: dict[Path, dict[str, Any] | BaselineError | None] = {}

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

    @property
    def folder(self) -> Path:
        """Where exported traces lie until they are read."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="torchprof-"))
        return self._folder

    def baseline_path(self, item: pytest.Item) -> Path:
        """The baseline file of a test."""
        return store.path_for(item.path, self.settings.baselines, self.config.rootpath)

    def recorder_of(self, item: pytest.Item) -> Recorder | None:
        """The recorder of a test that is being profiled."""
        return item.stash.get(RECORDER, None)

    # ---------------------------------------------------------------- collection

    def pytest_sessionstart(self) -> None:
        """Find out at once whether there is a torch to profile."""
        if self.is_controller:
            return
        try:
            self.environment = {**asdict(self.machine), "key": self.machine.key}
        except TorchprofError as error:
            raise pytest.UsageError(str(error)) from None

    def pytest_report_header(self) -> str:
        """One line: what is measured here, and how often a test runs."""
        s = self.settings
        where = self.environment.get("key", "profiling in workers")
        runs = f"{s.warmup} warm-up, {s.rounds} timed, 1 profiled"
        return f"torchprof: {where}; runs a test: {runs}"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        """Plan each test; refuse markers that make no sense, naming their tests."""
        problems = []
        for item in items:
            self.collected.names.setdefault(str(item.path), []).append(name_of(item))
            try:
                plan = self._plan(item)
            except TorchprofError as error:
                problems.append(f"{item.nodeid}: {error}")
                continue
            if plan is not None:
                item.stash[PLAN] = plan
        if problems:
            shown = problems[:10] + ([f"… and {len(problems) - 10} more"] if problems[10:] else [])
            raise pytest.UsageError("torchprof: " + "\n".join(shown))
        self.collected.partial |= {
            str(Path(self.config.invocation_params.dir, arg.split("::")[0]).resolve())
            for arg in self.config.args
            if "::" in arg
        }
        yield

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """A file of which tests were deselected is not a full run of it."""
        self.collected.partial |= {str(item.path) for item in items}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Pay for torch's first profiler session outside any test."""
        planned = any(PLAN in item.stash for item in session.items)
        if planned and not self.is_controller and not self.config.option.collectonly:
            prime()

    def _plan(self, item: pytest.Item) -> Plan | None:
        overrides = overrides_of(item)
        budgets = tuple(budgets_of(item))
        forbidden, allowed = antipatterns_of(item)
        if not overrides.pop("enabled", True):
            return None
        if self.settings.select == "marked" and not is_marked(item):
            return None
        s = self.settings
        base = Plan(s.warmup, s.rounds, s.threads, budgets, forbidden, allowed)
        return base.with_counts(
            warmup=overrides.get("warmup"), rounds=overrides.get("rounds")
        )

    # ---------------------------------------------------------------- one test

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Have a recorder ready before fixtures run."""
        plan = item.stash.get(PLAN, None)
        if plan is not None and not self.runner.rerunning:
            for key in (RECORD, OFFER):
                item.stash[key] = {}
            item.stash[RECORDER] = Recorder(plan, self.machine, self.folder)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """All runs of the test, then the verdict, inside its one call phase."""
        recorder = item.stash.get(RECORDER, None)
        if recorder is None or self.runner.rerunning:
            return (yield)
        result = yield from self.runner.call(item, recorder)
        self._judge(item, recorder)
        return result

    @pytest.hookimpl(wrapper=True, trylast=True, specname="pytest_runtest_call")
    def pytest_measured_call(self) -> Generator[None, Any, Any]:
        """What is measured: the innermost part of the call phase."""
        return (yield from self.runner.measured_call())

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Tear down the last run; the first run's error is the one that counts."""
        return (yield from self.runner.teardown(item))

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self) -> bool | None:
        """No time limit of pytest-timeout during reruns."""
        return True if self.runner.timers_off else None

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_cancel_timer(self) -> bool | None:
        """Nothing to cancel then."""
        return True if self.runner.timers_off else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Let the record ride on the report, which crosses to xdist's controller by itself."""
        report = yield
        if PLAN in item.stash and (call.when == "call" or not report.passed):
            recorder = item.stash.get(RECORDER, None)
            reason = (recorder.reason if recorder else None) or _why_not(report)
            report.torchprof = item.stash.get(RECORD, None) or record_of(
                item.nodeid, status="not_profiled", reason=reason, verdicts=_unchecked(item, reason)
            )
            report.torchprof_offer = item.stash.get(OFFER, None) or None
            report.torchprof_runs = recorder.runs if recorder else 0
        return report

    def _judge(self, item: pytest.Item, recorder: Recorder) -> None:
        """Compare what was measured, note it, and fail the test if it is not as it should be."""
        try:
            message = self._verdict(item, recorder)
        except BaselineError as error:
            recorder.refuse(str(error))
            message = f"torchprof: {error}"
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            recorder.refuse(f"internal error, please report it: {type(error).__name__}: {error}")
            message = None
        if message is not None:
            pytest.fail(message, pytrace=False)

    def _verdict(self, item: pytest.Item, recorder: Recorder) -> str | None:
        duplicate = self.collected.names[str(item.path)].count(name_of(item)) > 1
        if duplicate:
            recorder.refuse("another test has the same name, so one baseline cannot serve both")
        trace = recorder.trace
        if recorder.reason is None and trace is None:
            recorder.refuse("nothing was captured")
        if recorder.reason is not None or trace is None:
            verdicts = _unchecked(item, recorder.reason or "")
            causes = failures(verdicts, self._policy(None), has_baseline=True, accept=False)
            return f"torchprof: {'; '.join(causes)}" if causes else None
        profile = profile_of(recorder)
        path, name = self.baseline_path(item), name_of(item)
        baseline = store.entry_of(self._load(path), name, self.machine.key)
        policy = self._policy(baseline)
        verdicts = compare(profile, baseline, recorder.plan.budgets, policy)
        status = status_of(verdicts, has_baseline=baseline is not None)
        accept = self.settings.accept
        causes = failures(verdicts, policy, has_baseline=baseline is not None, accept=accept)
        if policy.strict:
            causes += [
                f"strict: {name} was compared in the test, and not measured"
                for name in dict.fromkeys(recorder.unchecked)
            ]
        kept = self._keep_trace(item, recorder, failed=bool(causes))
        item.stash[RECORD] = record_of(
            item.nodeid, status=status, reason=None, verdicts=verdicts, profile=profile, trace=kept
        )
        item.stash[OFFER] = self._offer(path, name, profile, verdicts, recorder)
        if not causes:
            return None
        return failure_message(causes, verdicts, profile, baseline, self._accept_command(item))

    def _policy(self, baseline: Baseline | None) -> Policy:
        note = None
        if self.is_worker:
            note = "xdist's workers contend for the CPU, so time only advises"
        elif baseline is not None and baseline.times.get("machine") != self.machine.host:
            note = f"the baseline's times are of another machine ({baseline.times.get('machine')})"
        return Policy(self.settings.time, self.settings.strict, note)

    def _load(self, path: Path) -> dict[str, Any] | None:
        if path not in self._baselines:
            try:
                self._baselines[path] = store.load(path)
            except BaselineError as error:
                self._baselines[path] = error
        found = self._baselines[path]
        if isinstance(found, BaselineError):
            raise found
        return found

    def _accept_command(self, item: pytest.Item) -> str:
        ours = hasattr(self.config.option, "torchprof_accept")
        flags = "--accept" if ours else "--torchprof --accept"
        return f"pytest {flags} {shlex.quote(item.nodeid)}"

    def _keep_trace(self, item: pytest.Item, recorder: Recorder, *, failed: bool) -> str | None:
        file = recorder.file
        if file is None:
            return None
        try:
            if self.settings.traces is None or not (failed or self.settings.traces_of == "all"):
                return None
            self.settings.traces.mkdir(parents=True, exist_ok=True)
            stem = re.sub(r"[^\w.\[\]-]+", "_", item.nodeid)[-180:]
            kept = self.settings.traces / f"{stem}.pt.trace.json.gz"
            with file.open("rb") as source, gzip.open(kept, "wb", compresslevel=3) as target:
                shutil.copyfileobj(source, target)
            return str(kept)
        except OSError as error:
            self.errors.append(f"trace of {item.nodeid} was not kept: {error}")
            return None
        finally:
            file.unlink(missing_ok=True)

    def _offer(
        self,
        path: Path,
        name: str,
        profile: Profile,
        verdicts: Sequence[Verdict],
        recorder: Recorder,
    ) -> dict[str, Any]:
        """What ``--accept`` would write; the controller decides."""
        within = {
            v.metric: v.baseline
            for v in verdicts
            if v.status == "ok" and v.tolerance and v.baseline is not None
        }
        metrics = {
            key: within.get(key, value)
            for key, value in profile.metrics.items()
            if METRICS[key].stored and not isinstance(value, NotMeasured)
        }
        times: dict[str, Any] = {
            key: round(value, 6)
            for key, value in profile.metrics.items()
            if key in GATED_TIMES and not isinstance(value, NotMeasured)
        }
        times["machine"] = self.machine.host
        gated = any(v.metric in GATED_TIMES and v.status in ("regressed", "improved") for v in verdicts)
        return {
            "path": str(path),
            "test": name,
            "environment": self.machine.key,
            "metrics": metrics,
            "operators": {k: dict(v) for k, v in profile.operators.items()},
            "kernels": dict(profile.kernels),
            "findings": {},
            "times": times,
            "times_changed": gated,
            "edits": [list(edit) for edit in recorder.edits],
        }

    # ---------------------------------------------------------------- gathering

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather records; under xdist they come from the workers."""
        record = getattr(report, "torchprof", None)
        if record is not None:
            self.records[report.nodeid] = record
            self.offers.pop(report.nodeid, None)
            if (offer := getattr(report, "torchprof_offer", None)) is not None:
                self.offers[report.nodeid] = offer
            self.runs += getattr(report, "torchprof_runs", 0)
        known = self.records.get(report.nodeid)
        if known is None:
            return
        if report.when == "call" or not report.passed:
            known["outcome"] = _outcome(report)
        if report.failed and report.when != "call":
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

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write baselines and report, in one process only."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self.is_worker:
            self.config.workeroutput["torchprof"] = {  # type: ignore[attr-defined]
                "environment": self.environment,
                "names": self.collected.names,
                "partial": sorted(self.collected.partial),
                "errors": self.errors,
            }
            return
        if self.settings.accept:
            self._accept()
        if self.settings.json is not None:
            try:
                write_report(self.settings.json, self.environment, self.records.values())
            except OSError as error:
                self.errors.append(f"report {self.settings.json} cannot be written: {error}")
        if self.errors and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _accept(self) -> None:
        by_path: dict[str, list[store.Entry]] = {}
        for offer in self.offers.values():
            baseline = Baseline(**{key: offer[key] for key in store.SECTIONS})
            entry = store.Entry(
                offer["test"], offer["environment"], baseline, offer["times_changed"]
            )
            by_path.setdefault(offer["path"], []).append(entry)
        full = self._full_files()
        for path in dict.fromkeys([*by_path, *full]):
            try:
                written = store.update(
                    Path(path), by_path.get(path, []), existing=full.get(path)
                )
            except BaselineError as error:
                self.errors.append(str(error))
            else:
                self.messages += accepted_lines(written, self.config.rootpath)
        edits = [inline.Edit(*edit) for offer in self.offers.values() for edit in offer["edits"]]
        try:
            for edit in inline.apply(edits):
                self.messages.append(f"{_short(edit.file, self.config.rootpath)}:{edit.line} rewritten")
        except BaselineError as error:
            self.errors.append(str(error))

    def _full_files(self) -> dict[str, list[str]]:
        """Baseline path → all tests, of files that ran as a whole."""
        ran: dict[str, set[str]] = {}
        for nodeid in self.records:
            file, _, name = nodeid.partition("::")
            ran.setdefault(str(self.config.rootpath / file), set()).add(name or nodeid)
        full = {}
        for file, names in self.collected.names.items():
            if file in self.collected.partial or not set(names) <= ran.get(file, set()):
                continue
            path = store.path_for(Path(file), self.settings.baselines, self.config.rootpath)
            if path.exists():
                full[str(path)] = names
        return full

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table, what was accepted, what went wrong, and one line of totals."""
        verbosity = self.config.get_verbosity()
        records = list(self.records.values())
        write = terminalreporter.write_line
        if self.errors or self.messages or (records and verbosity >= 0):
            terminalreporter.section("torchprof")
        if records and verbosity >= 0:
            s = self.settings
            width = terminalreporter._tw.fullwidth  # noqa: SLF001 - the only place that knows
            for line in summary_table(records, s.columns, s.sort, s.top, width):
                write(line)
        for line in self.messages:
            write(line)
        for line in self.errors:
            write(f"ERROR: {line}", red=True)
        if verbosity > -2:
            write(totals(records, self.runs))


def name_of(item: pytest.Item) -> str:
    """A test's name within its file: node id after the file, parameters included."""
    return item.nodeid.partition("::")[2] or item.nodeid


def profile_of(recorder: Recorder) -> Profile:
    """Metrics, operators, kernels and scoped values of the captured trace."""
    from pytest_torchprof.analysis.ops import kernels, ops

    trace = recorder.trace
    assert trace is not None  # noqa: S101 - the caller has checked it
    rows = {
        name: {c: int(v) for c in _STORED_COLUMNS if (v := getattr(row, c))}
        for name, row in sorted(ops(trace).items())
    }
    scoped: dict[str, Value] = {}
    for budget in recorder.plan.budgets:
        source = recorder.stacks if budget.module else trace
        if budget.op is None and budget.module is None:
            continue
        if source is None:
            scoped[budget.label] = NotMeasured("the run with stacks gave no trace")
            continue
        view = source.within(op=budget.op, module=budget.module)
        found = view.selection.any()
        what = f"operator {budget.op}" if budget.op else f"module {budget.module}"
        scoped[budget.label] = (
            measure(METRICS[budget.metric], view)
            if found
            else NotMeasured(f"{what} did not run in the measured region")
        )
    return Profile(
        metrics=measure_all(trace),
        operators=rows,
        kernels={name: calls for name, (calls, _) in sorted(kernels(trace).items())},
        scoped=scoped,
    )


def accepted_lines(written: store.Written, root: Path) -> list[str]:
    """What an accept changed, old → new, for the terminal."""
    where = _short(str(written.path), root)
    lines = []
    if written.added:
        lines.append(f"{where}: {plural(len(written.added), 'new test')}")
    for test, changes in written.changed.items():
        parts = [
            f"{c.metric} {format_quantity(c.before, METRICS[c.metric].unit)} → "
            f"{format_quantity(c.now, METRICS[c.metric].unit)}"
            for c in changes
            if c.metric in METRICS
        ]
        lines.append(f"{where}: {test}: {', '.join(parts) or 'operators or times'}")
    lines += [f"{where}: {test} pruned: the test is gone" for test in written.pruned]
    return lines


def _short(path: str, root: Path) -> str:
    try:
        return str(Path(path).resolve().relative_to(root.resolve()))
    except ValueError:
        return path


def _why_not(report: pytest.TestReport) -> str:
    if report.when == "setup":
        return "setup failed" if report.failed else "skipped"
    return "failed" if report.failed else "skipped" if report.skipped else "was not measured"


def _unchecked(item: pytest.Item, reason: str) -> list[Verdict]:
    """The budgets of a test that was not profiled, each not measured."""
    nothing = NotMeasured(reason)
    return [
        Verdict(b.label, nothing, "not_measured", limit=b.limit, reason=reason)
        for b in item.stash[PLAN].budgets
    ]


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return "error" if report.failed and report.when != "call" else report.outcome

