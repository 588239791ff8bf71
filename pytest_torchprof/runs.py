"""The runs of one test: warm-up, timed rounds, profiled run; whole items, fixtures set up anew.

All of them happen inside the call phase of the one run that pytest asked for, so that whoever
drives the protocol (xdist, rerun and fork plugins) sees one setup, one call and one teardown.
"""

from __future__ import annotations

import faulthandler
import gc
import gzip
import io
import os
import shutil
import signal
import statistics
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_torchprof.capture import (
    OWN_PROFILER,
    REAL,
    Capture,
    CompileCount,
    Machine,
    RandomState,
    Round,
    Stopwatch,
    muted,
    sees_threads,
    watching,
)
from pytest_torchprof.errors import TorchprofError
from pytest_torchprof.events import Kind as EventKind
from pytest_torchprof.events import Trace

if TYPE_CHECKING:
    from pytest_torchprof.stats import Budget

Kind = Literal["warmup", "round", "profile", "stacks", "threads"]

#: A call this long needs no round of its own: the warm-up's time serves. Source: DESIGN.
LONG_CALL_NS = 10_000_000_000

#: A shorter one cannot record enough to fill the machine's memory.
WATCHED_CALL_NS = 100_000_000

#: Why the trace of all threads has no memory events.
_NO_MEMORY = "torch records no memory while it profiles all threads, and this test works in several"


@dataclass(frozen=True)
class Plan:
    """How one test is to be measured, and against what."""

    warmup: int
    rounds: int
    threads: int | None = 1
    budgets: tuple[Budget, ...] = ()
    forbidden: frozenset[str] | None = None
    allowed: frozenset[str] = frozenset()

    def with_counts(self, *, warmup: int | None, rounds: int | None) -> Plan:
        """The plan with these counts, where they are given."""
        return replace(
            self,
            warmup=self.warmup if warmup is None else warmup,
            rounds=self.rounds if rounds is None else rounds,
        )

    @property
    def kinds(self) -> list[Kind]:
        """The runs in order; the first decides the functional outcome."""
        stacks: list[Kind] = ["stacks"] if any(b.module for b in self.budgets) else []
        return [*["warmup"] * self.warmup, *["round"] * self.rounds, "profile", *stacks]  # type: ignore[list-item]


@dataclass
class Recorder:
    """What the runs of one test have brought in so far."""

    plan: Plan
    machine: Machine
    folder: Path
    compiled: CompileCount = field(default_factory=CompileCount.now)
    rounds: list[Round] = field(default_factory=list)
    longest_ns: int = 0
    trace: Trace | None = None
    stacks: Trace | None = None
    file: Path | None = None
    reason: str | None = None
    runs: int = 0
    #: The test measures a block or a callable of its own through the fixture.
    own_region: bool = False
    #: It did so to the end within this run, with its own rounds: nothing is to be run again.
    complete: bool = False
    #: It has looked at measured numbers, so its failure may be about them.
    stats_read: bool = False
    unchecked: list[str] = field(default_factory=list)
    edits: list[tuple[str, int, str]] = field(default_factory=list)
    #: A trace of one thread, of a run in which there were more.
    one_thread: tuple[Trace, Path] | None = None
    #: As it was before the test's fixtures were set up.
    start: World = field(default_factory=lambda: World())  # noqa: PLW0108 - it is defined below
    started: int = field(default_factory=REAL.clock)

    def refuse(self, reason: str) -> None:
        """Keep the first reason why the test is not profiled."""
        self.reason = self.reason or reason

    def export(self, target: Path) -> None:
        """Write the trace's file, compressed; a test's patches may be in place."""
        assert self.file is not None  # noqa: S101 - the caller has looked
        with (
            REAL.open(self.file, "rb") as source,
            REAL.open(target, "wb") as file,
            gzip.GzipFile("", "wb", 3, file, mtime=0) as packed,
        ):
            shutil.copyfileobj(source, packed)

    def forget(self) -> None:
        """Let go of memory and files, when all is said about the test."""
        files = [self.file, self.one_thread[1] if self.one_thread else None]
        self.trace = self.stacks = self.one_thread = self.file = None
        for file in files:
            if file is not None:
                with suppress(OSError):
                    REAL.unlink(file)

    def runs_of(self, kinds: list[Kind]) -> Iterator[Kind]:
        """These, and one more where the profiled run had threads that it could not see into."""
        yield from kinds
        if self.one_thread is not None and self.reason is None:
            yield "threads"

    def facts(self) -> dict[str, Any]:
        """What the trace's metadata shall say beside its events."""
        none = "no timed rounds (--torchprof-rounds=0)"
        instructions = [r.instructions for r in self.rounds if r.instructions is not None]
        return {
            "environment": self.machine.key,
            "accelerator": self.machine.accelerator,
            "torch": self.machine.torch_version,
            "wall_ms": statistics.median(r.wall_ns for r in self.rounds) / 1e6
            if self.rounds
            else none,
            "cpu_ms": statistics.median(r.cpu_ns for r in self.rounds) / 1e6
            if self.rounds
            else none,
            "instructions": int(statistics.median(instructions))
            if instructions
            else ("this machine has no hardware counter" if self.rounds else none),
            **CompileCount.now().since(self.compiled),
        }


