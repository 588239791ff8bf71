"""Metrics of users' own in tests of an unusual shape: nothing that is recorded passes unchecked."""

from __future__ import annotations

import pytest
from support.sessions import accept, run

HEAD = """
    import os
    import pytest
    import torch

    X = torch.ones(4)
    NOW = os.environ.get("NOW")
"""


@pytest.mark.parametrize("how", ["torchprof(lambda: X + X)", "with torchprof: X + X"])
def test_what_is_recorded_after_the_measurement_is_checked(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    @pytest.mark.max_metric("t", 1)
    def test_limit(torchprof):
        {how}
        torchprof.record("t", 5, compare="exact")

    def test_regression(torchprof):
        {how}
        torchprof.record("n", 500 if NOW else 5, compare="exact")
    """
    )
    run(pytester, "--accept")
    monkeypatch.setenv("NOW", "1")
    ran = run(pytester, "--torchprof")
    assert {"test_limit": "over_budget", "test_regression": "regressed"} == ran.statuses


def test_a_time_recorded_beside_a_measured_callable_says_where_to_record_it(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    @pytest.mark.torchprof(rounds=2)
    @pytest.mark.max_metric("t", 1)
    def test_it(torchprof):
        torchprof(lambda: X + X)
        torchprof.record("t", 5)
    """
    )
    found = run(pytester, "--torchprof").metric("t", "test_it")
    assert "not_measured" == found["status"]
    assert "outside the callable" in str(found["reason"])
    assert "rounds=1" not in str(found["reason"])


@pytest.mark.parametrize(
    ("marks", "value", "status"),
    [
        ('max_metric("n", "2 ms"), min_metric("n", "0.001 s")', 1500, "over_budget"),
        ('max_metric("n", "1 s"), min_metric("n", "500 ms")', 700, "new"),
        ('max_metric("n", "1 s"), min_metric("n", "500 ms")', 400, "over_budget"),
        ('max_metric("n", "1 s"), min_metric("n", 500)', 700, "new"),
        ('max_metric("n", "1 s"), min_metric("n", 500)', 1001, "over_budget"),
        ('max_metric("n", "1 s"), min_metric("n", 500)', 499, "over_budget"),
        ('max_metric("n", "2 ms"), max_metric("n", "1 s", on="cpu")', 500, "over_budget"),
        ('max_metric("n", 2), max_metric("n", "1 s", on="cpu")', 500, "over_budget"),
        ('max_metric("n", "1 s"), max_metric("n", 2, on="cpu")', 500, "over_budget"),
        ('max_metric("n", "1 s"), max_metric("n", "2 ms", on="H100")', 500, "new"),
        ('max_metric("n", "0.009 s"), min_metric("n", "0.009 s")', 9, "new"),
    ],
)
def test_limits_in_several_units_of_a_quantity_all_count(
    pytester: pytest.Pytester, marks: str, value: float, status: str
) -> None:
    above = "\n    ".join(f"@pytest.mark.{mark})" for mark in marks.removesuffix(")").split("), "))
    pytester.makepyfile(
        test_it=f"""{HEAD}
    {above}
    def test_it(torchprof):
        torchprof.record("n", {value}, unit="ms", compare="exact")
    """
    )
    assert {"test_it": status} == run(pytester, "--torchprof").statuses


@pytest.mark.parametrize(
    ("least", "limit", "status"),
    [
        ('"0.01 s"', '"1 s"', "over_budget"),
        ("10", '"1 s"', "over_budget"),
        ('"0.001 s"', '"1 s"', "ok"),
        ("1", '"0.05 s"', "over_budget"),
    ],
)
def test_limits_of_several_regions_are_compared_in_the_metrics_unit(
    pytester: pytest.Pytester, least: str, limit: str, status: str
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    @pytest.mark.max_metric("n", {limit}, region="*")
    @pytest.mark.min_metric("n", {least}, region="*")
    def test_it(torchprof):
        for name, value in {{"a": 100, "b": 1}}.items():
            with torchprof(name):
                torchprof.record("n", value, unit="ms", compare="exact")
    """
    )
    ran = run(pytester, "--torchprof")
    assert status == ran.metric("n[region=*]", "test_it")["status"]


def test_a_least_and_a_most_in_two_units_that_exclude_each_other_are_an_error(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    @pytest.mark.max_metric("n", "2 ms")
    @pytest.mark.min_metric("n", "1 s")
    def test_it(torchprof): pass
    """
    )
    assert "at least 1000 and at most 2" in run(pytester, "--torchprof").usage_error()


