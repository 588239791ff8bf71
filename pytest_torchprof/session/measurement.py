"""The numbers of a test: gathered from the captures of its runs."""

from __future__ import annotations

import gzip
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from statistics import mean, median
from typing import IO, TYPE_CHECKING, Literal

from pytest_torchprof.analysis.missing import lost_launches, work_elsewhere
from pytest_torchprof.capture.clock import collect
from pytest_torchprof.capture.compiling import CUDA_GRAPHS, CompileCount
from pytest_torchprof.capture.load import BusyWatch, Lap, conditions, run_reference
from pytest_torchprof.capture.machine import could_run
from pytest_torchprof.capture.patches import REAL
from pytest_torchprof.capture.profiler import facts_now
from pytest_torchprof.capture.sessions import sees_threads
from pytest_torchprof.capture.state import World
from pytest_torchprof.core.files import replacing
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.core.values import MissingValue, Sample
from pytest_torchprof.places.place import Located, Marks
from pytest_torchprof.rules.check import Checked, check
from pytest_torchprof.session.faults import is_fault, message_of, reason_for
from pytest_torchprof.session.seeds import Seeds
from pytest_torchprof.trace.facts import FACTS_KEY, Facts, Quantity, ReferenceNote, RegionTimes
from pytest_torchprof.trace.names import Kind as EventKind
from pytest_torchprof.trace.names import named_regions
from pytest_torchprof.verdict.compare import needs_more
from pytest_torchprof.verdict.profile import (
    Measured,
    Process,
    Recorded,
    RegionValues,
    Unmeasured,
    declared_in,
    normalised_of,
    values_in,
    values_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_torchprof.baseline.inline import Edit
    from pytest_torchprof.capture.children import Job
    from pytest_torchprof.capture.clock import LapTime, Round
    from pytest_torchprof.capture.machine import Machine
    from pytest_torchprof.capture.started import ChildTrace
    from pytest_torchprof.core.values import Normalised, Number, OwnMetric, Value
    from pytest_torchprof.rules.rule import Rule
    from pytest_torchprof.session.plan import Plan, RunKind
    from pytest_torchprof.session.runs import Run
    from pytest_torchprof.trace.events import Events


# ---- The traces of a test's profiled runs: which one counts, and their files.

_STARTS_THREADS = because(
    "starts_threads",
    ("the test starts threads, and only another run can count what they do: give it a warm-up run"),
)
_UNTOLD = because(
    "nothing_told", "the run that tells tensors and modules apart failed, or did something else"
)
_NO_THREADS = because(
    "threads_not_profiled", "the test starts threads, and this torch cannot profile them"
)
#: The profiled runs after which another one may be wanted: one compiles, the next one records.
_MOST_UNSETTLED = 2
#: Kernels launched beyond those that were lost: the next session may lose a few more.
_MORE = 16


class Captures:
    """Takes traces, chooses among them, and closes their files."""

    def __init__(self) -> None:
        #: The trace that counts.
        self.trace: Events | None = None
        self.file: IO[bytes] | None = None
        #: The traces of processes that the run of the trace that counts has started.
        self.children: tuple[ChildTrace, ...] = ()
        self._processes: tuple[tuple[ChildTrace, ...], tuple[Process, ...]] | None = None
        #: A trace of one thread, from a run in which several threads worked.
        self.one_thread: Captured | None = None
        self._profiled = 0
        #: The last call without the profiler captured CUDA graphs.
        self.calls_record = False
        #: The kind of run that it is of.
        self.kind: RunKind = "profile"
        #: A trace of a run with another seed.
        self.reseeded: Events | None = None
        #: How many launches of the profiled run lack their kernels.
        self.lost_kernels = 0
        #: The profiled run compiled, so another run must show what the compiled code does; or its
        #: kernels were lost, which another run may record.
        self.wants_another = False
        #: A trace with modules marked, or why there is none.
        self.modules: Events | None = None
        self.modules_gap: Reason | None = None
        #: Classes of modules that may have run unmarked in it.
        self.unseen_modules: frozenset[str] = frozenset()
        #: The source lines, or why they are missing or incomplete.
        self.located: Located | None = None
        self.lines_gap: Reason | None = None
        #: The same of processes that the test has started, by label.
        self.located_processes: Mapping[str, Located] = {}

    def take(self, brought: Captured) -> Reason | None:
        """Take a trace; return why it cannot be used, if so."""
        if brought.kind == "profile":
            return self._take_profile(brought)
        if brought.kind == "threads":
            self._choose(brought)
        elif brought.kind == "tensors":
            self._exchange(brought)
        elif brought.kind == "reseeded":
            _close(brought)
            # One that compiles does what no later run of the same seed does.
            unsettled = brought.compiled or brought.recorded
            self.reseeded = None if unsettled else brought.trace
        else:
            _close(brought)
            if brought.kind == "modules":
                self.modules_gap = brought.gap
                self.modules = None if brought.gap else brought.trace
                self.unseen_modules = brought.unseen
            else:
                self._locate(brought)
        return None

    def processes(self, plan: Plan) -> tuple[Process, ...]:
        """The processes of the test beside its own, and what the rules find there, found once."""
        if not self.children:
            return ()
        if self._processes is None or self._processes[0] is not self.children:
            self._processes = (
                self.children,
                processes_of(self.children, plan.rules, plan.thresholds),
            )
        return self._processes[1]

    def export(self, target: Path) -> None:
        """Write the trace's file, compressed; a test's patches may be in place.

        Raises:
            OSError: it cannot be written.
        """
        assert self.file is not None  # noqa: S101 - the caller has looked
        self.file.seek(0)
        with (
            replacing(target) as file,
            gzip.GzipFile("", "wb", 3, file, mtime=0) as packed,
        ):
            shutil.copyfileobj(self.file, packed)

    def forget(self) -> None:
        """Release memory and files."""
        one_thread = self.one_thread
        files = [self.file, *(_files(one_thread) if one_thread is not None else ())]
        files += [one.file for one in self.children]
        self.children, self._processes = (), None
        self.located_processes = {}
        self.trace = self.modules = self.one_thread = self.file = self.located = None
        self.reseeded = None
        for file in files:
            if file is not None:
                with suppress(OSError):
                    file.close()

    def _take_profile(self, brought: Captured) -> Reason | None:
        """Use the trace, unless there were other threads, which only another run can record."""
        self._profiled += 1
        self.lost_kernels = max(self.lost_kernels, brought.trace.once(lost_launches)[1])
        again = brought.compiled or (self.lost_kernels > 0 and not brought.first)
        # What is compiled anew with mode="reduce-overhead" is recorded by the run after that.
        late = brought.recorded and not (brought.first or self.calls_record)
        late = late and self._profiled <= _MOST_UNSETTLED
        self.wants_another = late or (again and self._profiled == 1)
        self.forget()  # the trace of a profiled run that compiled
        threads = brought.started_threads or brought.other_threads
        # After a late compilation, the threads are the compiler's, and the trace is replaced.
        if threads and not self.wants_another and not brought.first:
            if sees_threads():
                self.one_thread = brought
                return None
            if brought.started_threads:
                self.file = brought.file  # it can still be exported
                for one in brought.children:
                    one.file.close()
                return _NO_THREADS
        self._use(brought, "profile")
        alone = brought.first and not self.wants_another
        return _STARTS_THREADS if alone and brought.started_threads else None

    def _choose(self, brought: Captured) -> None:
        """Choose the trace of all threads if it has more operators; the other one has memory.

        If a thread that was left is only seen in one of them, that one.
        """
        other, self.one_thread = self.one_thread, None
        assert other is not None  # noqa: S101 - this run was asked for because of it
        partial = _is_partial(brought.trace), _is_partial(other.trace)
        fewer = _operators(brought.trace) <= _operators(other.trace)
        if partial == (False, True) or (partial[0] == partial[1] and fewer):
            brought, other = other, brought
        self._use(brought)
        if brought.kind == "threads":
            self._keep_estimate(other.trace)
        _close(other)

    def _keep_estimate(self, alone: Events) -> None:
        """Keep the peak of the trace with memory, if other threads only worked on parts of what
        its thread called, as torch's own do.
        """
        if self.trace is None or "estimated_cuda_bytes" not in (self.trace.facts.asked or ()):
            return
        from pytest_torchprof.analysis.estimates import others_only_help
        from pytest_torchprof.verdict.values import estimated_cuda_bytes

        peak = estimated_cuda_bytes(alone) if others_only_help(self.trace) else None
        if isinstance(peak, int):
            noted = {**self.trace.metadata[FACTS_KEY], "estimated_cuda_bytes": peak}
            metadata = {**self.trace.metadata, FACTS_KEY: noted}
            self.trace = replace(self.trace, metadata=metadata)

    def _locate(self, brought: Captured) -> None:
        """Locate by the run's markers."""
        self.lines_gap = brought.gap
        if brought.marks is None:
            return
        self.located = Located(brought.trace, brought.marks)
        if brought.children:
            self.located_processes = located_by_label(brought.children)

    def _exchange(self, brought: Captured) -> None:
        """Replace the trace by one that identifies tensors."""
        assert self.trace is not None  # noqa: S101 - this run was asked for because of it
        if _operators(brought.trace) != _operators(self.trace) or _is_partial(self.trace):
            _close(brought)  # the test does something different each time
            return
        if self.file is not None:
            self.file.close()
        for one in self.children:
            one.file.close()
        self._use(brought)

    def _use(self, brought: Captured, kind: RunKind | None = None) -> None:
        self.trace, self.file, self.children = brought.trace, brought.file, brought.children
        self.kind = kind or brought.kind


def _files(brought: Captured) -> tuple[IO[bytes], ...]:
    """Its own, and those of the processes that it started."""
    return brought.file, *(one.file for one in brought.children)


def _close(unused: Captured) -> None:
    for file in _files(unused):
        file.close()


def _is_partial(trace: Events) -> bool:
    return trace.once(work_elsewhere) is not None


def _operators(trace: Events) -> int:
    return int((trace.selection & trace.is_kind(EventKind.OP)).sum())


# ---- The result of one run of a test: a time, a trace, or why there is none.


class Timed(Frozen, frozen=True):
    """A warm-up run or a timed round; ``first``: it decided the test's outcome; ``recorded``: it
    captured CUDA graphs.
    """

    kind: RunKind
    round: Round
    first: bool = False
    recorded: bool = False


class Captured(Frozen, frozen=True):
    """A run under the profiler.

    ``file`` is the open, unlinked file of the trace's text; the receiver closes it. ``compiled``:
    the run compiled something; ``recorded``: it only captured CUDA graphs. ``started_threads`` of
    the test and ``other_threads`` of torch did work. ``marks`` are the run's, and
    ``gap`` says why they are missing or incomplete. ``unseen`` are
    the classes of modules that may have run without a marker. ``children`` are the traces of
    processes that it started; the receiver closes their files, too.
    """

    kind: RunKind
    trace: Events
    file: IO[bytes]
    first: bool = False
    compiled: bool = False
    recorded: bool = False
    started_threads: bool = False
    other_threads: bool = False
    marks: Marks | None = None
    gap: Reason | None = None
    unseen: frozenset[str] = frozenset()
    children: tuple[ChildTrace, ...] = ()


class NoModules(Frozen, frozen=True):
    """A run that should have marked modules, and why it did not; other numbers are unaffected."""

    gap: Reason


Brought = Timed | Captured | NoModules


# ---- What a test records itself, run by run, and which of its runs counts for which metric.

#: Runs that count for what is not a time, the first of them that has a value.
_KINDS = ("profile", "threads", "numbers")
_NO_ROUND = because(
    "recorded_in_no_round",
    ("recorded in no timed run, and other runs are slower (rounds=1 asks for one)"),
)

_Key = tuple["str | None", str]


class _OfRun(Frozen, frozen=True):
    """What one run recorded, by region and name: numbers, and reasons where it has none."""

    kind: RunKind
    first: bool
    values: dict[_Key, list[Number | Reason]]

    def add(self, key: _Key, value: Number | Reason) -> None:
        """One more value of a metric."""
        self.values.setdefault(key, []).append(value)

    def numbers(self, key: _Key) -> list[Number]:
        """The numbers of one metric, in order."""
        return [value for value in self.values.get(key, ()) if not isinstance(value, Reason)]


class RunRecordings:
    """Takes what each run records, until it is asked for the values that count."""

    def __init__(self) -> None:
        self._metrics: dict[_Key, OwnMetric] = {}
        self._runs: list[_OfRun] = []
        self._now: Run | None = None
        self._outside: set[_Key] = set()
        self._first_is_round = False
        self._are_calls = False

    def count_first(self) -> None:
        """The first run was so long that it is a timed round, too."""
        self._first_is_round = True

    def count_calls(self) -> None:
        """The timed runs are calls of a callable, within which nothing is recorded."""
        self._are_calls = True

    def note(
        self, run: Run | None, region: str | None, metric: OwnMetric, value: Number | Reason
    ) -> None:
        """Note a value, or why there is none yet; without a run, it is not of the call phase."""
        key = region, metric.name
        self._metrics[key] = metric
        if run is None:
            self._outside.add(key)
            return
        if run is not self._now:
            self._now = run
            self._runs.append(_OfRun(run.kind, run.first, {}))
        self._runs[-1].add(key, value)

    def taken(self) -> dict[str | None, dict[str, Recorded]]:
        """By region, None for the whole test, what was recorded of each metric."""
        found: dict[str | None, dict[str, Recorded]] = {}
        for key, metric in self._metrics.items():
            found.setdefault(key[0], {})[key[1]] = self._recorded(key, metric)
        return found

    def reseeded(self) -> dict[str | None, dict[str, Recorded]]:
        """What the run with another seed recorded that is no time."""
        found: dict[str | None, dict[str, Recorded]] = {}
        for run in self._runs:
            for key, metric in self._metrics.items() if run.kind == "reseeded" else ():
                if metric.compare not in ("time", "never") and (numbers := run.numbers(key)):
                    found.setdefault(key[0], {})[key[1]] = Recorded(metric, numbers[-1])
        return found

    def _recorded(self, key: _Key, metric: OwnMetric) -> Recorded:
        if metric.compare in ("time", "never"):
            rounds = [numbers for run in self._rounds if (numbers := run.numbers(key))]
            if rounds:
                values = [Sample.of(numbers).median for numbers in rounds]
                sample = Sample.of(values)
                whole = len(rounds) == 1 and len(rounds[0]) == 1
                best = min(values) if metric.better == "lower" else max(values)
                return Recorded(
                    metric,
                    rounds[0][0] if whole else sample.median,
                    sample,
                    best if metric.compare == "time" else None,
                )
            no_round = (
                because(
                    "recorded_beside_callable",
                    (
                        "recorded outside the callable that is measured, and so in no timed call "
                        'of it; record it within, or with compare="exact"'
                    ),
                )
                if self._are_calls
                else _NO_ROUND
            )
            return Recorded(metric, MissingValue(self._gap(key) or no_round))
        for run in self._that_count:
            if numbers := run.numbers(key):
                return Recorded(metric, numbers[-1])
        return Recorded(metric, MissingValue(self._gap(key) or because(*Why.WAS_NOT_MEASURED)))

    @property
    def _rounds(self) -> Sequence[_OfRun]:
        return [r for r in self._runs if r.kind == "round" or (r.first and self._first_is_round)]

    @property
    def _that_count(self) -> Sequence[_OfRun]:
        """The runs for what is not a time: the last profiled one first."""
        ordered = [run for kind in _KINDS for run in reversed(self._runs) if run.kind == kind]
        return [*ordered, *(run for run in self._runs if run.first)]

    def _gap(self, key: _Key) -> Reason | None:
        if key in self._outside:
            return because(
                "recorded_outside_call", "recorded in a fixture, outside the test's call phase"
            )
        given = (value for run in self._runs for value in run.values.get(key, ()))
        reasons = [value for value in given if isinstance(value, Reason)]
        return reasons[-1] if reasons else None


# ---- Collect the timed rounds of one test, and what else the machine did during them.

#: A call this long needs no round of its own: the warm-up's time serves.
LONG_CALL_NS = 10_000_000_000

#: Limits for a test that spends its time on fixtures: this many rounds, or this many times the
#: requested seconds, fixtures included.
MOST_ROUNDS, MOST_TIMES = 10_000, 2

#: Runs of the reference kernel before a round; the first of several find cold caches.
_LAPS, _FIRST_LAPS = 3, 5
#: As many as in 0.1 s are enough to tell how fast a busy machine is.
_MOST_LAPS_ALONE = 500
#: How long laps stay valid, so that short rounds can share them.
_LAPS_HOLD_NS = 10_000_000
#: Short tests share laps if their times only advise and are not being accepted.
_SHARED_LAPS_HOLD_NS = 100_000_000

#: More laps of a region are not stored one by one.
MOST_LAPS = 1_000

NO_ROUNDS = because("no_rounds", "no timed rounds (--torchprof-rounds=0)")


@dataclass
class RecentLaps:
    """The reference kernel's latest laps, of any test in the session, and when they ended."""

    laps: Sequence[Lap] = ()
    ended_ns: int = 0


@dataclass
class Rounds:
    """Collects rounds until there are enough.

    ``min_time_s``: their least total duration in seconds. ``time`` is what to do about a time
    difference: if nothing, the reference kernel does not run. Only a gate checks whether the
    machine was quiet, and runs rounds with ``gated_threads`` intra-op threads (None: unchanged),
    because with several threads one process may take 1.8 times as long as another.
    """

    min_time_s: float = 0.0
    time: Literal["advisory", "gate", "off"] = "advisory"
    gated_threads: int | None = None
    #: Whether laps of the test before may be used.
    shares: bool = False
    recent: RecentLaps = field(default_factory=RecentLaps)
    timed: list[Round] = field(default_factory=list)
    laps: list[Lap] = field(default_factory=list)
    busy: tuple[Reason, ...] = ()
    #: Rounds of one intra-op thread, which only tell CPU time; and the mean of the reference
    #: kernel's before each, in ns.
    alone: list[Round] = field(default_factory=list)
    _beside: list[float] = field(default_factory=list)
    #: Threads of the rounds; a profiled run has one.
    _conditions: str = ""
    _watch: BusyWatch | None = None
    _began: int | None = None
    _spent_ns: int = 0
    _lap_ended: int = 0

    def __len__(self) -> int:
        return len(self.timed)

    def add(self, one: Round, *, alone: bool = False) -> None:
        """One more; ``alone``: of one thread."""
        if alone:
            self.alone.append(one)
            return
        self.timed.append(one)
        self._spent_ns += one.wall_ns

    def watch(self) -> None:
        """Start watching what else runs on the machine."""
        self._watch = BusyWatch() if self.time == "gate" else None

    def before_round(self, *, alone: bool = False, collected: bool = False) -> None:
        """Run the reference kernel untimed; ``collected``: garbage was just collected.

        ``alone``: as long as the test takes, up to a limit. What a hypervisor takes away counts as
        CPU time; the fastest of short laps has none of it, a longer round always has.
        """
        if self._began is None:
            self._began = REAL.clock()
            self.watch()
        if not collected:
            collect(1)
        if alone:
            laps = run_reference(self._laps_alone())
            self._beside.append(mean(lap.cpu_ns for lap in laps))
            self.laps += laps
            return
        fresh = REAL.clock() - self.recent.ended_ns < _SHARED_LAPS_HOLD_NS
        if self.shares and fresh and self.recent.laps and not self.laps:
            self.laps += self.recent.laps
            return
        if self.time != "off" and REAL.clock() - self._lap_ended > _LAPS_HOLD_NS:
            made = run_reference(_LAPS if self.laps else _FIRST_LAPS)
            self.laps += made
            self._lap_ended = REAL.clock()
            if len(made) == _FIRST_LAPS:
                self.recent.laps, self.recent.ended_ns = made, self._lap_ended

    def _laps_alone(self) -> int:
        """How often the reference kernel runs in the time of a round of the test."""
        lap_ns, round_ns = (min(one.cpu_ns for one in some) for some in (self.laps, self.timed))
        return min(max(round_ns // max(lap_ns, 1), _FIRST_LAPS), _MOST_LAPS_ALONE)

    @property
    def wants_more(self) -> bool:
        """Whether the requested time is not yet used up."""
        wanted = self.min_time_s * 1e9
        if not wanted or len(self.timed) >= MOST_ROUNDS:
            return False
        if self._began is not None and REAL.clock() - self._began > MOST_TIMES * wanted:
            return False
        return self._spent_ns < wanted and not self.has_long

    @property
    def has_long(self) -> bool:
        """Whether the last round was so long that no more are needed."""
        return bool(self.timed) and self.timed[-1].wall_ns > LONG_CALL_NS

    def end(self) -> None:
        """After the last round, find out what else ran on the machine."""
        if not self.timed or self.time == "off":
            return
        first_only = not self.laps  # the first run uses the test's own threads
        if first_only:
            self.laps += run_reference(_FIRST_LAPS)
        self._conditions = conditions(None if first_only else self.gated_threads)
        if self._watch is not None:
            self.busy, self._watch = self._watch.explain(), None

    def facts(self) -> Facts:
        """For the trace's metadata: a sample of each quantity, or why there is none."""
        if not self.timed:
            none = Quantity.of(NO_ROUNDS)
            return Facts(wall_ms=none, cpu_ms=none, instructions=none)
        lap_ms = min((lap.cpu_ns for lap in self.laps), default=0) / 1e6
        # The last round may have failed.
        alone = [a.cpu_ns / b for a, b in zip(self.alone, self._beside, strict=False)]
        return Facts(
            wall_ms=_quantity([one.wall_ns / 1e6 for one in self.timed]),
            cpu_ms=_quantity([one.cpu_ns / 1e6 for one in self.timed]),
            instructions=_quantity([one.instructions for one in self.timed]),
            reference=ReferenceNote(
                wall_ms=min(lap.wall_ns for lap in self.laps) / 1e6,
                cpu_ms=lap_ms,
                n=len(self.laps),
                conditions=self._conditions,
                page_faults=min(one.page_faults for one in (*self.timed, *self.alone)),
                others=min(one.others for one in (*self.timed, *self.alone)) or None,
                thread_ms=min(
                    (one.thread_ns / 1e6 for one in self.timed if one.thread_ns), default=None
                ),
                one_thread_ms=min(alone) * lap_ms if alone else None,
                more=len(self.alone) or None,
            )
            if self.laps
            else None,
            regions=self._regions() or None,
        )

    def _regions(self) -> dict[str, RegionTimes]:
        names = dict.fromkeys(name for one in self.timed for name in one.laps)
        return {
            name: _region_times(name, [one.laps.get(name, ()) for one in self.timed])
            for name in names
        }


def _region_times(name: str, rounds: Sequence[Sequence[LapTime | Reason]]) -> RegionTimes:
    """Times of a region from its laps in each round, or why there is none."""
    times = [[lap for lap in laps if not isinstance(lap, Reason)] for laps in rounds]
    gap = next((lap for laps in rounds for lap in laps if isinstance(lap, Reason)), None)
    if len({len(laps) for laps in rounds}) > 1:
        gap = because(*Why.LAPS_DIFFER, name=name)
    if gap is not None:
        return RegionTimes(wall_ms=Quantity.of(gap), cpu_ms=Quantity.of(gap))
    return RegionTimes(
        wall_ms=_quantity([sum(lap.wall_ns for lap in laps) / 1e6 for laps in times]),
        cpu_ms=_quantity([sum(lap.cpu_ns for lap in laps) / 1e6 for laps in times]),
        count=len(times[0]),
        laps=tuple(
            (median(lap.wall_ns for lap in same) / 1e6, median(lap.cpu_ns for lap in same) / 1e6)
            for same in zip(*times, strict=True)
        )[:MOST_LAPS],
    )


def _quantity(values: Sequence[float | Reason]) -> Quantity:
    """A sample of the numbers; where there are none, the first reason."""
    known = [value for value in values if not isinstance(value, Reason)]
    gaps = [value for value in values if isinstance(value, Reason)]
    return Quantity.of(Sample.of(known) if known else gaps[0])


# ---- What a test asks of the ``torchprof`` fixture, over all its runs.


@dataclass
class Asked:
    """Regions, numbers, tables and expectations of one test, noted by the fixture."""

    #: The test measures a block or a callable through the fixture.
    own_region: bool = False
    #: It names regions, which are parts of the whole call phase.
    names_regions: bool = False
    #: All measurement, rounds included, happened in this run, so nothing is rerun.
    complete: bool = False
    #: The name of the exception that ended a region, so that the run measured nothing.
    raised: str | None = None
    #: It has asked for numbers, and it has read some, so its failure may be about them.
    stats_asked: bool = False
    stats_read: bool = False
    #: A failed inline expectation: metric → expected text; of other comparisons, nothing.
    mismatch: Mapping[str, str] | None = None
    #: It asked for a table, and these are the tables that a rerun printed.
    table_asked: bool = False
    tables: list[str] = field(default_factory=list)
    #: Metrics that it compares, but that were not measured.
    unchecked: list[str] = field(default_factory=list)
    #: What the profiled run asked of named regions before it was known, and whether that is
    #: compared.
    early: dict[str, bool] = field(default_factory=dict)
    #: Why the numbers of a named region are not those of all that ran in it.
    region_gaps: dict[str, Reason] = field(default_factory=dict)
    #: Inline expectations to rewrite.
    edits: list[Edit] = field(default_factory=list)
    #: Seconds that its comparisons of callables may take; 0 if there are none.
    pairs_s: float = 0.0
    #: The run that compares them has begun, it has begun a comparison, and is within one.
    pairs_run: bool = False
    has_compared: bool = False
    is_comparing: bool = False
    #: Why one of them has no answer.
    unanswered: Reason | None = None

    def read_stats(self, *unchecked: str) -> None:
        """Note that numbers are read; those ``unchecked`` were not measured."""
        self.stats_asked = self.stats_read = True
        self.unchecked += unchecked

    @property
    def pairs_gap(self) -> Reason | None:
        """Why callables were not compared, if they were not."""
        if not self.pairs_s or self.has_compared:
            return self.unanswered
        return because(*(Why.COMPARISON_NOT_REACHED if self.pairs_run else Why.NO_RUN_TO_COMPARE))

    def keep_printed(self, printed: str) -> None:
        """Of the tables that a run has made, keep only those that it printed."""
        tables, self.tables = self.tables, []
        for text in tables:
            if text in printed:
                self.tables.append(text)
                printed = printed.replace(text, "", 1)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Context for an extra run: how it ends and what it prints is forgotten."""
        raised, mismatch, tables = self.raised, self.mismatch, list(self.tables)
        early, gaps = dict(self.early), dict(self.region_gaps)
        try:
            yield
        finally:
            self.raised, self.mismatch, self.tables = raised, mismatch, tables
            self.early, self.region_gaps = early, gaps


# ---- Collect the results of one test's runs, until they become a `Measured`.


class Gatherer:
    """Takes the result of each run of one test, and decides which runs are still needed.

    ``folder`` is where the profiler may write, None for the system's temporary folder.
    ``own_files`` count as user code wherever they are: the test's own file. ``wants_lines`` is
    called once, after the other runs, and decides whether a run locates lines. ``accepted`` are
    times to compare with, so that more rounds confirm one that is far off. ``laps`` are those
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
        accepted: Normalised | None = None,
        laps: RecentLaps | None = None,
        frozen: bool = False,
        name: str = "",
    ) -> None:
        self.folder, self.own_files, self.frozen = folder, own_files, frozen
        self._machine = machine
        self._wants_lines = wants_lines
        self._accepted = accepted
        self._recent_laps = laps if laps is not None else RecentLaps()
        #: Runs of the item, including the first.
        self.runs = 0
        #: Why the test is not profiled, and whether `torchprof ab` may time it anyway.
        self.reason: Reason | None = None
        self.timed = True
        self.faults: list[str] = []
        #: What the test itself asks of the fixture.
        self.asked = Asked()
        #: What the test records itself.
        self.recordings = RunRecordings()
        self.captures = Captures()
        self._unread: Callable[[], Brought] | None = None
        self._checked: Checked | None = None
        self._rank: str | None = None
        self._values: tuple[Checked, dict[str, Value]] | None = None
        self.longest_ns = 0
        if machine.accelerator is not None:
            CUDA_GRAPHS.watch()
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
        gated_threads = plan.threads if plan.time == "gate" else None
        self.rounds = Rounds(
            plan.round_time_s, plan.time, gated_threads, plan.shares_laps, self._recent_laps
        )

    # ---------------------------------------------------------------- results of runs

    def take(self, brought: Brought) -> None:
        """Take the result of a run."""
        if isinstance(brought, Timed):
            wall_ns = brought.round.wall_ns
            self.longest_ns = max(self.longest_ns, wall_ns)
            self.captures.calls_record = brought.recorded
            long = wall_ns > LONG_CALL_NS and not self.rounds and "round" in self.plan.kinds
            if brought.kind == "alone":
                self.rounds.add(brought.round, alone=True)
            elif brought.kind == "round" or long:
                self.rounds.add(brought.round)
                if brought.first:
                    self.recordings.count_first()
            if brought.first or self.asked.complete:
                self._compilation = self._compiled_so_far()
        elif isinstance(brought, NoModules):
            self.captures.modules_gap = brought.gap
        else:
            refused = self.captures.take(brought)
            if brought.kind == "lines" and self.checked.wants_module_calls:
                captures, trace = self.captures, self.trace
                if trace is not None and captures.located is not None:
                    calls = captures.located.module_calls(trace)
                    captures.trace = replace(trace, module_calls=calls)
            if refused is not None:
                self.refuse(refused)

    def keep(self, read: Callable[[], Brought], *, first: bool) -> None:
        """Keep what a run has recorded, to be read once its fixtures are torn down."""
        self._unread = read
        if first:
            self._compilation = self._compiled_so_far()

    def settle(self) -> None:
        """Read what the last run has recorded, if that has not been done."""
        read, self._unread = self._unread, None
        if read is not None:
            try:
                self.take(read())
            except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
                self.give_up(error)

    def _compiled_so_far(self) -> Facts:
        return CompileCount.now().since(self._compiled)

    # ---------------------------------------------------------------- refusals and faults

    def refuse(self, reason: Reason, *, timed: bool = True) -> None:
        """Keep the first reason why the test is not profiled; it may be ``timed`` anyway."""
        if self.reason is None:
            self.reason, self.timed = reason, timed

    def broke(self, error: Exception) -> Reason:
        """Record an error that the test did not cause; return it as a reason."""
        if is_fault(error):
            self.faults.append(message_of(error))
        return reason_for(error)

    def give_up(self, error: Exception) -> None:
        """Refuse because of an error that the test did not cause."""
        self.refuse(self.broke(error))

    @contextmanager
    def extra(self) -> Iterator[None]:
        """Context for a run of `EXTRA_KINDS`, whose failure does not invalidate the numbers."""
        compilation, captures = self._compilation, self.captures
        try:
            with self.asked.restored():
                yield
        finally:
            self._compilation = compilation
            if captures.located is None:
                captures.lines_gap = captures.lines_gap or self.reason
            self.reason, self.timed = None, True

    # ---------------------------------------------------------------- what is known

    @property
    def trace(self) -> Events | None:
        """The trace of the profiled run, once there is one."""
        return self.captures.trace

    @property
    def fails_by_numbers(self) -> bool:
        """Whether an assertion that fails the test now is about what was measured; noted if so."""
        if self.trace is None or not (self.asked.stats_read or self.asked.has_compared):
            return False
        self.asked.mismatch = self.asked.mismatch or {}
        return True

    @property
    def export(self) -> Callable[[Path], None] | None:
        """Writes the trace's file, see `Captures.export`; None if there is none."""
        return self.captures.export if self.captures.file is not None else None

    @property
    def idle_kernels(self) -> int:
        """How many kernels to launch at the start of a session, so that none of the test's is lost.

        After an idle time, CUPTI misdates the first kernels of a session, as many as sessions have
        begun, and torch drops them: https://github.com/pytorch/pytorch/issues/192021.
        """
        lost = self.captures.lost_kernels
        return lost + _MORE if lost else 0

    @property
    def processes(self) -> tuple[Process, ...]:
        """The processes that the profiled run has started, and what the rules find there."""
        return self.captures.processes(self.plan)

    def join(self, rank: str, others: tuple[ChildTrace, ...]) -> None:
        """Take the traces of the other ranks of the job; ``rank`` is the own one."""
        self._rank, self._values = rank, None
        self.captures.children += others
        self.captures.lines_gap = because(
            "ranks_not_located", "they are not located in a job of several ranks"
        )

    def job(self, *, locates: bool = False) -> Job:
        """What processes that a run starts need to know; made when one is started."""
        from pytest_torchprof.capture.children import Job

        now = facts_now(self._machine, Facts())
        own = self.own_files if locates else None
        return Job(self.plan.threads, now, os.environ.get("RANK"), own)

    @property
    def _region_gaps(self) -> Mapping[str, Reason]:
        """Why numbers of named regions are not known: also, because other processes worked."""
        gaps = dict(self.asked.region_gaps)
        if self.trace is not None and self.processes and have_operators(self.processes):
            why = because(*Why.NOT_BY_PROCESS)
            gaps |= {name: why for name in named_regions(self.trace) if name not in gaps}
        return gaps

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
                from pytest_torchprof.verdict.profile import combined

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
        plan, machine, captures = self.plan, self._machine, self.captures
        reseeded = None
        if captures.reseeded is not None:
            reseeded = check(captures.reseeded, plan.rules, thresholds=plan.thresholds)
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
            reseeded=reseeded,
            recorded_reseeded=self.recordings.reseeded() if reseeded is not None else {},
            seed=self.seeds.number if self.seeds.matter and not self.asked.complete else None,
            draws=self.seeds.decide,
            could_run=could_run,
            processes=self.processes,
            rank=self._rank,
            located_processes=captures.located_processes,
        )

    def result(self) -> Measured | Unmeasured:
        """The final result of the runs."""
        if self.reason is None and self.trace is None:
            raised = self.asked.raised
            block = (
                because("block_raised", "the measured block raised {error}", error=raised)
                if raised
                else None
            )
            self.refuse(block or because("nothing_captured", "nothing was captured"))
        if self.reason is None:
            return self.measured()
        environment = self._machine.key
        compares = self.asked.stats_asked or self.asked.pairs_gap is not None
        return Unmeasured(self.reason, environment, self.plan.budgets, compares)

    def forget(self) -> None:
        """Release memory and files, once the test is fully reported."""
        self._checked = self._values = self._unread = None
        self.captures.forget()
        CUDA_GRAPHS.stop()

    # ---------------------------------------------------------------- which runs are needed

    def runs_of(self, kinds: list[RunKind]) -> Iterator[RunKind]:
        """These runs, and those found to be needed on the way.

        Rounds are added to fill the requested seconds, or to confirm in one thread that the test is
        slow, and an extra run if the profiled run compiled or missed other threads, if a rule needs
        to identify tensors or module calls, or if the test compares numbers of named regions, which
        are known once the profiled run is over.

        torch.compile guards on the number of threads, so the profiled run may compile again, and
        the next one record CUDA graphs; only a test that does so in every run does it then, too.
        """
        for kind in kinds:
            if kind == "profile":
                while self.rounds.wants_more and self.reason is None:
                    yield "round"
                self.rounds.end()
                yield from self._rounds_alone()
                # Code may be slower once the profiler has run.
                yield from self.pairs_runs
            yield kind
            while kind == "profile" and self.captures.wants_another and self.reason is None:
                yield kind
        if self.captures.one_thread is not None and self.reason is None:
            yield "threads"
        alone = self.captures.kind != "threads"  # no run identifies tensors of other threads
        if self._has_trace and alone and self._asks(lambda: self.checked.wants_tensors):
            yield "tensors"
            self._note_if(lambda: self.checked.wants_tensors)
        early = self._has_trace and not self.asked.complete and bool(self.asked.early)
        if early:
            self.asked.early = {}  # from now on it can be answered
            yield "numbers"
        if self._has_trace and self._asks(self._marks_lines):
            yield "lines"
            self._note_if(lambda: self.checked.wants_module_calls)
        stable = self.plan.checks_stable and self.runs > 0 and not self.captures.children
        if self._has_trace and stable and "profile" in kinds:
            yield "reseeded"

    def _rounds_alone(self) -> Iterator[RunKind]:
        """Rounds of one thread, as many as needed; after one that fails, none."""
        rounds, before, plan = self.rounds, self._accepted, self.plan
        if (before is None and not plan.accepts) or not rounds.laps or plan.threads is None:
            return
        known = -1
        while self.reason is None and rounds.timed and len(rounds.alone) > known:
            known = len(rounds.alone)
            now = normalised_of(rounds.facts())
            if now is not None and needs_more(now, before, accepts=plan.accepts):
                yield "alone"

    def _note_if(self, still_asked: Callable[[], bool]) -> None:
        """Note that a run has not told what rules ask for, if so."""
        if self._has_trace and self._asks(still_asked):
            assert self.trace is not None  # noqa: S101 - just asked
            self.captures.trace = replace(self.trace, untold=_UNTOLD)

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
            return question()
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            self.captures.lines_gap = self.broke(error)
            return False

    def facts(self) -> Facts:
        """What to write to the trace's metadata."""
        now = facts_now(self._machine, self._compiled_so_far(), self._compilation)
        known = self.rounds.facts() | now
        plan = self.plan
        return known | Facts(asked=plan.asked, chip=plan.chip) if plan.asked else known


# ---- The processes that a test has started, for its numbers.


def processes_of(
    children: Sequence[ChildTrace],
    rules: Iterable[Rule],
    thresholds: Mapping[str, Mapping[str, float]],
) -> tuple[Process, ...]:
    """Each with what the rules find in its trace, ranks first; launchers are left out.

    Where several claim one rank, as in a test of several jobs, none has its rank as its label.
    """
    ranked: list[Process] = []
    numbered: list[Process] = []
    for label, one in zip(labels_of(children), children, strict=True):
        has_rank = label.isdecimal()
        idle = not one.trace.is_kind(EventKind.OP).any() and one.trace.once(work_elsewhere) is None
        if idle and not has_rank:
            continue
        made = Process(label, check(one.trace, tuple(rules), thresholds=thresholds))
        (ranked if has_rank else numbered).append(made)
    return (*sorted(ranked, key=lambda one: int(one.label)), *numbered)


def labels_of(children: Sequence[ChildTrace]) -> list[str]:
    """The rank of each as text, or ``process N``, also where several claim one rank."""
    claims = Counter(one.rank for one in children)
    return [
        str(one.rank) if one.rank is not None and claims[one.rank] == 1 else f"process {number}"
        for number, one in enumerate(children, 1)
    ]


def located_by_label(children: Sequence[ChildTrace]) -> dict[str, Located]:
    """What maps events of each process to lines, of those in which lines were marked."""
    return {
        label: Located(one.trace, one.marks)
        for label, one in zip(labels_of(children), children, strict=True)
        if one.marks is not None
    }


def have_operators(processes: Iterable[Process]) -> bool:
    """Whether any of them ran an operator."""
    return any(one.checked.trace.is_kind(EventKind.OP).any() for one in processes)