class Run:
    """One run of the item, or one call of a measured callable."""

    def __init__(self, kind: Kind, recorder: Recorder, *, first: bool) -> None:
        self.kind = kind
        self.first = first
        self.recorder = recorder
        self._watch: Stopwatch | None = None
        self._capture: Capture | None = None
        self.duration_ns = 0

    def begin(self) -> None:
        """Start what this kind of run measures."""
        if self.kind in ("profile", "stacks", "threads"):
            capture = Capture(
                threads=self.recorder.plan.threads,
                stacks=self.kind == "stacks",
                first=self.first,
                everywhere=self.kind == "threads",
                watchdog=self.recorder.longest_ns > WATCHED_CALL_NS,
            )
            try:
                capture.start()
            except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
                capture.abandon()
                self.recorder.refuse(_said(error))
                return
            self._capture = capture
        else:
            self._watch = Stopwatch(first=self.first)
            self._watch.__enter__()

    def end(self) -> None:
        """Stop, and hand what was measured to the recorder."""
        recorder = self.recorder
        if self._watch is not None:
            self._watch.__exit__()
            result, self._watch = self._watch.result, None
            assert result is not None  # noqa: S101 - the stopwatch was just stopped
            self.duration_ns = result.wall_ns
            recorder.longest_ns = max(recorder.longest_ns, result.wall_ns)
            long = result.wall_ns > LONG_CALL_NS and not recorder.rounds and recorder.plan.rounds
            if self.kind == "round" or long:
                recorder.rounds.append(result)
        elif self._capture is not None:
            capture, self._capture = self._capture, None
            facts = recorder.facts()
            if self.kind == "threads":
                facts["no_memory"] = _NO_MEMORY
            try:
                trace, file = capture.stop(recorder.folder, facts)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
                capture.abandon()
                recorder.refuse(_said(error))
                return
            if self.kind == "stacks":
                recorder.stacks = trace
                REAL.unlink(file)
            elif self.kind == "threads":
                self._choose(trace, file)
            else:
                self._keep(trace, file, capture)

    def _keep(self, trace: Trace, file: Path, capture: Capture) -> None:
        """The trace, unless there were other threads: then a run that sees them must confirm it."""
        recorder = self.recorder
        # Idle threads are everywhere; that they did all the work shows in a trace without any.
        elsewhere = capture.other_threads and not _operators(trace)
        if not (capture.started_threads or elsewhere):
            recorder.trace, recorder.file = trace, file
        elif self.first:
            recorder.trace, recorder.file = trace, file
            if capture.started_threads:
                recorder.refuse(
                    "the test starts threads, and only another run can count what they do: "
                    "give it a warm-up run"
                )
        elif sees_threads():
            recorder.one_thread = trace, file
        elif capture.started_threads:
            recorder.file = file
            recorder.refuse("the test starts threads, and this torch cannot profile them")
        else:
            recorder.trace, recorder.file = trace, file

    def _choose(self, trace: Trace, file: Path) -> None:
        """The trace of all threads where it holds more than that of one, which has memory."""
        recorder = self.recorder
        assert recorder.one_thread is not None  # noqa: S101 - this run was asked for because of it
        other, other_file = recorder.one_thread
        recorder.one_thread = None
        if _operators(trace) <= _operators(other):
            trace, file, other_file = other, other_file, file
        recorder.trace, recorder.file = trace, file
        REAL.unlink(other_file)

    def cancel(self) -> None:
        """Stop without a result: the block raised, or measures a region of its own."""
        if self._watch is not None:
            self._watch.__exit__()
            self._watch = None
        if self._capture is not None:
            self._capture.abandon()
            self._capture = None

    def saw_profiler(self) -> None:
        """The test is about to start a profiler session: ours gives way."""
        self.recorder.refuse(OWN_PROFILER)
        if self._capture is not None:
            self._capture.step_aside()


