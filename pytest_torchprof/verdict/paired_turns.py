"""Measure two sides in turn until the answer is clear, or the time is up.

The sides may be two processes or two callables: what takes the turns is passed in, and so is the
clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from pytest_torchprof.core.samples import Sample
from pytest_torchprof.verdict.pacing import Pace, orders

if TYPE_CHECKING:
    from random import Random

    from pytest_torchprof.core.reasons import Reason
    from pytest_torchprof.verdict.paired_decision import Comparison

Side = Literal["A", "B"]
SIDES: tuple[Side, Side] = ("A", "B")


class TakenTurn(Protocol):
    """Durations of a turn's calls in ns; ``spent_ns`` also covers what is done between them."""

    @property
    def wall_ns(self) -> array[int]:
        """Wall time of each call."""

    @property
    def cpu_ns(self) -> array[int]:
        """CPU time of each call, or of several on average."""

    @property
    def spent_ns(self) -> int:
        """Time of the whole calls."""


@dataclass(frozen=True)
class PairRequest:
    """A pair of turns to take: the sides in ``order``, each with this many ``calls``.

    ``fresh``: on new fixtures. Both start on the processor with this number.
    """

    order: tuple[Side, Side]
    calls: int
    fresh: bool
    processor: int


def _columns() -> dict[Side, array[int]]:
    return {side: array("q") for side in SIDES}


@dataclass
class PairedTurns:
    """The pairs of turns of one comparison. ``random`` draws orders; ``clock`` is in ns."""

    comparison: Comparison
    pace: Pace
    random: Random
    clock: Callable[[], int]
    wall_ns: dict[Side, array[int]] = field(default_factory=_columns)
    cpu_ns: dict[Side, array[int]] = field(default_factory=_columns)

    def measure(
        self, take: Callable[[PairRequest], tuple[Mapping[Side, TakenTurn], Reason | None]]
    ) -> Reason | None:
        """Take pairs of turns until there are enough; return why it is not possible, if so.

        ``take`` returns the turns, or the reason why the pair does not count. What it raises ends
        the comparison.
        """
        __tracebackhide__ = True
        pace, comparison = self.pace, self.comparison
        a_first = orders(self.random)
        while not pace.over and not (pace.pairs is None and comparison.clear):
            fresh, calls = pace.fresh, pace.calls
            begun = self.clock()
            first = next(a_first)
            order = SIDES if first else (SIDES[1], SIDES[0])
            processor = self.random.randrange(1 << 16)
            turns, why = take(PairRequest(order, calls, fresh, processor))
            if why is not None:
                if fresh and calls == 1:
                    return why
                pace.repeatable, pace.calls = False, 1  # it failed because it was repeated
                continue
            spent = self.clock() - begun
            a, b = turns["A"], turns["B"]
            pace.took(sum(a.wall_ns) + sum(b.wall_ns), spent, fresh=fresh)
            if not pace.counts(a.spent_ns / calls, b.spent_ns / calls, calls=calls):
                continue
            pace.done += 1
            comparison.add(a.wall_ns, b.wall_ns, a_first=first)
            for side in SIDES:
                self.wall_ns[side].extend(turns[side].wall_ns)
                self.cpu_ns[side].extend(turns[side].cpu_ns)
        return None

    def wall_ms(self, side: Side) -> Sample | None:
        """Wall time of a side's calls in ms; None before there is one."""
        return _sample(self.wall_ns[side])

    def cpu_ms(self, side: Side) -> Sample | None:
        """CPU time of a side's calls in ms; None before there is one."""
        return _sample(self.cpu_ns[side])


def _sample(durations_ns: array[int]) -> Sample | None:
    return Sample.of(durations_ns).scaled(1e-6) if durations_ns else None
