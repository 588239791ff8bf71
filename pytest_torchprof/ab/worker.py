"""The process of one side: a pytest session that runs what the controller requests."""

from __future__ import annotations

import dataclasses
import os
import pickle
import queue
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_torchprof.ab import imports
from pytest_torchprof.ab.controller import Collection, End, Profiled, Turn
from pytest_torchprof.capture.clock import GarbageControl, Meter, TurnLayout, collect, move_to
from pytest_torchprof.capture.machine import Machine, imported_torch, probe_machine
from pytest_torchprof.capture.profiler import prime
from pytest_torchprof.capture.sessions import OTHERS
from pytest_torchprof.core.errors import AbError, CaptureError, TorchprofError, error_line
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.places.place import Roots
from pytest_torchprof.rules.registry import warm_up
from pytest_torchprof.session.faults import reason_for
from pytest_torchprof.session.known import rules_of
from pytest_torchprof.session.markers import overrides_of
from pytest_torchprof.session.measurement import Gatherer
from pytest_torchprof.session.options import build_settings
from pytest_torchprof.session.plan import Plan
from pytest_torchprof.session.runs import Runner, RunningHooks, functional_failure, hide_own_frames
from pytest_torchprof.session.seeds import ImportingHooks, ImportSeeds, seeded_name
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.seen import seen_in

if TYPE_CHECKING:
    from pytest_torchprof.ab.sides import Side
    from pytest_torchprof.core.values import Detail, Settings

#: From the controller: ("test", id, id of the next one or None), ("turn", calls, fresh, processor),
#: ("done",), ("end",).
Command = tuple[Any, ...]
Answer = Collection | Profiled | Turn | End


# ---- The process: its pipes, and its pytest session.


class Line:
    """The worker's end of the pipes. The process ends with the controller, whatever it is doing."""

    def __init__(self, commands: IO[bytes], answers: IO[bytes]) -> None:
        self._answers = answers
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._pid = os.getpid()
        # The functions themselves, as a test may replace them.
        end: Callable[[], object] = partial(os._exit, 1)
        if sys.platform != "win32":
            end = partial(os.killpg, 0, signal.SIGKILL)
        read = partial(pickle.load, commands)
        threading.Thread(target=self._read, args=(read, end), daemon=True).start()

    def _read(self, read: Callable[[], Command], end: Callable[[], object]) -> None:
        with suppress(Exception):  # the end of the pipe, or half a command
            while True:
                self._commands.put(read())
        end()

    def tell(self, message: Answer) -> None:
        """Send a message. A child forked by a test must not."""
        if os.getpid() != self._pid:
            os._exit(0)
        self._answers.write(pickle.dumps(message))
        self._answers.flush()

    def exchange(self, message: Answer) -> Command:
        """Send a message, and wait for the next command."""
        self.tell(message)
        return self._commands.get()


def serve(commands: IO[bytes], answers: IO[bytes]) -> None:
    """Run pytest until the controller sends no more requests; the last answer is an `End`.

    What comes first is the side, and a folder for temporary files.
    """
    side, folder = pickle.load(commands)  # noqa: S301 - of our own controller
    line = Line(commands, answers)
    imports.prefer_own(side.root, side.others)
    # pytest warns of plugins that are imported before it, and a warning may be an error. This word
    # prevents that, see pytest's "Assertion Rewriting".
    package = sys.modules["pytest_torchprof"]
    package.__doc__ = f"{package.__doc__} PYTEST_DONT_REWRITE"
    plugin = WorkerPlugin(line.exchange, side, folder)
    args = ["-o", f"cache_dir={folder / 'cache'}", *side.args]
    sys.argv = ["pytest", *side.args]
    error = None
    try:
        code = int(pytest.main(args, plugins=[plugin]))
    except TorchprofError as refused:
        code = int(pytest.ExitCode.USAGE_ERROR)
        error = because(*Why.ERROR, message=str(refused))
    sys.stdout.flush()
    sys.stderr.flush()
    line.tell(End(code, error, imports.origins(side.root, side.others)))


# ---- The tests that the user asked for, in a tree that may lack some of them.


