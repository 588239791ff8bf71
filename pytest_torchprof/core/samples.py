"""Repeated measurements of one number: how many, and how far apart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from msgspec import field

from pytest_torchprof.core.structs import Frozen

#: A spread above this is noisy.
NOISY = 0.1

#: Of more values than these, only the quartiles are kept: they say as much.
MOST_ROUNDS = 100

#: Metrics of rounds that are compared as multiples of the reference kernel's time.
NORMALISED = ("wall_ms", "cpu_ms")


class Sample(Frozen, frozen=True):
    """Measured values of one quantity, in its unit: their number and quartiles.

    ``low`` and ``high`` are the first and the third quartile. ``rounds`` are the values in the
    order in which they were measured, if there are several and at most `MOST_ROUNDS`.
    """

    n: int
    median: float
    low: float
    high: float
    minimum: float
    rounds: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: Iterable[float]) -> Sample:
        """Summarize one or more values; raises ValueError for none."""
        column = np.fromiter(values, np.float64)
        if not len(column):
            raise ValueError("a sample needs at least one value")
        if len(column) == 1:  # the usual case, and quantiles are slow
            return cls(1, *column.tolist() * 4)
        low, median, high = np.quantile(column, (0.25, 0.5, 0.75)).tolist()
        kept = tuple(column.tolist()) if len(column) <= MOST_ROUNDS else ()
        return cls(len(column), median, low, high, float(column.min()), kept)

    def scaled(self, factor: float) -> Sample:
        """The same sample in another unit."""
        return Sample(
            self.n,
            self.median * factor,
            self.low * factor,
            self.high * factor,
            self.minimum * factor,
            tuple(value * factor for value in self.rounds),
        )

    @property
    def spread(self) -> float | None:
        """Half the quartile distance, relative to the median; None for a single value."""
        if self.n < 2 or not self.median:
            return None
        return (self.high - self.low) / 2 / self.median

    @property
    def noisy(self) -> bool:
        """Whether a reader should be warned."""
        return self.spread is not None and self.spread > NOISY


class Normalised(Frozen, frozen=True):
    """The fastest round, divided by the fastest run of the reference kernel between the rounds.

    ``values`` by metric, from ``n`` rounds; the kernel's own wall time, and the ``conditions``
    that, like the machine, must be equal to compare two. ``page_faults``: the fewest in a round.
    ``own``: the same of times and rates that the test records; of a rate, the highest times the
    kernel's time.
    """

    values: Mapping[str, float]
    n: int
    reference_ms: float
    conditions: str
    page_faults: int = 0
    own: Mapping[str, float] = field(default_factory=dict)

    def stored(self) -> dict[str, Any]:
        """As stored in a baseline, on one line."""
        rounded: dict[str, Any] = {name: round(value, 6) for name, value in self.values.items()}
        if self.own:
            rounded["own"] = dict(self.own)
        return {
            **rounded,
            "conditions": self.conditions,
            "n": self.n,
            "page_faults": self.page_faults,
            "reference_ms": round(self.reference_ms, 6),
        }

    @classmethod
    def read(cls, stored: object) -> Normalised | None:
        """Read from a baseline; None if missing or invalid."""
        if not isinstance(stored, Mapping):
            return None
        values = {name: stored[name] for name in NORMALISED if is_positive(stored.get(name))}
        n, reference, conditions = (stored.get(k) for k in ("n", "reference_ms", "conditions"))
        if not values or not isinstance(n, int) or not is_positive(reference):
            return None
        faults = stored.get("page_faults")
        faults = faults if isinstance(faults, int) else 0
        own = stored.get("own")
        own = own if isinstance(own, Mapping) else {}
        kept = {str(name): value for name, value in own.items() if is_positive(value)}
        return cls(values, n, float(reference), str(conditions), faults, kept)  # type: ignore[arg-type]


def is_positive(value: object) -> bool:
    """Whether it is a finite number above 0."""
    return isinstance(value, int | float) and 0 < value < math.inf
