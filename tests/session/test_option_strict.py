"""--torchprof-strict: what also fails."""

from __future__ import annotations

import pytest
from support.sessions import ADD, accept, doctor, doctor_times, run

STRICT = ("--torchprof", "--torchprof-strict")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("ini", "args", "passes"),
    [
        (None, (), True),
        (None, ("--torchprof-strict",), False),
        ("true", (), False),
        ("true", ("--torchprof-strict",), False),
        ("false", (), True),
        ("false", ("--torchprof-strict",), False),
    ],
)
def test_a_new_test_fails_only_under_strict(
    pytester: pytest.Pytester, ini: str | None, args: tuple[str, ...], passes: bool
) -> None:
    pytester.makepyfile(test_it=ADD)
    if ini is not None:
        pytester.makeini(f"[pytest]\ntorchprof_strict = {ini}")
    ran = run(pytester, "--torchprof", *args)
    assert ({"passed" if passes else "failed": 1}, {"test_add": "new"}) == (
        ran.outcomes,
        ran.statuses,
    )


def test_a_new_test_says_how_to_accept_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    out = run(pytester, *STRICT).out
    assert "\nstrict: no baseline for this environment" in out
    assert "accept: pytest --accept test_it.py::test_add" in out


def test_an_accepted_test_passes_under_strict(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester, "--torchprof-strict")
    ran = run(pytester, *STRICT)
    assert ({"passed": 1}, {"test_add": "ok"}) == (ran.outcomes, ran.statuses)


@pytest.mark.thorough
@pytest.mark.parametrize(("args", "passes"), [((), True), (("--torchprof-strict",), False)])
def test_an_improvement_fails_only_under_strict(
    pytester: pytest.Pytester, args: tuple[str, ...], passes: bool
) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    doctor(pytester, ops=2)
    ran = run(pytester, "--torchprof", *args)
    assert ({"passed" if passes else "failed": 1}, {"test_add": "improved"}) == (
        ran.outcomes,
        ran.statuses,
    )
    assert ("ops 2 → 1 (-50.0 %)" in ran.out) is not passes
    assert ("strict: improved, but the improvement is not accepted" in ran.out) is not passes


def test_an_advisory_time_is_not_an_improvement(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    doctor_times(pytester, 10**6)
    ran = run(pytester, *STRICT)
    assert ({"passed": 1}, "advisory") == (ran.outcomes, ran.metric("wall_ms")["status"])


def unless_accelerated() -> None:
    import torch

    if torch.accelerator.is_available():
        pytest.skip("the machine has an accelerator, so its metrics are measured")


@pytest.mark.thorough
@pytest.mark.parametrize(("args", "passes"), [((), True), (("--torchprof-strict",), False)])
def test_a_budget_that_could_not_be_checked_fails_only_under_strict(
    pytester: pytest.Pytester, args: tuple[str, ...], passes: bool
) -> None:
    unless_accelerated()
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.max_syncs(0)
        def test_add(): pass
        """
    )
    accept(pytester)
    ran = run(pytester, "--torchprof", *args)
    assert {"passed" if passes else "failed": 1} == ran.outcomes
    assert ("not_measured", None) == (
        ran.metric("syncs")["status"],
        ran.metric("syncs")["value"],
    )
    message = "strict: the budget syncs could not be checked: no accelerator in this capture"
    assert (message in ran.out) is not passes
    assert "1 budget not checked" in ran.out
    row = next(line for line in ran.out.splitlines() if line.startswith("test_it.py::test_add  "))
    assert row.split("  ")[1:][0] == ("ok" if passes else "ok, fails")
    assert ("1 failed by --torchprof-strict" in ran.out) is not passes


def test_a_budget_of_a_test_that_was_not_profiled_fails_under_strict(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.fixture(scope="module")
        def once(): return []

        @pytest.mark.max_ops(3)
        def test_twice(once):
            assert not once
            once.append(1)
        """
    )
    assert {"passed": 1} == run(pytester, "--torchprof").outcomes
    ran = run(pytester, *STRICT)
    assert ({"failed": 1}, {"test_twice": "not_profiled"}) == (ran.outcomes, ran.statuses)
    assert "strict: the budget ops could not be checked: cannot be run twice" in ran.out


@pytest.mark.thorough
def test_a_stat_that_was_compared_but_not_measured_fails_under_strict(
    pytester: pytest.Pytester,
) -> None:
    unless_accelerated()
    pytester.makepyfile(
        test_it="""
        def test_add(torchprof):
            with torchprof: pass
            assert torchprof.stats.kernels <= 4
        """
    )
    accept(pytester)
    assert {"passed": 1} == run(pytester, "--torchprof").outcomes
    ran = run(pytester, *STRICT)
    assert {"failed": 1} == ran.outcomes
    assert "strict: kernels was compared in the test, and not measured" in ran.out


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", ["advisory", "off", "gate"])
def test_a_time_that_was_not_measured_fails_under_strict_only_if_it_gates(
    pytester: pytest.Pytester, mode: str
) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    ran = run(pytester, *STRICT, "--torchprof-rounds=0", f"--torchprof-time={mode}")
    assert {"failed" if mode == "gate" else "passed": 1} == ran.outcomes


@pytest.mark.parametrize("strict", [False, True])
def test_a_limit_beside_the_marker_that_leaves_a_test_out_is_not_checked(
    pytester: pytest.Pytester, strict: bool
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.max_ops(7)
        @pytest.mark.torchprof(enabled=False)
        def test_beside(): pass

        @pytest.mark.no_antipatterns
        class TestIt:
            @pytest.mark.torchprof(enabled=False)
            def test_of_a_class_with_limits(self): pass

        @pytest.mark.torchprof(enabled=False)
        class TestOut:
            @pytest.mark.no_antipatterns
            def test_closer(self): pass
            def test_without(self): pass
        """
    )
    ran = run(pytester, "--torchprof", *(["--torchprof-strict"] if strict else []))
    why = "@pytest.mark.torchprof(enabled=False) leaves the test out"
    outcome = "failed" if strict else "passed"
    assert {"test_beside", "TestOut::test_closer"} == set(ran.tests)
    for name, metric in (("test_beside", "ops"), ("TestOut::test_closer", "findings")):
        test = ran.tests[name]
        assert (outcome, "not_profiled", why) == (test["outcome"], test["status"], test["reason"])
        assert ("not_measured", why) == tuple(
            test["metrics"][metric][key] for key in ("status", "reason")
        )
        message = f"strict: the budget {metric} could not be checked: {why}"
        assert (message in ran.out) is strict
        assert (f"FAILED test_it.py::{name} - strict: the budget" in ran.out) is strict
    assert f"not profiled: {why} (" in ran.out
