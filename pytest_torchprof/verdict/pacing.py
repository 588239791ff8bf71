"""Decide how many calls a turn makes and when to renew fixtures: pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

#: A turn is short, so that the two of a pair are close in time, but long enough that its overhead
#: (a message each way, a collection) is small.
TURN_NS = 12_000_000
#: Renewing fixtures may cost this share of the measured time. All overhead is to stay below a
#: tenth: messages and collections between turns take a twentieth, profiling the rest.
RENEWING_SHARE = 0.02
#: Turns with their overhead may take this many times the time that calls may take. A test that may
#: only be called once on its fixtures, or that measures a part of itself, is measured for less.
MOST_SPENT = 1.1
#: For the fewest pairs that allow an answer, calls that are long may take this many times as much.
MOST_FOR_FEW = 4
#: At most this many pairs of turns to find the number of calls in a turn.
MOST_TRIALS = 3


def calls_for(a_ns: float, b_ns: float) -> int:
    """Calls in a turn, the same for both sides, from the duration of a call on each.

    >>> calls_for(1_000_000, 3_000_000), calls_for(30_000_000, 1), calls_for(50e6, 50e6)
    (6, 1, 1)
    """
    return max(1, round(2 * TURN_NS / max(a_ns + b_ns, 1.0)))


def orders(random: Random) -> Iterator[bool]:
    """For each pair, whether A comes first: at random, both ways equally often."""
    while True:
        yield from random.sample((True, False), 2)


@dataclass
class Pace:
    """The turns of one test: their cost so far, in ns, and what comes next.

    ``limit_ns``: measured time of both sides at most; None where ``pairs`` gives the number of
    pairs. ``least``: so many pairs are taken where `MOST_FOR_FEW` times as much is enough for them.
    """

    limit_ns: float | None
    pairs: int | None = None
    least: int = 1
    #: Whether the test may be called again on the same fixtures.
    repeatable: bool = True
    calls: int = 1
    measured_ns: int = 0
    spent_ns: int = 0
    done: int = 0
    #: Pairs that were run to find the duration of a call.
    trials: int = 0
    settled: bool = False
    #: What pairs on new fixtures cost beyond their calls, in total and for the latest.
    _renewals_ns: int = 0
    _renewal_ns: int | None = None

    @property
    def fresh(self) -> bool:
        """Whether the next pair of turns gets new fixtures."""
        if not self.repeatable or self._renewal_ns is None:
            return True
        return self._renewals_ns + self._renewal_ns <= RENEWING_SHARE * self.measured_ns

    @property
    def over(self) -> bool:
        """Whether no further pair is needed."""
        if self.limit_ns is None:
            return self.done >= (self.pairs or 0)
        if self.done < self.least:
            return self.done > 0 and self.spent_ns >= MOST_FOR_FEW * MOST_SPENT * self.limit_ns
        return self.measured_ns >= self.limit_ns or self.spent_ns >= MOST_SPENT * self.limit_ns

    @property
    def limit_reached(self) -> bool:
        """Whether the whole time budget was measured."""
        return self.limit_ns is None or self.measured_ns >= self.limit_ns

    def counts(self, a_ns: float, b_ns: float, *, calls: int) -> bool:
        """Whether a pair of turns is compared, given the time of a call.

        The first pairs find the number of calls in a turn. A long call gets one call per turn,
        which needs no further pair.
        """
        if self.settled:
            return True
        self.trials += 1
        wanted = 1
        if self.repeatable:
            wanted = calls_for(a_ns, b_ns)
        self.settled = wanted <= 2 * calls or self.trials >= MOST_TRIALS
        counts = wanted == calls == 1
        self.calls = wanted
        return counts

    def took(self, measured_ns: int, spent_ns: int, *, fresh: bool) -> None:
        """Record the time of a pair: of its calls, and with overhead."""
        self.measured_ns += measured_ns
        self.spent_ns += spent_ns
        if fresh:
            self._renewal_ns = max(spent_ns - measured_ns, 0)
            self._renewals_ns += self._renewal_ns
