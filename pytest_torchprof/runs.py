"""The runs of one test: warm-up, timed rounds, profiled run; whole items, fixtures set up anew.

All of them happen inside the call phase of the one run that pytest asked for, so that whoever
drives the protocol (xdist, rerun and fork plugins) sees one setup, one call and one teardown.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_torchprof.capture import (
    OWN_PROFILER,
    Capture,
    CompileCount,
    Machine,
    Round,
    Stopwatch,
    muted,
    watching,
)
from pytest_torchprof.errors import TorchprofError
from pytest_torchprof.events import Trace
from pytest_torchprof.stats import Budget

Kind = Literal["warmup", "round", "profile", "stacks"]

#: A call this long needs no round of its own: the warm-up's time serves. Source: DESIGN.
LONG_CALL_NS = 10_000_000_000

#: What ends the session must never be taken for a failed rerun.
_ENDS_SESSION = (KeyboardInterrupt, pytest.exit.Exception)


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

    def refuse(self, reason: str) -> None:
        """Keep the first reason why the test is not profiled."""
        self.reason = self.reason or reason

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

    def __init__(self, kind: Kind, recorder: Recorder, *, first: bool, only: bool) -> None:
        self.kind = kind
        self.first = first
        self.recorder = recorder
        self._only = only
        self._watch: Stopwatch | None = None
        self._capture: Capture | None = None
        self.duration_ns = 0

    def begin(self) -> None:
        """Start what this kind of run measures."""
        if self.kind in ("profile", "stacks"):
            capture = Capture(
                threads=self.recorder.plan.threads,
                stacks=self.kind == "stacks",
                only_run=self._only,
            )
            try:
                capture.start()
            except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
                capture.abandon()
                self.recorder.refuse(_said(error))
                return
            self._capture = capture
        else:
            self._watch = Stopwatch()
            self._watch.__enter__()

    def end(self) -> None:
        """Stop, and hand what was measured to the recorder."""
        recorder = self.recorder
        if self._watch is not None:
            self._watch.__exit__()
            result, self._watch = self._watch.result, None
            assert result is not None  # noqa: S101 - the stopwatch was just stopped
            self.duration_ns = result.wall_ns
            if self.kind == "round":
                recorder.rounds.append(result)
            elif result.wall_ns > LONG_CALL_NS and not recorder.rounds and recorder.plan.rounds:
                recorder.rounds.append(result)
        elif self._capture is not None:
            capture, self._capture = self._capture, None
            try:
                trace, file = capture.stop(recorder.folder, recorder.facts())
            except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
                capture.abandon()
                recorder.refuse(_said(error))
                return
            if self.kind == "stacks":
                recorder.stacks = trace
                file.unlink()
            else:
                recorder.trace, recorder.file = trace, file

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
        self._reran = False
        self._teardown_error: BaseException | None = None

    # ---------------------------------------------------------------- around the call phase

    def call(self, item: pytest.Item, recorder: Recorder) -> Generator[None, Any, Any]:
        """The outermost wrapper of the call phase: the first run, then all the others."""
        kinds = recorder.plan.kinds
        self._reran, self._teardown_error = False, None
        self.run = Run(kinds[0], recorder, first=True, only=len(kinds) == 1)
        before = dict(_storage(item))
        globs = dict(item.dtest.globs) if _has_globs(item) else None
        try:
            result = yield
        finally:
            first, self.run = self.run, None
            recorder.runs += 1
        failed = functional_failure(item)
        if failed is not None:
            recorder.refuse(failed)
        if _names_setprofile(item):
            recorder.refuse("the test uses sys.setprofile itself")
        rest = kinds[1:]
        if first.duration_ns > LONG_CALL_NS and recorder.rounds:
            rest = [kind for kind in rest if kind != "round"]
        if recorder.reason is None and rest and not recorder.complete:
            self._rerun_all(item, recorder, rest, before, globs)
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

    def teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """The teardown phase: the last rerun's, and the first run's error if it had one."""
        if self._reran and not self.rerunning:
            try:
                item.session._setupstate.teardown_exact(item.parent)  # type: ignore[arg-type]
            except _ENDS_SESSION:
                raise
            except BaseException as error:  # noqa: BLE001 - a rerun never decides the outcome
                warnings.warn(f"torchprof: a rerun's teardown failed: {error!r}", stacklevel=1)
        error, self._teardown_error = (
            (None, self._teardown_error) if self.rerunning else (self._teardown_error, None)
        )
        result = yield
        if error is not None:
            raise error
        return result

    # ---------------------------------------------------------------- reruns

    def _rerun_all(
        self,
        item: pytest.Item,
        recorder: Recorder,
        kinds: list[Kind],
        stash: Mapping[Any, Any],
        globs: dict[str, Any] | None,
    ) -> None:
        self._reran = True
        self.rerunning = True
        try:
            with self._timers_stopped(item), _unnoticed(item):
                for number, kind in enumerate(kinds):
                    stash = {**stash, **_storage(item)}
                    error = self._teardown_run(item, first=number == 0)
                    if error is None:
                        _make_new(item, stash, globs)
                        error = self._run_again(item, recorder, kind)
                    if error is not None:
                        if kind == "profile" and recorder.stats_read:
                            raise error
                        what = f"{type(error).__name__}: {error}".splitlines()[0]
                        recorder.refuse(f"cannot be run twice: {what}")
                    if recorder.reason is not None:
                        return
        finally:
            self.rerunning = False

    @contextmanager
    def _timers_stopped(self, item: pytest.Item) -> Iterator[None]:
        _timeout(item, "cancel")
        self.timers_off = True
        try:
            yield
        finally:
            self.timers_off = False
            _timeout(item, "set")

    def _teardown_run(self, item: pytest.Item, *, first: bool) -> BaseException | None:
        """End the previous run as if another test of the same scope came next."""
        try:
            item.ihook.pytest_runtest_teardown(item=item, nextitem=_Sibling(item))
        except _ENDS_SESSION:
            raise
        except BaseException as error:  # noqa: BLE001 - any outcome of a run is caught here
            if first:
                # The first run's teardown is part of the outcome: it fails in the teardown phase.
                self._teardown_error = error
            return error
        return None

    def _run_again(
        self, item: pytest.Item, recorder: Recorder, kind: Kind
    ) -> BaseException | None:
        try:
            item.ihook.pytest_runtest_setup(item=item)
            self.run = Run(kind, recorder, first=False, only=False)
            recorder.runs += 1
            item.ihook.pytest_runtest_call(item=item)
        except _ENDS_SESSION:
            raise
        except BaseException as error:  # noqa: BLE001 - any outcome of a run is caught here
            return error
        finally:
            self.run = None
        collected = getattr(item, "_excinfo", None)  # unittest hands its failures over here
        return collected[0].value if collected else None


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


def _has_globs(item: pytest.Item) -> bool:
    return getattr(item, "dtest", None) is not None


def _make_new(item: pytest.Item, stash: Mapping[Any, Any], globs: dict[str, Any] | None) -> None:
    """Undo what a run leaves on the item, as a fresh collection would."""
    if hasattr(item, "_initrequest"):
        item._initrequest()
    if isinstance(item, pytest.Function) and isinstance(item.parent, pytest.Class):
        for name in ("_instance", "_obj"):
            item.__dict__.pop(name, None)
    if globs is not None:
        item.dtest.globs.clear()
        item.dtest.globs.update(globs)
    # Some plugins drop their stash entry in teardown, and expect a report in between to renew it.
    for key, value in stash.items():
        _storage(item).setdefault(key, value)


@contextmanager
def _unnoticed(item: pytest.Item) -> Iterator[None]:
    """Reruns leave no second copy of output, warnings, properties and subtest reports."""
    sections, properties = list(item._report_sections), list(item.user_properties)
    hook = item.config.hook
    log_report = hook.pytest_runtest_logreport
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings(record=True))
        if item.config.getoption("capture", "fd") != "fd":
            # With -s a test prints to the terminal: once is enough. C++ code does in any mode.
            stack.enter_context(muted(1, 2))
        hook.pytest_runtest_logreport = lambda **_: []  # type: ignore[assignment]
        try:
            yield
        finally:
            hook.pytest_runtest_logreport = log_report  # type: ignore[method-assign]
            item._report_sections[:] = sections
            item.user_properties[:] = properties
            if getattr(item, "_excinfo", None):
                item._excinfo = None


def _timeout(item: pytest.Item, what: Literal["cancel", "set"]) -> None:
    """Stop or start pytest-timeout's clock on this test, where that plugin runs one."""
    hook: Callable[..., Any] | None = getattr(item.ihook, f"pytest_timeout_{what}_timer", None)
    module = sys.modules.get("pytest_timeout")
    settings_of = getattr(module, "_get_item_settings", None)
    if hook is None or settings_of is None or not item.config.pluginmanager.hasplugin("timeout"):
        return
    settings = settings_of(item)
    if settings.timeout is None or settings.timeout <= 0 or settings.func_only:
        return
    hook(item=item) if what == "cancel" else hook(item=item, settings=settings)


def functional_failure(item: pytest.Item) -> str | None:
    """Why a call that raised nothing is no pass all the same: unittest, subtests, strict xfail."""
    if getattr(item, "_excinfo", None):
        return "failed or skipped"
    try:
        from _pytest.subtests import failed_subtests_key

        counts = item.config.stash.get(failed_subtests_key, {})
        if counts.get(item.nodeid) or counts.get(getattr(item, "id", None)):
            return "has failed subtests"
    except ImportError:
        pass
    from _pytest.skipping import xfailed_key

    xfailed = item.stash.get(xfailed_key, None)
    if xfailed is not None and not item.config.option.runxfail and xfailed.strict:
        return "passed against a strict xfail, which is a failure"
    return None


def _names_setprofile(item: pytest.Item) -> bool:
    """Whether the test's own code mentions the hook; wrapping the hook would disturb it."""
    if sys.getprofile() is not None:
        return True
    code = getattr(getattr(item, "function", None), "__code__", None)
    pending = [code] if code is not None else []
    while pending:
        code = pending.pop()
        if "setprofile" in code.co_names:
            return True
        pending += [const for const in code.co_consts if hasattr(const, "co_names")]
    return False
