"""Drive the two workers test by test and turn by turn; one idles while the other runs."""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from msgspec import field as struct_field
from msgspec.structs import replace as struct_replace

from pytest_torchprof.ab.imports import proven
from pytest_torchprof.ab.sides import same_addresses, same_environment
from pytest_torchprof.ab.worktree import unbuilt
from pytest_torchprof.core.errors import AbError, AbStoppedError
from pytest_torchprof.core.records import Sendable
from pytest_torchprof.core.units import alike
from pytest_torchprof.core.unknown import (
    Reason,
    Why,
    because,
)
from pytest_torchprof.core.values import Number  # noqa: TC001 - msgspec reads it
from pytest_torchprof.render.unknown import in_words
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

if TYPE_CHECKING:
    from pytest_torchprof.ab.sides import Side as TreeSide
    from pytest_torchprof.ab.worktree import Cleanup
    from pytest_torchprof.verdict.paired import Broken, RowVerdict


# ---- What a worker sends to the controller, as values.

#: Of a test on one side. ``error``: it passes, but cannot be timed.
Outcome = Literal["passed", "failed", "skipped", "error"]


class Collection(Sendable, frozen=True):
    """What a worker collected: tests in order, and what could not be collected, with the reason.

    ``origins``: see `imports.origins`.
    """

    tests: list[str]
    errors: dict[str, Reason]
    origins: dict[str, Any]


class Profiled(Sendable, frozen=True):
    """The outcome of a test's first run: all but ``passed`` have a reason.

    ``metrics`` are all but times. ``note`` says why there are none. ``chip`` is the one that bounds
    are of.
    """

    outcome: Outcome
    reason: Reason | None = None
    repeatable: bool = True
    metrics: Mapping[str, Number] = struct_field(default_factory=dict)
    note: Reason | None = None
    chip: str | None = None


class Turn(Sendable, frozen=True):
    """Durations of a turn's calls, or of their marked regions; ``spent_ns`` covers the whole calls.

    ``wall`` and ``cpu`` hold signed 64-bit integers in ns, of this machine's byte order. ``error``
    is what one of the calls raised.
    """

    wall: bytes
    cpu: bytes
    spent_ns: int
    error: Reason | None = None

    @property
    def wall_ns(self) -> array[int]:
        """Wall time of each call."""
        return array("q", self.wall)

    @property
    def cpu_ns(self) -> array[int]:
        """CPU time of each call."""
        return array("q", self.cpu)


class End(Sendable, frozen=True):
    """How a worker's pytest ended: exit code, an error of ours, and whether tests were run."""

    code: int
    error: Reason | None
    reached: bool
    origins: dict[str, Any]


# ---- The controller's end of a worker: its process and the requests to it.

#: Runs in the worker. Paths first: neither the working folder nor ours may hide a module.
_START = """
import os, sys
if hasattr(os, "setsid"):
    os.setsid()
os.dup2(2, 1)
side = channel.receive()
os.chdir(side["cwd"])
sys.path[:] = [entry for entry in sys.path if entry]
given, sys.path[:] = sys.path[:], [side["tool"], *sys.path]
import pytest_torchprof
sys.path[:] = given
from pytest_torchprof.ab.worker import serve
serve(channel, side)
"""

_POLL_S = 1.0
_GOODBYE_S = 10.0


