"""Compare one test on both sides: profile it, measure it in turns, and decide."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.units import alike
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.pacing import Pace
from pytest_torchprof.verdict.paired_decision import Comparison
from pytest_torchprof.verdict.paired_row import Difference, PairedRow
from pytest_torchprof.verdict.paired_turns import SIDES, PairedTurns, PairRequest, Side

if TYPE_CHECKING:
    from typing import Literal

    from pytest_torchprof.ab.messages import Profiled, Turn
    from pytest_torchprof.ab.process import Worker
    from pytest_torchprof.verdict.paired_row import Broken, RowVerdict


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

    def _turns(self, wanted: PairRequest) -> tuple[dict[Side, Turn], Reason | None]:
        """Run a turn of each side; return why the pair does not count, if so."""
        turns: dict[Side, Turn] = {}
        why = None
        failed: list[Side] = []
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
