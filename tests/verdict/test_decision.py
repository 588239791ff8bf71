"""Verdicts: a metric against its baseline and its limit, and what a test makes of them."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.reasons import words

from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.core.values import (
    NORMALISED,
    Baseline,
    Budget,
    MissingValue,
    Normalised,
    Number,
    Profile,
    Value,
    Verdict,
)
from pytest_torchprof.render.failure import sentence
from pytest_torchprof.verdict.compare import (
    GATED_TIMES,
    TIME_TOLERANCE,
    Policy,
    compare,
    status_of,
)
from pytest_torchprof.verdict.judgement import Failure, failures
from pytest_torchprof.verdict.metrics import METRICS

GATE, OFF, STRICT = Policy(time="gate"), Policy(time="off"), Policy(strict=True)


def baseline_of(metric: str, value: Any) -> Baseline:
    if METRICS[metric].klass != "time":
        return Baseline(metrics={metric: value})
    return Baseline(times={metric: value, "normalised": normalised(metric, value).stored()})


def normalised(metric: str, value: Any, n: int = 20) -> Normalised:
    """As if the reference kernel took 2 ms."""
    return Normalised({metric: value / 2}, n, 2.0, "reference 1, 2 torch threads")


def verdict(
    metric: str,
    value: Value,
    accepted: Any = None,
    limit: Number | None = None,
    policy: Policy | None = None,
) -> Verdict:
    baseline = None if accepted is None else baseline_of(metric, accepted)
    budgets = [] if limit is None else [Budget(metric, limit)]
    known = metric in NORMALISED and not isinstance(value, MissingValue)
    now = Profile({metric: value}, normalised=normalised(metric, value) if known else None)
    (found,) = compare(now, baseline, budgets, policy or Policy())
    assert found.metric == metric
    assert found.value == value
    assert found.limit == limit
    return found


EXACT = [
    ("flops", 200, 200, "ok"),
    ("flops", 201, 200, "regressed"),
    ("flops", 199, 200, "improved"),
    ("flops", 200, None, "new"),
    ("flops", 0, 0, "ok"),
    ("flops", 1, 0, "regressed"),
    ("flops", 0, 1, "improved"),
    # beyond what a float holds
    ("flops", 2**53 + 1, 2**53 + 1, "ok"),
    ("flops", 2**53 + 1, 2**53, "regressed"),
    ("flops", 2**53, 2**53 + 1, "improved"),
    # less than nothing: blocks of before the region were freed
    ("leaked_cuda_bytes", -8, -8, "ok"),
    ("leaked_cuda_bytes", 505, -8, "regressed"),
    ("leaked_cuda_bytes", -521, -8, "improved"),
    # what is not a number is not a baseline
    ("ops", 3, True, "new"),
    ("ops", 3, "3", "new"),
    ("ops", 3, float("nan"), "new"),
    ("ops", 3, float("inf"), "new"),
]
NEAR = [  # tolerance 1 %, inclusive
    ("peak_cuda_bytes", 1_010_000, 1_000_000, "ok"),
    ("peak_cuda_bytes", 1_010_001, 1_000_000, "regressed"),
    ("peak_cuda_bytes", 990_000, 1_000_000, "ok"),
    ("peak_cuda_bytes", 989_999, 1_000_000, "improved"),
    # blocks of more than 1 MiB are as large as those that were free
    ("allocated_cuda_bytes", 36_759_552, 36_408_832, "ok"),
    ("allocated_cuda_bytes", 513, 0, "regressed"),
    ("instructions", 10**15 + 10**13, 10**15, "ok"),
    ("instructions", 10**15 + 10**13 + 1, 10**15, "regressed"),
]
TIME = [  # tolerance 25 %, inclusive
    ("wall_ms", 10.0, 10.0, "ok", "ok"),
    ("wall_ms", 12.5, 10, "ok", "ok"),
    ("wall_ms", 12.51, 10, "advisory", "regressed"),
    ("wall_ms", 7.5, 10, "ok", "ok"),
    ("wall_ms", 7.49, 10, "advisory", "improved"),
    ("self_cuda_ms", 13.0, 10.0, "advisory", "regressed"),
    ("cuda_busy_ms", 13.0, 10.0, "advisory", "regressed"),
    # CPU time and times of the profiled host never gate
    ("cpu_ms", 13.0, 10.0, "advisory", "advisory"),
    ("self_cpu_ms", 99.0, 10.0, "advisory", "advisory"),
    ("cuda_idle_ms", 99.0, 10.0, "advisory", "advisory"),
    ("wall_ms", 10.0, None, "new", "new"),
]


@pytest.mark.parametrize(("metric", "value", "accepted", "status"), [*EXACT, *NEAR])
def test_counts(metric: str, value: Number, accepted: Any, status: str) -> None:
    for policy in (Policy(), GATE, OFF, STRICT):
        found = verdict(metric, value, accepted, policy=policy)
        assert found.status == status
        assert found.baseline == (None if status == "new" else accepted)


@pytest.mark.parametrize(("metric", "value", "accepted", "advisory", "gated"), TIME)
def test_times(metric: str, value: float, accepted: Any, advisory: str, gated: str) -> None:
    assert verdict(metric, value, accepted).status == advisory
    found = verdict(metric, value, accepted, policy=GATE)
    assert found.status == gated
    assert found.tolerance == (0 if accepted is None else TIME_TOLERANCE)
    assert verdict(metric, value, accepted, policy=OFF).status == "ok"
    noted = verdict(
        metric, value, accepted, policy=Policy(time="gate", time_note=words("other machine"))
    )
    assert noted.status == advisory
    assert noted.reason == (words("other machine") if metric in GATED_TIMES else None)


def at(multiple: float, n: int = 20, **other: Any) -> Normalised:
    """A test that takes this multiple of the reference kernel's time."""
    known = {"conditions": "reference 1, 2 torch threads", "reference_ms": 0.2, **other}
    return Normalised({"wall_ms": multiple}, n, **known)


