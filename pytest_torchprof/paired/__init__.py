"""Two sides measured in turn, and what the pairs say: slower, faster, the same, or unclear."""

from __future__ import annotations

from pytest_torchprof.paired.decision import Comparison, Decision, Verdict
from pytest_torchprof.paired.row import Broken, Difference, Row, RowVerdict

__all__ = [
    "Broken",
    "Comparison",
    "Decision",
    "Difference",
    "Row",
    "RowVerdict",
    "Verdict",
]