def _operators(trace: Trace) -> int:
    return int((trace.selection & trace.is_kind(EventKind.OP)).sum())


def _said(error: Exception) -> str:
    """Our own errors speak for themselves; anything else is a fault to report."""
    if isinstance(error, TorchprofError):
        return str(error)
    return f"internal error, please report it: {type(error).__name__}: {error}"


class Runner:
    """Drives the runs of the current item; one for the session."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.rerunning = False
        #: Time limits are for the test, not for our reruns of it.
        self.timers_off = False
        #: A subtest of the current run has failed, which does not fail every kind of test.
        self.subtest_failed = False
        self._recorder: Recorder | None = None
        self._stash: dict[Any, Any] = {}
        self._first_teardown: FirstTeardown | None = None

    # ---------------------------------------------------------------- around the call phase

    def call(self, item: pytest.Item, recorder: Recorder) -> Generator[None, Any, Any]:
        """The outermost wrapper of the call phase: the first run, then all the others."""
        kinds = recorder.plan.kinds
        self._recorder, self._first_teardown = recorder, None
        self.subtest_failed = False
        self.run = Run(kinds[0], recorder, first=True)
        self._stash = dict(_storage(item))
        globs = dict(globs) if (globs := _globs(item)) is not None else None
        pid = REAL.getpid()
        try:
            result = yield
        finally:
            first, self.run = self.run, None
            recorder.runs += 1
        if REAL.getpid() != pid:
            recorder.refuse("the test has forked, and this is the child")
        if item.config.getoption("trace", default=False):
            recorder.refuse("--trace stops in every run of a test")
        failed = "has failed subtests" if self.subtest_failed else functional_failure(item)
        if failed is not None:
            recorder.refuse(failed)
        rest = kinds[1:]
        if first.duration_ns > LONG_CALL_NS and recorder.rounds:
            rest = [kind for kind in rest if kind != "round"]
        if recorder.reason is None and rest and not recorder.complete:
            error = self._rerun_all(item, recorder, rest, globs)
            if error is not None:
                raise error
        return result

    def measured_call(self) -> Generator[None, Any, Any]:
        """The innermost wrapper of the call phase: what is measured, and nothing else."""
        run = self.run
        if run is None:
            return (yield)
        with watching(run.saw_profiler):
            if not run.recorder.own_region:
                run.begin()
            try:
                result = yield
            except BaseException:
                run.cancel()
                raise
            run.end()
        return result

    def end_last_run(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """The outermost wrapper of the teardown phase: what a rerun has left is torn down."""
        recorder = self._recorder
        if self._first_teardown is not None and recorder is not None and not self.rerunning:
            self.rerunning = True
            try:
                if item in item.session._setupstate.stack:
                    with self._apart(item, recorder):
                        self._teardown_run(item)
                _restore(item, self._stash)
                self._first_teardown.show()
            finally:
                self.rerunning = False
        try:
            return (yield)
        finally:
            if not self.rerunning and recorder is not None:
                recorder.forget()
                self._recorder = None

    def teardown(self) -> Generator[None, Any, Any]:
        """The innermost wrapper of the teardown phase: the first run's output, and its error."""
        if self.rerunning or self._first_teardown is None:
            return (yield)
        first, self._first_teardown = self._first_teardown, None
        first.say()
        result = yield
        if first.error is not None:
            raise first.error
        return result

    def reported(self, report: pytest.TestReport) -> None:
        """Subtests report while the test runs."""
        if self.run is not None and report.failed:
            self.subtest_failed = True

    def entered_debugger(self) -> None:
        """Somebody looks at the test: once is enough."""
        if self._recorder is not None:
            self._recorder.refuse("a debugger was entered")

    # ---------------------------------------------------------------- reruns

    def _rerun_all(
        self,
        item: pytest.Item,
        recorder: Recorder,
        kinds: list[Kind],
        globs: dict[str, Any] | None,
    ) -> BaseException | None:
        """All further runs; the error is of the test's own comparison of measured numbers."""
        self.rerunning = True
        try:
            self._stash = {**self._stash, **_storage(item)}
            self._first_teardown = first = FirstTeardown(item)
            with first.kept():
                first.error = self._teardown_run(item)
            _restore(item, self._stash)
            if first.error is not None:
                recorder.refuse(_cannot(first.error))
                return None
            with self._apart(item, recorder):
                for number, kind in enumerate(recorder.runs_of(kinds)):
                    error = self._teardown_run(item) if number else None
                    if error is None:
                        _make_new(item, self._stash, globs)
                        recorder.start.restore()
                        error = self._run_again(item, recorder, kind)
                    else:
                        _restore(item, self._stash)
                    if error is not None and kind in ("profile", "threads") and recorder.stats_read:
                        return error
                    if error is not None:
                        recorder.refuse(_cannot(error))
                    if recorder.reason is not None:
                        return None
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            recorder.refuse(_said(error))
        finally:
            self.rerunning = False
        return None

    @contextmanager
    def _apart(self, item: pytest.Item, recorder: Recorder) -> Iterator[None]:
        """What happens within leaves no mark: no clock runs, and nothing is heard or changed."""
        world = World()
        with self._timers_stopped(item, recorder), _unnoticed(item, self.reported):
            try:
                yield
            finally:
                world.restore()

    @contextmanager
    def _timers_stopped(self, item: pytest.Item, recorder: Recorder) -> Iterator[None]:
        with _alarm_stopped() as alarm, _watchdogs_stopped(item, recorder, alarm=alarm):
            self.timers_off = True
            try:
                yield
            finally:
                self.timers_off = False

    def _teardown_run(self, item: pytest.Item) -> BaseException | None:
        """End the previous run as if another test of the same scope came next."""
        first = self._first_teardown is not None and not self._first_teardown.over
        folder = None if first else _tmp_path_of(item)
        # Other hooks of the teardown phase come once for each of the setup phase: those of the
        # first run in the teardown phase itself, where they are heard.
        hook = _own_hook(item, "pytest_runtest_teardown") if first else None
        try:
            (hook or item.ihook.pytest_runtest_teardown)(item=item, nextitem=_Sibling(item))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - any outcome of a run is caught here
            return error
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)  # the names of others count up from it
            gc.collect(1)  # what garbage has to say is said now: of a rerun's, nobody hears it
        return None

    def _run_again(
        self, item: pytest.Item, recorder: Recorder, kind: Kind
    ) -> BaseException | None:
        self.subtest_failed = False
        try:
            item.ihook.pytest_runtest_setup(item=item)
            self.run = Run(kind, recorder, first=False)
            recorder.runs += 1
            item.ihook.pytest_runtest_call(item=item)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - any outcome of a run is caught here
            return error
        finally:
            self.run = None
        collected = getattr(item, "_excinfo", None)  # unittest hands its failures over here
        if collected:
            return collected[0].value  # type: ignore[no-any-return]
        failed = "has failed subtests" if self.subtest_failed else functional_failure(item)
        return AssertionError(f"the rerun {failed}") if failed is not None else None


