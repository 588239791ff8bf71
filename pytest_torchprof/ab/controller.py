"""Drive the two workers test by test and turn by turn; one idles while the other runs."""

from __future__ import annotations

import os
import pickle
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar, cast

from pytest_torchprof.ab.imports import proven
from pytest_torchprof.ab.sides import same_addresses, same_environment
from pytest_torchprof.core.errors import AbError, AbStoppedError
from pytest_torchprof.core.units import alike
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.core.values import Verdict
from pytest_torchprof.verdict.causes import causes_of
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.paired import (
    SIDES,
    Comparison,
    Difference,
    Pace,
    PairedRow,
    PairedTurns,
    PairRequest,
)
from pytest_torchprof.verdict.paired import Side as PairedSide
from pytest_torchprof.verdict.seen import Seen

if TYPE_CHECKING:
    from pytest_torchprof.ab.sides import Side as TreeSide
    from pytest_torchprof.core.values import Cause, Detail, Number
    from pytest_torchprof.verdict.paired import Broken, RowVerdict


# ---- What a worker sends to the controller, as values.

#: Of a test on one side. ``error``: it passes, but cannot be timed.
Outcome = Literal["passed", "failed", "skipped", "error"]


@dataclass(frozen=True)
class Collection:
    """What a worker collected: tests in order, and what could not be collected, with the reason.

    ``origins``: see `imports.origins`.
    """

    tests: list[str]
    errors: dict[str, Reason]
    origins: dict[str, Any]


@dataclass(frozen=True)
class Profiled:
    """The outcome of a test's first run: all but ``passed`` have a reason.

    ``metrics`` are all but times. ``note`` says why there are none. ``chip`` is the one that bounds
    are of. ``detail`` is what it did by operator.
    """

    outcome: Outcome
    reason: Reason | None = None
    repeatable: bool = True
    metrics: Mapping[str, Number] = field(default_factory=dict)
    note: Reason | None = None
    chip: str | None = None
    detail: Detail | None = None


@dataclass(frozen=True)
class Turn:
    """Durations of a turn's calls, or of their marked regions; ``spent_ns`` covers the whole calls.

    ``error`` is what one of the calls raised.
    """

    wall_ns: array[int]
    cpu_ns: array[int]
    spent_ns: int
    error: Reason | None = None


@dataclass(frozen=True)
class End:
    """How a worker's pytest ended: exit code, and an error of ours."""

    code: int
    error: Reason | None
    origins: dict[str, Any]


# ---- The controller's end of a worker: its process, and pickled requests and answers in pipes.

#: Runs in the worker. Paths first: neither the working folder nor ours may hide a module.
_START = """
import sys
sys.path[:] = filter(None, sys.path)
import os
commands, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
tool, cwd = sys.argv[1:]
os.chdir(cwd)
given, sys.path[:] = sys.path[:], [tool, *sys.path]
import pytest_torchprof
sys.path[:] = given
from pytest_torchprof.ab.worker import serve
serve(commands, answers)
"""

_POLL_S, _GOODBYE_S = 1.0, 10.0


_Answer = TypeVar("_Answer")


