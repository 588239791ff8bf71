"""One test of two revisions, as tables and reports show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_torchprof.core.reasons import Reason
    from pytest_torchprof.core.samples import Sample
    from pytest_torchprof.verdict.paired_decision import Decision

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
    exact metrics were not compared.
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
