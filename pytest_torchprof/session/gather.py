"""What the runs of one test have brought in together."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from pytest_torchprof.capture.compilation import CompileCount
from pytest_torchprof.capture.inductor import graph_facts
from pytest_torchprof.capture.machine import Machine, allows_tf32
from pytest_torchprof.capture.profiler import device_fault
from pytest_torchprof.capture.real import REAL
from pytest_torchprof.capture.shelter import SHELTER
from pytest_torchprof.capture.state import World
from pytest_torchprof.core.errors import StorageError, TorchprofError
from pytest_torchprof.core.files import replacing
from pytest_torchprof.core.plain import Open
from pytest_torchprof.rules.engine.check import Checked, check
from pytest_torchprof.session.fixture_asked import Asked
from pytest_torchprof.session.timed_rounds import Rounds
from pytest_torchprof.verdict.measured import Measured, Unmeasured
from pytest_torchprof.verdict.profile import values_of

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Value
    from pytest_torchprof.places.located import Located
    from pytest_torchprof.session.plan import Kind, Plan
    from pytest_torchprof.trace.events import Trace


class Recorder(Open):
    """What the runs of one test have brought in so far."""

    plan: Plan
    machine: Machine
    #: Where the profiler may write; None for the system's folder of temporary files.
    folder: Path | None = None
    compiled: CompileCount = msgspec.field(default_factory=CompileCount.now)
    #: What the test's own first run has compiled, once that is over.
    compilation: dict[str, Any] | None = None
    #: The profiled run had to compile, so another one shall tell what the compiled code does.
    compiled_late: bool = False
    profiled: int = 0
    rounds: Rounds = msgspec.field(default_factory=Rounds)
    longest_ns: int = 0
    trace: Trace | None = None
    #: A trace that says which modules run; or why there is none.
    modules: Trace | None = None
    modules_gap: str | None = None
    #: The trace's text, open; it has no name any more.
    file: IO[bytes] | None = None
    reason: str | None = None
    #: Whether `torchprof ab` may time it.
    timed: bool = True
    #: Errors that are ours, or the system's: they end the session with a failure.
    faults: list[str] = msgspec.field(default_factory=list)
    runs: int = 0
    #: What the test itself wants of the fixture.
    asked: Asked = msgspec.field(default_factory=Asked)
    #: A trace of one thread, of a run in which there were more.
    one_thread: tuple[Trace, IO[bytes]] | None = None
    #: Whether there is something of which to say where it happened; asked once, after the others.
    wants_lines: Callable[[], bool] = lambda: False
    #: Files that are the user's wherever they lie: the test's own.
    own_files: tuple[str, ...] = ()
    #: Where it happened; or why that is not known, or not all of it.
    located: Located | None = None
    lines_gap: str | None = None
    _checked: Checked | None = None
    #: As it was before the test's fixtures were set up.
    start: World = msgspec.field(default_factory=World)
    started: int = msgspec.field(default_factory=REAL.clock)

    def __post_init__(self) -> None:
        self.replan(self.plan)

    def replan(self, plan: Plan) -> None:
        """Measure by this plan, from here on, and forget the rounds that there were."""
        self.plan = plan
        self.rounds = Rounds(plan.round_time_s, plan.time, plan.threads, plan.shares_laps)

    def refuse(self, reason: str, *, timed: bool = True) -> None:
        """Keep the first reason why the test is not profiled; it may be ``timed`` all the same."""
        if self.reason is None:
            self.reason, self.timed = reason, timed

    def broke(self, error: Exception) -> str:
        """Note an error that no test is to blame for; what is said of it."""
        text = said(error)
        if isinstance(error, StorageError) or not isinstance(error, TorchprofError):
            self.faults.append(text)
        return text

    def exclude(self, ns: int) -> None:
        """Time that does not count towards the test's time limits."""
        self.started += ns

    def export(self, target: Path) -> None:
        """Write the trace's file, compressed; a test's patches may be in place."""
        assert self.file is not None  # noqa: S101 - the caller has looked
        self.file.seek(0)
        with (
            replacing(target) as file,
            gzip.GzipFile("", "wb", 3, file, mtime=0) as packed,
        ):
            shutil.copyfileobj(self.file, packed)

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
        return values_of(self.checked, self.plan.allowed)

    def measured(self) -> Measured:
        """All that there is so far, as judging takes it; there is a trace."""
        plan, machine = self.plan, self.machine
        return Measured(
            self.checked,
            machine.key,
            machine.host,
            budgets=plan.budgets,
            rules=plan.rules,
            allowed=plan.allowed,
            ignored=plan.ignored,
            modules=self.modules,
            modules_gap=self.modules_gap,
            located=self.located,
            lines_gap=self.lines_gap,
            busy=self.rounds.busy,
            mismatch=self.asked.mismatch,
            unmeasured=tuple(self.asked.unchecked),
        )

    def result(self) -> Measured | Unmeasured:
        """What the runs have come to, all over."""
        if self.reason is None and self.trace is None:
            block = f"the measured block raised {self.asked.raised}" if self.asked.raised else None
            self.refuse(block or "nothing was captured")
        if self.reason is None:
            return self.measured()
        return Unmeasured(self.reason, self.machine.key, self.plan.budgets, self.asked.stats_asked)

    @contextmanager
    def extra(self) -> Iterator[None]:
        """Around a run of `EXTRA_KINDS`: whatever happens in it, the numbers are there."""
        compilation = self.compilation
        try:
            with self.asked.unheard():
                yield
        finally:
            self.compilation = compilation
            if self.located is None:
                self.lines_gap = self.lines_gap or self.reason
            self.reason, self.timed = None, True

    def forget(self) -> None:
        """Let go of memory and files, when all is said about the test."""
        files = [self.file, self.one_thread[1] if self.one_thread else None]
        self.trace = self.modules = self.one_thread = self.file = None
        self.located = self._checked = None
        for file in files:
            if file is not None:
                with suppress(OSError):
                    file.close()

    def runs_of(self, kinds: list[Kind]) -> Iterator[Kind]:
        """These, with as many rounds as the seconds asked for take, and one more where the profiled
        run compiled, or had threads it cannot see into, or where a rule has to know which tensor is
        which.

        torch.compile guards the number of threads, so the profiled run may compile once more what
        is there already; only a test that compiles in each run does so in the second one too.
        """
        for kind in kinds:
            if kind == "profile":
                while self.rounds.wants_more and self.reason is None:
                    yield "round"
                with SHELTER:
                    self.rounds.end()
            yield kind
            if kind == "profile" and self.compiled_late and self.reason is None:
                yield kind
        if self.one_thread is not None and self.reason is None:
            yield "threads"
        elif self.trace is not None and self.reason is None and self._asks(self._wants_tensors):
            yield "tensors"
        if self.trace is not None and self.reason is None and self._asks(self.wants_lines):
            yield "lines"

    def _wants_tensors(self) -> bool:
        return self.checked.wants_tensors

    def _asks(self, question: Callable[[], bool]) -> bool:
        try:
            with SHELTER:
                return question()
        except Exception as error:  # noqa: BLE001 - a fault of ours must not fail the test
            self.lines_gap = self.broke(error)
            return False

    def facts(self) -> dict[str, Any]:
        """What the trace's metadata shall say beside its events."""
        return {
            "environment": self.machine.key,
            "accelerator": self.machine.accelerator,
            "device_type": self.machine.device_type,
            "torch": self.machine.torch_version,
            **self.rounds.facts(),
            # Counts of the first run alone: the number of runs is no matter of the test's.
            **(compiled := CompileCount.now().since(self.compiled)),
            **(self.compilation or {}),
            "compiled": compiled["compiled"],
            **graph_facts(),
            **({"no_device": gap} if (gap := device_fault()) else {}),
            **({"allow_tf32": tf32} if (tf32 := allows_tf32()) is not None else {}),
        }


def said(error: Exception) -> str:
    """Our own errors speak for themselves; anything else is a fault to report."""
    if isinstance(error, TorchprofError):
        return str(error)
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = f", {Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}" if at else ""
    message = str(error).partition("\n")[0]
    return f"internal error, please report it: {type(error).__name__}: {message}{where}"
