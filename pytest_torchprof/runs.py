"""The runs of one test: what each measures, and what they have brought in together."""

from __future__ import annotations

import gzip
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_torchprof.capture import (
    OWN_PROFILER,
    REAL,
    Capture,
    CompileCount,
    LineTracer,
    Machine,
    Round,
    Stopwatch,
    World,
    device_gap,
    sees_threads,
)
from pytest_torchprof.errors import TorchprofError
from pytest_torchprof.events import Kind as EventKind
from pytest_torchprof.events import Trace
from pytest_torchprof.metrics import measure_all
from pytest_torchprof.rules import RULES, Checked, Rule, check
from pytest_torchprof.rules.located import Located

if TYPE_CHECKING:
    from pytest_torchprof.stats import Budget, Value

Kind = Literal["warmup", "round", "profile", "stacks", "threads", "lines"]

#: A call this long needs no round of its own: the warm-up's time serves. Source: DESIGN.
LONG_CALL_NS = 10_000_000_000

#: A shorter one cannot record enough to fill the machine's memory.
WATCHED_CALL_NS = 100_000_000

#: Why the trace of all threads has no memory events.
_NO_MEMORY = "torch records no memory while it profiles all threads, and this test works in several"


@dataclass(frozen=True)
class Plan:
    """How one test is to be measured, and against what.

    ``rules`` are checked, with these ``thresholds``; ``allowed`` says why some of them may match,
    and ``ignored`` which are switched off.
    """

    warmup: int
    rounds: int
    threads: int | None = 1
    budgets: tuple[Budget, ...] = ()
    rules: tuple[Rule, ...] = tuple(RULES.values())
    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    allowed: Mapping[str, str] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()

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


@dataclass(frozen=True)
class Mismatch:
    """An inline expectation that failed the test: what was said, and metric → expected text."""

    message: str
    expected: Mapping[str, str]


@dataclass
class Recorder:
    """What the runs of one test have brought in so far."""

    plan: Plan
    machine: Machine
    folder: Path
    compiled: CompileCount = field(default_factory=CompileCount.now)
    #: What the test's own first run has compiled, once that is over.
    compilation: dict[str, Any] | None = None
    #: The profiled run had to compile, so another one shall tell what the compiled code does.
    compiled_late: bool = False
    profiled: int = 0
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
    #: The exception that a region of it was left with, so that there is nothing of that run.
    raised: str | None = None
    #: It has looked at measured numbers, so its failure may be about them.
    stats_read: bool = False
    #: It asks for numbers, whether there were any or not.
    stats_asked: bool = False
    mismatch: Mismatch | None = None
    #: It asked for a table, and these are the ones that a rerun of it has printed.
    table_asked: bool = False
    tables: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    #: Inline expectations to be rewritten: file, line, new text, old text.
    edits: list[tuple[str, int, str, str]] = field(default_factory=list)
    #: A trace of one thread, of a run in which there were more.
    one_thread: tuple[Trace, Path] | None = None
    #: Whether there is something of which to say where it happened; asked once, after the others.
    wants_lines: Callable[[], bool] = lambda: False
    #: Files that are the user's wherever they lie: the test's own.
    own_files: tuple[str, ...] = ()
    #: Where it happened; or why that is not known, or not all of it.
    located: Located | None = None
    lines_gap: str | None = None
    _checked: Checked | None = None
    #: As it was before the test's fixtures were set up.
    start: World = field(default_factory=World)
    started: int = field(default_factory=REAL.clock)

    def refuse(self, reason: str) -> None:
        """Keep the first reason why the test is not profiled."""
        self.reason = self.reason or reason

    def exclude(self, ns: int) -> None:
        """Time that does not count towards the test's time limits."""
        self.started += ns

    def export(self, target: Path) -> None:
        """Write the trace's file, compressed; a test's patches may be in place."""
        assert self.file is not None  # noqa: S101 - the caller has looked
        try:
            with (
                REAL.open(self.file, "rb") as source,
                REAL.open(target, "wb") as file,
                gzip.GzipFile("", "wb", 3, file, mtime=0) as packed,
            ):
                shutil.copyfileobj(source, packed)
        except OSError:
            with suppress(OSError):  # a part of a trace is of no use to anybody
                REAL.unlink(target)
            raise

    def keep_tables(self, printed: str) -> None:
        """Of the tables that a run has made, only those that it has printed."""
        tables, self.tables = self.tables, []
        for text in tables:
            if text in printed:
                self.tables.append(text)
                printed = printed.replace(text, "", 1)

    @property
    def checked(self) -> Checked:
        """What the rules find in the trace, worked out once."""
        trace, plan = self.trace, self.plan
        assert trace is not None  # noqa: S101 - the caller has looked
        if self._checked is None or self._checked.trace is not trace:
            self._checked = check(trace, plan.rules, thresholds=plan.thresholds)
        return self._checked

    def values(self) -> dict[str, Value]:
        """Every metric of the trace."""
        allowed = self.plan.allowed
        found = sum(n for rule, n in self.checked.counts.items() if rule not in allowed)
        return measure_all(self.checked.trace, {"findings": found})

    @contextmanager
    def locating(self) -> Iterator[None]:
        """Around the run that marks lines: whatever happens in it, the numbers are there."""
        kept = {name: getattr(self, name) for name in ("raised", "mismatch", "compilation")}
        tables = list(self.tables)
        try:
            yield
        finally:
            for name, value in kept.items():
                setattr(self, name, value)
            self.tables = tables
            if self.located is None:
                self.lines_gap = self.lines_gap or self.reason
            self.reason = None

    def forget(self) -> None:
        """Let go of memory and files, when all is said about the test."""
        files = [self.file, self.one_thread[1] if self.one_thread else None]
        self.trace = self.stacks = self.one_thread = self.file = None
        self.located = self._checked = None
        for file in files:
            if file is not None:
                with suppress(OSError):
                    REAL.unlink(file)

    def runs_of(self, kinds: list[Kind]) -> Iterator[Kind]:
        """These, and one more where the profiled run compiled, or had threads it cannot see into.

        torch.compile guards the number of threads, so the profiled run may compile once more what
        is there already; only a test that compiles in each run does so in the second one too.
        """
        for kind in kinds:
            yield kind
            if kind == "profile" and self.compiled_late and self.reason is None:
                yield kind
        if self.one_thread is not None and self.reason is None:
            yield "threads"
        if self.trace is not None and self.reason is None and self._wants_lines():
            yield "lines"

    def _wants_lines(self) -> bool:
        try:
            return self.wants_lines()
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            self.lines_gap = said(error)
            return False

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
            # Counts of the first run alone: the number of runs is no matter of the test's.
            **(compiled := CompileCount.now().since(self.compiled)),
            **(self.compilation or {}),
            "compiled": compiled["compiled"],
            **({"no_device": gap} if (gap := device_gap()) else {}),
        }