def _own_hook(item: pytest.Item, name: str) -> Callable[..., Any]:
    """The hook as only pytest's runner, capture and logging implement it."""
    manager = item.config.pluginmanager
    kept = [manager.get_plugin(n) for n in ("runner", "capturemanager", "logging-plugin")]
    others = [plugin for plugin in manager.get_plugins() if plugin not in kept]
    return manager.subset_hook_caller(name, others)


class FirstTeardown:
    """What the first run's teardown says, until the teardown phase, in which it belongs."""

    def __init__(self, item: pytest.Item) -> None:
        self.error: BaseException | None = None
        self.over = False
        self._item = item
        self._sections: list[tuple[str, str, str]] = []
        self._terminal = ""

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep from report and terminal what the block says."""
        known = self._item._report_sections
        before = len(known)
        terminal = _terminal(self._item)
        try:
            with ExitStack() as stack:
                stack.enter_context(_written_to(terminal, sink := io.StringIO()))
                if self._item.config.getoption("capture", "no") == "tee-sys":
                    stack.enter_context(muted(1, 2))
                yield
        finally:
            self._sections = known[before:]
            del known[before:]
            self._terminal = sink.getvalue()
            self.over = True

    def show(self) -> None:
        """Write to the terminal what was to go there."""
        terminal = _terminal(self._item)
        if self._terminal and terminal is not None:
            terminal.write(self._terminal, flush=True)

    def say(self) -> None:
        """Say it now, while the teardown phase's output is captured."""
        logging_plugin = self._item.config.pluginmanager.getplugin("logging-plugin")
        for _, key, text in self._sections:
            if key == "log" and logging_plugin is not None:
                logging_plugin.report_handler.stream.write(f"{text}\n")
            elif key in ("stdout", "stderr"):
                getattr(sys, key).write(text)


