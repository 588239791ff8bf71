"""Numbers that were accepted on a CPU with another instruction set only advise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.core.reasons import Reason, Why, because

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Baseline
    from pytest_torchprof.verdict.measured import Measured
    from pytest_torchprof.verdict.metrics import Metric


def other_cpu(measured: Measured, baseline: Baseline | None) -> Reason | None:
    """Why what a CPU decides is not comparable with the baseline; None if it is."""
    accepted = baseline.cpu_capability if baseline is not None else None
    if accepted is None or accepted == measured.cpu_capability:
        return None
    return because(Why.OTHER_CPU, accepted=accepted, here=measured.cpu_capability)


def varies_by_cpu(metric: Metric) -> bool:
    """Whether the metric counts what a CPU decides: operators and the host's memory."""
    return not (metric.of_device or metric.needs.isdisjoint({"operators", "memory"}))
