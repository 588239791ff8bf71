"""Drives the two workers: test by test and turn by turn, one idle while the other runs."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pytest_torchprof.ab.imports import proven
from pytest_torchprof.ab.pacing import Pace
from pytest_torchprof.ab.process import Collected, Profiled, Turn, Worker, WorkerDied
from pytest_torchprof.errors import AbError
from pytest_torchprof.metrics import METRICS
from pytest_torchprof.paired import Comparison, Difference, Row, Stopped
from pytest_torchprof.samples import Sample

if TYPE_CHECKING:
    from pytest_torchprof.ab.janitor import Janitor
    from pytest_torchprof.ab.sides import Side
    from pytest_torchprof.paired import RowVerdict

_NO_TESTS = 5
_MOST_DEATHS = 3

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Options:
    """How long a test is measured: seconds a side at most, or exactly so many pairs of turns."""

    min_time_s: float = 1.0
    rounds: int | None = None
    threshold: float = 0.02


def run(a: Side, b: Side, janitor: Janitor, options: Options, progress: Progress) -> list[Row]:
    """Compare all tests of two sides; a row for each, in the order in which B has collected them.

    ``progress`` is told a test's id, its number from 1, and how many there are, before it runs.

    Raises:
        AbError: there is nothing to compare, or one side would run the other's code.
    """
    with _pair(a, b, janitor) as pair:
        return _Run(pair, options, progress).rows()


@dataclass
class _Pair:
    """Both workers, and what they have collected."""

    a: Worker
    b: Worker
    janitor: Janitor
    found: tuple[Collected, Collected] = field(init=False)
    number: int = 1

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
            raise AbError(f"B ({self.b.side.label}): {why_b}", self.b.tail())
        if why_a is not None:
            # Every test is a row that says so.
            found_a = Collected([], {"": why_a}, found_b.origins)
        elif found_a.origins and found_b.origins:
            proven(found_a.origins, found_b.origins)
        self.found = found_a, found_b

    def renew(self, worker: Worker) -> None:
        """Another process in place of one that has died.

        Raises:
            AbError: it does not come up.
        """
        worker.kill()
        self.number += 1
        new = Worker(worker.side, self.janitor, self.number)
        if worker is self.a:
            self.a = new
        else:
            self.b = new
        new.start()
        _, why = _collect(new)
        if why is not None:
            raise AbError(f"{new.side.name} cannot be started again", why)

    def finish(self) -> None:
        """End both, and look once more at where their code came from."""
        ends = []
        for worker in self:
            if not worker.side.empty:
                worker.close()
            if worker.ended is not None:
                ends.append(worker.ended[3])
        if len(ends) == 2:
            proven(ends[0], ends[1])


@contextmanager
def _pair(a: Side, b: Side, janitor: Janitor) -> Iterator[_Pair]:
    pair = _Pair(Worker(a, janitor), Worker(b, janitor), janitor)
    try:
        pair.start()
        yield pair
        pair.finish()
    finally:
        for worker in pair:
            worker.kill()


def _collect(worker: Worker) -> tuple[Collected, str | None]:
    """What it has collected, or why it could not collect anything."""
    if worker.side.empty:
        return Collected([], {}, {}), None
    try:
        return worker.collect(), None
    except WorkerDied as death:
        if worker.ended is not None and worker.ended[0] == _NO_TESTS and not worker.ended[1]:
            return Collected([], {}, worker.ended[3]), None
        return Collected([], {}, {}), str(death)


class _Run:
    """One comparison of all tests."""

    def __init__(self, pair: _Pair, options: Options, progress: Progress) -> None:
        self._pair = pair
        self._options = options
        self._progress = progress
        self._deaths = 0

    def rows(self) -> list[Row]:
        """All of them; raises Stopped, with those that are done, on Ctrl-C."""
        rows = list[Row]()
        try:
            rows.extend(self._each())
        except KeyboardInterrupt:
            raise Stopped(rows) from None
        return rows

    def _each(self) -> Iterator[Row]:
        found_a, found_b = self._pair.found
        in_a, in_b = set(found_a.tests), set(found_b.tests)
        common = [nodeid for nodeid in found_b.tests if nodeid in in_a]
        if not found_a.tests and not found_b.tests and not found_a.errors and not found_b.errors:
            raise AbError(
                "no tests were collected, on neither side", "", "look at the arguments after --"
            )
        for nodeid, why in found_b.errors.items():
            name = nodeid or self._pair.b.side.label
            yield Row(name, "failed", f"cannot be collected in B: {why}", broken="B")
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
            if nodeid not in in_b and not _error_of(nodeid, found_b.errors):
                yield Row(nodeid, "gone", "only in A")

    def _test(self, nodeid: str, following: str | None, tests: int) -> Row:
        """One test, whatever becomes of the workers meanwhile."""
        begun = time.perf_counter()
        comparing = _Compared(nodeid, self._pair, self._options, tests)
        try:
            row = comparing.row(following)
        except WorkerDied as death:
            row = comparing.known(
                "error", f"{comparing.at.side.name}: {death}", comparing.at.side.name
            )
            self._deaths += 1
            if self._deaths >= _MOST_DEATHS:
                raise AbError(
                    f"{_MOST_DEATHS} tests in a row have ended their worker",
                    f"the last was {nodeid}: {row.reason}",
                ) from None
            for worker in self._pair:
                self._pair.renew(worker)
        else:
            self._deaths = 0
        return _with_time(row, time.perf_counter() - begun)


class _Compared:
    """One test on both sides."""

    def __init__(self, nodeid: str, pair: _Pair, options: Options, tests: int) -> None:
        self._nodeid = nodeid
        self._pair = pair
        self._comparison = Comparison(tests=tests, threshold=options.threshold)
        limit = None if options.rounds is not None else 2e9 * options.min_time_s
        self._pace = Pace(limit, options.rounds)
        self._wall = {"A": array("q"), "B": array("q")}
        self._cpu = {"A": array("q"), "B": array("q")}
        self._order = random.Random(nodeid)  # noqa: S311 - which side comes first
        self._profiles: dict[str, Profiled] = {}
        #: The worker that was asked last.
        self.at = pair.a

    def row(self, following: str | None) -> Row:
        """Profile it on both sides, and measure it if it passes on both."""
        for worker in self._pair:
            self.at = worker
            self._profiles[worker.side.name] = worker.profile(self._nodeid, following)
        profile_a, profile_b = self._profiles["A"], self._profiles["B"]
        passed = [w for w in self._pair if self._profiles[w.side.name].outcome == "passed"]
        why = None
        if len(passed) == 2:
            self._pace.repeatable = profile_a.repeatable and profile_b.repeatable
            why = self._measure()
        ends = {}
        for worker in passed:
            self.at = worker
            ends[worker.side.name] = worker.finish()
        for name, end in ends.items():
            if end.outcome != "passed" and why is None:
                self._profiles[name] = end
        return self._not_passed() or self.known("error" if why else None, why)

    def known(
        self,
        verdict: RowVerdict | None = None,
        reason: str | None = None,
        broken: Literal["", "A", "B"] = "",
    ) -> Row:
        """A row of what is known so far; the comparison's verdict if none is given."""
        decision = None
        if self._pace.done:
            decision = self._comparison.decide()
        if verdict is None:
            verdict = decision.verdict if decision is not None else "error"
            reason = self._remark() if decision is not None else "it was not measured"
        return Row(
            self._nodeid,
            verdict,
            reason,
            _sample(self._wall["A"]),
            _sample(self._wall["B"]),
            _sample(self._cpu["A"]),
            _sample(self._cpu["B"]),
            decision if verdict != "error" else None,
            self._differences(),
            self._pace.measured_ns / 1e9,
            broken=broken,
        )

    def _remark(self) -> str | None:
        if not self._pace.repeatable and not self._pace.limit_reached:
            return "each call needs fixtures of its own, which left time for few"
        return None

    def _not_passed(self) -> Row | None:
        """The row of a test that does not pass on both sides."""
        sides: tuple[Literal["B"], Literal["A"]] = ("B", "A")
        for name in sides:
            profile = self._profiles[name]
            if profile.outcome == "failed":
                return self.known("failed", f"fails in {name}: {profile.reason}", name)
        for name in ("A", "B"):
            profile = self._profiles[name]
            if profile.outcome == "skipped":
                both = all(other.outcome == "skipped" for other in self._profiles.values())
                where = "" if both else f"only in {name}: "
                return self.known("skipped", f"{where}{_bare(profile.reason)}")
        return None

    def _differences(self) -> tuple[Difference, ...]:
        if len(self._profiles) < 2:
            return ()
        return differences(self._profiles["A"].metrics, self._profiles["B"].metrics)

    # ---------------------------------------------------------------- measuring

    def _measure(self) -> str | None:
        """All pairs; why it cannot be measured, if so."""
        pace = self._pace
        while not pace.over and not (pace.pairs is None and self._comparison.clear):
            fresh, calls = pace.fresh, pace.calls
            begun = time.perf_counter_ns()
            turns, why = self._turns(calls, fresh=fresh)
            if why is not None:
                if fresh and calls == 1:
                    return why
                pace.repeatable, pace.calls = False, 1  # it was the repetition that it failed at
                continue
            spent = time.perf_counter_ns() - begun
            a, b = turns["A"].wall_ns, turns["B"].wall_ns
            pace.took(sum(a) + sum(b), spent, fresh=fresh)
            if not pace.counts(a, b, calls=calls):
                continue
            pace.done += 1
            self._comparison.add(a, b)
            for name, turn in turns.items():
                self._wall[name].extend(turn.wall_ns)
                self._cpu[name].extend(turn.cpu_ns)
        return None

    def _turns(self, calls: int, *, fresh: bool) -> tuple[dict[str, Turn], str | None]:
        """A turn of each side, in random order; why they do not count, if so."""
        workers = [self._pair.a, self._pair.b]
        if self._order.random() < 0.5:  # noqa: PLR2004 - a coin
            workers.reverse()
        turns: dict[str, Turn] = {}
        why = None
        for worker in workers:
            self.at = worker
            name = worker.side.name
            turns[name] = turn = worker.turn(self._nodeid, calls, fresh=fresh)
            if turn.error is not None or not turn.wall_ns:
                why = why or f"fails in {name} when run again: {turn.error}"
        return turns, why