@pytest.mark.parametrize(
    ("before", "now", "status", "reason"),
    [
        (at(10), at(12.5), "ok", None),  # whatever the times themselves say
        (at(10), at(12.51), "regressed", None),
        (at(10), at(7.49), "improved", None),
        (at(10, n=1), at(12.51, n=11), "regressed", "the baseline is of 1 round, and this of 11: "),
        (at(10, n=2), at(10, n=21), "ok", "the baseline is of 2 rounds, and this of 21: "),
        (at(10, n=2), at(10, n=20), "ok", None),
        # 2 ms a round, and 1 us a fault; a few always happen
        (at(10), at(13, page_faults=200), "regressed", None),
        (at(0.1), at(0.2, page_faults=50), "regressed", None),
        (at(10), at(13, page_faults=201), "advisory", "0 → 201 page faults a round: "),
        (at(10, page_faults=4096), at(7, page_faults=0), "advisory", "4,096 → 0 page faults a ro"),
        (None, at(10), "advisory", "the baseline has no time relative to the reference kernel: "),
        (at(10), None, "advisory", "the reference kernel did not run"),
        (at(10, conditions="reference 0, 2 torch threads"), at(10), "advisory",
         "the baseline's times are of reference 0, 2 torch threads, not reference 1, 2 torch thr"),
    ],
)  # fmt: skip
def test_wall_time_is_compared_as_a_multiple_of_the_reference_kernels(
    before: Normalised | None, now: Normalised | None, status: str, reason: str | None
) -> None:
    """The times differ by half; a baseline without multiples only advises, and says what to do."""
    stored = {"normalised": before.stored()} if before else {}
    baseline, profile = Baseline(times={"wall_ms": 2.0, **stored}), Profile({"wall_ms": 3.0})
    (found,) = compare(replace(profile, normalised=now), baseline, [], GATE)
    assert found.status == status
    message = None if found.reason is None else found.reason.text
    assert message is None if reason is None else str(message).startswith(reason)
    compared = status != "advisory" and before and now
    expected = (before.values["wall_ms"], now.values["wall_ms"]) if compared else None  # type: ignore[union-attr]
    assert found.multiples == expected
    (advised,) = compare(replace(profile, normalised=now), baseline, [], Policy())
    assert (advised.status == "ok") is (status == "ok")
    assert (advised.multiples, advised.reason) == (found.multiples, None)


