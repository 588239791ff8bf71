"""Decide whether B is slower than A, from as few neighboring turns as possible.

Each pair of turns gives one number, the logarithm of B's median call over A's; slow drift affects
both sides and cancels. Two tests must agree before a change is confirmed:

- the sign test: B is slower in more pairs than chance allows. It assumes almost nothing about the
  distribution, so neither spikes nor two modes mislead it;
- the interval: all of it lies beyond the threshold. Its center is the mean of the middle third of
  the pairs; its width comes from a bootstrap of blocks of neighboring pairs.

The second turn in a pair may be up to 7 % slower, because it finds the caches as the other side
left them. Both orders are equally frequent, so this cancels; but two centers would widen the
interval, so pairs of both orders are first shifted to a common center.

Looking until a difference appears would always find one. So looks happen at fixed pair counts, and
each spends part of half the allowed error; the last look has the other half.

Sources: Dixon and Mood 1946 (sign test), Künsch 1989 (bootstrap of blocks), Lan and DeMets 1983
(alpha spending), Dunn 1961 (Bonferroni's correction).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Literal

import numpy as np

# With the module: a first use within a test would load it among what that test replaced.
from numpy.random import PCG64, Generator
from numpy.typing import NDArray

from pytest_torchprof.core.reasons import Reason, Why, because

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
                because(Why.FEW_PAIRS, pairs=n, needed=needed),
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
