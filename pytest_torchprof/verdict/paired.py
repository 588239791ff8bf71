"""Two sides measured in turn until the answer is clear, or the time is up."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import NormalDist, median
from typing import Literal, Protocol

import numpy as np
from numpy.random import PCG64, Generator
from numpy.typing import NDArray

from pytest_torchprof.core.unknown import Reason, because
from pytest_torchprof.core.values import Cause, Sample

# ---- Decide whether B is slower than A, from as few neighboring turns as possible.
#
# Each pair of turns gives one number, the logarithm of B's median call over A's; slow drift
# affects both sides and cancels. Two tests must agree before a change is confirmed:
#
# - the sign test: B is slower in more pairs than chance allows. It assumes almost nothing about the
#   distribution, so neither spikes nor two modes mislead it;
# - the interval: all of it lies beyond the threshold. Its center is the mean of the middle third of
#   the pairs; its width comes from a bootstrap of blocks of neighboring pairs.
#
# The second turn in a pair may be up to 7 % slower, because it finds the caches as the other side
# left them. Both orders are equally frequent, so this cancels; but two centers would widen the
# interval, so pairs of both orders are first shifted to a common center.
#
# Looking until a difference appears would always find one. So looks happen at fixed pair counts,
# and each spends part of half the allowed error; the last look has the other half.
#
# Sources: Dixon and Mood 1946 (sign test), Künsch 1989 (bootstrap of blocks), Lan and DeMets 1983
# (alpha spending), Dunn 1961 (Bonferroni's correction).

# With the module: a first use within a test would load it among what that test replaced.


PairedVerdict = Literal["slower", "faster", "same", "unclear"]

#: Confidence of all verdicts of a run together.
CONFIDENCE = 0.99
#: Pair counts at which the answer may become clear, each a quarter larger. The first is large
#: enough to outvote a competing process that runs for 0.2 s.
LOOKS = tuple(round(32 * 1.25**step) for step in range(32))
#: The share of the allowed error for all looks but the last.
SHARE_OF_LOOKS = 0.5
_RESAMPLES = 200

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Decision:
    """The result of comparing pairs of turns of one test.

    ``ratio`` estimates time B / time A, with the interval ``low`` to ``high`` at ``confidence``
    (0.99 for 99 %, for all tests of the run together); ``p_value`` is for no difference, before
    correction for other tests. ``slower``: the whole interval is above 1 + threshold;
    ``faster``: it is below 1 / (1 + threshold); ``same``: it is between these two; ``unclear``:
    anything else. ``reason`` says what was missing if there were too few pairs for an answer;
    the interval is then that of the pairs seen, and ``confidence`` what they allow.
    """

    verdict: PairedVerdict
    ratio: float
    low: float
    high: float
    confidence: float
    pairs: int
    p_value: float
    reason: Reason | None = None

    def is_slower_by(self, share: float) -> bool:
        """Whether it is certain that B takes more than this share of A's time longer.

        Both tests must agree, as for a verdict: the whole interval is beyond, and too many pairs
        point one way for chance. Never after fewer pairs than an answer takes.
        """
        enough = self.reason is None and self.p_value <= 1 - self.confidence
        return enough and self.low > 1 + share


class Comparison:
    """Collects pairs of turns of one test, and decides.

    Check `clear` after every pair, and call `decide` once, at the end. ``tests`` is the number
    compared in this run, which share the allowed error. ``threshold`` is the smallest change
    that matters (0.02 for 2 %). ``precise``: an answer is clear only once its interval is at most
    as wide as that of `same`, so that a larger share can be told from it too.
    """

    def __init__(self, *, tests: int = 1, threshold: float = 0.02, precise: bool = False) -> None:
        self._precise = precise
        self._edge = math.log1p(threshold)
        # The allowed error per direction and test.
        self._error = (1 - CONFIDENCE) / 2 / max(tests, 1)
        self._ratios: list[float] = []
        #: 1 where A's turn came first, -1 where B's did.
        self._orders: list[int] = []
        self._looked = False
        self._answer: Decision | None = None

    def add(self, a_ns: Sequence[int], b_ns: Sequence[int], *, a_first: bool = True) -> None:
        """Add a pair of turns: the durations of each side's calls, and whose turn came first.

        Raises:
            ValueError: a side has no call.
        """
        if not a_ns or not b_ns:
            raise ValueError("a turn without a call")
        # A duration of 0 is below the clock's resolution.
        self._ratios.append(math.log(max(median(b_ns), 1) / max(median(a_ns), 1)))
        self._orders.append(1 if a_first else -1)

    @property
    def needed(self) -> int:
        """The fewest pairs that allow an answer, if there are too few for an early look."""
        return pairs_needed(self._error)

    @property
    def clear(self) -> bool:
        """Whether the answer is confirmed, so that no more pairs are needed."""
        if self._answer is None and len(self._ratios) in LOOKS:
            self._looked = True
            error = self._error * SHARE_OF_LOOKS / len(LOOKS)
            if self._worth_a_look(error):
                found = self._look(error)
                if found.verdict != "unclear" and self._is_narrow(found):
                    self._answer = found
        return self._answer is not None

    def _is_narrow(self, found: Decision) -> bool:
        return not self._precise or math.log(found.high / found.low) <= 2 * self._edge

    def decide(self) -> Decision:
        """Return the answer so far, or the one that became clear earlier.

        Raises:
            ValueError: there is no pair.
        """
        if self._answer is not None:
            return self._answer
        if not self._ratios:
            raise ValueError("no pair of turns to decide on")
        share = 1 - SHARE_OF_LOOKS if self._looked else 1.0
        return self._look(self._error * share)

    def _worth_a_look(self, error: float) -> bool:
        """Whether a look may find a clear answer: a cheap check, a tenth of a look's 1 ms.

        The quartiles estimate the interval's width; False only if it is far too wide.
        """
        ratios = np.sort(self._of_any_order())
        n = len(ratios)
        low, middle, high = ratios[n // 4], ratios[n // 2], ratios[n - 1 - n // 4]
        reach = 0.3 * _t_quantile(1 - error, n - 1) * (high - low) / math.sqrt(n)
        return bool(reach < abs(abs(middle) - self._edge))

    def _of_any_order(self) -> _Floats:
        """The pairs, corrected for which side came first.

        Few pairs stay as they are, because the correction would mostly be noise.
        """
        ratios, orders = np.array(self._ratios), np.array(self._orders)
        a_first = orders > 0
        if min(a_first.sum(), len(orders) - a_first.sum()) < LOOKS[0] // 4:
            return ratios
        second = (_middle(ratios[a_first]) - _middle(ratios[~a_first])) / 2
        # Rounded, so that equal values stay equal.
        moved: _Floats = np.round(ratios - second * orders, 12)
        return moved

    def _look(self, error: float) -> Decision:
        """The answer, with this chance of being wrong in each direction."""
        ratios = self._of_any_order()
        n, centre = len(ratios), _middle(ratios)
        p_value = _sign_test(ratios)
        needed = pairs_needed(error)
        if n < needed:
            low, high = min(self._ratios), max(self._ratios)
            return Decision(
                "unclear",
                math.exp(centre),
                math.exp(low),
                math.exp(high),
                1 - 2.0 ** (1 - n),
                n,
                p_value,
                because(
                    "few_pairs",
                    "{pairs} of the {needed} pairs of turns that it takes at least to be sure",
                    pairs=n,
                    needed=needed,
                ),
            )
        reach = _t_quantile(1 - error, n - 1) * _standard_error(ratios)
        low, high = centre - reach, centre + reach
        verdict: PairedVerdict = "unclear"
        if -self._edge < low and high < self._edge:
            verdict = "same"
        elif p_value <= 2 * error and low > self._edge:
            verdict = "slower"
        elif p_value <= 2 * error and high < -self._edge:
            verdict = "faster"
        return Decision(
            verdict, math.exp(centre), math.exp(low), math.exp(high), CONFIDENCE, n, p_value
        )


def pairs_needed(error: float) -> int:
    """The fewest pairs whose chance of all pointing one way by accident is this low."""
    return math.ceil(-math.log2(error))


def _sign_test(ratios: _Floats) -> float:
    """The two-sided p-value of the number of pairs on one side, if each were a coin toss."""
    more, fewer = int((ratios > 0).sum()), int((ratios < 0).sum())
    n, k = more + fewer, min(more, fewer)
    # Sums of integers are exact, however small the result.
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n) if n else 1.0


def _middle(ratios: _Floats) -> float:
    """The mean of the middle third: close to the median, but from more than one or two pairs."""
    return float(_middles(ratios[np.newaxis])[0])


def _middles(rows: _Floats) -> _Floats:
    """The middle of each row."""
    cut = rows.shape[1] // 3
    inner: _Floats = np.sort(rows, axis=1)[:, cut : rows.shape[1] - cut].mean(axis=1)
    return inner


def _standard_error(ratios: _Floats) -> float:
    """The standard error of the middle, from a bootstrap of blocks of neighboring pairs."""
    n = len(ratios)
    length = max(1, round(n ** (1 / 3)))
    blocks = -(-n // length)
    random = Generator(PCG64(n))
    starts = random.integers(0, n, (_RESAMPLES, blocks, 1))
    places = ((starts + np.arange(length)) % n).reshape(_RESAMPLES, -1)[:, :n]
    middles = _middles(ratios[places])
    # Not `std`, whose Python part a test may have replaced.
    apart = middles - np.add.reduce(middles) / _RESAMPLES
    return float(np.sqrt(np.add.reduce(apart * apart) / (_RESAMPLES - 1)))


def _t_quantile(chance: float, freedom: int) -> float:
    """A quantile of Student's t: the normal quantile, corrected for few values (Fisher 1925)."""
    z: float = NormalDist().inv_cdf(chance)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / float(freedom**power) for power, term in enumerate(terms, 1))


