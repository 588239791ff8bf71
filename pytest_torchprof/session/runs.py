"""The runs of a test: the first, which alone decides the outcome, and reruns."""

from __future__ import annotations

import ast
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_torchprof.capture.clock import Stopwatch, collect
from pytest_torchprof.capture.compiling import CUDA_GRAPHS, CompileCount
from pytest_torchprof.capture.limits import Limited
from pytest_torchprof.capture.lines import LineTracer, ModuleTracer
from pytest_torchprof.capture.machine import captures_graph, is_torch
from pytest_torchprof.capture.patches import REAL, muted
from pytest_torchprof.capture.processes import ticks_now
from pytest_torchprof.capture.profiler import OWN_PROFILER, Capture, passing_file
from pytest_torchprof.capture.sessions import OTHERS
from pytest_torchprof.capture.state import World
from pytest_torchprof.core.errors import CaptureError, error_line
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.render.notes import HOW_TO_LEAVE_OUT
from pytest_torchprof.session.faults import reason_for
from pytest_torchprof.session.isolation import (
    alarm_stopped,
    clocks_stopped,
    coverage_paused,
    folders_noted,
    print_for,
    recording,
    terminal_of,
    timeout_settings,
    unnoticed,
    write_to,
)
from pytest_torchprof.session.measurement import Captured, NoModules, Timed
from pytest_torchprof.session.plan import EXTRA_KINDS
from pytest_torchprof.session.seeds import plugins_reseeded
from pytest_torchprof.trace.facts import Facts

if TYPE_CHECKING:
    from pytest_torchprof.capture.clock import Regions
    from pytest_torchprof.capture.started import Handover
    from pytest_torchprof.session.measurement import Gatherer
    from pytest_torchprof.session.plan import RunKind


# ---- One run of a test: what each kind of run starts, stops and passes to the gatherer.

#: A shorter one cannot record enough to fill the machine's memory.
WATCHED_CALL_NS = 100_000_000

#: Why the trace of all threads has no memory events.
_NO_MEMORY = because(
    "memory_of_threads",
    ("torch records no memory while it profiles all threads, and this test works in several"),
)


#: In these runs, processes that the test starts capture themselves; never in the first run.
_OF_CHILDREN = frozenset({"profile", "threads", "tensors", "lines"})


