"""A limit that is kept because nothing ran is not checked, unless nothing is what was accepted."""

from __future__ import annotations

import pytest
from support.sessions import accept, run

from pytest_torchprof.core.values import Baseline, Budget, Profile
from pytest_torchprof.verdict.compare import NO_PRODUCT, NOTHING, NOTHING_ON_DEVICE, Policy, compare
from pytest_torchprof.verdict.judgement import failures
from pytest_torchprof.verdict.metrics import METRICS

KEPT = """
    from functools import lru_cache
    import pytest, torch

    X = torch.ones(8, 8)
    TABLE = []

    @lru_cache
    def product(): return X @ X

    @pytest.fixture(scope="module")
    def net():
        class Net(torch.nn.Module):
            kv = None
            def forward(self):
                if self.kv is None: self.kv = X @ X
                return self.kv
        return Net()

    {marker}
    def test_cached(): product()

    {marker}
    def test_kept_by_the_module(net): net()

    {marker}
    def test_table_filled_once():
        if not TABLE: TABLE.append(X @ X)

    {marker}
    def test_empty_block(torchprof):
        X @ X
        with torchprof: pass

    {marker}
    def test_callable(torchprof): torchprof(product)

    {marker}
    def test_it_runs(): X @ X
"""
IDLE = {
    "test_cached",
    "test_kept_by_the_module",
    "test_table_filled_once",
    "test_empty_block",
    "test_callable",
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("marker", "label"),
    [
        ('max_flops("1 GFLOP")', "flops"),
        ("max_peak_cpu_bytes(256)", "peak_cpu_bytes"),
        ("max_self_cpu_ms(10**6)", "self_cpu_ms"),
        ("no_antipatterns", "findings"),
        ('no_antipatterns("for-loop-indexing")', "findings[rule=for-loop-indexing]"),
    ],
)
def test_a_limit_on_a_run_without_operators_is_not_checked(
    pytester: pytest.Pytester, marker: str, label: str
) -> None:
    pytester.makepyfile(test_it=KEPT.format(marker=f"@pytest.mark.{marker}"))
    ran = run(pytester, "--torchprof")
    rows = {name: test["metrics"][label] for name, test in ran.tests.items()}
    unchecked = {name for name, row in rows.items() if row["status"] == "not_measured"}
    assert (IDLE, 0) == (unchecked, ran.ret)
    assert {(0, NOTHING.text)} == {(rows[name]["value"], rows[name]["reason"]) for name in IDLE}
    assert "5 budgets not checked" in ran.out


@pytest.mark.thorough
def test_strict_fails_a_limit_on_nothing_even_where_the_baseline_had_something(
    pytester: pytest.Pytester,
) -> None:
    marker = "@pytest.mark.max_flops(2000)"
    pytester.makepyfile(test_it=KEPT.format(marker=marker).replace("@lru_cache", ""))
    accept(pytester)
    pytester.makepyfile(test_it=KEPT.format(marker=marker))
    ran = run(pytester, "--torchprof", "--torchprof-strict", "-k", "test_cached")
    assert {"failed": 1} == {k: n for k, n in ran.outcomes.items() if k == "failed"}
    assert f"strict: the budget flops could not be checked: {NOTHING.text}" in ran.out


@pytest.mark.thorough
def test_warmup_and_rounds_of_0_check_it(pytester: pytest.Pytester) -> None:
    marker = "@pytest.mark.max_flops(2000)\n    @pytest.mark.torchprof(warmup=0, rounds=0)"
    pytester.makepyfile(test_it=KEPT.format(marker=marker))
    ran = run(pytester, "--torchprof", "-k", "test_cached or test_kept")
    rows = [test["metrics"]["flops"] for test in ran.tests.values()]
    assert [(1024, "new")] * 2 == [(row["value"], row["status"]) for row in rows]


def test_a_baseline_without_work_marks_an_empty_run_as_intended(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=KEPT.format(marker="@pytest.mark.max_flops(1)"))
    accepting = run(pytester, "--accept", "-k", "cached")
    assert "budget max_flops not checked" in accepting.out
    ran = run(pytester, "--torchprof", "--torchprof-strict", "-k", "cached")
    assert ("ok", 0) == (ran.metric("flops", "test_cached")["status"], ran.ret)


