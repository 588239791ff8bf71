"""Collect the results of one test's runs, until they become a `Measured`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pytest_torchprof.capture.compile_events import CompileCount
from pytest_torchprof.capture.device_watch import leave_device, watch_device
from pytest_torchprof.capture.facts_now import facts_now
from pytest_torchprof.capture.patch_guard import PATCH_GUARD
from pytest_torchprof.capture.registry import could_run
from pytest_torchprof.capture.state import World
from pytest_torchprof.capture.unpatched import REAL
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.rules.engine.check import Checked, check
from pytest_torchprof.session.faults import is_fault, message_of, reason_for
from pytest_torchprof.session.runs.captures import Captures
from pytest_torchprof.session.runs.fixture_requests import Asked
from pytest_torchprof.session.runs.of_processes import OfProcesses
from pytest_torchprof.session.runs.recordings import RunRecordings
from pytest_torchprof.session.runs.run_result import Brought, NoModules, Timed
from pytest_torchprof.session.runs.seeds import Seeds
from pytest_torchprof.session.runs.timed_rounds import LONG_CALL_NS, RecentLaps, Rounds
from pytest_torchprof.trace.facts import Facts
from pytest_torchprof.trace.regions import named_regions
from pytest_torchprof.verdict.measured import Measured, Unmeasured
from pytest_torchprof.verdict.profile import values_of
from pytest_torchprof.verdict.recorded import declared_in, values_in
from pytest_torchprof.verdict.regions import RegionValues

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_torchprof.capture.machine import Machine
    from pytest_torchprof.core.own_metrics import OwnMetric
    from pytest_torchprof.core.results import Value
    from pytest_torchprof.session.plan import Plan, RunKind
    from pytest_torchprof.trace.events import Events


class Gatherer(OfProcesses):
    """Takes the result of each run of one test, and decides which runs are still needed.

    ``folder`` is where the profiler may write, None for the system's temporary folder.
    ``own_files`` count as user code wherever they are: the test's own file. ``wants_lines`` is
    called once, after the other runs, and decides whether a run locates lines. ``laps`` are those
    of earlier tests. ``frozen``: objects from before the test are frozen for good, see
    `GarbageControl`. ``name`` is what the test's seeds are made of.
    """

    def __init__(
        self,
        plan: Plan,
        machine: Machine,
        folder: Path | None = None,
        *,
        own_files: tuple[str, ...] = (),
        wants_lines: Callable[[Measured], bool] = lambda _: False,
        laps: RecentLaps | None = None,
        frozen: bool = False,
        name: str = "",
    ) -> None:
        self.folder, self.own_files, self.frozen = folder, own_files, frozen
        self._machine = machine
        self._wants_lines = wants_lines
        self._recent_laps = laps if laps is not None else RecentLaps()
        #: Runs of the item, including the first.
        self.runs = 0
        #: Why the test is not profiled, and whether `torchprof ab` may time it anyway.
        self.reason: Reason | None = None
        self.timed = True
        self._faults: list[str] = []
        #: What the test itself asks of the fixture.
        self.asked = Asked()
        #: What the test records itself.
        self.recordings = RunRecordings()
        self._captures = Captures()
        self._checked: Checked | None = None
        self._rank: str | None = None
        self._values: tuple[Checked, dict[str, Value]] | None = None
        self.longest_ns = 0
        if machine.accelerator is not None:
            watch_device()
        self._compiled = CompileCount.now()
        #: What the first run compiled, once it is over.
        self._compilation: Facts | None = None
        self.replan(plan)
        #: The process state before the test's fixtures were set up.
        self.start = World()
        self.seeds = Seeds(plan.seed, name, self.start)
        #: Start of the time that counts toward the test's limits.
        self.started_ns: int = REAL.clock()

    def replan(self, plan: Plan) -> None:
        """Use this plan from now on, and forget earlier rounds."""
        self.plan = plan
        self.rounds = Rounds(
            plan.round_time_s, plan.time, plan.threads, plan.shares_laps, self._recent_laps
        )

    # ---------------------------------------------------------------- results of runs

    def take(self, brought: Brought) -> None:
        """Take the result of a run."""
        if isinstance(brought, Timed):
            self._take_time(brought)
        elif isinstance(brought, NoModules):
            self._captures.no_modules(brought.gap)
        else:
            if brought.first:
                self._compilation = self._compiled_so_far()
            refused = self._captures.take(brought)
            if brought.kind == "lines" and self.checked.wants_module_calls:
                self._captures.tell_module_calls()
            if refused is not None:
                self.refuse(refused)

    def _take_time(self, brought: Timed) -> None:
        wall_ns = brought.round.wall_ns
        self.longest_ns = max(self.longest_ns, wall_ns)
        self._captures.note_call(recorded=brought.recorded)
        long = wall_ns > LONG_CALL_NS and not self.rounds and "round" in self.plan.kinds
        if brought.kind == "round" or long:
            self.rounds.add(brought.round)
            if brought.first:
                self.recordings.count_first()
        if brought.first or self.asked.complete:
            self._compilation = self._compiled_so_far()

    def _compiled_so_far(self) -> Facts:
        return CompileCount.now().since(self._compiled)

    def count_run(self) -> None:
        """Count another run of the item."""
        self.runs += 1

    def exclude(self, ns: int) -> None:
        """Exclude time from the test's time limits."""
        self.started_ns += ns

    # ---------------------------------------------------------------- refusals and faults

    def refuse(self, reason: Reason, *, timed: bool = True) -> None:
        """Keep the first reason why the test is not profiled; it may be ``timed`` anyway."""
        if self.reason is None:
            self.reason, self.timed = reason, timed

    def broke(self, error: Exception) -> Reason:
        """Record an error that the test did not cause; return it as a reason."""
        if is_fault(error):
            self._faults.append(message_of(error))
        return reason_for(error)

    def give_up(self, error: Exception) -> None:
        """Refuse because of an error that the test did not cause."""
        self.refuse(self.broke(error))

    def blame(self, *faults: str) -> None:
        """Record faults found elsewhere."""
        self._faults += faults

    @property
    def has_faults(self) -> bool:
        """Whether there are faults to report."""
        return bool(self._faults)

    def take_faults(self) -> list[str]:
        """Return the faults so far, and forget them."""
        faults, self._faults = self._faults, []
        return faults

    @contextmanager
    def extra(self) -> Iterator[None]:
        """Context for a run of `EXTRA_KINDS`, whose failure does not invalidate the numbers."""
        compilation, captures = self._compilation, self._captures
        try:
            with self.asked.restored():
                yield
        finally:
            self._compilation = compilation
            if captures.located is None:
                captures.no_lines(captures.lines_gap or self.reason)
            self.reason, self.timed = None, True

    # ---------------------------------------------------------------- what is known

    @property
    def trace(self) -> Events | None:
        """The trace of the profiled run, once there is one."""
        return self._captures.trace

    @property
    def fails_by_numbers(self) -> bool:
        """Whether an assertion that fails the test now is about what was measured; noted if so."""
        if self.trace is None or not (self.asked.stats_read or self.asked.has_compared):
            return False
        self.asked.note_mismatch(self.asked.mismatch or {})
        return True

    @property
    def captured_kind(self) -> RunKind:
        """The kind of run that it is of."""
        return self._captures.kind

    @property
    def wants_another(self) -> bool:
        """Whether the profiled run compiled or lost kernels, so that another one is needed."""
        return self._captures.wants_another

    @property
    def plain_lines(self) -> frozenset[str] | None:
        """Lines that a locating run need not mark; None if none has asked for another."""
        return self._captures.plain_lines

    @property
    def export(self) -> Callable[[Path], None] | None:
        """Writes the trace's file, see `Captures.export`; None if there is none."""
        return self._captures.export if self._captures.has_file else None

    @property
    def checked(self) -> Checked:
        """What the rules find in the trace, computed once."""
        trace, plan = self.trace, self.plan
        assert trace is not None  # noqa: S101 - the caller has looked
        if self._checked is None or self._checked.trace is not trace:
            self._checked = check(trace, plan.rules, thresholds=plan.thresholds)
        return self._checked

    def values(self) -> dict[str, Value]:
        """Every metric of the trace, computed once, and what the test has recorded so far."""
        checked = self.checked
        if self._values is None or self._values[0] is not checked:
            allowed = self.plan.allowed
            values = values_of(checked, allowed, self.plan.metrics)
            if self.processes:
                from pytest_torchprof.verdict.processes import combined

                theirs = [(one.label, values_of(one.checked, allowed)) for one in self.processes]
                own = {one.name: one.own for one in self.plan.metrics if one.own is not None}
                values = combined(values, theirs, own)
            self._values = checked, values
        return self._values[1] | values_in(self.recordings.taken().get(None, {}))

    def region_values(self, name: str, lap: int | None = None) -> Mapping[str, Value]:
        """Every metric of a named region, or of one lap of it; computed when looked up."""
        return RegionValues(
            self.checked,
            self.plan.allowed,
            name,
            lap,
            self._region_gaps.get(name),
            self.plan.metrics,
            self.recordings.taken().get(name, {}),
        )

    def own(self, name: str) -> OwnMetric | None:
        """What is declared of a metric of the user's own; None if there is none of this name."""
        for metric in self.plan.metrics:
            if metric.name == name:
                return metric.own
        return declared_in(self.recordings.taken()).get(name)

    def laps_of(self, name: str) -> int:
        """How often the profiled run entered a named region."""
        return 0 if self.trace is None else named_regions(self.trace).get(name, 0)

    def measured(self) -> Measured:
        """Everything measured so far, for judging; requires a trace."""
        plan, machine, captures = self.plan, self._machine, self._captures
        return Measured(
            self.checked,
            machine.key,
            machine.host,
            machine.cpu_capability,
            budgets=plan.budgets,
            rules=plan.rules,
            allowed=plan.allowed,
            ignored=plan.ignored,
            modules=captures.modules,
            modules_gap=captures.modules_gap,
            unseen_modules=captures.unseen_modules,
            located=captures.located,
            lines_gap=captures.lines_gap,
            busy=self.rounds.busy,
            mismatch=self.asked.mismatch,
            unmeasured=(
                *self.asked.unchecked,
                *(label for label, compared in self.asked.early.items() if compared),
            ),
            region_gaps=self._region_gaps,
            pairs_gap=self.asked.pairs_gap,
            own=plan.metrics,
            allowances=plan.allowances,
            recorded=self.recordings.taken(),
            reseeded=self._reseeded,
            recorded_reseeded=self.recordings.reseeded() if captures.reseeded is not None else {},
            seed=self.seeds.number if self.seeds.matter and not self.asked.complete else None,
            draws=self.seeds.decide,
            could_run=could_run,
            **self.of_processes,
        )

    @property
    def _reseeded(self) -> Checked | None:
        """What the rules find with another seed."""
        trace, plan = self._captures.reseeded, self.plan
        return None if trace is None else check(trace, plan.rules, thresholds=plan.thresholds)

    def result(self) -> Measured | Unmeasured:
        """The final result of the runs."""
        if self.reason is None and self.trace is None:
            raised = self.asked.raised
            block = because(Why.BLOCK_RAISED, error=raised) if raised else None
            self.refuse(block or because(Why.NOTHING_CAPTURED))
        if self.reason is None:
            return self.measured()
        environment = self._machine.key
        compares = self.asked.stats_asked or self.asked.pairs_gap is not None
        return Unmeasured(self.reason, environment, self.plan.budgets, compares)

    def forget(self) -> None:
        """Release memory and files, once the test is fully reported."""
        self._checked = self._values = None
        self._captures.forget()
        leave_device()

    # ---------------------------------------------------------------- which runs are needed

    def runs_of(self, kinds: list[RunKind]) -> Iterator[RunKind]:
        """These runs, and those found to be needed on the way.

        Rounds are added to fill the requested seconds, and an extra run if the profiled run
        compiled or missed other threads, if a rule needs to identify tensors or module calls, or if
        the test compares numbers of named regions, which are known once the profiled run is over.

        torch.compile guards on the number of threads, so the profiled run may compile again, and
        the next one record CUDA graphs; only a test that does so in every run does it then, too.
        """
        for kind in kinds:
            if kind == "profile":
                while self.rounds.wants_more and self.reason is None:
                    yield "round"
                with PATCH_GUARD:
                    self.rounds.end()
                # Code may be slower once the profiler has run.
                yield from self.pairs_runs
            yield kind
            while kind == "profile" and self.wants_another and self.reason is None:
                yield kind
        yield from self._settling
        if self._has_trace and not self.asked.complete and self.asked.take_early():
            yield "numbers"
        if self._has_trace and self._asks(self._marks_lines):
            yield "lines"
            if self.plain_lines is not None and self.reason is None:
                yield "lines"
            self._note_if(lambda: self.checked.wants_module_calls)
        stable = self.plan.checks_stable and self.runs > 0 and not self._captures.children
        if self._has_trace and stable and "profile" in kinds:
            yield "reseeded"

    @property
    def _settling(self) -> Iterator[RunKind]:
        """The run that decides which trace counts, if one must."""
        if self._captures.wants_threads and self.reason is None:
            yield "threads"
        elif self._has_trace and self._asks(lambda: self.checked.wants_tensors):
            yield "tensors"
            self._note_if(lambda: self.checked.wants_tensors)

    def _note_if(self, still_asked: Callable[[], bool]) -> None:
        """Note that a run has not told what rules ask for, if so."""
        if self._has_trace and self._asks(still_asked):
            self._captures.note_untold()

    @property
    def pairs_runs(self) -> list[RunKind]:
        """The run in which the test compares callables, if it does and has not done so yet."""
        asked = self.asked
        waits = self.plan.compares and bool(asked.pairs_s) and not asked.pairs_run
        # A callable that the first run measures has runs of its own, which are within that one.
        return ["pairs"] if waits and self.reason is None and self.runs > 0 else []

    def _marks_lines(self) -> bool:
        """Whether lines and modules must be known: for a rule, or to be shown."""
        return self.checked.wants_module_calls or self._wants_lines(self.measured())

    @property
    def _has_trace(self) -> bool:
        return self.trace is not None and self.reason is None

    def _asks(self, question: Callable[[], bool]) -> bool:
        try:
            with PATCH_GUARD:
                return question()
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            self._captures.no_lines(self.broke(error))
            return False

    def facts(self) -> Facts:
        """What to write to the trace's metadata."""
        now = facts_now(self._machine, self._compiled_so_far(), self._compilation)
        known = self.rounds.facts() | now
        plan = self.plan
        return known | Facts(asked=plan.asked, chip=plan.chip) if plan.asked else known
