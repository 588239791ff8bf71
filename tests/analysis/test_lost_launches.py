"""A stored trace that lost kernels says so; one whose recording ended before a kernel does not."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.missing import lost_launches
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.metrics import METRICS, measure, measure_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.trace_styles import Event

    from pytest_torchprof.trace.events import Events

FROM_EVENTS = [name for name, metric in METRICS.items() if "device" in metric.needs]


def stored(b: TraceBuilder, *changes: Any) -> Events:
    return parse_trace(b.to_bytes(changes))


def launches(b: TraceBuilder, *recorded: bool) -> TraceBuilder:
    for one in recorded:
        b.launch("k", record_kernel=one)
    return b


def test_a_lost_launch_before_a_recorded_one_is_noticed() -> None:
    trace = stored(launches(TraceBuilder("GPU"), True, False, True, False))
    assert (4, 1) == lost_launches(trace)
    value = measure(METRICS["kernels"], trace)
    assert isinstance(value, MissingValue)
    assert (2, True) == (value.at_hand, value.at_least)
    assert "partial capture: 1 of 4 launches" in value.reason.text
    for name in FROM_EVENTS:
        assert isinstance(measure(METRICS[name], trace), MissingValue)


def test_launches_at_the_end_may_have_their_kernels_after_the_recording() -> None:
    trace = stored(launches(TraceBuilder("GPU"), True, True, False, False))
    assert 2 == measure(METRICS["kernels"], trace)


def test_a_copy_after_the_launches_does_not_tell_that_their_kernels_had_begun() -> None:
    b = launches(TraceBuilder("GPU"), True, False)
    b.memcpy("HtoD", 64, stream=20)
    assert 1 == measure(METRICS["kernels"], stored(b))


def test_all_launches_are_lost_if_only_a_copy_was_recorded() -> None:
    b = launches(TraceBuilder("GPU"), False, False)
    b.memcpy("DtoH", 64)
    trace = stored(b)
    assert (2, 2) == lost_launches(trace)
    kernels, copies = (measure(METRICS[name], trace) for name in ("kernels", "d2h_copies"))
    assert isinstance(kernels, MissingValue)
    assert isinstance(copies, MissingValue)
    assert (None, 1) == (kernels.at_hand, copies.at_hand)


def test_what_was_launched_before_a_wait_for_the_device_has_run() -> None:
    b = launches(TraceBuilder("GPU"), True, False)
    b.sync("cudaDeviceSynchronize")
    assert (2, 1) == lost_launches(stored(b))
    b = launches(TraceBuilder("GPU"), True)
    b.sync("cudaDeviceSynchronize")
    assert (2, 0) == lost_launches(stored(launches(b, False)))


def test_a_wait_for_one_of_several_devices_tells_nothing_of_the_others() -> None:
    b = launches(TraceBuilder("GPU"), True)
    b.device_index = 1
    launches(b, True, False)
    b.sync("cudaDeviceSynchronize")
    assert (3, 0) == lost_launches(stored(b))


def without_correlation(*cats: str) -> Callable[[Event], Event]:
    def change(document: Event) -> Event:
        for event in document["traceEvents"]:
            if event.get("cat") in cats:
                del event["args"]["correlation"]
        return document

    return change


@pytest.mark.parametrize("cats", [("kernel",), ("cuda_runtime",), ("kernel", "cuda_runtime")])
def test_nothing_is_lost_where_no_kernel_is_linked_to_its_launch(cats: tuple[str, ...]) -> None:
    trace = stored(launches(TraceBuilder("GPU"), True, True), without_correlation(*cats))
    assert (2, 0) == lost_launches(trace)


def test_a_kernel_without_a_link_may_be_that_of_the_lost_launch() -> None:
    def unlink(document: Event) -> Event:
        kernel = next(e for e in document["traceEvents"] if e.get("cat") == "kernel")
        kernel["args"]["correlation"] = 0
        return document

    b = launches(TraceBuilder("GPU"), True, True, True)
    assert (3, 0) == lost_launches(stored(b, unlink))
    b = launches(TraceBuilder("GPU"), True, False, True, True)
    assert (4, 1) == lost_launches(stored(b, unlink))


# ----------------------------------------------------------------------------------- graphs


def capture(b: TraceBuilder, *calls: str) -> TraceBuilder:
    """A captured launch between these calls, and launches of the graph and of a kernel."""
    before, after = calls
    if before:
        b.runtime(before)
    b.launch("captured", record_kernel=False)
    if after:
        b.runtime(after)
    b.graph_launch(["captured"])
    return launches(b, True)


@pytest.mark.parametrize(
    "calls",
    [
        ("cudaStreamBeginCapture", "cudaStreamEndCapture"),
        ("cudaStreamBeginCaptureToGraph", "cudaStreamEndCapture"),
        ("", "cudaStreamEndCapture"),  # the recording began within the capture
        ("", "cudaGraphInstantiate"),
        ("", ""),
    ],
)
@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_launches_that_a_graph_captured_are_not_lost(calls: tuple[str, str], vendor: str) -> None:
    b = capture(TraceBuilder("GPU", vendor=vendor), *calls)
    assert 0 == lost_launches(stored(b))[1]
    assert 2 == measure(METRICS["kernels"], stored(b))


def test_the_backward_threads_launches_into_a_capture_are_not_lost() -> None:
    b = TraceBuilder("GPU")
    b.runtime("cudaStreamBeginCapture")
    with b.thread(77):
        b.launch("captured", record_kernel=False)
    b.runtime("cudaStreamEndCapture")
    b.graph_launch(["captured"])
    assert 1 == measure(METRICS["kernels"], stored(launches(b, False)))


def test_beside_a_capture_lost_launches_are_noticed() -> None:
    b = capture(TraceBuilder("GPU"), "cudaStreamBeginCapture", "cudaStreamEndCapture")
    assert 1 == lost_launches(stored(launches(b, False, True)))[1]


def test_a_graph_whose_kernels_are_lost_is_noticed() -> None:
    b = TraceBuilder("GPU")
    b.graph_launch([])
    b.graph_launch(["k"])
    assert (2, 1) == lost_launches(stored(b))


def test_a_recording_that_only_captures_a_graph_launches_nothing() -> None:
    b = TraceBuilder("GPU")
    b.memcpy("HtoD", 64)
    launches(b, False)
    b.runtime("cudaGraphInstantiate")
    assert 0 == lost_launches(stored(b))[1]


# ----------------------------------------------------------------------------------- a real trace


def bert(keep: Callable[[int], bool]) -> Events:
    path = CORPUS / "h100_bert_inference.pt.trace.json.gz"
    if not path.exists():
        pytest.skip(f"no real traces: {path.parent} has no {path.name}")
    document = json.loads(gzip.decompress(path.read_bytes()))
    number = iter(range(10**6))
    document["traceEvents"] = [
        event
        for event in document["traceEvents"]
        if event.get("cat") != "kernel" or keep(next(number))
    ]
    return parse_trace(json.dumps(document).encode())


def test_half_of_the_kernels_of_a_real_trace_are_a_lower_bound() -> None:
    values = measure_all(bert(lambda number: number % 2 == 0))
    kernels, time = values["kernels"], values["self_cuda_ms"]
    assert isinstance(kernels, MissingValue)
    assert isinstance(time, MissingValue)
    assert 30 == kernels.at_hand
    assert "30 of 60 launches" in kernels.reason.text


def test_a_real_trace_without_its_last_kernels_is_partial_as_it_waited_for_the_device() -> None:
    assert (60, 55) == lost_launches(bert(lambda number: number < 5))