class WorkerDied(Exception):  # noqa: N818 - it is an event
    """The process is gone, or its pytest session is; the reason says how."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class Worker:
    """One side's process. Methods raise `WorkerDied` if the process is gone."""

    def __init__(self, side: TreeSide, cleanup: Cleanup, number: int = 0) -> None:
        self.side = side
        self._cleanup = cleanup
        self._number = number
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - as long as the worker
        self._gateway: Any = None
        self._channel: Any = None
        self.pid = 0
        #: How it ended, once it has by itself.
        self.ended: End | None = None

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Start the process; it collects tests in the background.

        Raises:
            AbError: there is no such interpreter, or it cannot start.
        """
        import execnet

        python = shlex.quote(re.sub("/{2,}", "/", self.side.python))
        group = execnet.Group(execmodel="main_thread_only")
        try:
            with _stderr_to(self._log.fileno()), same_addresses(), same_environment():
                spec = f"popen//python={python}//execmodel=main_thread_only"
                self._gateway = group.makegateway(spec)
        except (OSError, EOFError, AssertionError) as error:
            raise AbError(
                f"{self.side.name}: {self.side.python} does not start",
                str(error) if (why := self.complaint()) is None else in_words(why),
                "give the path of a Python that has pytest-torchprof",
            ) from None
        self._group = group
        self.pid = int(self._gateway._io.popen.pid)  # noqa: SLF001 - execnet hands it out nowhere
        self._cleanup.watch(self.pid)
        self._channel = self._gateway.remote_exec(_START)
        folder = self._cleanup.folder / f"{self.side.name}{self._number}"
        self._tell(
            {
                "name": self.side.name,
                "root": str(self.side.root),
                "cwd": str(self.side.cwd),
                "others": [str(other) for other in self.side.others],
                "args": list(self.side.args),
                "wanted": list(self.side.wanted),
                "tool": str(self.side.tool),
                "folder": str(folder),
            }
        )

    def close(self) -> None:
        """Let pytest end its session, and make sure that the process is gone."""
        if self._channel is not None and self.ended is None:
            with suppress(WorkerDied):
                self._tell(("end",))
                while self.ended is None:
                    self._receive(_GOODBYE_S)
        self.kill(gently=self.ended is not None)

    def kill(self, *, gently: bool = False) -> None:
        """End the process at once, with those that it has started."""
        if self._gateway is None:
            self._log.close()
            return
        if not gently:
            _end_group(self.pid)
        self._group.terminate(timeout=3.0)
        _end_group(self.pid)  # what tests have left behind
        self._cleanup.forget(self.pid)
        self._gateway = self._channel = None
        self._log.close()

    # ---------------------------------------------------------------- questions

    def collect(self) -> Collection:
        """Wait until it has collected its tests."""
        found = Collection.read(self._expect("collected")[1])
        errors = {place: self._explained(why) for place, why in found.errors.items()}
        return struct_replace(found, errors=errors)

    def profile(self, nodeid: str, following: str | None) -> Profiled:
        """Run the test, and once more profiled. If it passes, `finish` must follow."""
        self._tell(("test", nodeid, following))
        return Profiled.read(self._expect("profiled", "finished")[1])

    def turn(self, calls: int, *, fresh: bool, processor: int = 0) -> Turn:
        """Call the test this many times, on new fixtures or on the existing ones."""
        self._tell(("turn", calls, fresh, processor))
        return Turn.read(self._expect("turn")[1])

    def finish(self) -> Profiled:
        """Tear the test down; return its final outcome."""
        self._tell(("done",))
        return Profiled.read(self._expect("finished")[1])

    def complaint(self) -> Reason | None:
        """The line of its output that says why it could not continue."""
        self._log.seek(0)
        line = complaint(self._log.read().decode("utf-8", "replace"))
        return None if line is None else self._explained(because(Why.ERROR, message=line))

    def _explained(self, why: Reason) -> Reason:
        """An error, or its cause if the module is built only in the other tree."""
        error = str(dict(why.data).get("message", ""))
        return unbuilt(error, self.side.root, self.side.others) or why

    # ---------------------------------------------------------------- the channel

    def _tell(self, message: Any) -> None:
        try:
            self._channel.send(message)
        except OSError:
            raise WorkerDied(self._how()) from None

    def _expect(self, *kinds: str) -> Any:
        while True:
            message = self._receive()
            if message[0] in kinds:
                return message

    def _receive(self, timeout: float | None = None) -> Any:
        """The next message. A child of the worker may hold the channel open, so check its pid."""
        import execnet

        waited = 0.0
        while True:
            try:
                message = self._channel.receive(_POLL_S)
            except execnet.TimeoutError:
                waited += _POLL_S
                if self._code() is not None or (timeout is not None and waited >= timeout):
                    raise WorkerDied(self._how()) from None
            except execnet.RemoteError as error:
                raise WorkerDied(because(Why.ERROR, message=_last(str(error)))) from None
            except (EOFError, OSError):
                raise WorkerDied(self._how()) from None
            else:
                break
        if message[0] == "ended":
            self.ended = End.read(message[1])
            raise WorkerDied(self._how())
        return message

    def _code(self) -> int | None:
        code: int | None = self._gateway._io.popen.poll()  # noqa: SLF001 - as above
        return code

    def _how(self) -> Reason:
        """How it ended."""
        if self.ended is not None:
            return self.ended.error or because(Why.PYTEST_EXITED, code=self.ended.code)
        with suppress(Exception):
            self._gateway._io.popen.wait(2.0)  # noqa: SLF001 - the end of a pipe comes first
        code = self._code()
        if code is None:
            return because(Why.WORKER_SILENT)
        if code < 0:
            with suppress(ValueError):
                return because(Why.WORKER_KILLED, signal=signal.Signals(-code).name)
        return because(Why.WORKER_EXITED, code=code)


def _last(text: str) -> str:
    """The exception of a traceback."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "an error without a message"


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


def _end_group(pid: int) -> None:
    if sys.platform == "win32":
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