def test_a_limit_that_is_given_twice_is_an_error_in_any_units(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    @pytest.mark.max_metric("n", "2 ms")
    @pytest.mark.max_metric("n", 3)
    def test_it(torchprof): pass
    """
    )
    assert "is given twice for n" in run(pytester, "--torchprof").usage_error()


@pytest.mark.parametrize(("value", "status"), [(500, "new"), (1001, "over_budget")])
def test_a_limit_of_the_project_in_another_unit_gives_way_to_a_marker(
    pytester: pytest.Pytester, value: float, status: str
) -> None:
    pytester.makeini("[pytest]\ntorchprof_budgets =\n  max_metric = 2 ms, name=n")
    pytester.makepyfile(
        test_it=f"""{HEAD}
    @pytest.mark.max_metric("n", "1 s")
    def test_it(torchprof):
        torchprof.record("n", {value}, unit="ms", compare="exact")
    """
    )
    assert {"test_it": status} == run(pytester, "--torchprof").statuses


@pytest.mark.parametrize(
    ("marks", "status"),
    [
        ('min_metric("n", 5, region="typo")', "over_budget"),
        ('min_metric("n", 5, region="empty")', "not_measured"),
        ('min_metric("n", 0, region="typo")', "over_budget"),
        ('min_metric("typo", 5, region="part")', "not_measured"),
        ('max_metric("n", 5, region="typo")', "not_measured"),
        ('max_metric("n", 0, region="typo")', "not_measured"),
        ('min_metric("hook", 5, region="typo")', "over_budget"),
        ('max_metric("hook", 0, region="typo")', "not_measured"),
        ('min_wall_ms(5, region="typo")', "over_budget"),
        ('max_wall_ms(5, region="typo")', "not_measured"),
        ('max_wall_ms(0, region="typo")', "not_measured"),
    ],
)
def test_a_region_that_the_test_does_not_have_has_no_least_value_and_no_most(
    pytester: pytest.Pytester, marks: str, status: str
) -> None:
    pytester.makeconftest(
        """
    import pytest_torchprof

    @pytest_torchprof.metric("hook")
    def hook(trace): return 7 if trace.selection.any() else None

    def pytest_torchprof_metrics(): return [hook]
    """
    )
    pytester.makepyfile(
        test_it=f"""{HEAD}
    @pytest.mark.{marks}
    def test_it(torchprof):
        with torchprof("part"):
            X + X
            torchprof.record("n", 9, compare="exact")
        with torchprof("empty"): pass
    """
    )
    ran = run(pytester, "--torchprof")
    (found,) = (one for name, one in ran.tests["test_it"]["metrics"].items() if "[" in name)
    assert status == found["status"], found
    if status == "over_budget":
        assert {"failed": 1} == ran.outcomes
        assert ", but region typo did not run" in ran.out.replace("\n", " ")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--torchprof-time=gate",), marks=pytest.mark.thorough),
        ("--torchprof-strict",),
    ],
)
@pytest.mark.parametrize("compare", ["time", "exact"])
def test_an_accepted_value_that_is_no_longer_recorded_is_said(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    compare: str,
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_it(torchprof):
        X + X
        if not NOW:
            torchprof.record("n", 100, compare="{compare}")
        with torchprof("part"):
            if not NOW:
                torchprof.record("m", 100, compare="{compare}")
        if not NOW:
            with torchprof("gone"):
                torchprof.record("p", 100, compare="{compare}")
    """
    )
    accept(pytester, *options)
    assert {"passed": 1} == run(pytester, "--torchprof", *options).outcomes
    monkeypatch.setenv("NOW", "1")
    ran = run(pytester, "--torchprof", *options)
    found = ran.tests["test_it"]
    shown = [
        found["metrics"]["n"],
        found["regions"]["part"]["metrics"]["m"],
    ]
    assert [("not_measured", 100)] * 2 == [(one["status"], one["baseline"]) for one in shown]
    if compare == "exact":
        assert "baseline gone: p not compared" in ran.out
        strict = options == ("--torchprof-strict",)
        assert {"failed" if strict else "passed": 1} == ran.outcomes
    accept(pytester, *options)
    assert "not compared" not in run(pytester, "--torchprof", *options).out


def test_stats_call_a_users_function_once_a_trace(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
    import pytest_torchprof

    CALLS = []

    @pytest_torchprof.metric("hook")
    def hook(trace):
        CALLS.append(1)
        return 7

    def pytest_torchprof_metrics(): return [hook]
    """
    )
    pytester.makepyfile(
        test_it=f"""{HEAD}
    import conftest

    def test_it(torchprof):
        with torchprof: X + X
        torchprof.record("n", 1, compare="exact")
        torchprof.stats.hook
        before = len(conftest.CALLS)
        for _ in range(5):
            assert torchprof.stats.hook == 7
            assert torchprof.stats.n == 1
        with open("calls", "a") as file:
            file.write(f"{{len(conftest.CALLS) - before}} ")
    """
    )
    run(pytester, "--torchprof")
    assert {"0"} == set((pytester.path / "calls").read_text().split())