def test_a_busy_machine_is_reported_for_a_new_test_too() -> None:
    found = verdict(
        "wall_ms", 3.0, policy=Policy(time="gate", time_note=words("the machine was busy"))
    )
    assert (found.status, found.reason) == ("new", words("the machine was busy"))


@pytest.mark.thorough
@given(
    st.none()
    | st.integers()
    | st.dictionaries(
        st.sampled_from(["wall_ms", "cpu_ms", "n", "reference_ms", "conditions"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.none()),
    )
)
def test_whatever_a_baseline_holds_for_normalised_times_makes_no_error(stored: Any) -> None:
    baseline = Baseline(times={"wall_ms": 2.0, "normalised": stored})
    (found,) = compare(Profile({"wall_ms": 3.0}, normalised=at(3)), baseline, [], GATE)
    assert found.status in ("ok", "regressed", "improved", "advisory")


@given(st.floats(1e-6, 1e9), st.floats(1e-6, 1e9), st.integers(1, 10**6), st.floats(1e-3, 1e3))
def test_normalised_times_survive_their_way_through_a_baseline(
    wall: float, cpu: float, n: int, reference: float
) -> None:
    kept = Normalised({"wall_ms": wall, "cpu_ms": cpu}, n, reference, "reference 1, 4 threads")
    read = Normalised.read(json.loads(json.dumps(kept.stored())))
    assert read is not None
    assert (read.n, read.conditions) == (n, kept.conditions)
    for name, value in kept.values.items():
        assert read.values[name] == pytest.approx(value, abs=1e-6)


def test_which_times_gate() -> None:
    assert {METRICS[name].klass for name in GATED_TIMES} == {"time"}


@pytest.mark.parametrize(
    ("metric", "value", "limit", "status"),
    [
        ("flops", 200, 200, "new"),  # limits are inclusive
        ("flops", 201, 200, "over_budget"),
        ("syncs", 0, 0, "new"),
        ("syncs", 1, 0, "over_budget"),
        ("flops", 2**53 + 1, 2**53, "over_budget"),
        ("wall_ms", 5.0, 5, "new"),
        ("wall_ms", 5.000001, 5, "over_budget"),
        ("self_cpu_ms", 5.1, 5, "over_budget"),  # a limit on time always gates
        ("peak_cuda_bytes", 101, 100, "over_budget"),  # and has no tolerance
    ],
)
def test_limits(metric: str, value: Number, limit: Number, status: str) -> None:
    assert verdict(metric, value, limit=limit).status == status
    over = status == "over_budget"
    assert verdict(metric, value, limit=limit, policy=OFF).status == (
        status if over or METRICS[metric].klass != "time" else "ok"
    )
    # Over budget is said whatever the baseline is.
    for accepted in (value, value + 1, value / 2):
        assert (verdict(metric, value, accepted, limit).status == "over_budget") is over


@pytest.mark.parametrize("metric", ["flops", "wall_ms", "peak_cuda_bytes"])
@pytest.mark.parametrize("accepted", [None, 5])
@pytest.mark.parametrize("limit", [None, 7])
def test_not_measured(metric: str, accepted: int | None, limit: int | None) -> None:
    found = verdict(metric, MissingValue(words("no shapes")), accepted, limit)
    assert found.status == "not_measured"
    assert found.reason == words("no shapes")
    assert found.baseline == accepted


@pytest.mark.parametrize(
    ("metric", "bound", "accepted", "status"),
    [
        ("flops", 6, 5, "regressed"),
        ("ops", 6, 5, "regressed"),
        ("flops", 5, 5, "not_measured"),
        ("flops", 4, 5, "not_measured"),
        ("flops", 6, None, "not_measured"),
        ("peak_cpu_bytes", 6, 5, "not_measured"),  # others may have freed some of it
        ("self_cuda_ms", 6, 5, "not_measured"),
    ],
)
def test_a_lower_bound_above_what_was_accepted_is_a_regression(
    metric: str, bound: int, accepted: int | None, status: str
) -> None:
    reason = words("no formula")
    baseline = None if accepted is None else baseline_of(metric, accepted)
    for at_least in (True, False):
        now = Profile({metric: MissingValue(reason, bound, at_least)})
        (found,) = compare(now, baseline, [], Policy())
        assert (found.reason, found.baseline) == (reason, accepted)
        assert found.status == (status if at_least else "not_measured")
        assert found.at_least is (found.status == "regressed")


def test_verdicts_come_in_order_and_limits_on_parts_last() -> None:
    profile = Profile(
        metrics={"flops": 240, "ops": 3, "kernels": MissingValue(words("no device"))},
        scoped={"flops[op=aten::mm]": 240, "ops[module=Head]": MissingValue(words("did not run"))},
    )
    budgets = [
        Budget("flops", 100, op="aten::mm"),
        Budget("ops", 3),
        Budget("ops", 3, module="Head"),
        Budget("kernels", 3, op="aten::bmm"),
    ]
    found = compare(profile, Baseline(metrics={"flops": 240}), budgets, Policy())
    assert [(v.label, v.status, v.limit, v.reason and v.reason.text) for v in found] == [
        ("flops", "ok", None, None),
        ("ops", "new", 3, None),
        ("kernels", "not_measured", None, "no device"),
        ("flops[op=aten::mm]", "over_budget", 100, None),
        ("ops[module=Head]", "not_measured", 3, "did not run"),
        ("kernels[op=aten::bmm]", "not_measured", 3, "was not measured"),
    ]
    exactly = compare(
        Profile({}, scoped={"flops[op=aten::mm]": 240}),
        None,
        [Budget("flops", 240, op="aten::mm")],
        Policy(),
    )
    assert [v.status for v in exactly] == ["ok"]


BOUND = because(*Why.AT_LEAST, value=5, unit="1", why=words("other processes"))


@pytest.mark.parametrize(
    ("value", "limit", "least", "status"),
    [
        (5, None, 5, "ok"),
        (5, None, 6, "over_budget"),
        (5, 5, 5, "ok"),
        (5, 4, 3, "over_budget"),
        (5, 7, 6, "over_budget"),
        (0, None, 1, "over_budget"),
        (0, None, 0, "ok"),
        # a lower bound can reach a minimum and exceed a maximum, and shows nothing else
        (MissingValue(BOUND, 5, at_least=True), None, 5, "ok"),
        (MissingValue(BOUND, 5, at_least=True), None, 6, "not_measured"),
        (MissingValue(BOUND, 5, at_least=True), 4, 3, "over_budget"),
        (MissingValue(BOUND, 5, at_least=True), 9, 3, "not_measured"),
        # a number that limits are checked against
        (MissingValue(BOUND, 5), 9, 3, "ok"),
        (MissingValue(BOUND, 5), None, 6, "over_budget"),
        (MissingValue(BOUND), None, 0, "not_measured"),
    ],
)
@pytest.mark.parametrize("op", [None, "aten::mm"])
def test_a_minimum(
    value: Value, limit: int | None, least: int, status: str, op: str | None
) -> None:
    budget = Budget("ops", limit, op=op, least=least)
    profile = Profile({"ops": value}) if op is None else Profile({}, scoped={budget.label: value})
    (found,) = compare(profile, None, [budget], Policy())
    expected = "new" if status == "ok" and op is None and isinstance(value, int) else status
    assert (expected, limit, least) == (found.status, found.limit, found.least)
    kinds = [one.kind for one in failures([found], Policy(), has_baseline=True, accept=False)]
    known = value.at_hand if isinstance(value, MissingValue) else value
    below = "below_budget" if known is not None and known < least else "over_budget"
    assert ([below] if status == "over_budget" else []) == kinds


OTHER_CPU = because(
    "other_cpu",
    (
        "the baseline is of a CPU with other instructions ({accepted}, here "
        "{here}), which decide how convolutions and 16-bit products run, so "
        "operators and CPU memory only advise: accept here too"
    ),
    accepted="AVX512",
    here="AVX2",
)


@pytest.mark.parametrize(
    ("metric", "value", "status"),
    [
        ("ops", 9, "advisory"),
        ("ops", 11, "advisory"),
        ("ops", 10, "ok"),
        ("host_reads", 11, "regressed"),
        ("launches", 11, "advisory"),
        ("allocated_cpu_bytes", 1000, "advisory"),
        ("peak_cpu_bytes", 1000, "advisory"),
        ("flops", 11, "regressed"),
        ("kernels", 11, "regressed"),
        ("graph_breaks", 11, "regressed"),
        ("peak_cuda_bytes", 1000, "regressed"),
    ],
)
def test_on_a_cpu_with_other_instructions_what_it_decides_only_advises(
    metric: str, value: int, status: str
) -> None:
    policy = Policy(strict=True, cpu_note=OTHER_CPU)
    (verdict,) = compare(Profile({metric: value}), baseline_of(metric, 10), [], policy)
    advises = status == "advisory"
    assert (status, OTHER_CPU if advises else None) == (verdict.status, verdict.reason)
    fails = failures([verdict], policy, has_baseline=True, accept=False)
    expected = [] if status == "ok" else ["metric_advises" if advises else "regressed"]
    assert expected == [cause.kind for cause in fails]
    over = compare(Profile({metric: value}), baseline_of(metric, 10), [Budget(metric, 1)], policy)
    assert ["over_budget"] == [v.status for v in over]


@pytest.mark.parametrize(("metric", "status"), [("bound_ms", "advisory"), ("ops", "regressed")])
def test_a_bound_of_another_chip_only_advises(metric: str, status: str) -> None:
    why = because(
        "other_chip",
        ("bound_ms only advises: the baseline's is of {accepted}, and this one of {here}"),
        accepted="H100 SXM",
        here="T4",
    )
    policy = Policy(strict=True, chip_note=why)
    (found,) = compare(Profile({metric: 11}), baseline_of(metric, 10), [], policy)
    assert (status, why if status == "advisory" else None) == (found.status, found.reason)


@pytest.mark.parametrize(
    ("before", "now", "status"),
    [
        ({"aten::clone": 4, "aten::relu": 6}, {"aten::clone": 5, "aten::relu": 6}, "advisory"),
        ({"aten::clone": 4, "aten::relu": 6}, {"aten::clone": 4, "aten::relu": 7}, "regressed"),
        ({"aten::clone": 4, "aten::relu": 6}, {"aten::clone": 2, "aten::relu": 7}, "advisory"),
        ({"aten::mkldnn_convolution": 1}, {"aten::_slow_conv2d_forward": 2}, "advisory"),
        ({"aten::relu": 4}, {"aten::relu": 4, "Optimizer.step#SGD.step": 1}, "advisory"),
        ({}, {"aten::relu": 7}, "advisory"),
    ],
)
def test_more_operators_than_layouts_take_are_a_regression_on_any_cpu(
    before: dict[str, int], now: dict[str, int], status: str
) -> None:
    def rows(calls: dict[str, int]) -> dict[str, dict[str, int]]:
        return {name: {"calls": n} for name, n in calls.items()}

    total = sum(now.values()) + (len(before) == 1)
    baseline = Baseline({"ops": sum(before.values()) or 1}, rows(before))
    profile = Profile({"ops": total}, operators=rows(now))
    (verdict,) = compare(profile, baseline, [], Policy(cpu_note=OTHER_CPU))
    assert (status, None if status == "regressed" else OTHER_CPU) == (
        verdict.status,
        verdict.reason,
    )


# ----------------------------------------------------------------- what a test makes of verdicts


def verdicts_of(*statuses: str) -> list[Verdict]:
    limit = {"over_budget": 1, "not_measured": 1}
    reason = {"not_measured": words("no device")}
    return [
        Verdict("syncs", 2, status, 1, limit.get(status), reason=reason.get(status))  # type: ignore[arg-type]
        for status in statuses
    ]


UNCHECKED = "strict: the budget syncs could not be checked: no device"
BETTER = "strict: improved, but the improvement is not accepted"
NONE_YET = "strict: no baseline for this environment"


@pytest.mark.parametrize(
    ("statuses", "has_baseline", "status", "causes", "strict"),
    [
        ([], True, "ok", [], []),
        ([], False, "new", [], [NONE_YET]),
        (["ok", "advisory"], True, "ok", [], []),
        (["improved", "ok"], True, "improved", [], [BETTER]),
        (["not_measured"], True, "ok", [], [UNCHECKED]),
        (
            ["regressed", "improved"],
            True,
            "regressed",
            ["regressed against the baseline"],
            [BETTER],
        ),
        (["over_budget"], False, "over_budget", ["over budget"], [NONE_YET]),
        (
            ["regressed", "over_budget", "improved", "not_measured"],
            True,
            "over_budget",
            ["over budget", "regressed against the baseline"],
            [UNCHECKED, BETTER],
        ),
    ],
)
@pytest.mark.parametrize("accept", [False, True])
def test_status_and_causes(
    statuses: list[str],
    has_baseline: bool,
    status: str,
    causes: list[str],
    strict: list[str],
    accept: bool,
) -> None:
    verdicts = verdicts_of(*statuses)
    assert status_of(verdicts, has_baseline=has_baseline) == status
    accepted = ("regressed against", BETTER, NONE_YET)

    def message(policy: Policy) -> list[str]:
        causes = failures(iter(verdicts), policy, has_baseline=has_baseline, accept=accept)
        return list(map(sentence, causes))

    kept = [c for c in causes if not (accept and c.startswith(accepted))]
    kept_strict = [c for c in strict if not (accept and c.startswith(accepted))]
    assert message(Policy()) == kept
    assert message(STRICT) == kept + kept_strict


def test_an_accepted_metric_that_is_not_measured_any_more_fails_when_strict() -> None:
    verdicts = [verdict("kernels", MissingValue(words("no device")), 5)]
    cause = Failure("metric_unchecked", "kernels", words("no device"))
    assert failures(verdicts, STRICT, has_baseline=True, accept=False) == [cause]
    assert failures(verdicts, Policy(), has_baseline=True, accept=False) == []


@pytest.mark.parametrize("name", [name for name, m in METRICS.items() if not m.compared])
def test_what_caches_and_other_tests_decide_is_not_compared(name: str) -> None:
    for accepted in (0, 5, 9):
        found = verdict(name, 5, accepted=accepted, policy=STRICT)
        assert ("ok", None) == (found.status, found.baseline)
    assert "ok" == verdict(name, 5, accepted=1, limit=5).status
    assert "over_budget" == verdict(name, 5, accepted=9, limit=4).status
    assert "new" == verdict(name, 5).status


def test_a_metric_that_the_baseline_lacks_fails_when_strict() -> None:
    verdicts = [Verdict("flops", 5, "new")]
    cause = Failure("metric_new", "flops")
    assert failures(verdicts, STRICT, has_baseline=True, accept=False) == [cause]
    assert failures(verdicts, STRICT, has_baseline=True, accept=True) == []


# ------------------------------------------------------------------------------- kept gradients

Operators = dict[str, dict[str, int]]


@pytest.mark.parametrize(
    ("before", "now", "status"),
    [
        ({"aten::add_": {"accumulations": 0}}, {"aten::add_": {"accumulations": 2}}, "regressed"),
        ({"aten::add_": {"accumulations": 2}}, {"aten::add_": {"accumulations": 2}}, "improved"),
        ({"aten::add_": {"accumulations": 2}}, {}, "improved"),
        (  # zeroed and added to, which starts from zero
            {"aten::add_": {"accumulations": 0}},
            {"aten::add_": {"accumulations": 2}, "aten::zero_": {"calls": 2}},
            "improved",
        ),
        (
            {"Optimizer.zero_grad#SGD": {"calls": 2}, "Optimizer.step#SGD": {"calls": 2}},
            {"Optimizer.zero_grad#SGD": {"calls": 1}, "Optimizer.step#SGD": {"calls": 2}},
            "regressed",
        ),
        (
            {"Optimizer.zero_grad#SGD": {"calls": 2}, "Optimizer.step#SGD": {"calls": 2}},
            {"Optimizer.zero_grad#SGD": {"calls": 1}, "Optimizer.step#SGD": {"calls": 1}},
            "improved",
        ),
    ],
)
def test_a_forgotten_zero_grad_is_not_an_improvement(
    before: Operators, now: Operators, status: Literal["regressed", "improved"]
) -> None:
    """It does less, and leaves gradients to add up."""
    found = compare(
        Profile({"ops": 5, "flops": 3}, operators=now),
        Baseline({"ops": 9, "flops": 3}, operators=before),
        [],
        Policy(),
    )
    assert [v.status for v in found] == [status, "ok"]
    assert (found[0].reason is not None) is (status == "regressed")
