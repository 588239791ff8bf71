"""A test of many times the accepted CPU time is red, once further rounds confirm it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from typing import Any

import pytest
from support.sessions import accept, baseline_file, calls, doctor, read_baseline, run

from pytest_torchprof.capture.clock import NO_COUNTER, Round, Stopwatch
from pytest_torchprof.capture.load import Lap
from pytest_torchprof.session import measurement

#: A test that notes its runs, three of them without further rounds.
TEST = """
    import torch
    from support.sessions import note

    def test_add():
        torch.ones(4) + 1
        note("calls")
"""

Takes = Callable[..., None]


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> Takes:
    """Sets what the next runs take, in ms of wall and CPU time; the last of these is repeated.

    The first run is timed, too. The reference kernel takes 0.2 ms.
    """
    real = Stopwatch.__exit__
    times: list[Any] = [repeat((2.0, 0.0))]

    def end(watch: Stopwatch, *exc: object) -> None:
        real(watch, *exc)
        ms, others = next(times[0])
        ns = int(ms * 1e6)
        watch.result = Round(ns, ns, NO_COUNTER, 0, {}, int(ns * (1 - others)))

    def laps(count: int) -> list[Lap]:
        return [Lap(200_000, 200_000)] * count

    def set_to(*ms: float, others: Iterable[float] = ()) -> None:
        shares = chain(others, repeat(0.0))
        times[0] = zip(chain(ms, repeat(ms[-1])), shares, strict=False)

    monkeypatch.setattr(Stopwatch, "__exit__", end)
    monkeypatch.setattr(measurement, "run_reference", laps)
    return set_to


def runs(pytester: pytest.Pytester) -> int:
    """How often the test ran since this was asked last."""
    count = calls(pytester)
    (pytester.path / "calls").unlink(missing_ok=True)
    return count


def accepted_at(pytester: pytest.Pytester, takes: Takes, *args: str) -> None:
    """Accept the test with a time of 2 ms."""
    pytester.makepyfile(test_it=TEST)
    takes(2.0)
    accept(pytester, *args)
    runs(pytester)


@pytest.mark.parametrize("args", [(), ("--torchprof-time=gate", "--torchprof-rounds=1")])
def test_a_confirmed_time_fails_the_test(
    pytester: pytest.Pytester, takes: Takes, args: tuple[str, ...]
) -> None:
    accepted_at(pytester, takes, *args)
    takes(26.0)
    ran = run(pytester, "--torchprof", *args)
    said = "CPU time 2 ms → 26 ms (×13), confirmed by 5 more rounds"
    assert ({"failed": 1}, {"test_add": "regressed"}) == (ran.outcomes, ran.statuses)
    assert said == ran.tests["test_add"]["reason"]
    assert f"{said} (test_it.py::test_add)" in ran.out
    metric = ran.metric("cpu_ms")
    found = metric["status"], metric["reason"], metric["baseline"], metric["value"]
    assert ("regressed", said, 2.0, 26.0) == found
    assert runs(pytester) >= 3 + 5
    assert re.search(rf"^  {re.escape(said)}$", ran.out, re.MULTILINE)
    assert re.search(r"^  .*cpu_ms 2 ms → 26 ms +\(×13\)", ran.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("ms", "args", "ran_times", "said"),
    [
        ((26.0,), ("--torchprof-time=off",), 3, None),
        ((4.0,), (), 3, "CPU time 2 ms → 4 ms (×2.0): only advice"),
        ((2.9,), (), 3, None),
        # Once in a while, by chance.
        ((26.0, 26.0, 2.0), (), 4, None),
        ((26.0, 26.0, 26.0, 4.0), (), 8, "CPU time 2 ms → 4 ms (×2.0): only advice"),
    ],
)
def test_a_time_in_doubt_fails_nothing(
    pytester: pytest.Pytester,
    takes: Takes,
    ms: tuple[float, ...],
    args: tuple[str, ...],
    ran_times: int,
    said: str | None,
) -> None:
    accepted_at(pytester, takes)
    takes(*ms)
    ran = run(pytester, "--torchprof", *args)
    assert ({"passed": 1}, {"test_add": "ok"}) == (ran.outcomes, ran.statuses)
    assert (said, ran_times) == (ran.tests["test_add"]["reason"], runs(pytester))
    assert (said is not None) is ("CPU time" in ran.out)


def test_less_work_in_more_time_is_no_improvement(pytester: pytest.Pytester, takes: Takes) -> None:
    accepted_at(pytester, takes)
    pytester.makepyfile(test_it=TEST.replace(" + 1", ""))
    takes(4.0)
    ran = run(pytester, "--torchprof")
    assert {"test_add": "ok"} == ran.statuses
    assert "less work, but slower, so not improved" in ran.tests["test_add"]["reason"]


@pytest.mark.parametrize("section", [{"machine": "abacus x1"}, {"normalised": None}])
def test_a_time_that_does_not_compare_is_advice_at_most(
    pytester: pytest.Pytester, takes: Takes, section: dict[str, Any]
) -> None:
    accepted_at(pytester, takes)
    doctor(pytester, section="times", **section)
    takes(26.0)
    ran = run(pytester, "--torchprof")
    assert ({"passed": 1}, 3) == (ran.outcomes, runs(pytester))
    assert "CPU time 2 ms → 26 ms (×13): only advice" == ran.tests["test_add"]["reason"]


def test_what_fails_only_in_a_further_round_is_measured(
    pytester: pytest.Pytester, takes: Takes
) -> None:
    accepted_at(pytester, takes)
    fails = "\n        assert Path('calls').read_text().count('called') != 3\n"
    fails = "\n    from pathlib import Path" + TEST.rstrip() + fails
    pytester.makepyfile(test_it=fails)
    takes(26.0)
    ran = run(pytester, "--torchprof")
    assert ({"passed": 1}, {"test_add": "ok"}, 4) == (ran.outcomes, ran.statuses, runs(pytester))
    assert "only advice" in ran.tests["test_add"]["reason"]


def test_accepting_a_slow_test_makes_it_green_and_accepting_again_changes_nothing(
    pytester: pytest.Pytester, takes: Takes
) -> None:
    accepted_at(pytester, takes)
    takes(26.0)
    assert "cpu_ms" in accept(pytester).out
    kept = baseline_file(pytester).read_bytes()
    takes(27.0)
    ran = run(pytester, "--torchprof")
    assert ({"passed": 1}, None) == (ran.outcomes, ran.tests["test_add"]["reason"])
    accept(pytester)
    assert kept == baseline_file(pytester).read_bytes()
    takes(2.0)  # so that it does not become as slow again unseen
    accept(pytester)
    kept = baseline_file(pytester).read_bytes()
    takes(2.1)
    accept(pytester)
    assert kept == baseline_file(pytester).read_bytes()
    takes(26.0)
    assert {"failed": 1} == run(pytester, "--torchprof").outcomes


def test_of_several_threads_what_one_takes_is_accepted_and_compared(
    pytester: pytest.Pytester, takes: Takes
) -> None:
    """On a busy machine, they wait for each other in a loop."""
    pytester.makepyfile(test_it=TEST)
    takes(40.0, 40.0, 2.0, others=(0.5, 0.5))
    accept(pytester)
    (entry,) = read_baseline(pytester)["tests"]["test_add"].values()
    assert (40.0, 200.0, 10.0) == (
        entry["times"]["cpu_ms"],
        entry["times"]["normalised"]["cpu_ms"],
        entry["times"]["normalised"]["one_thread"],
    )
    takes(80.0, 80.0, 2.1, others=(0.5, 0.5))
    assert {"passed": 1} == run(pytester, "--torchprof").outcomes
    takes(80.0, 80.0, 8.0, others=(0.5, 0.5))
    ran = run(pytester, "--torchprof")
    said = "CPU time 2 ms → 8 ms (×4.0), confirmed by 5 more rounds"
    assert ({"failed": 1}, said) == (ran.outcomes, ran.tests["test_add"]["reason"])


def test_a_callable_that_is_measured_alone_is_compared_as_well(
    pytester: pytest.Pytester, takes: Takes
) -> None:
    source = TEST.replace("test_add()", "test_add(torchprof)")
    source = source.replace("torch.ones(4) + 1", "torchprof(lambda: torch.ones(4) + 1)")
    pytester.makepyfile(test_it=source)
    takes(2.0)
    accept(pytester)
    takes(26.0)
    ran = run(pytester, "--torchprof")
    assert ({"failed": 1}, "regressed") == (ran.outcomes, ran.metric("cpu_ms")["status"])


@pytest.mark.thorough
def test_beside_other_workers_cpu_time_is_accepted_and_wall_time_is_not(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=TEST)
    accept(pytester, "-n1", needs=["xdist"])
    (entry,) = read_baseline(pytester)["tests"]["test_add"].values()
    kept = entry["times"]["normalised"].keys()
    assert ("cpu_ms" in kept, "wall_ms" in kept) == (True, False)


def test_a_machine_that_is_taken_away_confirms_nothing(
    pytester: pytest.Pytester, takes: Takes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest of short laps has all of a processor, a long round never has."""
    accepted_at(pytester, takes)
    takes(26.0)

    def laps(count: int) -> list[Lap]:
        return [Lap(200_000, 200_000), *[Lap(1_600_000, 1_600_000)] * (count - 1)]

    monkeypatch.setattr(measurement, "run_reference", laps)
    assert {"passed": 1} == run(pytester, "--torchprof").outcomes