class WorkerDied(Exception):  # noqa: N818 - it is an event
    """The process is gone, or its pytest session is; the reason says how."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class Worker:
    """One side's process. Methods raise `WorkerDied` if the process is gone."""

    def __init__(self, side: TreeSide, folder: Path) -> None:
        """``folder``: of the run, for temporary files."""
        self.side = side
        self._folder = folder
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - as long as the worker
        self._process: subprocess.Popen[bytes] | None = None
        #: What it has sent; None once that is all.
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: How it ended, once it has by itself.
        self.ended: End | None = None

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Start the process; it collects tests in the background.

        Raises:
            AbError: it cannot start.
        """
        side = self.side
        try:
            with same_addresses():
                self._process = subprocess.Popen(  # noqa: S603 - the user's own interpreter
                    [side.python, "-c", _START, str(side.tool), str(side.cwd)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    cwd=side.root.anchor,  # the worker goes to its own, see above
                    env=same_environment(),
                    start_new_session=True,
                )
        except OSError as error:
            raise AbError(f"{side.name}: {side.python} does not start", str(error)) from None
        self._commands = cast("IO[bytes]", self._process.stdin)
        self._reader = threading.Thread(
            target=self._read, args=(cast("IO[bytes]", self._process.stdout),), daemon=True
        )
        self._reader.start()
        temporary = Path(tempfile.mkdtemp(prefix=side.name, dir=self._folder))
        with suppress(WorkerDied):  # as `collect` says
            self._tell((side, temporary))

    def close(self) -> None:
        """Let pytest end its session, and make sure that the process is gone."""
        with suppress(WorkerDied):
            self._tell(("end",))
            while self.ended is None:
                self._receive(_GOODBYE_S)
        if self.ended is not None and self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GOODBYE_S)
        self.kill()

    def kill(self) -> None:
        """End the process at once, with those that it has started."""
        if self._process is not None:
            if sys.platform != "win32":
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
            with suppress(OSError):  # half a command may be left in it
                self._commands.close()
            self._reader.join(_POLL_S)
        self._log.close()

    # ---------------------------------------------------------------- questions

    def collect(self) -> Collection:
        """Wait until it has collected its tests."""
        return self._expect(Collection)

    def profile(self, nodeid: str, following: str | None) -> Profiled:
        """Run the test, and once more profiled. If it passes, `finish` must follow."""
        return self._ask(("test", nodeid, following), Profiled)

    def turn(self, calls: int, *, fresh: bool, processor: int = 0) -> Turn:
        """Call the test this many times, on new fixtures or on the existing ones."""
        return self._ask(("turn", calls, fresh, processor), Turn)

    def finish(self) -> Profiled:
        """Tear the test down; return its final outcome."""
        return self._ask(("done",), Profiled)

    def complaint(self) -> Reason | None:
        """The line of its output that says why it could not continue."""
        self._log.seek(0)
        line = complaint(self._log.read().decode("utf-8", "replace"))
        return None if line is None else because(*Why.ERROR, message=line)

    # ---------------------------------------------------------------- the pipes

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe, suppress(Exception):  # its end, or half an answer
            while True:
                self._answers.put(pickle.load(pipe))  # noqa: S301 - of our own process
        self._answers.put(None)

    def _tell(self, message: Any) -> None:
        try:
            pickle.dump(message, self._commands)
            self._commands.flush()
        except OSError:
            raise WorkerDied(self._how()) from None

    def _ask(self, command: tuple[Any, ...], kind: type[_Answer]) -> _Answer:
        self._tell(command)
        return self._expect(kind)

    def _expect(self, kind: type[_Answer]) -> _Answer:
        while not isinstance(message := self._receive(), kind):
            pass
        return message

    def _receive(self, timeout: float = float("inf")) -> Any:
        """The next message. A child of the worker may hold the pipe open, so check the process."""
        waited = 0.0
        while True:
            try:
                message = self._answers.get(timeout=_POLL_S)
                break
            except queue.Empty:
                waited += _POLL_S
                if waited >= timeout or self._code() is not None:
                    message = None
                    break
        if isinstance(message, End):
            self.ended = message
        if message is None or self.ended is not None:
            raise WorkerDied(self._how())
        return message

    def _code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def _how(self) -> Reason:
        """How it ended."""
        if self.ended is not None:
            return self.ended.error or because(
                "pytest_exited", "pytest exited with code {code}", code=self.ended.code
            )
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)  # the end of a pipe comes first
        code = self._code()
        if code is None:
            return because("worker_silent", "the worker no longer answers")
        if code < 0:
            with suppress(ValueError):
                return because(
                    "worker_killed",
                    "the worker was killed by {signal}",
                    signal=signal.Signals(-code).name,
                )
        return because("worker_exited", "the worker exited with code {code}", code=code)


def complaint(output: str) -> str | None:
    r"""The line of pytest's, or Python's, output that describes the error.

    >>> complaint("usage: pytest [options]\npytest: error: no option -z\n  rootdir: /x")
    'pytest: error: no option -z'
    """
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    for marks in (lambda line: line.startswith("E  "), lambda line: ": error: " in line):
        if marked := [line for line in lines if marks(line)]:
            return marked[0].removeprefix("E").strip()
    errors = [line for line in lines if line.startswith(("ERROR", "INTERNALERROR>"))]
    return errors[-1] if errors else lines[-1] if lines else None


# ---- Compare one test on both sides: profile it, measure it in turns, and decide.


@dataclass(frozen=True)
class Options:
    """How long to measure a test: at most this many seconds a side, or this many pairs of turns."""

    min_time_s: float = 1.0
    rounds: int | None = None
    threshold: float = 0.02


class PairedRun:
    """One test on both sides."""

    def __init__(
        self, nodeid: str, workers: tuple[Worker, Worker], options: Options, tests: int
    ) -> None:
        """``workers`` are A and B; ``tests`` is how many are compared in this run."""
        self._nodeid = nodeid
        self._workers = workers
        self._comparison = Comparison(tests=tests, threshold=options.threshold)
        limit = None if options.rounds is not None else 2e9 * options.min_time_s
        self._pace = Pace(limit, options.rounds)
        draw = random.Random(nodeid)  # noqa: S311 - which side comes first, and where
        self._paired = PairedTurns(self._comparison, self._pace, draw, time.perf_counter_ns)
        self._profiles: dict[str, Profiled] = {}
        #: The worker that got the last request, and those that are waiting within the test.
        self.at = workers[0]
        self.open: list[Worker] = []
        #: Sides of the last turns that failed.
        self._broken: Broken = ""

    def row(self, following: str | None) -> PairedRow:
        """Profile it on both sides, and measure it if it passes on both.

        Raises:
            WorkerDied: the one that is `at` is gone. `known` and `close` still work.
        """
        for worker in self._workers:
            self.at = worker
            profile = worker.profile(self._nodeid, following)
            self._profiles[worker.side.name] = profile
            if profile.outcome == "passed":
                self.open.append(worker)
        a, b = self._profiles["A"], self._profiles["B"]
        why = None
        if len(self.open) == 2:
            self._pace.repeatable = a.repeatable and b.repeatable
            why = self._paired.measure(self._turns)
        self.close()
        return self._not_passed() or self.known(
            "error" if why else None, why, self._broken if why else ""
        )

    def close(self) -> None:
        """Tear the test down if it is still set up; the teardown may fail."""
        while self.open:
            self.at = worker = self.open.pop()
            end = worker.finish()
            if end.outcome != "passed":
                self._profiles[worker.side.name] = end

    def known(
        self,
        verdict: RowVerdict | None = None,
        reason: Reason | None = None,
        broken: Broken = "",
    ) -> PairedRow:
        """A row of what is known so far, with the comparison's verdict unless one is given."""
        decision = None
        if verdict is None and self._pace.done:
            decision = self._comparison.decide()
            verdict = decision.verdict
            reason = self._remark() if verdict == "unclear" else None
        return PairedRow(
            self._nodeid,
            verdict or "error",
            reason,
            self._paired.wall_ms("A"),
            self._paired.wall_ms("B"),
            self._paired.cpu_ms("A"),
            self._paired.cpu_ms("B"),
            decision,
            found := self._differences(),
            self._pace.measured_ns / 1e9,
            broken=broken,
            unprofiled=self._unprofiled(),
            causes=self._causes(found),
        )

    def _remark(self) -> Reason | None:
        """Why calls got less measured time than they were given."""
        if self._pace.limit_reached or self._pace.measured_ns > self._pace.spent_ns / 2:
            return None
        if not self._pace.repeatable:
            return because(
                "fixtures_took_time", "setting up its fixtures for each call took most of the time"
            )
        return because(
            "other_code_took_time", "code outside its measured region took most of the time"
        )

    def _not_passed(self) -> PairedRow | None:
        """The row of a test that does not pass on both sides."""
        verdicts: tuple[Literal["failed", "error", "skipped"], ...] = ("failed", "error", "skipped")
        for verdict in verdicts:
            on = [name for name in SIDES if self._profiles[name].outcome == verdict]
            if on:
                reason = _on_sides(verdict, on, self._profiles[on[-1]].reason)
                return self.known(verdict, reason, on[0] if len(on) == 1 else "AB")
        return None

    def _unprofiled(self) -> Reason | None:
        """Why exact metrics, or those of a chip, cannot be compared."""
        notes = {name: profile.note for name, profile in self._profiles.items() if profile.note}
        if len(notes) == len(SIDES) and notes["A"] == notes["B"]:
            return notes["B"]
        whys = tuple(because(*Why.ON_SIDE, side=name, why=why) for name, why in notes.items())
        return because("on_each_side", "{whys:, }", whys=whys) if whys else self._other_chips

    @property
    def _other_chips(self) -> Reason | None:
        """Why bounds are not compared: each tree's ini file may name a chip of its own."""
        a, b = (self._profiles[name].chip if name in self._profiles else None for name in SIDES)
        return (
            because(
                "chips_differ", "bound_ms not compared: A's is of {a}, and B's of {b}", a=a, b=b
            )
            if a and b and a != b
            else None
        )

    def _differences(self) -> tuple[Difference, ...]:
        a, b = (self._profiles[name].metrics if name in self._profiles else {} for name in SIDES)
        found = differences(a, b) if a and b else ()
        same_chip = self._other_chips is None
        return tuple(one for one in found if same_chip or not METRICS[one.metric].of_chip)

    def _causes(self, found: Sequence[Difference]) -> tuple[Cause, ...]:
        """Why B needs more, by operator."""
        more = [Verdict(one.metric, one.b, "regressed", one.a) for one in found
                if one.a is not None and one.b is not None and one.b > one.a]  # fmt: skip
        a, b = (self._profiles[name].detail if more else None for name in SIDES)
        return causes_of(a, Seen(b), more) if a is not None and b is not None else ()

    # ---------------------------------------------------------------- measuring

    def _turns(self, wanted: PairRequest) -> tuple[dict[PairedSide, Turn], Reason | None]:
        """Run a turn of each side; return why the pair does not count, if so."""
        turns: dict[PairedSide, Turn] = {}
        why = None
        failed: list[PairedSide] = []
        workers = dict(zip(SIDES, self._workers, strict=True))
        for side in wanted.order:
            self.at = worker = workers[side]
            turns[side] = turn = worker.turn(
                wanted.calls, fresh=wanted.fresh, processor=wanted.processor
            )
            if turn.error is not None or not turn.wall_ns:
                error = turn.error or because(*Why.WAS_NOT_MEASURED)
                why = why or because(
                    "fails_again_on", "fails in {side} when run again: {why}", side=side, why=error
                )
                failed.append(side)
        if failed:
            self._broken = "AB" if len(failed) == len(SIDES) else failed[0]
        return turns, why