def select(config: pytest.Config, side: Side) -> list[tuple[str, str]]:
    """Have pytest collect what the user named and this tree has; return that, see `matches`.

    What is only in the other tree is dropped; what is in neither stays, and pytest reports it. A
    test in a file becomes the file: a missing test is no usage error on this side.
    """
    given = config.option.file_or_dir
    if not given:
        if not side.folder.is_dir():
            config.args = []
        return []
    trees = imports.Trees(side.root, side.others)
    wanted, places = [], []
    for word in given:
        path, _, name = word.partition("::")
        place = os.path.normpath(side.folder / path)
        if not Path(place).exists():
            if not (side.there / path).exists():
                places.append(word)
        elif trees.owner(place) not in trees.others:
            places.append(place)
            wanted.append((place, name))
    config.args = list(dict.fromkeys(places))
    return wanted


def matches(nodeid: str, wanted: Sequence[tuple[str, str]], rootdir: Path) -> bool:
    """Whether a collected test was asked for: files may hold others.

    >>> matches("t/test_a.py::test_x[1]", [("/r/t/test_a.py", "test_x")], Path("/r"))
    True
    >>> matches("t/test_a.py::test_xy", [("/r/t/test_a.py", "test_x")], Path("/r"))
    False
    """
    path, _, name = nodeid.partition("::")
    file = Path(os.path.normpath(rootdir / path))
    names = [asked for place, asked in wanted if file.is_relative_to(place)]
    return not names or any(
        not asked or name == asked or name.startswith((f"{asked}::", f"{asked}["))
        for asked in names
    )


# ---- Options of a user's own pytest runs that must not affect two workers.

#: The value for each such option, if a plugin has it. They select tests by what failed last, stop
#: early, step through tests, distribute or repeat them, or write files that both workers would
#: write.
NEUTRAL: dict[str, Any] = {
    "continue_on_collection_errors": True,
    "maxfail": 0,
    "verbose": 0,
    "color": "no",
    "tbstyle": "short",
    "torchprof_ci": "off",
    "dist": "no",  # pytest-xdist
    "tx": [],
    "no_cov": True,  # pytest-cov
    "cov_source": [],
    "benchmark_disable": True,  # pytest-benchmark: each benchmark calls its function once
    "randomly_seed": 1,  # pytest-randomly: both sides see the same
    **dict.fromkeys(
        (
            *("collectonly", "lf", "failedfirst", "newfirst", "cacheclear", "stepwise"),
            *("stepwise_skip", "usepdb", "trace", "setuponly", "setupplan", "setupshow"),
            *("torchprof", "distload", "looponfail", "forked", "benchmark_enable"),
            *("benchmark_only", "json_report", "randomly_reorganize"),
        ),
        False,
    ),
    **dict.fromkeys(
        (
            *("cacheshow", "xmlpath", "pastebin", "log_file", "log_cli_level", "torchprof_json"),
            *("torchprof_html", "torchprof_markdown", "torchprof_traces", "torchprof_history"),
            *("numprocesses", "reruns", "benchmark_json", "benchmark_save", "benchmark_autosave"),
            *("benchmark_compare", "benchmark_compare_fail", "benchmark_histogram"),
            *("benchmark_cprofile", "htmlpath", "json_report_file", "report_log"),
            "random_order_bucket",
        ),
    ),
}


def neutralize(options: Any) -> None:
    """Set these where they differ."""
    for name, value in NEUTRAL.items():
        if hasattr(options, name):
            setattr(options, name, value)


def refuse(args: list[str], *, accepts: bool, has_us: bool) -> None:
    """Reject options that make no sense here.

    Raises:
        AbError: ``--accept``, or our plugin is blocked.
    """
    if accepts or "--accept" in args:
        raise AbError("--accept writes baselines, which `torchprof ab` does not use")
    if not has_us:
        raise AbError(
            "pytest did not load the torchprof plugin",
            "`torchprof ab` needs its markers and its fixture",
            "drop -p no:torchprof and PYTEST_DISABLE_PLUGIN_AUTOLOAD",
        )


# ---- The turns of one test, in a worker: time its calls, and set up its fixtures on request.
#
# Like reruns, they all happen inside the call phase of a single pytest run of the test. So every
# plugin's environment is in place, and a turn on the same fixtures costs only its calls.

