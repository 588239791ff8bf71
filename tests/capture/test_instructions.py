"""Instructions of the CPU, from a counter that the tests have put there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from support.sessions import accept, run

from pytest_torchprof.capture.clock import instruction_counter

NONE = 2**64 - 1
TEST = "def test_add(): pass"
#: For another process: the same counter in its conftest.py.
CONFTEST = """
import torch
class Counter:
    start = staticmethod(lambda: 7)
    end = staticmethod(lambda counter: 1000)
torch._C._instruction_counter = Counter
"""


class Counter:
    """A hardware counter with given readings; the first one is for the check that it exists."""

    def __init__(self, *answers: int | type[Exception]) -> None:
        self.answers = iter(answers)
        self.last: int | type[Exception] = NONE

    def start(self) -> int:
        return 7

    def end(self, counter: int) -> int:
        assert counter == 7
        self.last = next(self.answers, self.last)
        if isinstance(self.last, type):
            raise self.last("the counter cannot be read")
        return self.last


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[object], None]]:
    def put(counter: object) -> None:
        monkeypatch.setattr(torch._C, "_instruction_counter", counter, raising=False)
        instruction_counter.cache_clear()

    yield put
    monkeypatch.undo()
    instruction_counter.cache_clear()


ROUNDS = ("--torchprof", "--torchprof-warmup=0", "--torchprof-rounds=3", "--torchprof-time=off")


def test_they_are_the_median_over_rounds(
    pytester: pytest.Pytester, install: Callable[[object], None]
) -> None:
    pytester.makepyfile(test_it=TEST)
    install(Counter(1, 1000, 3000, 1200))
    found = run(pytester, *ROUNDS).metric("instructions")
    assert (1200, 3, 1000) == (found["value"], found["n"], found["min"])
    assert isinstance(found["value"], int)
    assert ("near", "new") == (found["class"], found["status"])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("counter", "reason"),
    [
        (None, "this machine has no hardware counter"),
        (Counter(NONE), "this machine has no hardware counter"),
        (Counter(RuntimeError), "this machine has no hardware counter"),
        (Counter(1, NONE), "the hardware counter stopped"),
        (Counter(1, RuntimeError), "the hardware counter stopped"),
    ],
)
def test_what_was_not_counted_is_null_with_a_reason(
    pytester: pytest.Pytester,
    install: Callable[[object], None],
    counter: object,
    reason: str,
) -> None:
    pytester.makepyfile(test_it=TEST)
    install(counter)
    found = run(pytester, *ROUNDS).metric("instructions")
    assert (None, "not_measured", reason) == (found["value"], found["status"], found["reason"])


def test_rounds_without_a_count_are_left_out(
    pytester: pytest.Pytester, install: Callable[[object], None]
) -> None:
    pytester.makepyfile(test_it=TEST)
    install(Counter(1, NONE, 1000, NONE))
    found = run(pytester, *ROUNDS).metric("instructions")
    assert (1000, 1) == (found["value"], found["n"])


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("now", "status"),
    [(1000, "ok"), (1010, "ok"), (990, "ok"), (1011, "regressed"), (989, "improved")],
)
def test_they_gate_at_one_percent_whatever_becomes_of_time(
    pytester: pytest.Pytester, install: Callable[[object], None], now: int, status: str
) -> None:
    pytester.makepyfile(test_it=TEST)
    install(Counter(1000))
    accept(pytester, *ROUNDS[1:])
    install(Counter(now))
    ran = run(pytester, *ROUNDS)
    assert status == ran.metric("instructions")["status"]
    assert {"failed" if status == "regressed" else "passed": 1} == ran.outcomes


def test_a_counter_that_vanished_is_reported_and_fails_only_when_strict(
    pytester: pytest.Pytester, install: Callable[[object], None]
) -> None:
    pytester.makepyfile(test_it=TEST)
    install(Counter(1000))
    accept(pytester, *ROUNDS[1:])
    install(None)
    ran = run(pytester, *ROUNDS)
    assert {"passed": 1} == ran.outcomes
    assert "baseline instructions not compared: this machine has no hardware counter" in ran.out
    assert {"failed": 1} == run(pytester, *ROUNDS, "--torchprof-strict").outcomes
    accept(pytester, *ROUNDS[1:])  # what was not measured this time stays
    install(Counter(1000))
    assert "ok" == run(pytester, *ROUNDS).metric("instructions")["status"]


@pytest.mark.thorough
def test_they_cross_from_a_worker_of_xdist(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=TEST)
    ran = run(pytester, *ROUNDS, "-n1", needs=["xdist"], subprocess=True)
    found = ran.metric("instructions")
    assert (1000, 3, 0.0) == (found["value"], found["n"], found["spread"])
