"""A number that was measured several times: how many times, and how far apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

#: A spread above this is said beside the number.
NOISY = 0.1


@dataclass(frozen=True)
class Sample:
    """Measured values of one quantity, in its unit: their number and quartiles.

    ``low`` and ``high`` are the first and the third quartile.
    """

    n: int
    median: float
    low: float
    high: float
    minimum: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Sample:
        """Of one value or more; raises ValueError for none."""
        column = np.fromiter(values, np.float64)
        if not len(column):
            raise ValueError("a sample of nothing")
        low, median, high = np.quantile(column, (0.25, 0.5, 0.75)).tolist()
        return cls(len(column), median, low, high, float(column.min()))

    def scaled(self, factor: float) -> Sample:
        """The same in another unit."""
        parts = (self.median, self.low, self.high, self.minimum)
        return Sample(self.n, *(part * factor for part in parts))

    @property
    def spread(self) -> float | None:
        """Half the distance of the quartiles, relative to the median; None for a single value."""
        if self.n < 2 or not self.median:
            return None
        return (self.high - self.low) / 2 / self.median

    @property
    def noisy(self) -> bool:
        """Whether a reader should be warned."""
        return self.spread is not None and self.spread > NOISY