class Run:
    """One run of the item, or one call of a measured callable."""

    def __init__(self, kind: RunKind, gatherer: Gatherer, *, first: bool) -> None:
        self.kind = kind
        self.first = first
        self.gatherer = gatherer
        self._watch: Stopwatch | None = None
        self._capture: Capture | None = None
        self._tracer: LineTracer | None = None
        self._compiled = CompileCount()
        #: How many CUDA graphs were captured before it; None if nobody counts.
        self._graphs: int | None = None

    def begin(self) -> None:
        """Start what this kind of run measures."""
        if not is_torch(sys.modules.get("torch")):
            self.gatherer.refuse(
                because("torch_replaced", "the test has put something else in the place of torch")
            )
            return
        begun = False
        try:
            self._begin()
            begun = True
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            self.gatherer.give_up(error)
        finally:
            if not begun:  # also after a timeout or an interrupt
                self.cancel()

    def end(self, *last: Callable[[], None]) -> None:
        """Stop, pass the result to the gatherer, then call ``last``."""
        try:
            if self._watch is not None:
                self._watch.stop()
            try:
                self._end()
            finally:
                self.cancel(*last)
                last = ()
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            self.gatherer.give_up(error)
        finally:
            if last or self._watch is not None or self._capture is not None:
                self.cancel(*last)

    @property
    def captures(self) -> bool:
        """Whether the profiler runs now."""
        return self._capture is not None

    @property
    def is_bound(self) -> bool:
        """Whether the test captures a CUDA graph, which the end of our session would break."""
        if self._capture is None or not captures_graph():
            return False
        self.gatherer.refuse(because(*Why.GRAPH_CAPTURE))
        return True

    @property
    def _like(self) -> RunKind:
        """The kind of run that this one captures like: with another seed, as the one before it."""
        return self.gatherer.captures.kind if self.kind == "reseeded" else self.kind

    def mark(self, name: str) -> AbstractContextManager[object] | None:
        """A context that marks or times a lap of a named region; None if it would go unseen."""
        if self._watch is not None:
            return self._watch.lap(name)
        return self._capture.mark(name) if self._capture is not None else None

    def _begin(self) -> None:
        self._graphs = CUDA_GRAPHS.captured
        if self.kind == "numbers":
            return
        if self.kind in ("profile", "modules", "threads", "tensors", "reseeded", "lines"):
            if self.kind == "lines":
                self._tracer = LineTracer(self.gatherer.own_files)
            elif self.kind == "modules":
                self._tracer = ModuleTracer()
            self._capture = Capture(
                threads=self.gatherer.plan.threads,
                first=self.first,
                everywhere=self._like == "threads",
                watchdog=self.first or self.gatherer.longest_ns > WATCHED_CALL_NS,
                tracer=self._tracer,
                idle_kernels=self.gatherer.idle_kernels,
                frozen=self.gatherer.frozen,
                handover=self._handover if not self.first and self.kind in _OF_CHILDREN else None,
                # A test that may read its numbers at once, or runs only once, gets them all now.
                tensors=self._like == "tensors" or self.first or self.gatherer.asked.own_region,
            )
            self._compiled = CompileCount.now()
            self._capture.start()
        elif self.kind != "pairs":  # in which the test's own comparisons are timed
            if self.first:
                self.gatherer.rounds.watch()  # it may be the only one that is timed
            threads = 1 if self.kind == "alone" else self.gatherer.rounds.gated_threads
            self._watch = Stopwatch(first=self.first, threads=threads)
            self._watch.__enter__()

    def _end(self) -> None:
        if self._watch is not None:
            self._watch.__exit__()
            result, self._watch = self._watch.result, None
            assert result is not None  # noqa: S101 - the stopwatch was just stopped
            recorded = CUDA_GRAPHS.captured_since(self._graphs)
            self.gatherer.take(Timed(self.kind, result, first=self.first, recorded=recorded))
        elif self._capture is not None:
            self.gatherer.keep(self._captured(self._capture), first=self.first)

    def _captured(self, capture: Capture) -> Callable[[], Captured | NoModules]:
        capture.end_region()
        may_compile = self.kind in ("profile", "reseeded")
        compiled = may_compile and CompileCount.now().compiled_since(self._compiled)
        facts = self.gatherer.facts()
        no_memory = _NO_MEMORY if self._like == "threads" else None
        facts |= Facts(packages=capture.packages.calls, no_memory=no_memory)
        try:
            with passing_file(self.gatherer.folder) as place:
                recording = capture.stop(place, facts)
                file = recording.hold()
        except CaptureError as error:
            if self.kind != "modules":
                raise
            reason = reason_for(error)
            return lambda: NoModules(reason)
        tracer = self._tracer
        captured = partial(
            Captured,
            self.kind,
            file=file,
            first=self.first,
            compiled=compiled,
            recorded=may_compile and not compiled and CUDA_GRAPHS.captured_since(self._graphs),
            started_threads=capture.started_threads,
            other_threads=capture.other_threads,
            marks=tracer.marks if tracer is not None and tracer.usable else None,
            gap=tracer.gap if tracer is not None else None,
            unseen=tracer.unseen if tracer is not None else frozenset(),
            children=capture.take_children(),
        )
        return lambda: captured(trace=recording.events())

    def _handover(self) -> Handover:
        from pytest_torchprof.capture.started import Handover

        return Handover(lambda: self.gatherer.job(locates=self.kind == "lines"))

    def cancel(self, *last: Callable[[], None]) -> None:
        """Close everything that is open, even if closing one fails, and call ``last``.

        There is no result: the block raised, or measures a region of its own.
        """
        watch, self._watch = self._watch, None
        capture, self._capture = self._capture, None
        closing: list[Callable[[], None]] = [watch.__exit__] if watch is not None else []
        closing += [capture.abandon] if capture is not None else []
        for close in (*closing, *last):
            try:
                close()
            except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
                self.gatherer.give_up(error)

    def saw_profiler(self) -> None:
        """End our profiler session, because the test is about to start one."""
        self.gatherer.refuse(OWN_PROFILER)
        if self._capture is not None:
            self._capture.step_aside()


# ---- A time limit for each run after the first, so that a run that blocks cannot stop the
# session.
#
# A test that never releases a lock, a port or a file passes once and blocks when it is rerun. A
# run that ends the process cannot be stopped, but Python's fault handler prints its name in a
# frame.