class World:
    """What a test may change for those after it, and a rerun of it must not."""

    def __init__(self) -> None:
        self._random = RandomState()
        self._filters = list(warnings.filters)
        self._folder: str | None = None
        with suppress(OSError):  # a test has deleted it
            self._folder = os.getcwd()  # noqa: PTH109 - nothing of this is a Path

    def restore(self) -> None:
        """Put it back."""
        self._random.restore()
        warnings.filters[:] = self._filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]
        if self._folder is not None:
            with suppress(OSError):
                os.chdir(self._folder)


def _cannot(error: BaseException) -> str:
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"cannot be run twice: {what}"


class _Sibling:
    """Stands for a next item of the same scope, so that only function scope is torn down."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def listchain(self) -> list[pytest.Collector]:
        return self._item.parent.listchain() if self._item.parent else []  # type: ignore[return-value]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._item, name)


def _storage(item: pytest.Item) -> dict[Any, Any]:
    return item.stash._storage


def _globs(item: pytest.Item) -> dict[str, Any] | None:
    """The names that a doctest sees."""
    return getattr(getattr(item, "dtest", None), "globs", None)


def _make_new(item: pytest.Item, stash: Mapping[Any, Any], globs: dict[str, Any] | None) -> None:
    """Undo what a run leaves on the item, as a fresh collection would."""
    if hasattr(item, "_initrequest"):
        item._initrequest()
    if isinstance(item, pytest.Function) and isinstance(item.parent, pytest.Class):
        for name in ("_instance", "_obj"):
            item.__dict__.pop(name, None)
    if globs is not None and (current := _globs(item)) is not None:
        current.clear()
        current.update(globs)
    _restore(item, stash)


def _restore(item: pytest.Item, stash: Mapping[Any, Any]) -> None:
    """Some plugins drop their stash entry in teardown, and expect it there in the next."""
    for key, value in stash.items():
        _storage(item).setdefault(key, value)


def _tmp_path_of(item: pytest.Item) -> Path | None:
    """The folder that pytest has made for this run, where it has."""
    request = getattr(item, "_request", None)
    for fixture in getattr(request, "_arg2fixturedefs", {}).get("tmp_path", ()):
        cached = getattr(fixture, "cached_result", None)
        if getattr(fixture.func, "__module__", "") == "_pytest.tmpdir" and cached:
            return cached[0] if isinstance(cached[0], Path) else None
    return None


# -------------------------------------------------------------------- silence


@contextmanager
def _unnoticed(
    item: pytest.Item, on_report: Callable[[pytest.TestReport], None]
) -> Iterator[None]:
    """Reruns leave no second copy of output, warnings, properties and subtest reports."""
    sections, properties = list(item._report_sections), list(item.user_properties)
    markers, words = list(item.own_markers), getattr(item.keywords, "_markers", {})
    keywords = dict(words)
    failed_subtests = _failed_subtests(item)
    counts = dict(failed_subtests)
    complaints = [(queue, list(queue)) for queue in _complaints(item)]
    suite = _suite_properties(item)
    known = len(suite)
    factory = getattr(item.config, "_tmp_path_factory", None)
    folders: dict[Any, int] = getattr(factory, "_next_number", {})
    numbers = dict(folders)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings(record=True))
        for quiet in (_no_output(item), _no_logs(item), _no_reports(item, on_report)):
            stack.enter_context(quiet)
        for queue, _ in complaints:
            queue.clear()
        try:
            yield
        finally:
            item._report_sections[:] = sections
            item.user_properties[:] = properties
            item.own_markers[:] = markers
            words.clear()
            words.update(keywords)
            failed_subtests.clear()
            failed_subtests.update(counts)
            for queue, earlier in complaints:
                queue.clear()
                queue.extend(earlier)
            del suite[known:]
            folders.clear()
            folders.update(numbers)
            if getattr(item, "_excinfo", None):
                vars(item)["_excinfo"] = None


def _terminal(item: pytest.Item) -> Any:
    """The terminal's writer, or None where there is no terminal."""
    reporter = item.config.pluginmanager.getplugin("terminalreporter")
    return getattr(reporter, "_tw", None)