def differences(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[Difference, ...]:
    """Metrics that both sides have measured, and that are not the same within their tolerance.

    >>> differences({"ops": 3, "flops": 2}, {"ops": 4, "kernels": 1})
    (Difference(metric='ops', a=3, b=4),)
    """
    return tuple(
        Difference(name, a[name], b[name])
        for name, metric in METRICS.items()
        if name in a
        and name in b
        and abs(b[name] - a[name]) > metric.tolerance * max(abs(a[name]), abs(b[name]))
    )


def _bare(reason: str | None) -> str:
    """Without what the verdict says already."""
    return (reason or "").removeprefix("Skipped: ")


def _only_in_b(nodeid: str, errors: Mapping[str, str]) -> Row:
    if why := _error_of(nodeid, errors):
        return Row(nodeid, "failed", f"cannot be collected in A: {why}", broken="A")
    return Row(nodeid, "new", "only in B")


def _error_of(nodeid: str, errors: Mapping[str, str]) -> str | None:
    """Why the file or folder that a test is in could not be collected."""
    for place, why in errors.items():
        if not place or nodeid == place or nodeid.startswith((f"{place}::", f"{place}/")):
            return why
    return None


def _sample(durations_ns: array[int]) -> Sample | None:
    return Sample.of(durations_ns).scaled(1e-6) if durations_ns else None


def _with_time(row: Row, spent_s: float) -> Row:
    from dataclasses import replace

    return replace(row, spent_s=spent_s)
