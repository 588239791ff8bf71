"""Events without a duration make the sum of times unknown; those of duration 0 do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.diff import growth
from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.metrics import METRICS, measure

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.trace_styles import Event

    from pytest_torchprof.trace.events import Events

DEVICE_TIMES = ["self_cuda_ms", "cuda_busy_ms", "cuda_idle_ms"]
#: How a duration is missing.
GONE: list[Any] = [None, -1, -0.5, float("nan"), "absent"]


def stored(*changes: Callable[[Event], Event]) -> Events:
    b = TraceBuilder("GPU")
    with b.op("aten::mm", [[4, 4], [4, 4]]):
        b.launch("first")
        b.launch("second")
        b.memcpy("DtoH", 64)
    with b.op("aten::relu", [[4]]):
        b.launch("third")
    return parse_trace(b.to_bytes(changes))


def lasting(dur: Any, *names: str) -> Callable[[Event], Event]:
    def change(document: Event) -> Event:
        for event in document["traceEvents"]:
            if event["name"] in names and "dur" in event:
                event["dur"] = dur
                if dur == "absent":
                    del event["dur"]
        return document

    return change


def reason(trace: Events, name: str) -> str:
    value = measure(METRICS[name], trace)
    assert isinstance(value, MissingValue)
    assert value.at_hand is None
    return value.reason.text


@pytest.mark.parametrize("dur", GONE)
def test_device_times_are_unknown_if_a_kernel_has_no_duration(dur: Any) -> None:
    trace = stored(lasting(dur, "second"))
    expected = "no duration for 1 of 4 events in this trace"
    assert {expected} == {reason(trace, name) for name in DEVICE_TIMES}
    assert 3 == measure(METRICS["kernels"], trace)
    assert not isinstance(measure(METRICS["self_cpu_ms"], trace), MissingValue)


def test_device_times_are_unknown_if_only_copies_have_a_duration() -> None:
    trace = stored(lasting(None, "first", "second", "third"))
    expected = "no duration for 3 of 4 events in this trace"
    assert {expected} == {reason(trace, name) for name in DEVICE_TIMES}


def test_what_ran_for_0_ns_has_a_duration() -> None:
    assert 0.025 == measure(METRICS["self_cuda_ms"], stored(lasting(0, "second")))


def test_a_part_whose_events_have_durations_has_its_time() -> None:
    trace = stored(lasting(None, "second"))
    assert 0.01 == measure(METRICS["self_cuda_ms"], trace.within(op="aten::relu"))


@pytest.mark.parametrize("name", ["aten::relu", "cudaLaunchKernel"])
def test_cpu_time_is_unknown_if_an_operator_or_a_call_in_it_has_no_duration(name: str) -> None:
    trace = stored(lasting(None, name))
    assert reason(trace, "self_cpu_ms").startswith("no duration for ")
    assert 0.035 == measure(METRICS["self_cuda_ms"], trace)


def test_without_any_duration_all_times_are_unknown() -> None:
    trace = stored(lasting(None, *stored().names))
    assert {reason(trace, name) for name in ("self_cpu_ms", *DEVICE_TIMES)} == {
        because(*Why.NO_DURATIONS).text
    }


def test_growth_of_a_time_that_is_not_whole_is_unknown() -> None:
    whole, part = stored(), stored(lasting(None, "second"))
    for a, b in ((whole, part), (part, whole), (part, part)):
        verdicts = {one.metric: one.exceeded for one in growth(a, b, limit_percent=1000)}
        assert {"self_cuda_ms": None, "self_cpu_ms": False} == verdicts
    part = stored(lasting(None, "aten::relu"))
    verdicts = {one.metric: one.exceeded for one in growth(whole, part, limit_percent=1000)}
    assert {"self_cuda_ms": False, "self_cpu_ms": None} == verdicts