_Result = TypeVar("_Result")

#: After this many turns, the output that the test printed is dropped.
_DROP_OUTPUT = 64


class TurnRunner(Runner):
    """Runs a test like `Runner`, then serves its turns until told to stop."""

    def __init__(
        self,
        ask: Callable[[pytest.Item, Gatherer], Command],
        answer: Callable[[Answer], Command],
    ) -> None:
        super().__init__()
        #: Reports that the test has been profiled, and returns the first command.
        self._ask = ask
        #: Reports a turn, and returns the next command.
        self._answer = answer
        self._turns: Turns | None = None
        self._garbage = GarbageControl()

    def call(self, item: pytest.Item, gatherer: Gatherer) -> Generator[None, Any, Any]:
        """The outermost wrapper of the call phase: the first run, the profiled one, the turns."""
        result = None
        try:
            result = yield from super().call(item, gatherer)
        except (Exception, pytest.fail.Exception):
            # Its own assertions on measured numbers do not matter here.
            if not gatherer.asked.stats_read:
                raise
        if gatherer.timed:
            self.rerunning = True
            try:
                self._serve(item, gatherer)
            finally:
                self.rerunning = False
        return result

    def settle(self) -> None:
        """Everything is loaded: exclude it from garbage collection from here on."""
        self._garbage.settle()

    def measured_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """The innermost wrapper of the call phase: it contains only what is timed."""
        if self._turns is None:
            return (yield from super().measured_call(item))
        return (yield from self._turns.first_call(item))

    def _serve(self, item: pytest.Item, gatherer: Gatherer) -> None:
        command = self._ask(item, gatherer)
        gatherer.forget()  # frees memory and the numbers for comparisons
        if command[0] != "turn":
            return
        late = self._end_first(item)
        with self._apart(item, gatherer), warnings.catch_warnings():
            self._garbage.settle()
            warnings.showwarning = _nothing
            while command[0] == "turn":
                turns = Turns(item, self._answer, command, late, lambda: self.subtest_failed)
                self._state.renew()
                gatherer.seeds.set(item)
                error = self._run_turns(item, turns)
                command, late = turns.end(self._teardown_run(item) or error)
        self._state.restore_stash()  # for the teardown phase

    def _run_turns(self, item: pytest.Item, turns: Turns) -> BaseException | None:
        """One setup and call phase: a turn, and those that follow on the same fixtures."""
        self.subtest_failed = False
        self._turns = self.regions = turns
        try:
            item.ihook.pytest_runtest_setup(item=item)
            item.ihook.pytest_runtest_call(item=item)
        except (KeyboardInterrupt, pytest.exit.Exception):
            raise
        except BaseException as error:  # noqa: BLE001 - any outcome of a run is caught here
            return error
        finally:
            self._turns = self.regions = None
        return None


