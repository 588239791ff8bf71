"""Running an item again, whole, with fixtures set up anew, and none the wiser.

All runs happen inside the call phase of the one run that pytest asked for, so that whoever drives
the protocol (xdist, rerun and fork plugins) sees one setup, one call and one teardown.
"""

from __future__ import annotations

import gc
import io
import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_torchprof.capture.profiler import OTHERS
from pytest_torchprof.capture.real import REAL, muted
from pytest_torchprof.capture.shelter import SHELTER
from pytest_torchprof.capture.state import World
from pytest_torchprof.capture.undo import Undo
from pytest_torchprof.session.one_run import Run
from pytest_torchprof.session.other_plugins import (
    coverage_paused,
    folders_noted,
    snapshots_uncounted,
)
from pytest_torchprof.session.plan import EXTRA_KINDS
from pytest_torchprof.session.rerun_deadline import Deadline, Overdue
from pytest_torchprof.session.silence import (
    alarm_stopped,
    clocks_stopped,
    heard,
    say,
    terminal_of,
    unnoticed,
    write_to,
)

if TYPE_CHECKING:
    from pytest_torchprof.capture.timed_calls import Regions
    from pytest_torchprof.session.gather import Gatherer
    from pytest_torchprof.session.plan import Kind


class Runner:
    """Drives the runs of the current item; one for the session."""

    def __init__(self) -> None:
        self.run: Run | None = None
        #: Set around the whole session, by cProfile for example; not the test's.
        self._session_hook = sys.getprofile()
        self.rerunning = False
        #: Time limits are for the test, not for our reruns of it.
        self.timers_off = False
        #: A subtest of the current run has failed, which does not fail every kind of test.
        self.subtest_failed = False
        #: Of a test whose calls are being timed by `torchprof ab`.
        self.regions: Regions | None = None
        self._gatherer: Gatherer | None = None
        self._stash: dict[Any, Any] = {}
        self._first_teardown: FirstTeardown | None = None
        self._deadline: Deadline | None = None
        self._own_hook = _OwnHook()
        #: Temporary folders that only further runs have asked for.
        self._folders: list[Path] = []

    @property
    def interrupted(self) -> str | None:
        """Which further run has been interrupted, in a sentence."""
        return self._deadline.interrupted if self._deadline is not None else None

    # ---------------------------------------------------------------- around the call phase

    def call(self, item: pytest.Item, gatherer: Gatherer) -> Generator[None, Any, Any]:
        """The outermost wrapper of the call phase: the first run, then all the others."""
        self._gatherer, self._first_teardown = gatherer, None
        self.subtest_failed = False
        with SHELTER:
            self.run = Run(gatherer.plan.kinds[0], gatherer, first=True)
            self._stash = dict(_storage(item))
            globs = globs_of(item)
        pid = REAL.getpid()
        try:
            result = yield
        finally:
            self.run = None
            gatherer.count_run()
        error = None
        with SHELTER:
            try:
                error = self._after_first(item, gatherer, globs, pid)
            except Exception as fault:  # noqa: BLE001 - a fault of ours must not fail the test
                gatherer.give_up(fault)
        if error is not None:
            raise error
        return result

    def _after_first(
        self, item: pytest.Item, gatherer: Gatherer, globs: dict[str, Any] | None, pid: int
    ) -> BaseException | None:
        """All further runs, where nothing speaks against them; see `_rerun_all`."""
        if REAL.getpid() != pid:
            gatherer.refuse("the test has forked, and this is the child", timed=False)
        if item.config.getoption("trace", default=False):
            gatherer.refuse("--trace stops in every run of a test")
        failed = "has failed subtests" if self.subtest_failed else functional_failure(item)
        if failed is None and is_strict_xfail(item):
            failed = "passed against a strict xfail, which is a failure"
        if failed is not None:
            gatherer.refuse(failed, timed=False)
        if "benchmark" in getattr(item, "fixturenames", ()):
            gatherer.refuse("pytest-benchmark repeats it as often as time allows")
        if _uses_setprofile(item, self._session_hook):
            gatherer.refuse("the test uses sys.setprofile itself, which times and stacks disturb")
        rest = gatherer.plan.kinds[1:]
        if gatherer.compiled_late:  # in the one run that there was to be
            rest = ["profile", *rest]
        if gatherer.rounds.has_long:
            rest = [kind for kind in rest if kind != "round"]
        if gatherer.reason is None and rest and not gatherer.asked.complete:
            self._deadline = Deadline(item, (REAL.clock() - gatherer.started_ns) / 1e9)
            error = self._rerun_all(item, gatherer, rest, globs)
            say(item, "".join(gatherer.asked.tables))
            return error
        return None

    def measured_call(self, _: pytest.Item) -> Generator[None, Any, Any]:
        """The innermost wrapper of the call phase: what is measured, and nothing else."""
        run = self.run
        if run is None:
            return (yield)
        try:
            with SHELTER:
                OTHERS.tell(run.saw_profiler)
                if not run.gatherer.asked.own_region:
                    run.begin()
            result = yield
        except BaseException:  # a time limit or an interrupt may come before the test begins
            run.cancel(_tell_nobody)
            raise
        run.end(_tell_nobody)
        return result

    def end_last_run(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """The outermost wrapper of the teardown phase: what a rerun has left is torn down."""
        gatherer = self._gatherer
        if self._first_teardown is not None and gatherer is not None and not self.rerunning:
            self.rerunning = True
            try:
                with SHELTER:
                    if item in item.session._setupstate.stack:
                        with self._apart(item, gatherer):
                            self._teardown_run(item)
                    while self._folders:
                        shutil.rmtree(self._folders.pop(), ignore_errors=True)
                    _restore(item, self._stash)
                    self._first_teardown.show()
            except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
                gatherer.give_up(error)
            finally:
                self.rerunning = False
        try:
            return (yield)
        finally:
            if not self.rerunning and gatherer is not None:
                with _safely(gatherer):
                    gatherer.forget()
                self._gatherer = None

    def teardown(self) -> Generator[None, Any, Any]:
        """The innermost wrapper of the teardown phase: the first run's output, and its error."""
        if self.rerunning or self._first_teardown is None:
            return (yield)
        first, self._first_teardown = self._first_teardown, None
        assert self._gatherer is not None  # noqa: S101 - set before the first run
        with _safely(self._gatherer):
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
        if self._gatherer is not None:
            self._gatherer.refuse("a debugger was entered", timed=False)

    # ---------------------------------------------------------------- reruns

    def _rerun_all(
        self,
        item: pytest.Item,
        gatherer: Gatherer,
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
                gatherer.refuse(_cannot(first.error))
                return None
            with self._apart(item, gatherer):
                for number, kind in enumerate(gatherer.runs_of(kinds)):
                    with gatherer.extra() if kind in EXTRA_KINDS else nullcontext():
                        failing = ""  # the teardown of the run before
                        error = self._teardown_run(item) if number else None
                        if error is None:
                            failing = kind
                            _make_new(item, self._stash, globs)
                            gatherer.start.restore()
                            error = self._run_again(item, gatherer, kind)
                        else:
                            _restore(item, self._stash)
                        decides = kind in ("profile", "threads")
                        if error is not None and decides and gatherer.asked.stats_read:
                            return error
                        if error is not None:
                            gatherer.refuse(_cannot(error, failing, gatherer.plan.threads))
                        if gatherer.reason is not None:
                            return None
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            gatherer.give_up(error)
        finally:
            self.rerunning = False
        return None

    @contextmanager
    def _apart(self, item: pytest.Item, gatherer: Gatherer) -> Iterator[None]:
        """What happens within leaves no mark: no clock runs, and nothing is heard or changed."""
        world = World()
        with Undo() as undo:
            clocks_stopped(item, gatherer, undo, alarm=alarm_stopped(undo))
            undo.callback(setattr, self, "timers_off", False)
            self.timers_off = True
            unnoticed(item, self.reported, undo)
            coverage_paused(undo)
            snapshots_uncounted(item, undo)
            folders_noted(item, self._folders, undo)
            try:
                yield
            finally:
                world.restore()

    def _teardown_run(self, item: pytest.Item) -> BaseException | None:
        """End the previous run as if another test of the same scope came next."""
        first = self._first_teardown is not None and not self._first_teardown.over
        folder = None if first else _tmp_path_of(item)
        # Other hooks of the teardown phase come once for each of the setup phase: those of the
        # first run in the teardown phase itself, where they are heard.
        hook = self._own_hook.of(item) if first else None
        try:
            teardown = hook or item.ihook.pytest_runtest_teardown
            if first or self._deadline is None:
                with SHELTER.lifted:
                    teardown(item=item, nextitem=_Sibling(item))
            else:
                self._deadline.run("", lambda: teardown(item=item, nextitem=_Sibling(item)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - any outcome of a run is caught here
            return error
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)  # the names of others count up from it
            gc.collect(1)  # what garbage has to say is said now: of a rerun's, nobody hears it
        return None

    def _end_first(self, item: pytest.Item) -> BaseException | None:
        """Tear the first run down, where nothing has been run again so far."""
        if self._first_teardown is not None:
            return None
        self._stash = {**self._stash, **_storage(item)}
        self._first_teardown = first = FirstTeardown(item)
        with first.kept():
            first.error = self._teardown_run(item)
        _restore(item, self._stash)
        return first.error

    def _renew(
        self, item: pytest.Item, gatherer: Gatherer, globs: dict[str, Any] | None
    ) -> BaseException | None:
        """Have the item ready to be set up: the run before torn down, and all as at the start."""
        error = None
        if item in item.session._setupstate.stack:
            error = self._teardown_run(item)
        _make_new(item, self._stash, globs)
        gatherer.start.restore()
        return error

    def _run_again(self, item: pytest.Item, gatherer: Gatherer, kind: Kind) -> BaseException | None:
        self.subtest_failed = False
        gatherer.asked.forget_tables()
        printed: list[str] = []
        if kind == "round":
            gatherer.rounds.before_round(tidy=True)  # by the teardown of the run before
        try:
            with heard(item, printed) if gatherer.asked.table_asked else nullcontext():
                run = Run(kind, gatherer, first=False)

                def phases() -> None:
                    item.ihook.pytest_runtest_setup(item=item)
                    self.run = run
                    gatherer.count_run()
                    item.ihook.pytest_runtest_call(item=item)

                assert self._deadline is not None  # noqa: S101 - set before the first rerun
                self._deadline.run(kind, phases)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - any outcome of a run is caught here
            return error
        finally:
            self.run = None
            gatherer.asked.keep_printed("".join(printed))
        collected = getattr(item, "_excinfo", None)  # unittest hands its failures over here
        if collected:
            return collected[0].value  # type: ignore[no-any-return]
        failed = "has failed subtests" if self.subtest_failed else functional_failure(item)
        return AssertionError(f"the rerun {failed}") if failed is not None else None


def _tell_nobody() -> None:
    OTHERS.tell(None)


@contextmanager
def _safely(gatherer: Gatherer) -> Iterator[None]:
    """Around what must not fail the test, which is on its way."""
    with SHELTER:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            gatherer.give_up(error)


class _OwnHook:
    """The teardown hook as only pytest's runner, capture and logging implement it."""

    def __init__(self) -> None:
        self._plugins: set[Any] = set()
        self._hook: Callable[..., Any] | None = None

    def of(self, item: pytest.Item) -> Callable[..., Any]:
        """Made anew where other plugins have been registered."""
        manager = item.config.pluginmanager
        plugins = manager.get_plugins()
        if self._hook is None or plugins != self._plugins:
            kept = [manager.get_plugin(n) for n in ("runner", "capturemanager", "logging-plugin")]
            others = [plugin for plugin in plugins if plugin not in kept]
            self._plugins = plugins
            self._hook = manager.subset_hook_caller("pytest_runtest_teardown", others)
        return self._hook


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
        terminal = terminal_of(self._item)
        try:
            with Undo() as undo:
                write_to(terminal, sink := io.StringIO(), undo)
                if self._item.config.getoption("capture", "no") == "tee-sys":
                    undo.enter_context(muted(1, 2))
                yield
        finally:
            self._sections = known[before:]
            del known[before:]
            self._terminal = sink.getvalue()
            self.over = True

    def show(self) -> None:
        """Write to the terminal what was to go there."""
        terminal = terminal_of(self._item)
        if self._terminal and terminal is not None:
            terminal.write(self._terminal, flush=True)

    def say(self) -> None:
        """Say it now, while the teardown phase's output is captured."""
        if not self._sections:
            return
        with SHELTER:
            logging_plugin = self._item.config.pluginmanager.getplugin("logging-plugin")
            for _, key, text in self._sections:
                if key == "log" and logging_plugin is not None:
                    logging_plugin.report_handler.stream.write(f"{text}\n")
                elif key in ("stdout", "stderr"):
                    getattr(sys, key).write(text)


def _cannot(error: BaseException, kind: str = "", threads: int | None = None) -> str:
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    if isinstance(error, Overdue):
        return f"cannot be run twice: {error}"
    if kind == "profile" and threads is not None and isinstance(error, AssertionError):
        return (
            f"fails in the profiled run, which has {threads} intra-op thread{'s' * (threads > 1)} "
            f"(--torchprof-threads=keep leaves yours): {what}"
        )
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


def globs_of(item: pytest.Item) -> dict[str, Any] | None:
    """A copy of the names that a doctest sees."""
    globs = _globs(item)
    return dict(globs) if globs is not None else None


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
    storage = _storage(item)
    for key, value in stash.items():
        storage.setdefault(key, value)


def _tmp_path_of(item: pytest.Item) -> Path | None:
    """The folder that pytest has made for this run, where it has."""
    request = getattr(item, "_request", None)
    for fixture in getattr(request, "_arg2fixturedefs", {}).get("tmp_path", ()):
        cached = getattr(fixture, "cached_result", None)
        if getattr(fixture.func, "__module__", "") == "_pytest.tmpdir" and cached:
            return cached[0] if isinstance(cached[0], Path) else None
    return None


# -------------------------------------------------------------------- outcomes


def hide_us(error: pytest.ExceptionInfo[BaseException]) -> None:
    """Take our frames from a test's traceback: where no other is of interest, pytest shows all."""
    package = str(Path(__file__).parent)
    names = ("hooks.py", "rerun_deadline.py", "rerun_hooks.py", "reruns.py")
    ours = {os.path.join(package, name) for name in names}  # noqa: PTH118
    if any(str(entry.path) in ours for entry in error.traceback):
        error.traceback = error.traceback.filter(lambda entry: str(entry.path) not in ours)


def functional_failure(item: pytest.Item) -> str | None:
    """Why a call that raised nothing is no pass all the same: unittest, subtests."""
    if collected := getattr(item, "_excinfo", None):
        if isinstance(collected[0].value, pytest.xfail.Exception):
            return "xfailed"
        return "skipped" if isinstance(collected[0].value, pytest.skip.Exception) else "failed"
    return None


def is_strict_xfail(item: pytest.Item) -> bool:
    """Whether pytest will fail the test for having passed."""
    from _pytest.skipping import xfailed_key

    xfailed = item.stash.get(xfailed_key, None)
    return bool(xfailed and xfailed.strict and not item.config.option.runxfail)


def _uses_setprofile(item: pytest.Item, session_hook: object) -> bool:
    """Whether a hook is set, or the test's own code names it: to wrap the hook would disturb it."""
    if sys.getprofile() is not session_hook:
        return True
    pending = [getattr(getattr(item, "function", None), "__code__", None)]
    while pending:
        code = pending.pop()
        if "setprofile" in getattr(code, "co_names", ()):
            return True
        pending += [const for const in getattr(code, "co_consts", ()) if hasattr(const, "co_names")]
    return False
