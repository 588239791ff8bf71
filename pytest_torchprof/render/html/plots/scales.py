"""Where numbers stand on an axis, and which of them to write."""

from __future__ import annotations

import math
from typing import Final

from pytest_torchprof.core.structs import Frozen


class Linear(Frozen, frozen=True):
    """From numbers to pixels.

    >>> Linear(0, 10, 100, 200).at(2.5)
    125.0
    """

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a number."""
        width = self.high - self.low
        share = (value - self.low) / width if width else 0.0
        return self.start + share * (self.end - self.start)


class Logarithmic(Frozen, frozen=True):
    """From positive numbers to pixels, by their logarithm.

    >>> Logarithmic(1, 100, 0, 200).at(10)
    100.0
    """

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The pixel of a number."""
        low, high = math.log10(self.low), math.log10(self.high)
        share = (math.log10(value) - low) / (high - low)
        return self.start + share * (self.end - self.start)


#: Steps between ticks, up to a power of 10.
_STEPS: Final = (1, 2, 5, 10)


def ticks(low: float, high: float, count: int) -> list[float]:
    """About so many round numbers from ``low`` to ``high``.

    >>> ticks(0, 7.2, 5), ticks(0, 0, 5)
    ([0.0, 2.0, 4.0, 6.0], [0.0])
    """
    if not high > low:
        return [float(low)]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * one for one in _STEPS if power * one >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def byte_ticks(low: float, high: float, count: int) -> list[float]:
    """The same for bytes, which are written by powers of 1024.

    >>> [tick / 2**20 for tick in byte_ticks(0, 3 * 2**20, 4)]
    [0.0, 1.0, 2.0, 3.0]
    """
    unit = 1024.0 ** max(0, math.floor(math.log(max(high - low, 1), 1024)))
    return [tick * unit for tick in ticks(low / unit, high / unit, count)]


def decades(low: float, high: float) -> list[float]:
    """The powers of 10 from ``low`` to ``high``.

    >>> decades(0.5, 200)
    [1.0, 10.0, 100.0]
    """
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**power for power in range(first, last + 1)]