class Run:
    """One run of the item, or one call of a measured callable."""

    def __init__(self, kind: Kind, recorder: Recorder, *, first: bool) -> None:
        self.kind = kind
        self.first = first
        self.recorder = recorder
        self._watch: Stopwatch | None = None
        self._capture: Capture | None = None
        self._tracer: LineTracer | None = None
        self._compiled = CompileCount()
        self.duration_ns = 0

    def begin(self) -> None:
        """Start what this kind of run measures."""
        if self.kind in ("profile", "stacks", "threads", "lines"):
            if self.kind == "lines":
                self._tracer = LineTracer(self.recorder.own_files)
            capture = Capture(
                threads=self.recorder.plan.threads,
                stacks=self.kind == "stacks",
                first=self.first,
                everywhere=self.kind == "threads",
                watchdog=self.recorder.longest_ns > WATCHED_CALL_NS,
                tracer=self._tracer,
            )
            try:
                capture.start()
            except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
                capture.abandon()
                self.recorder.refuse(said(error))
                return
            self._capture = capture
            self._compiled = CompileCount.now()
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
            if self.first or recorder.complete:
                recorder.compilation = CompileCount.now().since(recorder.compiled)
        elif self._capture is not None:
            capture, self._capture = self._capture, None
            if self.kind == "profile":
                recorder.profiled += 1
                compiled = CompileCount.now().compiled_since(self._compiled)
                recorder.compiled_late = compiled and recorder.profiled == 1
            if self.first:
                recorder.compilation = CompileCount.now().since(recorder.compiled)
            facts = recorder.facts()
            if self.kind == "threads":
                facts["no_memory"] = _NO_MEMORY
            try:
                trace, file = capture.stop(recorder.folder, facts)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
                capture.abandon()
                recorder.refuse(said(error))
                return
            self._hand_over(trace, file, capture)

    def _hand_over(self, trace: Trace, file: Path, capture: Capture) -> None:
        recorder = self.recorder
        if self.kind == "profile":
            self._keep(trace, file, capture)
        elif self.kind == "threads":
            self._choose(trace, file)
        else:
            REAL.unlink(file)
            if self.kind == "stacks":
                # A module's forward may go on in a thread, of which this trace knows nothing.
                others = capture.started_threads or capture.other_threads
                recorder.stacks = None if others else trace
            elif self._tracer is not None:
                recorder.lines_gap = self._tracer.gap
                if self._tracer.usable:
                    lines, modules = self._tracer.lines, self._tracer.modules
                    recorder.located = Located(trace, lines, modules)

    def _keep(self, trace: Trace, file: Path, capture: Capture) -> None:
        """The trace, unless there were other threads: then a run that sees them must confirm it."""
        recorder = self.recorder
        recorder.forget()  # that of a profiled run that had to compile
        if not (capture.started_threads or capture.other_threads):
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


def said(error: Exception) -> str:
    """Our own errors speak for themselves; anything else is a fault to report."""
    if isinstance(error, TorchprofError):
        return str(error)
    return f"internal error, please report it: {type(error).__name__}: {error}"
