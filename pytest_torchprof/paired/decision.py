"""Is B slower than A? Decided on neighbouring turns, as few as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["slower", "faster", "same", "unclear"]


@dataclass(frozen=True)
class Decision:
    """What pairs of turns say of one test.

    ``ratio`` is the estimate of time B / time A, ``low`` and ``high`` its interval at
    ``confidence`` (0.99 for 99 %); ``p_value`` of no difference, before other tests are
    corrected for.
    """

    verdict: Verdict
    ratio: float
    low: float
    high: float
    confidence: float
    pairs: int
    p_value: float


class Comparison:
    """Gathers pairs of turns of one test, and decides."""

    def __init__(self, *, tests: int = 1, threshold: float = 0.02) -> None:
        self._tests, self._threshold = tests, threshold

    def add(self, a_ns: Sequence[int], b_ns: Sequence[int]) -> None:
        """One pair of turns: the duration of each call of a side's turn."""
        raise NotImplementedError

    @property
    def clear(self) -> bool:
        """Whether more pairs would not change the answer."""
        raise NotImplementedError

    def decide(self) -> Decision:
        """The answer so far."""
        raise NotImplementedError