# ---- One test of two revisions, as tables and reports show it.

#: A decision's verdict, or why there is none: the test exists only in B or only in A, fails or is
#: skipped on a side, or could not be measured.
RowVerdict = Literal[
    "slower", "faster", "same", "unclear", "new", "gone", "failed", "skipped", "error"
]

#: Sides on which a test fails, is skipped or could not be measured; "A" says nothing about B.
Broken = Literal["", "A", "B", "AB"]


@dataclass(frozen=True)
class Difference:
    """An exact metric that differs between the sides; None for a side that did not measure it."""

    metric: str
    a: float | None
    b: float | None


@dataclass(frozen=True)
class PairedRow:
    """One test. ``a_ms`` and ``b_ms`` are wall times, ``cpu_…`` the process's CPU times.

    ``reason`` says why there is no decision, or what to know about it; ``unprofiled`` says why
    exact metrics were not compared. ``causes``: why B needs more, by operator.
    """

    nodeid: str
    verdict: RowVerdict
    reason: Reason | None = None
    a_ms: Sample | None = None
    b_ms: Sample | None = None
    cpu_a_ms: Sample | None = None
    cpu_b_ms: Sample | None = None
    decision: Decision | None = None
    differences: tuple[Difference, ...] = field(default=())
    #: Time of measured calls on both sides together, and total time spent on the test.
    measured_s: float = 0.0
    spent_s: float = 0.0
    broken: Broken = ""
    unprofiled: Reason | None = None
    causes: tuple[Cause, ...] = ()


# ---- Decide how many calls a turn makes and when to renew fixtures: pure functions.

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


# ---- Measure two sides in turn until the answer is clear, or the time is up.
#
# The sides may be two processes or two callables: what takes the turns is passed in, and so is
# the clock.

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