def _on_sides(
    outcome: Literal["failed", "error", "skipped"], on: Sequence[str], reason: Reason | None
) -> Reason | None:
    """The reason of this outcome, with the sides that it is of; None: skipped without one."""
    if outcome == "failed" and reason is not None:
        return because("fails_on", "fails in {sides: and }: {why}", sides=tuple(on), why=reason)
    if len(on) > 1:
        return reason
    if reason is None:
        return because(*Why.ONLY_ON, side=on[0])
    return because(*(Why.ON_SIDE if outcome == "error" else Why.SKIPPED_ON), side=on[0], why=reason)


def differences(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[Difference, ...]:
    """Metrics that differ by more than their default tolerance, or that only one side measured.

    >>> differences({"ops": 3, "flops": 2}, {"ops": 4, "flops": 2})
    (Difference(metric='ops', a=3, b=4),)
    >>> differences({"ops": 3, "flops": 2}, {"ops": 3})
    (Difference(metric='flops', a=2, b=None),)
    """
    found = []
    for name, metric in METRICS.items():
        left, right = a.get(name), b.get(name)
        if left is None or right is None:
            differs = left is not right
        else:
            large, small = sorted((left, right), key=abs, reverse=True)
            differs = not alike(large, small, metric.tolerance, metric.margin)
        if differs:
            found.append(Difference(name, left, right))
    return tuple(found)


# ---- All tests of two sides.

_MOST_DEATHS = 3

__all__ = ["Options", "run"]

TestProgress = Callable[[str, int, int], None]


def run(
    a: TreeSide,
    b: TreeSide,
    folder: Path,
    options: Options,
    progress: TestProgress,
    rows: list[PairedRow],
) -> list[str]:
    """Compare all tests of two sides; return notes on the run for the reader.

    ``folder`` is for temporary files. ``rows`` gets a row for each test as soon as it is done, in
    B's collection order, so they are kept even if an error or Ctrl-C ends the run. Before a test
    runs, ``progress`` gets its id, its number from 1, and the number of tests.

    Raises:
        AbError: there is nothing to compare, one side would run the other's code, or several tests
            in a row ended their worker.
    """
    all_tests = _Run((a, b), folder, options, progress)
    try:
        all_tests.start()
        for row in all_tests.rows():
            rows.append(row)  # noqa: PERF402 - each at once, whatever comes next
        all_tests.finish()
    finally:
        all_tests.kill()
    return all_tests.notes


class _Run:
    """Both workers, and what they have collected."""

    def __init__(
        self,
        sides: tuple[TreeSide, TreeSide],
        folder: Path,
        options: Options,
        progress: TestProgress,
    ) -> None:
        self._folder = folder
        self._workers = [Worker(side, folder) for side in sides]
        self._found: list[Collection] = []
        self._options = options
        self._progress = progress
        self._deaths = 0
        #: For the reader.
        self.notes: list[str] = []

    # ---------------------------------------------------------------- the workers

    def start(self) -> None:
        """Both collect at the same time."""
        for worker in self._workers:
            worker.start()
        (found_a, why_a), (found_b, why_b) = map(_collect, self._workers)
        if why_b is not None:
            side = self._workers[1].side
            raise AbError(
                f"B ({side.label}) cannot be tested",
                why_b.text,
                f"see what pytest says in {side.cwd}",
            )
        if why_a is not None:
            found_a = Collection([], {"": why_a}, {})  # every test gets a row with the reason
        self._found = [found_a, found_b]
        proven(found_a.origins, found_b.origins)

    def _renew(self, dead: Worker) -> None:
        """Start another process in place of one that died.

        Raises:
            AbError: it does not start, or would run the other's code.
        """
        dead.kill()
        self._lost(dead)
        at = self._workers.index(dead)
        self._workers[at] = new = Worker(dead.side, self._folder)
        new.start()
        self._found[at], why = _collect(new)
        if why is not None:
            raise AbStoppedError(f"the worker of {new.side.name} cannot be restarted", why.text)
        proven(self._found[0].origins, self._found[1].origins)

    def finish(self) -> None:
        """End both, and check once more where their code came from."""
        ends = []
        for worker, found in zip(self._workers, self._found, strict=True):
            worker.close()
            if worker.ended is None:
                self._lost(worker)
            ends.append(found.origins if worker.ended is None else worker.ended.origins)
        proven(ends[0], ends[1])

    def kill(self) -> None:
        """End both at once."""
        for worker in self._workers:
            worker.kill()

    def _lost(self, worker: Worker) -> None:
        """A process died before it reported its imports."""
        note = (
            f"it is not known where {worker.side.name} imported modules from while tests ran:"
            " its worker died"
        )
        if note not in self.notes:
            self.notes.append(note)

    # ---------------------------------------------------------------- the tests

    def rows(self) -> Iterator[PairedRow]:
        """A row for each test."""
        found_a, found_b = self._found
        in_a, in_b = set(found_a.tests), set(found_b.tests)
        common = [nodeid for nodeid in found_b.tests if nodeid in in_a]
        if not found_a.tests and not found_b.tests and not found_a.errors and not found_b.errors:
            raise AbError(
                "no tests were collected on either side", "", "check the arguments after --"
            )
        for nodeid, why in found_b.errors.items():
            reason = because(*Why.NOT_COLLECTED_ON, side="B", why=why)
            yield PairedRow(nodeid or self._workers[1].side.label, "failed", reason, broken="B")
        number = 0
        for nodeid in found_b.tests:
            if nodeid not in in_a:
                yield _only_in_b(nodeid, found_a.errors)
                continue
            number += 1
            self._progress(nodeid, number, len(common))
            following = common[number] if number < len(common) else None
            yield self._test(nodeid, following, len(common))
        for nodeid in found_a.tests:
            if nodeid not in in_b and not _error_of(nodeid, found_b.errors):  # those have a row
                yield PairedRow(nodeid, "gone", because(*Why.ONLY_ON, side="A"))

    def _test(self, nodeid: str, following: str | None, tests: int) -> PairedRow:
        """Run one test, even if a worker dies during it."""
        begun = time.perf_counter()
        a, b = self._workers
        compared = PairedRun(nodeid, (a, b), self._options, tests)
        try:
            row = compared.row(following)
            self._deaths = 0
        except WorkerDied as death:
            row = self._died(compared, death)
        return replace(row, spent_s=time.perf_counter() - begun)

    def _died(self, compared: PairedRun, death: WorkerDied) -> PairedRow:
        """The row of a test that ended its worker; a new worker is started.

        Raises:
            AbError: too many tests in a row ended their worker.
        """
        dead = [compared.at]
        name = compared.at.side.name
        reason = because(*Why.ON_SIDE, side=name, why=death.reason)
        row = compared.known("error", reason, name)
        self._deaths += 1
        if self._deaths >= _MOST_DEATHS:
            raise AbStoppedError(
                f"{_MOST_DEATHS} tests in a row ended their worker",
                f"the last one was {row.nodeid}: {reason.text}",
                "exclude them with --deselect after --",
            ) from None
        compared.open = [worker for worker in compared.open if worker not in dead]
        try:
            compared.close()
        except WorkerDied:
            dead.append(compared.at)
        for worker in dead:
            self._renew(worker)
        return row


def _collect(worker: Worker) -> tuple[Collection, Reason | None]:
    """What it collected, or why it could not collect anything."""
    try:
        return worker.collect(), None
    except WorkerDied as death:
        said = None if worker.ended and worker.ended.error else worker.complaint()
        return Collection([], {}, {}), said or death.reason


def _only_in_b(nodeid: str, errors: Mapping[str, Reason]) -> PairedRow:
    if why := _error_of(nodeid, errors):
        reason = because(*Why.NOT_COLLECTED_ON, side="A", why=why)
        return PairedRow(nodeid, "failed", reason, broken="A")
    return PairedRow(nodeid, "new", because(*Why.ONLY_ON, side="B"))


def _error_of(nodeid: str, errors: Mapping[str, Reason]) -> Reason | None:
    """Why the file or folder that contains a test could not be collected."""
    for place, why in errors.items():
        if not place or nodeid == place or nodeid.startswith((f"{place}::", f"{place}/")):
            return why
    return None
