"""On a CPU with other instructions, what only a program decides is compared all the same."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_torchprof.core.reasons import Why, because
from pytest_torchprof.core.results import Baseline, Profile
from pytest_torchprof.verdict.decision import Policy, compare

OTHER = Policy(cpu_note=because(Why.OTHER_CPU, accepted="AVX2", here="AVX512"))
METRICS = {"ops": 9, "host_reads": 2, "launches": 4, "bound_ms": 1.0, "estimated_cuda_bytes": 512}
OPERATORS = {
    "aten::mm": {"calls": 2, "launches": 2, "bound_ns": 900_000},
    "aten::copy_": {"calls": 2, "launches": 2, "bound_ns": 100_000},
}


def status(metric: str, value: float, operators: dict[str, Any]) -> str:
    """The status of a metric that is now this, if these operators have changed."""
    now = Profile(
        metrics={metric: value},
        operators={name: {**OPERATORS.get(name, {}), **row} for name, row in operators.items()},
        kernels={},
    )
    before = Baseline({metric: METRICS[metric]}, OPERATORS)
    (verdict,) = [v for v in compare(now, before, (), OTHER) if v.metric == metric]
    return verdict.status


@pytest.mark.parametrize(
    ("metric", "value", "operators", "expected"),
    [
        ("host_reads", 3, {}, "regressed"),
        ("host_reads", 1, {}, "improved"),
        ("launches", 5, {"aten::mm": {"launches": 3}, "aten::copy_": {}}, "regressed"),
        ("launches", 6, {"aten::mm": {}, "aten::copy_": {"launches": 4}}, "advisory"),
        ("launches", 3, {"aten::mm": {"launches": 1}, "aten::copy_": {}}, "advisory"),
        ("bound_ms", 1.2, {"aten::mm": {"bound_ns": 1_100_000}, "aten::copy_": {}}, "regressed"),
        ("bound_ms", 1.2, {"aten::mm": {}, "aten::copy_": {"bound_ns": 300_000}}, "advisory"),
        ("estimated_cuda_bytes", 1024, {}, "advisory"),
        ("ops", 10, {"aten::mm": {"calls": 3}, "aten::copy_": {}}, "regressed"),
        ("ops", 10, {"aten::mm": {}, "aten::copy_": {"calls": 3}}, "advisory"),
    ],
)
def test_what_no_cpu_explains_fails(
    metric: str, value: float, operators: dict[str, Any], expected: str
) -> None:
    assert expected == status(metric, value, operators)


@pytest.mark.parametrize("metric", ["launches", "bound_ms"])
def test_without_operators_that_account_for_it_it_only_advises(metric: str) -> None:
    bare = {name: {"calls": row["calls"]} for name, row in OPERATORS.items()}
    value = METRICS[metric] * 2
    now = Profile(metrics={metric: value}, operators=OPERATORS, kernels={})
    before = Baseline({metric: METRICS[metric]}, bare)
    (verdict,) = [v for v in compare(now, before, (), OTHER) if v.metric == metric]
    assert "advisory" == verdict.status