def test_what_needs_no_operator_is_checked_without_one(pytester: pytest.Pytester) -> None:
    limits = ["wall_ms(10**6)", "cpu_ms(10**6)", "graph_breaks(0)", "recompiles(0)"]
    asked_for = ["ops(0)", "flops(0)"]
    markers = "\n".join(f"@pytest.mark.max_{limit}" for limit in limits + asked_for)
    pytester.makepyfile(test_it=f"import pytest\n{markers}\ndef test_plain(): sorted([2, 1])")
    ran = run(pytester, "--torchprof")
    assert "budget" not in ran.out
    assert {"new"} == {ran.metric(limit.split("(")[0], "test_plain")["status"] for limit in limits}


def test_tests_without_limits_are_as_they_were(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_plain(): pass")
    assert {"test_plain": "new"} == run(pytester, "--torchprof").statuses
    accept(pytester)
    strict = run(pytester, "--torchprof", "--torchprof-strict")
    assert ({"test_plain": "ok"}, 0) == (strict.statuses, strict.ret)
    assert "no operator" not in strict.out


# -------------------------------------------------------------------- the device

RUNS = {"ops": 7, "dispatches": 7}
ON_HOST = dict.fromkeys((m.name for m in METRICS.values() if m.of_region), 0) | RUNS


@pytest.mark.parametrize("name", [n for n, m in METRICS.items() if m.of_device])
def test_a_limit_for_an_unused_device_is_not_checked(name: str) -> None:
    profile, budget = Profile(ON_HOST), [Budget(name, 5)]
    checked = {v.metric: v for v in compare(profile, None, budget, Policy())}[name]
    assert ("not_measured", NOTHING_ON_DEVICE) == (checked.status, checked.reason)
    known = Baseline({"ops": 7, "kernels": 0, name: 0})
    checked = {v.metric: v for v in compare(profile, known, budget, Policy())}[name]
    assert checked.status != "not_measured"
    busy = Profile({**ON_HOST, "syncs": 1})
    checked = {v.metric: v for v in compare(busy, None, budget, Policy())}[name]
    assert checked.status == "new"


def test_kernels_without_operators_do_not_count_as_an_idle_run() -> None:
    replay = Profile({**ON_HOST, **dict.fromkeys(RUNS, 0), "kernels": 3}, kernels={"gemm": 3})
    verdicts = compare(replay, None, [Budget("kernels", 5), Budget("syncs", 0)], Policy())
    assert failures(verdicts, Policy(strict=True), has_baseline=True, accept=True) == []


def test_a_run_that_does_nothing_any_more_says_so_beside_the_improvement() -> None:
    idle = Profile({**ON_HOST, **dict.fromkeys(RUNS, 0)})
    verdicts = compare(idle, Baseline({"ops": 7}), [], Policy())
    assert [("improved", NOTHING)] == [(v.status, v.reason) for v in verdicts if v.metric == "ops"]


BESIDE = """
    import pytest
    import torch
    from torch import nn

    class Attention(nn.Module):
        kept = None

        def forward(self, x):
            if self.kept is None:
                self.kept = x @ x
            return x + self.kept

    NET = Attention()

    {marker}
    def test_it(): NET(torch.ones(8, 8))
"""


def test_a_kept_product_beside_other_work_is_not_checked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=BESIDE.format(marker="@pytest.mark.max_flops(1)"))
    row = run(pytester, "--torchprof").metric("flops", "test_it")
    assert (0, "not_measured", NO_PRODUCT.text) == (row["value"], row["status"], row["reason"])


@pytest.mark.thorough
def test_a_module_that_does_less_in_the_run_that_marks_it_is_not_checked(
    pytester: pytest.Pytester,
) -> None:
    marker = """@pytest.mark.torchprof(warmup=0, rounds=0)
    @pytest.mark.max_flops(1, module="Attention")"""
    pytester.makepyfile(test_it=BESIDE.format(marker=marker))
    row = run(pytester, "--torchprof").metric("flops[module=Attention]", "test_it")
    assert (None, "not_measured") == (row["value"], row["status"])
    assert "the run in which modules are marked had" in row["reason"]