#: A rerun may take this many seconds plus this many times the first run. A profiled run of a
#: loop of small operators takes five times as long, with stacks seven times.
LEAST_S, TIMES = 60.0, 20
#: A shorter pytest-timeout limit applies, but at least this many times the first run.
TIMES_OF_TIMEOUT = 10
_RUN_NAMES = {
    "warmup": "warm-up run",
    "round": "timed run",
    "alone": "timed run of one thread",
    "pairs": "run that compares callables",
    "profile": "profiled run",
    "modules": "run that marks modules",
    "threads": "profiled run of all threads",
    "numbers": "run that compares regions",
    "tensors": "run that identifies tensors",
    "reseeded": "run with another seed",
    "lines": "run that locates lines",
    "": "teardown of an extra run",
}


class Overdue(BaseException):
    """A run did not finish within its limit; raised wherever the run is, like an interrupt."""

    def __init__(self, run: str, limit_s: float) -> None:
        self.reason = because(
            "rerun_overdue",
            (
                "cannot be run twice: its {run} did not finish within {limit_s:.2g} s; "
                "@pytest.mark.torchprof(enabled=False) leaves the test out"
            ),
            run=run,
            limit_s=limit_s,
        )
        super().__init__(self.reason.text)


class Deadline:
    """The time limit for extra runs of one test, whose first run took ``first_s`` seconds."""

    def __init__(self, item: pytest.Item, first_s: float) -> None:
        self._nodeid = item.nodeid
        #: Which extra run of which test Ctrl-C interrupted, if any.
        self.interrupted: str | None = None
        #: Whether the last run has failed; what it has started is ended after its teardown.
        self._failed = False
        self._began = 0
        # The frame's name tells tools that print stacks which test ends the process.
        name = f"an extra run of {item.nodeid}; {HOW_TO_LEAVE_OUT}".encode("ascii", "replace")
        self._call = FunctionType(_call.__code__.replace(co_name=name.decode()), {})
        self.limit_s = LEAST_S + TIMES * first_s
        if (theirs := timeout_settings(item)) is not None:
            self.limit_s = min(self.limit_s, max(float(theirs.timeout), TIMES_OF_TIMEOUT * first_s))

    def run(self, kind: str, function: Callable[[], None], *, more_s: float = 0.0) -> None:
        """Call the function, a run of this kind or, if the kind is empty, a teardown.

        ``more_s``: seconds that the run may take longer, because the test asks for them. Processes
        that it has started are ended if it did not finish, and after the teardown if it failed.

        Raises:
            Overdue: it did not finish in time. Errors of the function pass through.
        """
        what = _RUN_NAMES.get(kind, kind)
        if kind:
            self._began, self._failed = ticks_now(), True
        try:
            limit_s = self.limit_s + more_s
            with Limited(limit_s, lambda: Overdue(what, limit_s)):
                self._call(function)
            self._failed &= not kind
        except Overdue:
            self._end_processes()  # for which the teardown might wait
            raise
        except KeyboardInterrupt:
            self.interrupted = (
                f"{self._nodeid} passed, and was interrupted in an extra run by torchprof, "
                f"its {what}; {HOW_TO_LEAVE_OUT}"
            )
            raise
        finally:
            if self._failed and not kind:
                self._end_processes()

    def note_failure(self) -> None:
        """The last run has failed, though it has not raised."""
        self._failed = True

    def _end_processes(self) -> None:
        from pytest_torchprof.capture.started import end_processes

        end_processes(self._began)


def _call(function: Callable[[], None]) -> None:
    function()


# ---- The outcome of a run, beyond what it raised.

_FIXTURE = "torchprof"


def cannot_rerun(error: BaseException, kind: str = "", threads: int | None = None) -> Reason:
    """Why a test is not profiled after a run of this kind, or the first teardown, raised."""
    what = error_line(error)
    if isinstance(error, Overdue):
        return error.reason
    if kind == "first":
        return because("teardown_failed", "teardown failed: {error}", error=what)
    if kind == "profile" and threads is not None and isinstance(error, AssertionError):
        return because(
            "fails_when_profiled",
            (
                "fails in the profiled run, which has {threads: intra-op thread} "
                "(--torchprof-threads=keep leaves yours): {error}"
            ),
            threads=threads,
            error=what,
        )
    return because("rerun_raised", "cannot be run twice: {error}", error=what)


def hide_own_frames(error: pytest.ExceptionInfo[BaseException]) -> None:
    """Hide our frames in a test's traceback; if no other frames are left, pytest shows all."""
    ours = {str(Path(__file__).parent / name) for name in ("hooks.py", "runs.py", "seeds.py")}
    if any(str(entry.path) in ours for entry in error.traceback):
        error.traceback = error.traceback.filter(lambda entry: str(entry.path) not in ours)


