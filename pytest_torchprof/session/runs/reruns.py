"""Rerun a whole item, with fixtures set up again, unnoticed by other plugins.

All runs happen inside the call phase of the run that pytest asked for, so that plugins which drive
the protocol (xdist, rerun and fork plugins) see one setup, one call and one teardown.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture.collecting import collect
from pytest_torchprof.capture.other_sessions import OTHERS
from pytest_torchprof.capture.patch_guard import PATCH_GUARD
from pytest_torchprof.capture.state import World
from pytest_torchprof.capture.undo import Undo
from pytest_torchprof.capture.unpatched import REAL
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.render import reason_texts
from pytest_torchprof.session.isolation.other_plugins import (
    coverage_paused,
    folders_noted,
    snapshots_uncounted,
)
from pytest_torchprof.session.isolation.silence import print_for, recording, unnoticed
from pytest_torchprof.session.isolation.time_limits import alarm_stopped, clocks_stopped
from pytest_torchprof.session.plan import EXTRA_KINDS, SEEDED_KINDS
from pytest_torchprof.session.runs.deadline import Deadline, Overdue
from pytest_torchprof.session.runs.first_teardown import FirstTeardown, OwnHook
from pytest_torchprof.session.runs.item_state import ItemState, Sibling, tmp_path_of
from pytest_torchprof.session.runs.one_run import Run
from pytest_torchprof.session.runs.outcome import (
    cannot_rerun,
    functional_failure,
    is_strict_xfail,
    may_measure_part,
    uses_setprofile,
)
from pytest_torchprof.session.runs.progress import Progress
from pytest_torchprof.session.runs.seeds import plugins_reseeded

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.capture.timed_calls import Regions
    from pytest_torchprof.session.plan import RunKind
    from pytest_torchprof.session.runs.gather import Gatherer


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
        with PATCH_GUARD:
            self.run = Run(gatherer.plan.kinds[0], gatherer, first=True)
            self._state = ItemState(item)
        pid = REAL.getpid()
        try:
            result = yield
        finally:
            self.run = None
            gatherer.count_run()
        error = None
        with PATCH_GUARD:
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
            gatherer.refuse(because(Why.HAS_FORKED), timed=False)
        if item.config.getoption("trace", default=False):
            gatherer.refuse(because(Why.TRACE_OPTION))
        failed = self._failure(item)
        if failed is None and is_strict_xfail(item):
            failed = because(Why.STRICT_XFAIL_PASSED)
        if failed is not None:
            gatherer.refuse(failed, timed=False)
        if "benchmark" in getattr(item, "fixturenames", ()):
            gatherer.refuse(because(Why.BENCHMARK_FIXTURE))
        if uses_setprofile(item, self._session_hook):
            gatherer.refuse(because(Why.OWN_PROFILE_HOOK))
        parts = gatherer.asked.own_region or gatherer.asked.names_regions
        if not parts and may_measure_part(item):
            gatherer.refuse(because(Why.REGION_NOT_REACHED), timed=False)
        rest: list[RunKind] = gatherer.plan.kinds[1:]
        if gatherer.wants_another:  # it compiled in what was meant to be the only run
            rest = ["profile", *rest]
        if gatherer.rounds.has_long:
            rest = [kind for kind in rest if kind != "round"]
        complete = gatherer.asked.complete
        rest = gatherer.pairs_runs if complete else rest
        if gatherer.reason is None and rest:
            self._deadline = Deadline(item, (REAL.clock() - gatherer.started_ns) / 1e9)
            error = self._rerun_all(item, gatherer, rest if complete else gatherer.runs_of(rest))
            if not complete:  # else the first run has printed them
                print_for(item, "".join(gatherer.asked.tables))
            return error
        return None

    def measured_call(self, _: pytest.Item) -> Generator[None, Any, Any]:
        """The innermost wrapper of the call phase: exactly what is measured."""
        run = self.run
        if run is None:
            return (yield)
        try:
            with PATCH_GUARD:
                OTHERS.tell(run.saw_profiler)
                if not run.gatherer.asked.own_region:
                    run.begin()
            result = yield
        except BaseException:  # a time limit or an interrupt may come before the test begins
            run.cancel(_stop_watching)
            raise
        run.end(_stop_watching)
        return result

    def end_last_run(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """The outermost wrapper of the teardown phase: tears down the last rerun."""
        gatherer = self._gatherer
        if self._first_teardown is not None and gatherer is not None and not self.rerunning:
            self.rerunning = True
            try:
                with PATCH_GUARD:
                    if item in item.session._setupstate.stack:
                        with self._apart(item, gatherer):
                            self._teardown_run(item)
                    while self._folders:
                        shutil.rmtree(self._folders.pop(), ignore_errors=True)
                    self._state.restore_stash()
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
        """The innermost wrapper of the teardown phase: reports the first run's output and error."""
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
        """Note failed subtests, which are reported while the test runs."""
        if self.run is not None and report.failed:
            self.subtest_failed = True

    def entered_debugger(self) -> None:
        """Do not rerun a test that is being debugged."""
        if self._gatherer is not None:
            self._gatherer.refuse(because(Why.DEBUGGER), timed=False)

    # ---------------------------------------------------------------- reruns

    def _rerun_all(
        self,
        item: pytest.Item,
        gatherer: Gatherer,
        kinds: Iterable[RunKind],
    ) -> BaseException | None:
        """Do all further runs; return the error of the test's own comparison of numbers, if any."""
        self.rerunning = True
        of_pairs: BaseException | None = None
        try:
            late = self._end_first(item)
            if late is not None:
                gatherer.refuse(cannot_rerun(late))
                return None
            with self._apart(item, gatherer):
                for number, kind in enumerate(kinds):
                    self.progress.show(number + 2, kind, gatherer.started_ns)
                    with gatherer.extra() if kind in EXTRA_KINDS else nullcontext():
                        failing = ""  # the teardown of the previous run
                        error = self._teardown_run(item) if number else None
                        if error is None:
                            failing = kind
                            self._state.renew()
                            error = self._try_seeds(item, gatherer, kind)
                        else:
                            self._state.restore_stash()
                        if failing == "pairs" and gatherer.asked.is_comparing:
                            return error  # of a callable, which other runs call too
                        if failing == "pairs" and gatherer.asked.has_compared:
                            of_pairs, error = error, None  # the numbers are still wanted
                        decides = kind in ("profile", "threads", "numbers")
                        if error is not None and decides and gatherer.asked.stats_read:
                            return of_pairs or error
                        if error is not None:
                            gatherer.refuse(cannot_rerun(error, failing, gatherer.plan.threads))
                        if gatherer.reason is not None:
                            return of_pairs
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            gatherer.give_up(error)
        finally:
            self.rerunning = False
            self.progress.clear()
        return of_pairs

    @contextmanager
    def _apart(self, item: pytest.Item, gatherer: Gatherer) -> Iterator[None]:
        """Isolate what happens within: time limits stop, output is hidden, changes are undone."""
        world = World()
        gatherer.seeds.note_first(item, world.random)
        with Undo() as undo:
            alarm = alarm_stopped(undo)
            now = REAL.clock()
            undo.callback(lambda: gatherer.exclude(REAL.clock() - now))
            clocks_stopped(item, (now - gatherer.started_ns) / 1e9, undo, alarm=alarm)
            undo.callback(setattr, self, "timers_off", False)
            self.timers_off = True
            unnoticed(item, self.reported, undo)
            coverage_paused(undo)
            snapshots_uncounted(item, undo)
            folders_noted(item, self._folders, undo)
            plugins_reseeded(item, undo)
            try:
                yield
            finally:
                world.restore()

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
                with PATCH_GUARD.suspended:
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
        """Tear the first run down, if there has been no rerun yet."""
        if self._first_teardown is not None:
            return None
        self._state.add_stash()
        self._first_teardown = first = FirstTeardown(item)
        first.keep(lambda: self._teardown_run(item))
        self._state.restore_stash()
        return first.error

    def _renew(self, item: pytest.Item, gatherer: Gatherer) -> BaseException | None:
        """Tear the previous run down and restore the item, ready for another setup."""
        error = None
        if item in item.session._setupstate.stack:
            error = self._teardown_run(item)
        self._state.renew()
        gatherer.seeds.set(item)
        return error

    def _try_seeds(
        self, item: pytest.Item, gatherer: Gatherer, kind: RunKind
    ) -> BaseException | None:
        """Run it, with a few seeds until one suits the test; return the first one's error."""
        seeds, other = gatherer.seeds, kind == "reseeded"
        seeds.set(item, other=other)
        failed = error = self._run_again(item, gatherer, kind)
        while (
            error is not None
            and kind in SEEDED_KINDS
            and not isinstance(error, Overdue)
            and not gatherer.asked.stats_read
            and gatherer.reason is None
            and seeds.next_try()
        ):
            if self._renew(item, gatherer) is not None:
                return failed
            error = self._run_again(item, gatherer, kind)
        if gatherer.plan.checks_stable and (other or kind == "profile"):
            seeds.note_end(other=other)
        return failed if error is not None else None

    def _run_again(
        self, item: pytest.Item, gatherer: Gatherer, kind: RunKind
    ) -> BaseException | None:
        self.subtest_failed = False
        gatherer.asked.forget_tables()
        printed: list[str] = []
        more_s = 0.0
        if kind == "round":
            gatherer.rounds.before_round(collected=True)  # by the previous teardown
        elif kind == "pairs":
            gatherer.asked.note_pairs_run()
            more_s = gatherer.asked.pairs_s
        try:
            with recording(item, printed) if gatherer.asked.table_asked else nullcontext():
                run = Run(kind, gatherer, first=False)

                def phases() -> None:
                    item.ihook.pytest_runtest_setup(item=item)
                    self.run = run
                    gatherer.count_run()
                    item.ihook.pytest_runtest_call(item=item)

                assert self._deadline is not None  # noqa: S101 - set before the first rerun
                self._deadline.run(kind, phases, more_s=more_s)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - any outcome of a run is caught here
            return error
        finally:
            self.run = None
            gatherer.asked.keep_printed("".join(printed))
        collected = getattr(item, "_excinfo", None)  # where unittest puts its failures
        if collected:
            self._deadline.note_failure()
            return collected[0].value  # type: ignore[no-any-return]
        failed = self._failure(item)
        return (
            AssertionError(f"the rerun {reason_texts.in_words(failed)}")
            if failed is not None
            else None
        )

    def _failure(self, item: pytest.Item) -> Reason | None:
        if self.subtest_failed:
            return because(Why.SUBTESTS_FAILED)
        return functional_failure(item)


def _stop_watching() -> None:
    OTHERS.tell(None)


@contextmanager
def _safely(gatherer: Gatherer) -> Iterator[None]:
    """Context for code that must not fail the test, which is already being reported."""
    with PATCH_GUARD:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            gatherer.give_up(error)