@contextmanager
def _written_to(terminal: Any, sink: io.StringIO) -> Iterator[None]:
    """What is written to the terminal goes elsewhere: ``--setup-show``, live logs."""
    if terminal is None:
        yield
        return
    file, line = terminal._file, getattr(terminal, "_current_line", "")
    terminal._file = sink
    try:
        yield
    finally:
        terminal._file, terminal._current_line = file, line


@contextmanager
def _no_output(item: pytest.Item) -> Iterator[None]:
    """Nothing reaches the terminal, by whatever way, captured or not."""
    manager = item.config.pluginmanager.getplugin("capturemanager")
    capture = getattr(manager, "_global_capturing", None)
    # Where pytest captures file descriptors, it writes to copies of the real ones.
    streams = [getattr(capture, name, None) for name in ("out", "err")]
    copies = [getattr(stream, "targetfd_save", None) for stream in streams]
    with ExitStack() as stack:
        stack.enter_context(_written_to(_terminal(item), io.StringIO()))
        stack.enter_context(muted(1, 2, *[fd for fd in copies if isinstance(fd, int)]))
        for name in ("stdout", "stderr"):
            if not _on_terminal(getattr(sys, name)):
                stack.callback(setattr, sys, name, getattr(sys, name))
                setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
        yield


def _on_terminal(stream: Any) -> bool:
    try:
        return stream.fileno() in {1, 2}
    except (AttributeError, OSError, ValueError):
        return False


@contextmanager
def _no_logs(item: pytest.Item) -> Iterator[None]:
    """Nothing reaches pytest's live log and log file."""

    def nothing(_: object) -> bool:
        return False

    plugin = item.config.pluginmanager.getplugin("logging-plugin")
    handlers = [getattr(plugin, name, None) for name in ("log_cli_handler", "log_file_handler")]
    present = [handler for handler in handlers if handler is not None]
    for handler in present:
        handler.addFilter(nothing)
    try:
        yield
    finally:
        for handler in present:
            handler.removeFilter(nothing)


@contextmanager
def _no_reports(
    item: pytest.Item, on_report: Callable[[pytest.TestReport], None]
) -> Iterator[None]:
    """Subtests report while the test runs: nobody but us is told."""
    hooks: list[Any] = [
        item.config.hook.pytest_runtest_logreport,
        item.config.hook.pytest_exception_interact,
    ]
    # A hook that is seen from one folder makes its own caller with the same function.
    calls = [hook._hookexec for hook in hooks]

    def tell_us(name: str, _: object, arguments: Mapping[str, Any], *__: object) -> list[Any]:
        if name == "pytest_runtest_logreport":
            on_report(arguments["report"])
        return []

    for hook in hooks:
        hook._hookexec = tell_us
    try:
        yield
    finally:
        for hook, call in zip(hooks, calls, strict=True):
            hook._hookexec = call