def functional_failure(item: pytest.Item, *, subtests: bool = False) -> Reason | None:
    """Why a test failed although its call raised nothing: unittest, or failed ``subtests``."""
    if subtests:
        return because(*Why.SUBTESTS_FAILED)
    if collected := getattr(item, "_excinfo", None):
        if isinstance(collected[0].value, pytest.xfail.Exception):
            return because(*Why.XFAILED)
        skipped = isinstance(collected[0].value, pytest.skip.Exception)
        return because(*(Why.SKIPPED if skipped else Why.FAILED))
    return None


def is_strict_xfail(item: pytest.Item) -> bool:
    """Whether pytest will fail the test because it passes."""
    from _pytest.skipping import xfailed_key

    xfailed = item.stash.get(xfailed_key, None)
    return bool(xfailed and xfailed.strict and not item.config.getoption("runxfail", False))


def may_measure_part(item: pytest.Item) -> bool:
    """Whether the test function itself enters, calls or hands on its argument ``torchprof``.

    Reading an attribute of it measures nothing, and a named region belongs to the whole test.
    """
    function = getattr(item, "function", None)
    function = inspect.unwrap(function) if function is not None else None
    code = getattr(function, "__code__", None)
    if (
        code is None
        or _FIXTURE not in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    ):
        return False
    try:
        source = inspect.getsource(code)
        tree = ast.parse(f"if True:\n{source}" if source[0].isspace() else source)
    except (OSError, SyntaxError):  # generated, or changed since
        return False
    nodes = list(ast.walk(tree))
    read = {id(node.value) for node in nodes if isinstance(node, ast.Attribute | ast.Subscript)}
    read |= {id(node.func) for node in nodes if isinstance(node, ast.Call) and _names(node)}
    named = (node for node in nodes if isinstance(node, ast.Name) and node.id == _FIXTURE)
    return any(id(name) not in read for name in named)


def _names(call: ast.Call) -> bool:
    """Whether the first argument is a text: ``torchprof("decode")``."""
    first = call.args[0] if call.args else None
    return isinstance(first, ast.JoinedStr) or (
        isinstance(first, ast.Constant) and isinstance(first.value, str)
    )


# ---- Say on a terminal which run a slow test is in; in a log, nothing.

#: Tests that are done within this many seconds say nothing.
AFTER_S = 3.0
#: With less room than this in the line, nothing is said.
_ROOM: Final = 12
_WORDS: Final[dict[RunKind, str]] = {
    "warmup": "warm-up",
    "round": "timed",
    "alone": "timed in one thread",
    "pairs": "compared",
    "profile": "profiled",
    "modules": "profiled by module",
    "threads": "profiled with other threads",
    "numbers": "for the numbers that the test asks for",
    "tensors": "to identify tensors",
    "reseeded": "with another seed",
    "lines": "to find your lines",
}


# Bound here, since tests may replace them.
_write, _dup, _close = os.write, os.dup, os.close


class Progress:
    """Writes behind pytest's own line on a terminal, and takes it away again."""

    def __init__(self) -> None:
        self._writer: Any = None
        self._terminal = -1
        self._shown = 0

    def open(self, config: pytest.Config) -> None:
        """Find the terminal, if there is one, while nothing captures the descriptor of stdout."""
        self._writer = _writer_of(config)
        if self._writer is not None and sys.__stdout__ is not None:
            with suppress(OSError, ValueError):
                self._terminal = _dup(sys.__stdout__.fileno())

    def show(self, number: int, kind: RunKind, since_ns: int) -> None:
        """Name the run that begins, if the test began long enough ago."""
        if self._terminal < 0 or REAL.clock() - since_ns < AFTER_S * 1e9:
            return
        self.clear()
        room = self._writer.fullwidth - self._writer.width_of_current_line - 1
        text = f" run {number}, {_WORDS[kind]} …"[:room]
        if room >= _ROOM:
            self._shown = len(text)
            self._write(f"{text}{chr(8) * len(text)}")

    def clear(self) -> None:
        """Take away what was shown."""
        if self._shown:
            blank, self._shown = self._shown, 0
            self._write(f"{' ' * blank}{chr(8) * blank}")

    def _write(self, text: str) -> None:
        with suppress(OSError):  # the terminal has gone
            _write(self._terminal, text.encode(errors="replace"))

    def close(self) -> None:
        """Give the terminal back."""
        self.clear()
        if self._terminal >= 0:
            _close(self._terminal)
            self._terminal = -1