@contextmanager
def _stderr_to(target: int) -> Iterator[None]:
    """Redirect the stderr of a process started within, for which execnet has no option."""
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(target, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


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
            self._differences(),
            self._pace.measured_ns / 1e9,
            broken=broken,
            unprofiled=self._unprofiled(),
        )

    def _remark(self) -> Reason | None:
        """Why calls got less measured time than they were given."""
        if self._pace.limit_reached or self._pace.measured_ns > self._pace.spent_ns / 2:
            return None
        if not self._pace.repeatable:
            return because(Why.FIXTURES_TOOK_TIME)
        return because(Why.OTHER_CODE_TOOK_TIME)

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
        """Why one side, or both, has no exact metrics to compare."""
        notes = {name: profile.note for name, profile in self._profiles.items() if profile.note}
        if len(set(notes.values())) == 1 and len(notes) == len(SIDES):
            return notes["B"]
        whys = tuple(because(Why.ON_SIDE, side=name, why=why) for name, why in notes.items())
        if whys:
            return because(Why.ON_EACH_SIDE, whys=whys)
        return self._other_chips

    @property
    def _other_chips(self) -> Reason | None:
        """Why bounds are not compared: each tree's ini file may name a chip of its own."""
        chips = [self._profiles[name].chip for name in SIDES if name in self._profiles]
        a, b = chips if len(chips) == len(SIDES) else (None, None)
        return because(Why.CHIPS_DIFFER, a=a, b=b) if a and b and a != b else None

    def _differences(self) -> tuple[Difference, ...]:
        a, b = (self._profiles[name].metrics if name in self._profiles else {} for name in SIDES)
        found = differences(a, b) if a and b else ()
        if self._other_chips is not None:
            found = tuple(one for one in found if not METRICS[one.metric].of_chip)
        return found

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
                error = turn.error or because(Why.WAS_NOT_MEASURED)
                why = why or because(Why.FAILS_AGAIN_ON, side=side, why=error)
                failed.append(side)
        if failed:
            self._broken = "AB" if len(failed) == len(SIDES) else failed[0]
        return turns, why


def _on_sides(
    outcome: Literal["failed", "error", "skipped"], on: Sequence[str], reason: Reason | None
) -> Reason | None:
    """The reason of this outcome, with the sides that it is of; None: skipped without one."""
    if outcome == "failed" and reason is not None:
        return because(Why.FAILS_ON, sides=tuple(on), why=reason)
    if len(on) > 1:
        return reason
    if reason is None:
        return because(Why.ONLY_ON, side=on[0])
    member = Why.ON_SIDE if outcome == "error" else Why.SKIPPED_ON
    return because(member, side=on[0], why=reason)


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


_NO_TESTS = 5
_MOST_DEATHS = 3

__all__ = ["Options", "run"]

TestProgress = Callable[[str, int, int], None]


def run(
    a: TreeSide,
    b: TreeSide,
    cleanup: Cleanup,
    options: Options,
    progress: TestProgress,
    rows: list[PairedRow],
) -> list[str]:
    """Compare all tests of two sides; return notes on the run for the reader.

    ``rows`` gets a row for each test as soon as it is done, in B's collection order, so they are
    kept even if an error or Ctrl-C ends the run. Before a test runs, ``progress`` gets its id, its
    number from 1, and the number of tests.

    Raises:
        AbError: there is nothing to compare, one side would run the other's code, or several tests
            in a row ended their worker.
    """
    with _pair(a, b, cleanup) as pair:
        for row in _Run(pair, options, progress).rows():
            rows.append(row)  # noqa: PERF402 - each at once, whatever comes next
    return pair.notes


