"""--torchprof-min-time: timed rounds go on until they have taken that many seconds."""

from __future__ import annotations

from typing import Any

import pytest
from support.reasons import words
from support.sessions import calls, run

from pytest_torchprof.capture.clock import Round
from pytest_torchprof.capture.load import Lap
from pytest_torchprof.capture.patches import REAL
from pytest_torchprof.core.values import Sample
from pytest_torchprof.session import measurement
from pytest_torchprof.session.measurement import MOST_ROUNDS, MOST_TIMES, RecentLaps, Rounds

#: Takes 10 ms of the clock that these tests move on, however busy the machine is.
COUNTED = """
import pytest
from support.sessions import note
from pytest_torchprof.capture.patches import REAL
{marker}
def test_add():
    note("calls")
    REAL.clock.now += 10**7
"""


class Clock:
    """A clock that a test moves on, from the time at which it was put in place."""

    def __init__(self) -> None:
        self.now: int = REAL.clock()

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(REAL, "clock", clock)
    monkeypatch.setattr(measurement, "run_reference", lambda _: [])
    return clock


def count(pytester: pytest.Pytester, marker: str, ini: str, *args: str) -> int:
    """Timed rounds of one test with these settings."""
    pytester.makepyfile(test_it=COUNTED.format(marker=marker))
    pytester.makeini(f"[pytest]\n{ini}")
    ran = run(pytester, "--torchprof", *args)
    assert {"passed": 1} == ran.outcomes
    wall = ran.metric("wall_ms")
    assert wall["n"] == calls(pytester) - 2  # a warm-up, and the profiled run
    assert 10 == wall["min"]
    return int(wall["n"])


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("marker", "ini", "args", "expected"),
    [
        ("", "", ("--torchprof-min-time=0.1",), 10),
        ("", "torchprof_min_time = 0.1", (), 10),
        ("@pytest.mark.torchprof(min_time=0.1)", "", (), 10),
        ("@pytest.mark.torchprof(min_time=0)", "torchprof_min_time = 0.1", (), 1),
        ("@pytest.mark.torchprof(min_time=0)", "", ("--torchprof-min-time=0.1",), 10),
        ("@pytest.mark.torchprof(min_time=0.1)", "", ("--torchprof-min-time=0",), 1),
        ("", "", ("--torchprof-min-time=0.1", "--torchprof-rounds=0"), 10),
        ("", "", ("--torchprof-min-time=0.001", "--torchprof-rounds=4"), 4),
    ],
)
@pytest.mark.usefixtures("clock")
def test_rounds_go_on_until_the_seconds_are_spent(
    pytester: pytest.Pytester, marker: str, ini: str, args: tuple[str, ...], expected: int
) -> None:
    assert expected == count(pytester, marker, ini, *args)


@pytest.mark.usefixtures("clock")
def test_without_a_warm_up_the_first_run_is_a_round_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=COUNTED.format(marker=""))
    args = ("--torchprof-warmup=0", "--torchprof-rounds=0", "--torchprof-min-time=0.05")
    ran = run(pytester, "--torchprof", *args)
    assert 5 == ran.metric("wall_ms")["n"] == calls(pytester) - 1


