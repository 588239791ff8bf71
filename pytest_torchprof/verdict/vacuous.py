"""Limits that hold only because nothing ran count as not checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import MissingValue
from pytest_torchprof.verdict.metrics import METRICS
from pytest_torchprof.verdict.own_metrics import metric_of

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Baseline, Profile, Verdict
    from pytest_torchprof.verdict.metric import Metric

NOTHING = because(Why.NOTHING_RAN)
NOTHING_ON_DEVICE = because(Why.NOTHING_ON_DEVICE)
NO_PRODUCT = because(Why.NO_PRODUCT)
#: A limit of 0 on one of these asks that nothing runs; on others, that what runs does no harm.
_AMOUNTS = frozenset({"ops", "flops", "kernels"})


def not_vacuous(verdict: Verdict, profile: Profile, baseline: Baseline | None) -> Verdict:
    """The verdict; *not measured* if its limit holds only because nothing happened.

    The value stays a true zero. A baseline of zero shows that it is intended.
    """
    if verdict.limit is None and (verdict.metric, verdict.status) != ("ops", "improved"):
        return verdict
    metric = metric_of(verdict)
    why = _nothing(metric, profile, baseline)
    if why is None and metric.name == "flops" and verdict.value == 0:
        why = None if baseline is not None and baseline.metrics.get("flops") == 0 else NO_PRODUCT
    if why is None:
        return verdict
    if verdict.metric == "ops" and verdict.status == "improved":
        return replace(verdict, reason=why)
    if verdict.status in ("over_budget", "not_measured"):
        return verdict
    if verdict.limit == 0 and metric.name in _AMOUNTS:
        return verdict
    return replace(verdict, status="not_measured", reason=why)


def _nothing(metric: Metric, profile: Profile, baseline: Baseline | None) -> Reason | None:
    """Why the metric had nothing to measure; None if it had, or if that was accepted."""
    if not metric.of_region:
        return None
    accepted = {} if baseline is None else baseline.metrics
    if profile.metrics.get("ops") == 0 and not profile.kernels:
        return None if accepted.get("ops") == 0 else NOTHING
    if metric.of_device and not _on_device(profile):
        return None if accepted.get("kernels") == 0 else NOTHING_ON_DEVICE
    return None


def _on_device(profile: Profile) -> bool:
    """Whether anything ran on the device, or that is unknown."""
    if profile.kernels or profile.metrics.get("kernels") != 0:
        return True
    values = (profile.metrics.get(name) for name, m in METRICS.items() if m.of_device)
    return any(value for value in values if not isinstance(value, MissingValue))