@dataclass
class _Pair:
    """Both workers, and what they have collected."""

    a: Worker
    b: Worker
    cleanup: Cleanup
    found: tuple[Collection, Collection] = field(init=False)
    number: int = 1
    #: Sides of which a process died before it reported its imports.
    _unproven: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Worker]:
        return iter((self.a, self.b))

    def start(self) -> None:
        """Both collect at the same time."""
        for worker in self:
            if not worker.side.empty:
                worker.start()
        found_a, why_a = _collect(self.a)
        found_b, why_b = _collect(self.b)
        if why_b is not None:
            raise AbError(
                f"B ({self.b.side.label}) cannot be tested",
                in_words(why_b),
                f"see what pytest says in {self.b.side.cwd}",
            )
        if why_a is not None:
            # Every test gets a row with the reason.
            found_a = Collection([], {"": why_a}, found_b.origins)
        else:
            proven(found_a.origins, found_b.origins)
        self.found = found_a, found_b

    def renew(self, worker: Worker) -> None:
        """Start another process in place of one that died.

        Raises:
            AbError: it does not start, or would run the other's code.
        """
        worker.kill()
        self._lost(worker)
        self.number += 1
        new = Worker(worker.side, self.cleanup, self.number)
        if worker is self.a:
            self.a = new
        else:
            self.b = new
        new.start()
        again, why = _collect(new)
        if why is not None:
            raise AbStoppedError(
                f"the worker of {new.side.name} cannot be restarted", in_words(why)
            )
        a, b = self.found
        self.found = (again, b) if new is self.a else (a, again)
        proven(self.found[0].origins, self.found[1].origins)

    def finish(self) -> None:
        """End both, and check once more where their code came from."""
        ends = []
        for worker, found in zip(self, self.found, strict=True):
            if not worker.side.empty:
                worker.close()
            if worker.ended is not None:
                ends.append(worker.ended.origins)
            else:
                ends.append(found.origins)
                self._lost(worker)
        proven(ends[0], ends[1])

    def _lost(self, worker: Worker) -> None:
        """A process died before it reported its imports."""
        if not worker.side.empty and worker.side.name not in self._unproven:
            self._unproven.append(worker.side.name)

    @property
    def notes(self) -> list[str]:
        """For the reader."""
        return [
            f"it is not known where {name} imported modules from while tests ran: its worker died"
            for name in self._unproven
        ]


@contextmanager
def _pair(a: TreeSide, b: TreeSide, cleanup: Cleanup) -> Iterator[_Pair]:
    pair = _Pair(Worker(a, cleanup), Worker(b, cleanup), cleanup)
    try:
        pair.start()
        yield pair
        pair.finish()
    finally:
        for worker in pair:
            worker.kill()


def _collect(worker: Worker) -> tuple[Collection, Reason | None]:
    """What it collected, or why it could not collect anything."""
    if worker.side.empty:
        return Collection([], {}, {}), None
    try:
        return worker.collect(), None
    except WorkerDied as death:
        end = worker.ended
        if end is not None and end.code == _NO_TESTS and end.error is None:
            return Collection([], {}, end.origins), None
        why = worker.complaint() if end is None or end.error is None else None
        return Collection([], {}, {}), why or death.reason


class _Run:
    """One comparison of all tests."""

    def __init__(self, pair: _Pair, options: Options, progress: TestProgress) -> None:
        self._pair = pair
        self._options = options
        self._progress = progress
        self._deaths = 0

    def rows(self) -> Iterator[PairedRow]:
        found_a, found_b = self._pair.found
        in_a, in_b = set(found_a.tests), set(found_b.tests)
        common = [nodeid for nodeid in found_b.tests if nodeid in in_a]
        if not found_a.tests and not found_b.tests and not found_a.errors and not found_b.errors:
            raise AbError(
                "no tests were collected on either side", "", "check the arguments after --"
            )
        for nodeid, why in found_b.errors.items():
            reason = because(Why.NOT_COLLECTED_ON, side="B", why=why)
            yield PairedRow(nodeid or self._pair.b.side.label, "failed", reason, broken="B")
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
            if nodeid in in_b:
                continue
            if not _error_of(nodeid, found_b.errors):  # those have a row already
                yield PairedRow(nodeid, "gone", because(Why.ONLY_ON, side="A"))

    def _test(self, nodeid: str, following: str | None, tests: int) -> PairedRow:
        """Run one test, even if a worker dies during it."""
        begun = time.perf_counter()
        compared = PairedRun(nodeid, (self._pair.a, self._pair.b), self._options, tests)
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
        reason = because(Why.ON_SIDE, side=name, why=death.reason)
        row = compared.known("error", reason, name)
        self._deaths += 1
        if self._deaths >= _MOST_DEATHS:
            raise AbStoppedError(
                f"{_MOST_DEATHS} tests in a row ended their worker",
                f"the last one was {row.nodeid}: {in_words(reason)}",
                "exclude them with --deselect after --",
            ) from None
        compared.open = [worker for worker in compared.open if worker not in dead]
        try:
            compared.close()
        except WorkerDied:
            dead.append(compared.at)
        for worker in dead:
            self._pair.renew(worker)
        return row


def _only_in_b(nodeid: str, errors: Mapping[str, Reason]) -> PairedRow:
    if why := _error_of(nodeid, errors):
        reason = because(Why.NOT_COLLECTED_ON, side="A", why=why)
        return PairedRow(nodeid, "failed", reason, broken="A")
    return PairedRow(nodeid, "new", because(Why.ONLY_ON, side="B"))


def _error_of(nodeid: str, errors: Mapping[str, Reason]) -> Reason | None:
    """Why the file or folder that contains a test could not be collected."""
    for place, why in errors.items():
        if not place or nodeid == place or nodeid.startswith((f"{place}::", f"{place}/")):
            return why
    return None
