"""--torchprof-time: what a time difference against a baseline does."""

from __future__ import annotations

import re
from typing import Any

import pytest
from helpers import ADD, accept, doctor, run

from pytest_torchprof.compare import Policy, compare
from pytest_torchprof.stats import Baseline, Budget, Profile

FASTER: dict[str, Any] = {"wall_ms": 10**6, "cpu_ms": 10**6}
SLOWER: dict[str, Any] = {"wall_ms": 1e-6, "cpu_ms": 1e-6}


@pytest.mark.parametrize(
    ("ini", "args", "times", "outcome", "status"),
    [
        (None, (), SLOWER, "passed", "advisory"),
        (None, (), FASTER, "passed", "advisory"),
        (None, ("--torchprof-time=advisory",), SLOWER, "passed", "advisory"),
        (None, ("--torchprof-time=gate",), SLOWER, "failed", "regressed"),
        (None, ("--torchprof-time=gate",), FASTER, "passed", "improved"),
        (None, ("--torchprof-time=gate", "--torchprof-strict"), FASTER, "failed", "improved"),
        (None, ("--torchprof-time=off",), SLOWER, "passed", "ok"),
        ("gate", (), SLOWER, "failed", "regressed"),
        ("off", ("--torchprof-time=gate",), SLOWER, "failed", "regressed"),
        ("gate", ("--torchprof-time=advisory",), SLOWER, "passed", "advisory"),
    ],
)
def test_a_time_against_its_baseline(
    pytester: pytest.Pytester,
    ini: str | None,
    args: tuple[str, ...],
    times: dict[str, Any],
    outcome: str,
    status: str,
) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    doctor(pytester, section="times", **times)
    if ini is not None:
        pytester.makeini(f"[pytest]\ntorchprof_time = {ini}")
    ran = run(pytester, "--torchprof", *args)
    found = {ran.metric(name)["status"] for name in times}
    assert ({outcome: 1}, {status}) == (ran.outcomes, found)


def test_a_gated_regression_says_both_times_and_the_tolerance(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    doctor(pytester, section="times", wall_ms=0.0001)
    out = run(pytester, "--torchprof", "--torchprof-time=gate").out
    assert re.search(r"torchprof: wall_ms 0\.1 us → .*: regressed against the baseline", out)
    (line,) = (line for line in out.splitlines() if line.startswith("  wall_ms  0.1 us → "))
    assert line.endswith(", tolerance 25%)")


@pytest.mark.parametrize("mode", ["advisory", "gate"])
def test_times_of_another_machine_only_advise(pytester: pytest.Pytester, mode: str) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    doctor(pytester, section="times", machine="abacus x1", **SLOWER)
    ran = run(pytester, "--torchprof", f"--torchprof-time={mode}")
    assert ({"passed": 1}, "advisory") == (ran.outcomes, ran.metric("wall_ms")["status"])
    reason = "the baseline's times are of another machine (abacus x1)" if mode == "gate" else None
    assert reason == ran.metric("wall_ms").get("reason")


def test_counts_gate_whatever_becomes_of_time(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    doctor(pytester, ops=0)
    for mode in ("advisory", "gate", "off"):
        ran = run(pytester, "--torchprof", f"--torchprof-time={mode}")
        assert ({"failed": 1}, "regressed") == (ran.outcomes, ran.metric("ops")["status"])


@pytest.mark.parametrize("mode", ["advisory", "gate", "off"])
def test_a_budget_on_time_gates_in_every_mode(pytester: pytest.Pytester, mode: str) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.max_wall_ms(0.0001)
        def test_slow(): pass

        @pytest.mark.max_wall_ms("100 s")
        def test_fast(): pass
        """
    )
    ran = run(pytester, "--torchprof", f"--torchprof-time={mode}")
    assert {"test_slow": "over_budget", "test_fast": "new"} == ran.statuses
    assert {"failed": 1, "passed": 1} == ran.outcomes


@pytest.mark.parametrize(
    ("now", "expected"),
    [(1.0, "ok"), (1.25, "ok"), (1.2501, "regressed"), (0.75, "ok"), (0.7499, "improved")],
)
def test_the_tolerance_of_a_time_is_inclusive(now: float, expected: str) -> None:
    baseline = Baseline(times={"wall_ms": 1.0})
    (verdict,) = compare(Profile({"wall_ms": now}), baseline, [], Policy(time="gate"))
    assert (expected, 1.0, 0.25) == (verdict.status, verdict.baseline, verdict.tolerance)


@pytest.mark.parametrize("now", [0.1, 10.0])
def test_a_profiled_time_only_advises(now: float) -> None:
    """Profiled times carry the profiler's own cost."""
    baseline = Baseline(times={"self_cpu_ms": 1.0})
    (verdict,) = compare(Profile({"self_cpu_ms": now}), baseline, [], Policy(time="gate"))
    assert "advisory" == verdict.status


def test_a_budget_is_inclusive_where_a_float_is_compared() -> None:
    for now, expected in ((0.3, "new"), (0.30000001, "over_budget")):
        (verdict,) = compare(Profile({"wall_ms": now}), None, [Budget("wall_ms", 0.3)], Policy())
        assert expected == verdict.status


@pytest.mark.parametrize("where", ["command line", "ini"])
def test_an_unknown_mode_is_a_usage_error(pytester: pytest.Pytester, where: str) -> None:
    pytester.makepyfile(test_it=ADD)
    given, source = ["--torchprof-time=gated"], "--torchprof-time"
    if where == "ini":
        pytester.makeini("[pytest]\ntorchprof_time = gated")
        given, source = [], "ini option torchprof_time"
    message = run(pytester, "--torchprof", *given).usage_error()
    said = "'gated' is not one of advisory, gate, off. Did you mean gate?"
    assert f"ERROR: {source}: {said}" == message
