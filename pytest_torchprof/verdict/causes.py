"""Why a test fails, as values; `render.failure` turns them into text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from pytest_torchprof.core.reasons import Why
from pytest_torchprof.core.results import MissingValue, Verdict
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.verdict.own_metrics import metric_of

if TYPE_CHECKING:
    from pytest_torchprof.core.reasons import Reason
    from pytest_torchprof.verdict.decision import Policy

CauseKind = Literal[
    "over_budget",
    "below_budget",
    "regressed",
    "budget_unchecked",
    "metric_unchecked",
    "metric_new",
    "metric_advises",
    "improved",
    "no_baseline",
    "comparison_unchecked",
    "comparisons_unchecked",
    "baseline_unchecked",
]


class Cause(Frozen, frozen=True):
    """One cause of a failure, with its metric and reason, if it has them."""

    kind: CauseKind
    metric: str = ""
    reason: Reason | None = None

    @property
    def only_strict(self) -> bool:
        """Whether it fails a test only under ``--torchprof-strict``."""
        return self.kind not in ("over_budget", "below_budget", "regressed")


def failures(
    verdicts: Iterable[Verdict], policy: Policy, *, has_baseline: bool, accept: bool
) -> list[Cause]:
    """Why the test fails; empty when it passes.

    A value over budget always fails, and a regression unless it is being accepted. Strict mode
    adds: an unchecked budget, an improvement that is not accepted, a missing baseline.
    """
    verdicts = list(verdicts)
    causes = []
    outside = [v for v in verdicts if v.status == "over_budget"]
    if any(not v.is_below for v in outside):
        causes.append(Cause("over_budget"))
    if any(v.is_below for v in outside):
        causes.append(Cause("below_budget"))
    if not accept and "regressed" in {v.status for v in verdicts}:
        causes.append(Cause("regressed"))
    if policy.strict:
        unmeasured = [v for v in verdicts if v.status == "not_measured"]
        causes += [Cause("budget_unchecked", v.label, v.reason) for v in unmeasured if v.limited]
        causes += [
            Cause("metric_unchecked", v.label, v.reason)
            for v in unmeasured
            if not v.limited and v.baseline is not None and _is_owed(v, policy)
            if not (accept and v.reason is not None and v.reason.why is Why.NOT_RECORDED)
        ]
        causes += [
            Cause("metric_new", v.label)
            for v in verdicts
            if v.status == "new"
            and has_baseline
            and not accept
            and metric_of(v).stored
            and _is_owed(v, policy)
        ]
        causes += [
            Cause("metric_advises", v.label, v.reason)
            for v in verdicts
            if v.status == "advisory" and v.reason in policy.notes and not accept
        ]
        if not accept and any(v.status == "improved" for v in verdicts):
            causes.append(Cause("improved"))
        if not accept and not has_baseline:
            causes.append(Cause("no_baseline"))
    return causes


def _is_owed(verdict: Verdict, policy: Policy) -> bool:
    """Whether a missing value, measured or accepted, counts as missing under strict mode."""
    metric = metric_of(verdict)
    if verdict.metric == "findings" and isinstance(verdict.value, MissingValue):
        return False  # it depends on the order of the tests
    if metric.klass == "time" and policy.time != "gate":
        return False
    return not metric.depends_on_order
