"""--torchprof-time: what to do when a time differs from its baseline."""

from __future__ import annotations

import re

import pytest
from support.messages import messages
from support.reasons import words
from support.sessions import ADD, accept, baseline_file, doctor, doctor_times, read_baseline, run

from pytest_torchprof.capture import load
from pytest_torchprof.capture.load import Probe
from pytest_torchprof.core import values

#: Accepted times so many times what they were: the tests are faster, or slower, than accepted.
FASTER, SLOWER = 10.0**6, 1e-6
GATE = "--torchprof-time=gate"
#: So that a gate does not take its time.
FEW = ("--torchprof-rounds=2", "--torchprof-columns=wall_ms")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else this machine does."""
    monkeypatch.setattr(load, "PROBES", {})


@pytest.mark.thorough
@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("ini", "args", "factor", "outcome", "status"),
    [
        (None, (), SLOWER, "passed", "advisory"),
        (None, (), FASTER, "passed", "advisory"),
        (None, ("--torchprof-time=advisory",), SLOWER, "passed", "advisory"),
        (None, (GATE,), SLOWER, "failed", "regressed"),
        (None, (GATE,), FASTER, "passed", "improved"),
        (None, (GATE, "--torchprof-strict"), FASTER, "failed", "improved"),
        (None, ("--torchprof-time=off",), SLOWER, "passed", "ok"),
        ("gate", (), SLOWER, "failed", "regressed"),
        ("off", (GATE,), SLOWER, "failed", "regressed"),
        ("gate", ("--torchprof-time=advisory",), SLOWER, "passed", "advisory"),
    ],
)
def test_a_time_against_its_baseline(
    pytester: pytest.Pytester,
    ini: str | None,
    args: tuple[str, ...],
    factor: float,
    outcome: str,
    status: str,
) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester, GATE, *FEW)
    doctor_times(pytester, factor)
    if ini is not None:
        pytester.makeini(f"[pytest]\ntorchprof_time = {ini}")
    ran = run(pytester, "--torchprof", *FEW, *args)
    assert ({outcome: 1}, status) == (ran.outcomes, ran.metric("wall_ms")["status"])
    cpu = "ok" if "--torchprof-time=off" in args else "advisory"
    assert cpu == ran.metric("cpu_ms")["status"]


def test_a_gated_regression_says_all_that_it_was_decided_by(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester, GATE, *FEW)
    doctor_times(pytester, SLOWER)
    ran = run(pytester, "--torchprof", GATE, *FEW)
    lines = messages(ran.out)["test_add"]
    shown = [
        r"(.* — )?wall_ms <0\.001 us → .*: regressed against the baseline|.* — wall_ms ×.*",
        r" +fastest round / reference kernel: .* → .*25 %\)",
        r" +2 rounds, ±.* %: quartiles .* and .*, fastest .*",
        r"to confirm the time: torchprof ab REF -- test_it\.py::test_add",
        r"accept: pytest .*",
    ]
    at = [next(n for n, line in enumerate(lines) if re.fullmatch(one, line)) for one in shown]
    assert (0, sorted(at)) == (at[0], at)
    metric = ran.metric("wall_ms")
    assert metric["normalised"] > 1.25 * metric["normalised_baseline"] > 0
    assert {"n", "low", "high", "min", "spread"} <= metric.keys()


def test_advising_compares_the_same_numbers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester, *FEW)
    doctor_times(pytester, SLOWER)
    ran = run(pytester, "--torchprof", *FEW)
    assert ({"passed": 1}, "advisory") == (ran.outcomes, ran.metric("wall_ms")["status"])
    assert "%~" not in ran.out  # what only advises has no mark
    assert {"normalised", "normalised_baseline"} <= ran.metric("wall_ms").keys()


def test_a_slower_test_fails_and_an_unchanged_one_passes(pytester: pytest.Pytester) -> None:
    """Through the whole of it: nothing is doctored but the test."""
    body = """
        import time
        def test_add():
            end = time.thread_time() + {}
            while time.thread_time() < end: pass
    """
    pytester.makepyfile(test_it=body.format(0.002))
    accept(pytester, GATE, *FEW)
    pytester.makepyfile(test_it=body.format(0.05))
    ran = run(pytester, "--torchprof", GATE, *FEW)
    assert ({"failed": 1}, "regressed") == (ran.outcomes, ran.metric("wall_ms")["status"])
    slow = ran.metric("cpu_ms")
    accept(pytester, GATE, *FEW)
    stored = read_baseline(pytester)["tests"]["test_add"]
    (times,) = (entry["times"] for entry in stored.values())
    assert slow["normalised"] / 3 < times["normalised"]["cpu_ms"] < slow["normalised"] * 3


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["advisory", "gate"])
def test_times_of_another_machine_only_advise(pytester: pytest.Pytester, mode: str) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester, GATE, *FEW)
    doctor_times(pytester, SLOWER)
    doctor(pytester, section="times", machine="abacus x1")
    ran = run(pytester, "--torchprof", f"--torchprof-time={mode}", *FEW)
    assert ({"passed": 1}, "advisory") == (ran.outcomes, ran.metric("wall_ms")["status"])
    reason = "the baseline's times are of another machine (abacus x1)" if mode == "gate" else None
    assert reason == ran.metric("wall_ms").get("reason")
    assert bool(reason) is (f"time: {reason} (test_it.py::test_add)" in ran.out)


@pytest.mark.thorough
def test_a_baseline_without_multiples_only_advises_until_accepted_again(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester)
    doctor(pytester, section="times", wall_ms=1e-6, normalised=None)
    ran = run(pytester, "--torchprof", GATE, *FEW)
    assert ({"passed": 1}, "advisory") == (ran.outcomes, ran.metric("wall_ms")["status"])
    assert "no time relative to the reference kernel: --accept --torchprof-time=gate" in ran.out
    accept(pytester, *FEW)  # a time is not worth a line in a diff, unless it is to be gated
    assert "no time relative" in run(pytester, "--torchprof", GATE, *FEW).out
    accept(pytester, GATE, *FEW)
    ran = run(pytester, "--torchprof", GATE, *FEW)
    assert "no time relative" not in ran.out
    assert {"normalised", "normalised_baseline"} <= ran.metric("wall_ms").keys()


def test_the_conditions_are_those_of_the_rounds_not_of_the_profiled_run(
    pytester: pytest.Pytester,
) -> None:
    import torch

    pytester.makepyfile(test_it=ADD)
    threads = torch.get_num_threads()
    flags = (GATE, *FEW)
    try:
        torch.set_num_threads(3)
        accept(pytester, *FEW)
        doctor_times(pytester, SLOWER)
        ran = run(pytester, "--torchprof", *flags)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert ({"passed": 1}, "advisory") == (ran.outcomes, ran.metric("wall_ms")["status"])
    assert "times are of reference 1, 3 torch threads, not reference 1, 1 torch th" in ran.out


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("args", "expected"),
    [((GATE,), 1), ((GATE, "--torchprof-threads=2"), 2), ((GATE, "--torchprof-threads=keep"), 3),
     ((), 3)],
)  # fmt: skip
def test_rounds_of_a_gate_have_the_threads_of_the_profiled_run(
    pytester: pytest.Pytester, args: tuple[str, ...], expected: int
) -> None:
    import torch

    pytester.makepyfile(
        test_it="""
        import torch

        def test_add():
            torch.ones(8) + 1
            with open("threads", "a") as file:
                file.write(f"{torch.get_num_threads()} ")
        """
    )
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        run(pytester, "--torchprof", "--torchprof-rounds=2", *args)
    finally:
        torch.set_num_threads(threads)
    first, *rounds, profiled = (pytester.path / "threads").read_text().split()
    assert ("3", [str(expected)] * 2) == (first, rounds[:2])
    assert profiled == (str(expected) if args else "1")


@pytest.mark.thorough
def test_under_xdist_time_only_advises(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester, GATE, *FEW)
    doctor_times(pytester, SLOWER)
    ran = run(pytester, "--torchprof", GATE, *FEW, "-n1", needs=["xdist"])
    assert ({"passed": 1}, "advisory") == (ran.outcomes, ran.metric("wall_ms")["status"])
    assert "time: xdist's workers contend for the CPU, so time only advises (test_it" in ran.out


@pytest.mark.thorough
def test_on_a_busy_machine_times_are_advisory_and_not_accepted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it=ADD)
    accept(pytester, GATE, *FEW)
    doctor_times(pytester, SLOWER)
    always = Probe(lambda: 0.0, lambda _: words("a fan hums"))
    monkeypatch.setattr(load, "PROBES", {"noise": always})
    monkeypatch.setattr(load, "LEAST_S", 0.0)
    ran = run(pytester, "--torchprof", GATE, *FEW)
    assert ({"passed": 1}, "advisory") == (ran.outcomes, ran.metric("wall_ms")["status"])
    assert "time: the machine was busy, so time only advises: a fan hums (test_it" in ran.out
    before = read_baseline(pytester)
    accept(pytester, GATE, *FEW)
    assert before == read_baseline(pytester)
    baseline_file(pytester).unlink()
    accept(pytester, GATE, *FEW)
    (entry,) = read_baseline(pytester)["tests"]["test_add"].values()
    assert "normalised" not in entry["times"]
    assert "machine was busy" not in run(pytester, "--torchprof", *FEW).out


@pytest.mark.thorough
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("marker", "args", "rounds"),
    [
        ("", (), "many"),
        ("", ("--torchprof-rounds=3",), 3),
        ("", ("--torchprof-min-time=0",), 1),
        ("@pytest.mark.torchprof(rounds=2)", (), 2),
    ],
)
def test_a_gate_takes_its_time_unless_the_number_of_rounds_is_given(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    marker: str,
    args: tuple[str, ...],
    rounds: object,
) -> None:
    # Long enough for many rounds, even beside other work.
    monkeypatch.setattr(values, "GATE_TIME_S", 1.0)
    pytester.makepyfile(test_it=f"import pytest\n{marker}\ndef test_add(): pass")
    ran = run(pytester, "--torchprof", GATE, *args)
    found = ran.metric("wall_ms")["n"]
    assert (rounds == "many" and found > 3) or rounds == found
    assert ("timed for 1 s" in ran.out) is not bool(args)


@pytest.mark.one_in(3)
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
    ran = run(pytester, "--torchprof", f"--torchprof-time={mode}", *FEW)
    assert {"test_slow": "over_budget", "test_fast": "new"} == ran.statuses
    assert {"failed": 1, "passed": 1} == ran.outcomes


@pytest.mark.parametrize("where", ["command line", "ini"])
def test_an_unknown_mode_is_a_usage_error(pytester: pytest.Pytester, where: str) -> None:
    pytester.makepyfile(test_it=ADD)
    given, source = ["--torchprof-time=gated"], "--torchprof-time"
    if where == "ini":
        pytester.makeini("[pytest]\ntorchprof_time = gated")
        given, source = [], "ini option torchprof_time"
    message = run(pytester, "--torchprof", *given).usage_error()
    shown = "'gated' is not one of advisory, gate, off. Did you mean gate?"
    assert f"ERROR: {source}: {shown}" == message
