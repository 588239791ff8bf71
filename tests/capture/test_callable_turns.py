"""Turns of two callables: what is timed, what is not, and what the calls see."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest

from pytest_torchprof.capture import clock
from pytest_torchprof.capture.clock import Callables, CallableTurns
from pytest_torchprof.verdict.paired import SIDES, PairRequest, Side


class Overdue(BaseException):
    pass


def taken(a: Any, b: Any, calls: int = 1, order: tuple[Side, Side] = SIDES, **more: Any) -> Any:
    callables = Callables({"A": a, "B": b}, 60.0, Overdue, **more)
    turns, why = CallableTurns(callables).take(PairRequest(order, calls, False, 0))
    assert why is None
    return turns


def test_each_side_is_called_as_often_as_wanted_in_the_order_wanted() -> None:
    seen: list[str] = []
    turns = taken(lambda: seen.append("a"), lambda: seen.append("b"), 3, ("B", "A"))
    assert "bbbaaa" == "".join(seen)
    assert [3, 3] == [len(turns[side].wall_ns) for side in SIDES]


def test_arguments_are_passed_on() -> None:
    seen = []
    taken(lambda *x, **y: seen.append((x, y)), int, args=("1",), kwargs={})
    taken(lambda *x, **y: seen.append((x, y)), dict, kwargs={"y": 2})
    assert [(("1",), {}), ((), {"y": 2})] == seen


def test_fresh_arguments_are_made_for_each_call_and_are_not_timed() -> None:
    made: list[int] = []

    def setup() -> tuple[int]:
        time.sleep(0.02)
        made.append(len(made))
        return (made[-1],)

    seen: list[int] = []
    turns = taken(seen.append, seen.append, 3, setup=setup)
    assert [0, 1, 2, 3, 4, 5] == seen
    assert max(turns["A"].wall_ns) < 20_000_000 <= turns["A"].spent_ns


def test_the_device_is_idle_before_and_after_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(clock, "accelerator", lambda: "cuda")
    monkeypatch.setattr(clock, "await_device", lambda: seen.append("wait"))
    taken(lambda: seen.append("a"), lambda: seen.append("b"))
    assert ["wait", "a", "wait", "wait", "b", "wait"] == seen
    seen.clear()

    def setup() -> tuple[()]:
        seen.append("x")
        return ()

    taken(lambda: seen.append("a"), lambda: seen.append("b"), setup=setup)
    assert "wait x wait a wait wait" == " ".join(seen[:6])


def test_garbage_is_collected_between_turns_and_not_within_calls() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            seen.append("gone")

    seen: list[str] = []

    def a() -> None:
        Cycle()
        seen.append(f"collects after {gc.get_threshold()[0]}")

    taken(a, lambda: seen.append("b"))
    assert ["collects after 0", "gone", "b"] == seen[:3]
    assert gc.get_threshold()[0]


def test_an_error_passes_through_and_nothing_stays_changed() -> None:
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError):
        taken(lambda: 1 / 0, int)
    assert before == gc.get_threshold()


def test_a_side_that_does_not_return_is_ended_and_named() -> None:
    callables = Callables({"A": int, "B": lambda: time.sleep(10)}, 0.05, Overdue)
    with pytest.raises(Overdue) as caught:
        CallableTurns(callables).take(PairRequest(SIDES, 1, False, 0))
    assert ("B",) == caught.value.args
