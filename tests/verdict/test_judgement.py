"""The verdict on a test is a function of what was measured and what is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.core.unknown import because
from pytest_torchprof.core.values import Baseline, Budget
from pytest_torchprof.places.place import Roots
from pytest_torchprof.rules.check import check
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.judgement import (
    Failure,
    Terms,
    Verdicts,
    compared,
    judged,
    not_profiled,
)
from pytest_torchprof.verdict.profile import Measured, Unmeasured

WHY = because(
    "own_profiler", ("the test runs torch.profiler itself, and profiler sessions cannot be nested")
)
LIMIT = Budget("ops", 1)


def of_two_operators(terms: Terms, baseline: Baseline | None = None, **more: object) -> Verdicts:
    b = TraceBuilder()
    with b.annotation(REGION):
        for _ in range(2):
            with b.op("aten::relu", [[64, 64]]):
                pass
    measured = Measured(check(parse_trace(b.to_bytes()), ()), "cpu", "here", **more)  # type: ignore[arg-type]
    return judged(measured, compared(measured, baseline, terms), {}, Roots(Path.cwd()), terms)


@pytest.mark.parametrize(
    ("baseline", "limits", "status", "causes"),
    [
        (None, (), "new", []),
        (None, (LIMIT,), "over_budget", [Failure("over_budget")]),
        (Baseline({"ops": 1}), (), "regressed", [Failure("regressed")]),
        (Baseline({"ops": 3}), (), "improved", []),
        (Baseline({"ops": 2}), (), "ok", []),
    ],
)
def test_a_measured_test_fails_by_its_limits_and_its_baseline(
    baseline: Baseline | None, limits: tuple[Budget, ...], status: str, causes: list[Failure]
) -> None:
    found = of_two_operators(Terms(), baseline, budgets=limits)
    assert (status, causes) == (found.status, found.failures)
    assert found.accepts is not None
    assert 2 == found.accepts.metrics["ops"]


def test_an_inline_mismatch_regresses_and_offers_nothing() -> None:
    found = of_two_operators(Terms(), Baseline({"ops": 2}), mismatch={"ops": "3"})
    assert ("regressed", (), None) == (found.status, found.failures, found.accepts)
    (ops,) = (v for v in found.all if v.metric == "ops")
    assert (
        "regressed",
        because("inline_expects", "the inline expectation is {expected}", expected="3"),
    ) == (ops.status, ops.reason)


def test_missing_numbers_that_a_test_compares_fail_it_when_strict() -> None:
    strict = Terms(strict=True, accept=True)
    found = of_two_operators(strict, Baseline({"ops": 2}), unmeasured=("syncs", "syncs"))
    assert Failure("comparison_unchecked", "syncs") in found.failures
    assert 1 == sum(cause.metric == "syncs" for cause in found.failures)


@pytest.mark.parametrize(
    ("terms", "has_baseline", "kinds"),
    [
        (Terms(), True, []),
        (Terms(strict=True), False, ["budget_unchecked", "comparisons_unchecked"]),
        (
            Terms(strict=True),
            True,
            ["budget_unchecked", "baseline_unchecked", "comparisons_unchecked"],
        ),
        (Terms(strict=True, accept=True), True, ["budget_unchecked", "comparisons_unchecked"]),
    ],
)
def test_an_unmeasured_metric_fails_only_when_strict(
    terms: Terms, has_baseline: bool, kinds: list[str]
) -> None:
    missing = Unmeasured(WHY, "cpu", (LIMIT,), stats_asked=True)
    found = not_profiled(missing, terms, has_baseline=has_baseline)
    assert kinds == [cause.kind for cause in found.failures]
    assert ("not_profiled", WHY) == (found.status, found.reason)