class Turns:
    """Turns on one set of fixtures. For the ``torchprof`` fixture, the timer of its region."""

    def __init__(
        self,
        item: pytest.Item,
        answer: Callable[[Answer], Command],
        command: Command,
        late: BaseException | None,
        failed_subtest: Callable[[], bool],
    ) -> None:
        self._item = item
        self._answer = answer
        self._failed_subtest = failed_subtest
        _, self._calls, _, self._processor = command
        #: A failure after the last turn was reported; reported with the next one.
        self._late = late
        self._meter = Meter()
        self._number = 0
        self._layout = TurnLayout()
        #: The next command, once one needs other fixtures.
        self._next: Command | None = None
        self._first = True
        self._sections = len(item._report_sections)  # noqa: SLF001 - as in reruns
        self._properties = len(item.user_properties)

    # ---------------------------------------------------------------- of the test's calls

    def first_call(self, _: pytest.Item) -> Generator[None, Any, Any]:
        """The call that pytest makes, and then the requested ones."""
        collect()
        move_to(self._processor)
        with self._meter.one():
            result = yield
        self._first = False
        if self._next is None:
            self._turn(self._item.runtest, self._calls - 1)
            self._go_on(self._item.runtest)
        return result

    def end(self, error: BaseException | None) -> tuple[Command, BaseException | None]:
        """The next command, and a failure that is still to be reported."""
        if self._next is None:
            return self._tell(error), None
        return self._next, error

    # ---------------------------------------------------------------- of its region

    def enter(self) -> None:
        """Start timing: only the region of the call counts."""
        self._meter.enter()

    def leave(self) -> None:
        """Stop timing."""
        self._meter.leave()

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Turns call this function instead of the test."""
        if not self._first or self._next is not None:
            return self._in_region(function)
        self._meter.elsewhere = True
        result = function()

        def again() -> None:
            nonlocal result
            result = function()

        self._turn(again, self._calls)
        self._go_on(again)
        return result

    def _in_region(self, function: Callable[[], _Result]) -> _Result:
        self.enter()
        try:
            return function()
        finally:
            self.leave()

    # ---------------------------------------------------------------- turns

    def _go_on(self, call: Callable[[], object]) -> None:
        """More turns, until one needs new fixtures."""
        assert self._next is not None  # noqa: S101 - a turn was announced
        while self._next[0] == "turn" and not self._next[2]:
            _, calls, _, self._processor = self._next
            self._turn(call, calls)

    def _turn(self, call: Callable[[], object], count: int) -> None:
        """Time this many calls, report them with earlier ones, and keep the next command."""
        self._drop()
        error: BaseException | None = None
        try:
            if count:
                self._layout.renew(self._processor)
                self._meter.time(call, count)
        except (KeyboardInterrupt, pytest.exit.Exception):
            raise
        except BaseException as raised:  # noqa: BLE001 - any outcome of a call is caught here
            error = raised
        self._next = self._tell(error)

    def _tell(self, error: BaseException | None) -> Command:
        failed = functional_failure(self._item)
        if self._failed_subtest():
            failed = because(*Why.SUBTESTS_FAILED)
        error, self._late = self._late or error, None
        why = None
        if error is not None:
            why = because(*Why.ERROR, message=error_line(error))
        elif failed is not None:
            why = because("unraised_failure", "AssertionError: the test {why}", why=failed)
        return self._answer(Turn(*self._meter.take(), why))

    def _drop(self) -> None:
        """Drop what would grow from turn to turn."""
        del self._item._report_sections[self._sections :]  # noqa: SLF001 - as in reruns
        del self._item.user_properties[self._properties :]
        manager = self._item.config.pluginmanager
        logging = manager.getplugin("logging-plugin")
        for name in ("caplog_handler", "report_handler"):
            handler = getattr(logging, name, None)
            if handler is not None and handler.records:
                handler.clear()
        self._number += 1
        if not self._number % _DROP_OUTPUT:
            capture = manager.getplugin("capturemanager")
            if capture is not None and capture.is_globally_capturing():
                capture.read_global_capture()


def _nothing(*_: object, **__: object) -> None:
    """Warnings in turns are repetitions."""


# ---- The pytest plugin of a worker: runs tests on the controller's command.

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

    def __init__(self, exchange: Callable[[Answer], Command], side: Side, folder: Path) -> None:
        """``exchange`` sends an answer to the controller, and returns the next command."""
        #: The name that pytest registers and that our fixture looks for.
        self.__name__ = "torchprof-session"
        self._exchange = exchange
        self._side = side
        self.folder = folder
        self._wanted: list[tuple[str, str]] = []
        self._machine: Machine | None = None
        self._errors: dict[str, Reason] = {}
        self._reports: list[pytest.TestReport] = []
        self.runner: TurnRunner = TurnRunner(self._profiled, exchange)

    # ---------------------------------------------------------------- options

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(
        self, early_config: pytest.Config
    ) -> Generator[None, None, None]:
        """Some plugins read their options this early; both sides draw the same at imports."""
        neutralize(early_config.known_args_namespace)
        self.imports = ImportSeeds.of(early_config)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> Generator[None, Any, Any]:
        """The other plugins read theirs from here on."""
        accepts = config.getoption("torchprof_accept", default=False)
        has_us = config.pluginmanager.hasplugin("torchprof")
        args = [str(arg) for arg in config.invocation_params.args]
        refuse(args, accepts=bool(accepts), has_us=has_us)
        neutralize(config.option)
        self._wanted = select(config, self._side)
        config.option.basetemp = str(self.folder / "tmp")
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Read the user's settings for profiled runs."""
        settings = build_settings(config)
        self.settings = dataclasses.replace(
            settings, accept=False, strict=False, json=None, traces=None, time="off"
        )

    # ---------------------------------------------------------------- collection

    def pytest_sessionstart(self) -> None:
        """See what test files may replace for good; without torch, the loop says so."""
        with suppress(CaptureError):
            imported_torch()

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
        if session.items:  # not before: a device is initialized once tests have chosen theirs
            self._machine = probe_machine(self.settings.threads)
            prime()
            warm_up()
            OTHERS.watch()
        self.runner.settle()
        items: dict[str, pytest.Item] = {}
        for item in session.items:
            items.setdefault(item.nodeid, item)
        origins = imports.origins(self._side.root, self._side.others)
        command = self._exchange(Collection(list(items), self._errors, origins))
        while command[0] == "test":
            finished = self._run(items, command[1], command[2])
            command = self._exchange(finished)
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
                gatherer.refuse(because("left_out_by_marker", "its marker has enabled=False"))
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

    def _profiled(self, item: pytest.Item, gatherer: Gatherer) -> Command:
        """Report the profiled run to the controller."""
        metrics, detail = exact_metrics(gatherer)
        profiled = Profiled(
            "passed",
            repeatable=_is_plain(item),
            metrics=metrics,
            note=gatherer.reason,
            chip=gatherer.plan.chip,
            detail=detail,
        )
        return self._exchange(profiled)