@pytest.mark.usefixtures("clock")
def test_the_fixture_has_it_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        from support.sessions import note
        from pytest_torchprof.capture.patches import REAL

        def work():
            note("calls")
            REAL.clock.now += 10**7

        def test_add(torchprof):
            with pytest.raises(ValueError, match="must be a number of seconds, 0 or more, not -1"):
                torchprof(work, min_time=-1)
            torchprof(work, min_time=0.05)
            assert 10 == torchprof.stats.wall_ms
        """
    )
    ran = run(pytester, "--torchprof")
    assert {"passed": 1} == ran.outcomes
    assert 5 == ran.metric("wall_ms")["n"] == calls(pytester) - 2


def test_the_header_says_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_add(): pass")
    out = run(pytester, "--torchprof", "--torchprof-min-time=0.01").out
    assert "runs a test: 1 warm-up, timed for 0.01 s, 1 profiled" in out


def test_the_command_that_accepts_repeats_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="import torch\ndef test_add(): torch.ones(4)")
    out = run(pytester, "--torchprof", "--torchprof-strict", "--torchprof-min-time=0.01").out
    assert "pytest --accept --torchprof-min-time=0.01 test_it.py::test_add" in out


@pytest.mark.one_in(5)
@pytest.mark.parametrize("text", ["-1", "many", "", "nan", "inf"])
@pytest.mark.parametrize("where", ["command line", "ini", "marker"])
def test_it_is_a_number_of_seconds(pytester: pytest.Pytester, where: str, text: str) -> None:
    marker = f"@pytest.mark.torchprof(min_time={text!r})" if where == "marker" else ""
    pytester.makepyfile(test_it=COUNTED.format(marker=marker))
    if where == "ini":
        pytester.makeini(f"[pytest]\ntorchprof_min_time = {text}")
    given = [f"--torchprof-min-time={text}"] if where == "command line" else []
    message = run(pytester, "--torchprof", *given).usage_error()
    assert f"{text!r} is not a number of seconds, 0 or more" in message
    assert 0 == calls(pytester)


@pytest.mark.parametrize(
    ("wall_s", "beside_s", "expected"),
    [
        (0.3, 0.0, 4),
        (0.5, 10.0, 1),  # costly fixtures
        (0.01, 0.09, MOST_TIMES * 10 + 1),
        (1e-9, 0.0, MOST_ROUNDS),
        (2.0, 0.0, 1),
        (11.0, 0.0, 1),  # a long one is enough, whatever was asked for
    ],
)
def test_rounds_come_to_an_end(clock: Clock, wall_s: float, beside_s: float, expected: int) -> None:
    timed = Rounds(min_time_s=1.0 if wall_s < 10 else 60.0)
    while timed.wants_more:
        timed.before_round()
        timed.add(Round(int(wall_s * 1e9), 1, 1))
        clock.now += int((wall_s + beside_s) * 1e9)
    assert expected == len(timed)


@pytest.mark.parametrize(("time", "expected"), [("gate", "busy"), ("advisory", None)])
def test_the_machine_is_watched_beside_a_first_run_that_is_the_only_one_too(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, time: Any, expected: str | None
) -> None:
    class Watch:
        def explain(self) -> tuple[Any, ...]:
            return (words("busy"),)

    monkeypatch.setattr(measurement, "BusyWatch", Watch)
    monkeypatch.setattr(measurement, "run_reference", lambda _: [])
    timed = Rounds(time=time)
    timed.watch()
    timed.add(Round(11 * 10**9, 1, 1))
    timed.end()
    assert timed.busy == (() if expected is None else (words(expected),))


def test_the_reference_kernel_runs_between_rounds_and_short_rounds_share_it(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def reference(times: int) -> list[Any]:
        asked.append((clock.now // 10**6, times))
        return []

    clock.now = 10**9
    monkeypatch.setattr(measurement, "run_reference", reference)
    timed = Rounds()
    timed.laps = [Lap(1, 1)]
    for _ in range(8):
        timed.before_round()
        clock.now += 4 * 10**6
    assert [(1000, 3), (1012, 3), (1024, 3)] == asked
    off = Rounds(time="off")
    off.before_round()
    off.add(Round(1, 1, 1))
    off.end()
    assert len(asked) == 3


def test_short_tests_whose_times_only_advise_share_the_laps_of_the_reference_kernel(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def reference(times: int) -> list[Lap]:
        asked.append(clock.now // 10**6)
        return [Lap(clock.now, 1)] * times

    clock.now = 10**9
    monkeypatch.setattr(measurement, "run_reference", reference)
    recent, laps = RecentLaps(), []
    for shares in (True, True, False, True, True):
        timed = Rounds(shares=shares, recent=recent)
        timed.before_round()
        laps.append((timed.laps[0].wall_ns // 10**6, len(timed.laps)))
        clock.now += 70 * 10**6
    assert asked == [1000, 1140, 1280]
    assert laps == [(1000, 5), (1000, 5), (1140, 5), (1140, 5), (1280, 5)]


def test_samples_know_their_spread() -> None:
    sample = Sample.of([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (5, 3.0, 2.0, 4.0, 1.0) == (
        sample.n, sample.median, sample.low, sample.high, sample.minimum
    )  # fmt: skip
    assert sample.spread == pytest.approx(1 / 3)
    assert sample.noisy
    assert Sample.of([3.0]).spread is None