def _writer_of(config: pytest.Config) -> Any:
    """Pytest's writer, if it writes to a terminal that tests do not write to."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    shared = config.getoption("capture", "fd") != "fd" or config.getoption("verbose", 0) > 1
    if reporter is None or shared or not getattr(reporter, "isatty", False):
        return None
    return reporter._tw  # nothing public tells the column


# ---- A pytest item's state before a run, to be restored before the next.


class ItemState:
    """What an item holds before its first run: its stash, and a doctest's globals."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._stash = dict(item.stash._storage)
        globs = _globs(item)
        self._globs = dict(globs) if globs is not None else None

    def add_stash(self) -> None:
        """Also keep what plugins have put into the stash since."""
        self._stash = {**self._stash, **self._item.stash._storage}

    def renew(self) -> None:
        """Undo what a run leaves on the item, as a fresh collection would."""
        item = self._item
        if hasattr(item, "_initrequest"):
            item._initrequest()
        if isinstance(item, pytest.Function) and isinstance(item.parent, pytest.Class):
            for name in ("_instance", "_obj"):
                item.__dict__.pop(name, None)
        if self._globs is not None and (current := _globs(item)) is not None:
            current.clear()
            current.update(self._globs)
        self.restore_stash()

    def restore_stash(self) -> None:
        """Restore stash entries that plugins delete in teardown and expect in the next one."""
        storage = self._item.stash._storage
        for key, value in self._stash.items():
            storage.setdefault(key, value)


class Sibling:
    """Stands for a next item of the same scope, so that only function scope is torn down."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def listchain(self) -> list[pytest.Collector]:
        """The collectors shared with the item."""
        return self._item.parent.listchain() if self._item.parent else []  # type: ignore[return-value]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._item, name)


def _globs(item: pytest.Item) -> dict[str, Any] | None:
    """A doctest's globals."""
    return getattr(getattr(item, "dtest", None), "globs", None)


def tmp_path_of(item: pytest.Item) -> Path | None:
    """The ``tmp_path`` folder that pytest made for this run, if any."""
    request = getattr(item, "_request", None)
    for fixture in getattr(request, "_arg2fixturedefs", {}).get("tmp_path", ()):
        cached = getattr(fixture, "cached_result", None)
        if getattr(fixture.func, "__module__", "") == "_pytest.tmpdir" and cached:
            return cached[0] if isinstance(cached[0], Path) else None
    return None


# ---- Output of the first run's teardown, kept until the teardown phase.


class OwnHook:
    """The teardown hook, limited to pytest's runner, capture and logging plugins."""

    def __init__(self) -> None:
        self._plugins: set[Any] = set()
        self._hook: Callable[..., Any] | None = None

    def of(self, item: pytest.Item) -> Callable[..., Any]:
        """The hook's caller; made again after plugins were registered."""
        manager = item.config.pluginmanager
        plugins = manager.get_plugins()
        if self._hook is None or plugins != self._plugins:
            kept = [manager.get_plugin(n) for n in ("runner", "capturemanager", "logging-plugin")]
            others = [plugin for plugin in plugins if plugin not in kept]
            self._plugins = plugins
            self._hook = manager.subset_hook_caller("pytest_runtest_teardown", others)
        return self._hook


class FirstTeardown:
    """The first run's teardown error and output, kept until the teardown phase."""

    def __init__(self, item: pytest.Item) -> None:
        self.error: BaseException | None = None
        self.over = False
        self._item = item
        self._sections: list[tuple[str, str, str]] = []
        self._terminal = ""

    def keep(self, teardown: Callable[[], BaseException | None]) -> None:
        """Tear down; the error and the output do not reach report and terminal yet."""
        known = self._item._report_sections
        before = len(known)
        terminal, sink = terminal_of(self._item), StringIO()
        try:
            with ExitStack() as undo:
                write_to(terminal, sink, undo)
                if self._item.config.getoption("capture", "no") == "tee-sys":
                    undo.enter_context(muted(1, 2))
                self.error = teardown()
        finally:
            self._sections = known[before:]
            del known[before:]
            self._terminal = sink.getvalue()
            self.over = True

    def show(self) -> None:
        """Write to the terminal what was meant for it, and what was captured once more, while the
        teardown phase is captured.
        """
        terminal = terminal_of(self._item)
        if self._terminal and terminal is not None:
            captures = self._item.config.pluginmanager.getplugin("capturemanager")
            with captures.global_and_fixture_disabled() if captures else nullcontext():
                terminal.write(self._terminal, flush=True)
        logging_plugin = self._item.config.pluginmanager.getplugin("logging-plugin")
        for _, key, text in self._sections:
            if key == "log" and logging_plugin is not None:
                logging_plugin.report_handler.stream.write(f"{text}\n")
            elif key in ("stdout", "stderr"):
                getattr(sys, key).write(text)