def exact_metrics(gatherer: Gatherer) -> tuple[dict[str, int | float], Detail | None]:
    """The metrics that were measured, are compared and are not times; what it did by operator."""
    if gatherer.trace is None:
        return {}, None
    try:
        values = gatherer.values()
        detail = seen_in(gatherer.trace, None, Roots(Path())).detail
    except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
        gatherer.refuse(because(*Why.ERROR, message=error_line(error)))
        return {}, None
    return {
        name: value if isinstance(value, int) else float(value)
        for name, value in values.items()
        if name in METRICS and METRICS[name].stored and not isinstance(value, MissingValue)
    }, detail


def outcome_of(reports: list[pytest.TestReport]) -> Profiled:
    """Passed, failed or skipped, and the reason."""
    finished = Profiled("passed")
    for report in reports:
        if report.failed:
            why = _error(report)
            if report.when != "call":
                why = because("failed_in_phase", "{why} ({phase})", why=why, phase=str(report.when))
            return Profiled("failed", why)
        if report.skipped:
            finished = Profiled("skipped", _why_skipped(report))
    return finished


def _why_skipped(report: pytest.TestReport) -> Reason | None:
    """None where pytest was given an empty reason."""
    if hasattr(report, "wasxfail"):
        text = str(report.wasxfail).rstrip(": ")
        return (
            because("xfailed_because", "xfailed: {text}", text=text)
            if text
            else because(*Why.XFAILED)
        )
    place = report.longrepr
    if not isinstance(place, tuple):
        return _error(report)
    text = str(place[2]).removeprefix("Skipped: ")
    return because(*Why.SOMEBODY_SAID, text=text) if text else None


def _error(report: pytest.CollectReport | pytest.TestReport) -> Reason:
    """The last line of a report's error: the exception, where a traceback marks it."""
    lines = [line for line in report.longreprtext.splitlines() if line.strip()]
    marked = [line[1:].strip() for line in lines if line.startswith("E ")]
    if not lines:
        return because("no_reason_given", "no reason given")
    message = (marked[0] if marked else lines[-1]).strip()
    if message.startswith('File "') and len(marked) > 1:  # of a SyntaxError, whose text is last
        message = f"{marked[-1]} ({message})"
    return because(*Why.ERROR, message=message)


def _is_plain(item: pytest.Item) -> bool:
    """Whether it may be called twice on the same fixtures: unittest and doctests may not."""
    if not isinstance(item, pytest.Function) or hasattr(item, "_testcase"):
        return False
    from _pytest.unittest import TestCaseFunction

    drawn = getattr(item.obj, "is_hypothesis_test", False)
    return not isinstance(item, TestCaseFunction) and not drawn
