"""How device events relate to what comes before and after them."""

from __future__ import annotations

import numpy as np
import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.attribution import followed
from pytest_torchprof.trace.read import parse_trace

H100 = "NVIDIA H100 80GB HBM3"


def of_first(b: TraceBuilder) -> tuple[bool, bool]:
    """Whether the kernel `first` is alone, and delays what comes next."""
    trace = parse_trace(b.to_bytes())
    found = followed(trace, np.flatnonzero(trace.named("first")))
    return bool(found.alone[0]), bool(found.delays[0])


@pytest.mark.parametrize(("pause_us", "delays"), [(0, True), (50, True), (99, False), (500, False)])
def test_a_kernel_delays_what_the_host_launched_before_its_end(
    pause_us: float, delays: bool
) -> None:
    b = TraceBuilder(H100)
    b.launch("first", 100)
    b.advance(pause_us)
    b.launch("second", 10)
    assert of_first(b) == (True, delays)


@pytest.mark.parametrize("call", ["cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaFree"])
def test_a_kernel_delays_a_host_that_waits_for_it(call: str) -> None:
    b = TraceBuilder(H100)
    b.launch("first", 100)
    b.sync(call)
    b.advance(500)
    b.launch("second", 10)
    assert of_first(b) == (True, True)


def test_a_host_that_waited_before_does_not_count() -> None:
    b = TraceBuilder(H100)
    b.launch("zeroth", 100)
    b.sync("cudaDeviceSynchronize")
    b.launch("first", 10)
    b.advance(500)
    b.launch("second", 10)
    assert of_first(b) == (True, False)


def test_the_last_kernel_delays_the_end() -> None:
    b = TraceBuilder(H100)
    b.launch("first", 10)
    assert of_first(b) == (True, True)


def test_of_what_has_no_launch_nothing_is_known_and_it_may_wait() -> None:
    b = TraceBuilder(H100)
    b.launch("first", 10)
    b.advance(100)
    b.kernel_without_runtime("second", 10)
    assert of_first(b) == (True, True)


@pytest.mark.parametrize(("stream", "alone"), [(7, True), (13, False)])
def test_a_kernel_on_another_stream_runs_beside_it(stream: int, alone: bool) -> None:
    b = TraceBuilder(H100)
    b.launch("first", 100)
    b.launch("second", 10, stream=stream)
    assert of_first(b)[0] == alone


def test_a_kernel_within_a_longer_one_is_not_alone() -> None:
    b = TraceBuilder(H100)
    b.launch("long", 500, stream=13)
    b.launch("first", 10)
    b.launch("second", 10)
    assert of_first(b)[0] is False