# ---- Rerun a whole item, with fixtures set up again, unnoticed by other plugins.
#
# All runs happen inside the call phase of the run that pytest asked for, so that plugins which
# drive the protocol (xdist, rerun and fork plugins) see one setup, one call and one teardown.


class Runner:
    """Drives the runs of the current item; one per session."""

    #: The item's state before its first run.
    _state: ItemState

    def __init__(self) -> None:
        self.run: Run | None = None
        self.progress = Progress()
        #: Set around the whole session, for example by cProfile, not by a test.
        self._session_hook = sys.getprofile()
        self.rerunning = False
        #: Time limits apply to the test, not to reruns.
        self.timers_off = False
        #: A subtest of the current run has failed, which need not fail the test itself.
        self.subtest_failed = False
        #: For a test whose calls `torchprof ab` is timing.
        self.regions: Regions | None = None
        self._gatherer: Gatherer | None = None
        self._first_teardown: FirstTeardown | None = None
        self._deadline: Deadline | None = None
        self._own_hook = OwnHook()
        #: The last rerun's error is of its setup or call, not of its teardown.
        self._failed_in_call = False
        #: Temporary folders that only reruns have created.
        self._folders: list[Path] = []

    @property
    def interrupted(self) -> str | None:
        """A sentence on the rerun that was interrupted, if any."""
        return self._deadline.interrupted if self._deadline is not None else None

    # ---------------------------------------------------------------- around the call phase

    def call(self, item: pytest.Item, gatherer: Gatherer) -> Generator[None, Any, Any]:
        """The outermost wrapper of the call phase: the first run, then all the others."""
        self._gatherer, self._first_teardown = gatherer, None
        self.subtest_failed = False
        self.run = Run(gatherer.plan.kinds[0], gatherer, first=True)
        self._state = ItemState(item)
        pid = REAL.getpid()
        try:
            result = yield
        finally:
            self.run = None
            gatherer.runs += 1
        error = None
        try:
            error = self._after_first(item, gatherer, pid)
        except Exception as fault:  # noqa: BLE001 - a fault of ours must not fail the test
            gatherer.give_up(fault)
        if error is not None:
            raise error
        return result

    def _after_first(self, item: pytest.Item, gatherer: Gatherer, pid: int) -> BaseException | None:
        """Do all further runs, unless something prevents them; see `_rerun_all`."""
        if REAL.getpid() != pid:
            gatherer.refuse(
                because("has_forked", "the test has forked, and this is the child"), timed=False
            )
        if item.config.getoption("trace", default=False):
            gatherer.refuse(because("trace_option", "--trace stops in every run of a test"))
        failed = functional_failure(item, subtests=self.subtest_failed)
        if failed is None and is_strict_xfail(item):
            failed = because(
                "strict_xfail_passed", "passed against a strict xfail, which is a failure"
            )
        if failed is not None:
            gatherer.refuse(failed, timed=False)
        if "benchmark" in getattr(item, "fixturenames", ()):
            gatherer.refuse(
                because("benchmark_fixture", "pytest-benchmark repeats it as often as time allows")
            )
        if sys.getprofile() is not self._session_hook:
            gatherer.refuse(
                because(
                    "own_profile_hook",
                    "the test uses sys.setprofile itself, which times and stacks disturb",
                )
            )
        parts = gatherer.asked.own_region or gatherer.asked.names_regions
        if not parts and may_measure_part(item):
            gatherer.refuse(
                because(
                    "region_not_reached",
                    (
                        "the test measures a part through the torchprof fixture, but never reached "
                        "it"
                    ),
                ),
                timed=False,
            )
        if gatherer.reason is not None:
            return None
        self._deadline = Deadline(item, (REAL.clock() - gatherer.started_ns) / 1e9)
        error = self._rerun_all(item, gatherer)
        if gatherer.runs > 1 and not gatherer.asked.complete:  # else the first has printed them
            print_for(item, "".join(gatherer.asked.tables))
        return error

    def measured_call(self, _: pytest.Item) -> Generator[None, Any, Any]:
        """The innermost wrapper of the call phase: exactly what is measured."""
        run = self.run
        if run is None:
            return (yield)
        try:
            OTHERS.tell(run.saw_profiler)
            if not run.gatherer.asked.own_region:
                run.begin()
            result = yield
        except BaseException:  # a time limit or an interrupt may come before the test begins
            run.cancel(partial(OTHERS.tell, None))
            raise
        run.end(partial(OTHERS.tell, None))
        return result

    def teardown(self) -> Generator[None, Any, Any]:
        """The innermost wrapper of the teardown phase: reports the first run's output and error."""
        first, gatherer = self._first_teardown, self._gatherer
        if self.rerunning or gatherer is None:
            return (yield)
        self._first_teardown = self._gatherer = None
        try:
            if first is not None:
                with _safely(gatherer):
                    first.show()
            result = yield
        finally:
            with _safely(gatherer):
                gatherer.forget()
        if first is not None and first.error is not None:
            raise first.error
        return result

    def reported(self, report: pytest.TestReport) -> None:
        """Note failed subtests, which are reported while the test runs."""
        if self.run is not None and report.failed:
            self.subtest_failed = True

    def entered_debugger(self) -> None:
        """Do not rerun a test that is being debugged."""
        if self._gatherer is not None:
            self._gatherer.refuse(because("debugger", "a debugger was entered"), timed=False)

    # ---------------------------------------------------------------- reruns

    def _rerun_all(
        self,
        item: pytest.Item,
        gatherer: Gatherer,
    ) -> BaseException | None:
        """Do all further runs; return the error of the test's own comparison of numbers, if any."""
        self.rerunning = True
        of_pairs: BaseException | None = None
        try:
            late = self._end_first(item)
            if late is not None:
                gatherer.refuse(cannot_rerun(late, "first"))
                return None
            gatherer.settle()
            with self._apart(item, gatherer):
                for number, kind in enumerate(self._further(item, gatherer)):
                    self.progress.show(number + 2, kind, gatherer.started_ns)
                    with gatherer.extra() if kind in EXTRA_KINDS else nullcontext():
                        error = self._run_again(item, gatherer, kind)
                        in_call = self._failed_in_call
                        if kind == "pairs" and in_call and gatherer.asked.is_comparing:
                            return error  # of a callable, which other runs call too
                        if kind == "pairs" and in_call and gatherer.asked.has_compared:
                            of_pairs, error = error, None  # the numbers are still wanted
                        decides = kind in ("profile", "threads", "numbers")
                        if error is not None and decides and gatherer.asked.stats_read:
                            return of_pairs or error
                        if error is not None:
                            failing = kind if in_call else ""
                            gatherer.refuse(cannot_rerun(error, failing, gatherer.plan.threads))
                        if gatherer.reason is not None and kind != "alone":
                            return of_pairs
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            gatherer.give_up(error)
        finally:
            self.rerunning = False
            self.progress.clear()
            self._state.restore_stash()  # for the teardown phase
            while self._folders:
                shutil.rmtree(self._folders.pop(), ignore_errors=True)
        return of_pairs

    @contextmanager
    def _apart(self, item: pytest.Item, gatherer: Gatherer) -> Iterator[None]:
        """Isolate what happens within: time limits stop, output is hidden, changes are undone."""
        world = World()
        gatherer.seeds.note_first(item, world.random)

        def exclude() -> None:
            gatherer.started_ns += REAL.clock() - now

        with ExitStack() as undo:
            alarm = alarm_stopped(undo)
            now = REAL.clock()
            undo.callback(exclude)
            clocks_stopped(item, (now - gatherer.started_ns) / 1e9, undo, alarm=alarm)
            undo.callback(setattr, self, "timers_off", False)
            self.timers_off = True
            unnoticed(item, self.reported, undo)
            coverage_paused(undo)
            folders_noted(item, self._folders, undo)
            plugins_reseeded(item, undo)
            try:
                yield
            finally:
                world.restore()

    def _further(self, _: pytest.Item, gatherer: Gatherer) -> Iterable[RunKind]:
        """The runs after the first, each chosen by what is known before it."""
        if gatherer.asked.complete:
            return gatherer.pairs_runs
        rest: list[RunKind] = gatherer.plan.kinds[1:]
        if gatherer.captures.wants_another:  # it compiled in what was meant to be the only run
            rest = ["profile", *rest]
        if gatherer.rounds.has_long:
            rest = [kind for kind in rest if kind != "round"]
        # Where the first run is the only one, nothing asks for another.
        return gatherer.runs_of(rest) if rest and gatherer.reason is None else ()

    def _teardown_run(self, item: pytest.Item) -> BaseException | None:
        """End the previous run as if another test of the same scope came next."""
        first = self._first_teardown is not None and not self._first_teardown.over
        folder = None if first else tmp_path_of(item)
        # Other plugins' teardown hooks run once per setup; for the first run, that is in the real
        # teardown phase, where their output counts.
        hook = self._own_hook.of(item) if first else None
        try:
            teardown = hook or item.ihook.pytest_runtest_teardown
            if first or self._deadline is None:
                teardown(item=item, nextitem=Sibling(item))
            else:
                self._deadline.run("", lambda: teardown(item=item, nextitem=Sibling(item)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - any outcome of a run is caught here
            return error
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)  # later names count up from it
            collect(1)  # finalizers run now, while a rerun's output is hidden
        return None

    def _end_first(self, item: pytest.Item) -> BaseException | None:
        """Tear the first run down, once."""
        if self._first_teardown is not None:
            return None
        self._state.add_stash()
        self._first_teardown = first = FirstTeardown(item)
        first.keep(lambda: self._teardown_run(item))
        return first.error

    def _run_again(
        self, item: pytest.Item, gatherer: Gatherer, kind: RunKind
    ) -> BaseException | None:
        """One more run with its fixtures, from setup to teardown, and then its numbers."""
        self._state.renew()
        gatherer.seeds.set(item, other=kind == "reseeded")
        error = self._setup_and_call(item, gatherer, kind)
        self._failed_in_call = error is not None
        late = self._teardown_run(item)
        gatherer.settle()
        if gatherer.plan.checks_stable and kind in ("reseeded", "profile"):
            gatherer.seeds.note_end(other=kind == "reseeded")
        return error or late

    def _setup_and_call(
        self, item: pytest.Item, gatherer: Gatherer, kind: RunKind
    ) -> BaseException | None:
        self.subtest_failed = False
        gatherer.asked.tables.clear()
        printed: list[str] = []
        more_s = 0.0
        if kind in ("round", "alone"):
            gatherer.rounds.before_round(alone=kind == "alone", collected=True)  # by a teardown
        elif kind == "pairs":
            gatherer.asked.pairs_run = True
            more_s = gatherer.asked.pairs_s
        assert self._deadline is not None  # noqa: S101 - set before the first rerun
        try:
            with recording(item, printed) if gatherer.asked.table_asked else nullcontext():
                run = Run(kind, gatherer, first=False)

                def phases() -> None:
                    item.ihook.pytest_runtest_setup(item=item)
                    self.run = run
                    gatherer.runs += 1
                    item.ihook.pytest_runtest_call(item=item)

                self._deadline.run(kind, phases, more_s=more_s)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - any outcome of a run is caught here
            return error
        finally:
            self.run = None
            gatherer.asked.keep_printed("".join(printed))
        if collected := getattr(item, "_excinfo", None):  # where unittest puts its failures
            self._deadline.note_failure()
            return collected[0].value  # type: ignore[no-any-return]
        failed = functional_failure(item, subtests=self.subtest_failed)
        return AssertionError(f"the rerun {failed.text}") if failed is not None else None


@contextmanager
def _safely(gatherer: Gatherer) -> Iterator[None]:
    """Context for code that must not fail the test, which is already being reported."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
        gatherer.give_up(error)


# ---- The hooks through which a `Runner` sees a test, for every plugin class that runs tests.


class RunningHooks:
    """Base class of a plugin that has a `Runner` and makes it `call` its tests."""

    runner: Runner

    @pytest.hookimpl(wrapper=True, trylast=True, specname="pytest_runtest_call")
    def pytest_measured_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Measure the innermost part of the call phase."""
        return (yield from self.runner.measured_call(item))

    @pytest.hookimpl(wrapper=True, trylast=True, specname="pytest_runtest_teardown")
    def pytest_first_teardown(self) -> Generator[None, Any, Any]:
        """Report the first run's teardown."""
        return (yield from self.runner.teardown())

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self) -> bool | None:
        """Set no pytest-timeout limit during reruns."""
        return True if self.runner.timers_off else None

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_cancel_timer(self) -> bool | None:
        """Cancel no pytest-timeout limit during reruns."""
        return True if self.runner.timers_off else None
