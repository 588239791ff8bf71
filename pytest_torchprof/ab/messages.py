"""What a worker sends to the controller, as values."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import field

from pytest_torchprof.core.reasons import Reason  # noqa: TC001 - msgspec reads it
from pytest_torchprof.core.results import Number  # noqa: TC001 - msgspec reads it
from pytest_torchprof.core.structs import Sendable

#: Of a test on one side. ``error``: it passes, but cannot be timed.
Outcome = Literal["passed", "failed", "skipped", "error"]


class Collection(Sendable, frozen=True):
    """What a worker collected: tests in order, and what could not be collected, with the reason.

    ``origins``: see `imports.origins`.
    """

    tests: list[str]
    errors: dict[str, Reason]
    origins: dict[str, Any]


class Profiled(Sendable, frozen=True):
    """The outcome of a test's first run: all but ``passed`` have a reason.

    ``metrics`` are all but times. ``note`` says why there are none. ``chip`` is the one that bounds
    are of.
    """

    outcome: Outcome
    reason: Reason | None = None
    repeatable: bool = True
    metrics: Mapping[str, Number] = field(default_factory=dict)
    note: Reason | None = None
    chip: str | None = None


class Turn(Sendable, frozen=True):
    """Durations of a turn's calls, or of their marked regions; ``spent_ns`` covers the whole calls.

    ``wall`` and ``cpu`` hold signed 64-bit integers in ns, of this machine's byte order. ``error``
    is what one of the calls raised.
    """

    wall: bytes
    cpu: bytes
    spent_ns: int
    error: Reason | None = None

    @property
    def wall_ns(self) -> array[int]:
        """Wall time of each call."""
        return array("q", self.wall)

    @property
    def cpu_ns(self) -> array[int]:
        """CPU time of each call."""
        return array("q", self.cpu)


class End(Sendable, frozen=True):
    """How a worker's pytest ended: exit code, an error of ours, and whether tests were run."""

    code: int
    error: Reason | None
    reached: bool
    origins: dict[str, Any]