def _failed_subtests(item: pytest.Item) -> dict[Any, int]:
    """Failed subtests by test, of the whole session."""
    try:
        from _pytest.subtests import failed_subtests_key
    except ImportError:
        return {}
    found: dict[Any, int] = item.config.stash.get(failed_subtests_key, {})  # type: ignore[arg-type]
    return found


def _complaints(item: pytest.Item) -> list[Any]:
    """What finalizers and threads have raised, and pytest has not yet warned of."""
    from _pytest import threadexception, unraisableexception

    keys = (
        getattr(threadexception, "thread_exceptions", None),
        getattr(unraisableexception, "unraisable_exceptions", None),
    )
    queues = [item.config.stash.get(key, None) for key in keys if key]
    return [queue for queue in queues if queue is not None]


def _suite_properties(item: pytest.Item) -> list[Any]:
    """The properties of JUnit's report as a whole, where one is written."""
    from _pytest.junitxml import xml_key

    found: list[Any] = getattr(item.config.stash.get(xml_key, None), "global_properties", [])
    return found


# -------------------------------------------------------------------- time limits


@contextmanager
def _alarm_stopped() -> Iterator[bool]:
    """Whether an alarm ran, pytest-timeout's or the test's own; it goes on where it was."""
    here = threading.current_thread() is threading.main_thread()
    if not (here and hasattr(signal, "setitimer")):
        yield False
        return
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    handler = signal.getsignal(signal.SIGALRM)
    try:
        yield left > 0
    finally:
        if handler is not None:
            signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left, interval)


@contextmanager
def _watchdogs_stopped(item: pytest.Item, recorder: Recorder, *, alarm: bool) -> Iterator[None]:
    """Stop the clocks that run in threads: pytest-timeout's second way, and faulthandler's."""
    used = (REAL.clock() - recorder.started) / 1e9
    with ExitStack() as stack:
        if not alarm:
            stack.enter_context(_timeout_stopped(item, used))
        limit = float(item.config.getini("faulthandler_timeout") or 0)
        if limit > 0:
            from _pytest import faulthandler as plugin

            ends = getattr(plugin, "get_exit_on_timeout_config_value", lambda _: False)
            faulthandler.cancel_dump_traceback_later()
            stack.callback(
                faulthandler.dump_traceback_later,
                max(limit - used, 0.001),
                file=item.config.stash[plugin.fault_handler_stderr_fd_key],
                exit=ends(item.config),
            )
        yield


@contextmanager
def _timeout_stopped(item: pytest.Item, used: float) -> Iterator[None]:
    module = sys.modules.get("pytest_timeout")
    settings_of: Callable[..., Any] | None = getattr(module, "_get_item_settings", None)
    hook = item.ihook
    settings = None
    if settings_of is not None and item.config.pluginmanager.is_registered(module):
        settings = settings_of(item)
    if settings is None or not settings.timeout or settings.timeout < 0 or settings.func_only:
        yield
        return
    hook.pytest_timeout_cancel_timer(item=item)
    try:
        yield
    finally:
        left = settings._replace(timeout=max(settings.timeout - used, 0.001))
        hook.pytest_timeout_set_timer(item=item, settings=left)


# -------------------------------------------------------------------- outcomes


def hide_us(error: pytest.ExceptionInfo[BaseException]) -> None:
    """Take our frames from a test's traceback: where no other is of interest, pytest shows all."""
    package = str(Path(__file__).parent)
    ours = {os.path.join(package, name) for name in ("runs.py", "session.py")}  # noqa: PTH118
    if any(str(entry.path) in ours for entry in error.traceback):
        error.traceback = error.traceback.filter(lambda entry: str(entry.path) not in ours)


def functional_failure(item: pytest.Item) -> str | None:
    """Why a call that raised nothing is no pass all the same: unittest, subtests."""
    if collected := getattr(item, "_excinfo", None):
        skipped = isinstance(collected[0].value, (pytest.skip.Exception, pytest.xfail.Exception))
        return "skipped" if skipped else "failed"
    return None
