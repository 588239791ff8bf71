"""Work that a process does once, told from work that is merely slow."""

from __future__ import annotations

from collections import Counter

import pytest
from support.chips import Gpu
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.device_time import device_time
from pytest_torchprof.analysis.idle_causes import OneTime, one_time_work
from pytest_torchprof.trace.read import parse_trace


def begun() -> TraceBuilder:
    b = Gpu("H100")
    b.launch("known", 10)
    return b


def found(b: TraceBuilder) -> dict[str, float]:
    """The ms that the device lost, by kind."""
    trace = parse_trace(b.to_bytes())
    work = one_time_work(trace)
    lost = Counter[str]()
    for what, ns in zip(work.what.tolist(), work.ns.tolist(), strict=True):
        lost[OneTime(what).name] += ns
    kernels = sum(trace.dur[trace.device_rows].tolist())
    assert sum(lost.values()) <= device_time(trace).idle_ns + kernels
    return {kind: round(ns / 1e6, 1) for kind, ns in lost.items()}


@pytest.mark.parametrize(
    ("kernel", "host_us", "expected"),
    [
        ("new", 40_000, {"LOADING_KERNELS": 40}),
        ("new", 5_000, {"LOADING_KERNELS": 5}),
        ("new", 4_900, {}),
        ("known", 40_000, {}),
    ],
)
def test_the_first_launch_of_a_kernel(
    kernel: str, host_us: float, expected: dict[str, float]
) -> None:
    b = begun()
    with b.op("aten::mm"):
        b.launch(kernel, 10, host_us=host_us)
    assert found(b) == expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("cuModuleLoadData", {"LOADING_KERNELS": 2}),
        ("cudaLibraryLoadData", {"LOADING_KERNELS": 2}),
        ("hipModuleLoad", {"LOADING_KERNELS": 2}),
        ("cudaFuncGetAttributes", {}),
        ("cudaStreamCreateWithFlags", {}),
    ],
)
def test_loading_a_module_counts_however_short_it_is(call: str, expected: dict[str, float]) -> None:
    b = begun()
    b.runtime(call, 2_000)
    b.launch("known")
    assert found(b) == expected


@pytest.mark.parametrize(
    ("call", "times", "expected"),
    [
        ("cudaStreamCreateWithFlags", 1, {"INITIALIZING": 20}),
        ("cudaEventCreateWithFlags", 3, {"INITIALIZING": 20}),
        ("cudaGetDeviceProperties_v2", 1, {"INITIALIZING": 20}),
        ("cudaFree", 2, {"INITIALIZING": 40}),
        ("cudaFree", 3, {}),
        ("cudaEventRecord", 1, {}),
        ("cudaMalloc", 1, {}),
        ("cudaFuncSetAttribute", 1, {}),
    ],
)
def test_slow_calls_that_initialize(call: str, times: int, expected: dict[str, float]) -> None:
    b = begun()
    with b.op("aten::cudnn_convolution"):
        for _ in range(times):
            b.runtime(call, 20_000)
        b.launch("known")
    assert found(b) == expected


def test_a_free_outside_of_operators_is_the_users_own() -> None:
    b = begun()
    b.runtime("cudaFree", 20_000)
    b.launch("known")
    assert found(b) == {}


@pytest.mark.parametrize(
    ("between", "expected"), [("", {}), ("cudaDeviceGetAttribute", {"INITIALIZING": 20})]
)
def test_a_free_after_an_allocation_is_of_the_allocator(
    between: str, expected: dict[str, float]
) -> None:
    b = begun()
    with b.op("aten::cudnn_convolution"):
        b.runtime("cudaMalloc", 40)
        b.runtime("cudaDeviceSynchronize", 40)
        if between:
            b.runtime(between, 1)
        b.runtime("cudaFree", 20_000)
        b.runtime("cudaMalloc", 40)
        b.launch("known")
    assert found(b) == expected


def test_while_the_device_works_nothing_is_lost() -> None:
    b = begun()
    b.launch("known", 100_000)
    b.launch("new", host_us=40_000)
    assert found(b) == {}


def compiled(*regions: str, name: str = "_compile.compile_inner (dynamo_timed)") -> TraceBuilder:
    b = begun()
    with b.annotation(name):
        b.advance(30_000)
    for region in regions:
        with b.annotation(region):
            b.launch("triton_poi_fused_0", 100)
    return b


@pytest.mark.parametrize(
    ("regions", "expected"),
    [
        (["Torch-Compiled Region: 0/0"] * 2, {"COMPILING": 30}),
        (["Torch-Compiled Region"] * 3, {"COMPILING": 30}),
        (["Torch-Compiled Region: 0/0"], {}),
        (["Torch-Compiled Region: 0/1"] * 2, {}),
        (["Torch-Compiled Region: 0/0", "Torch-Compiled Region: 1/0"], {}),
        ([], {}),
    ],
)
def test_a_compilation_counts_if_what_it_compiled_runs_again(
    regions: list[str], expected: dict[str, float]
) -> None:
    assert found(compiled(*regions)) == expected


def test_the_capture_of_a_graph_does_not_count() -> None:
    regions = ["Torch-Compiled Region: 0/0"] * 3
    assert found(compiled(*regions, name="CUDAGraphNode.record (dynamo_timed)")) == {}


def test_a_search_costs_the_kernels_that_it_times() -> None:
    b = begun()
    name = "CachingAutotuner.benchmark_all_configs (dynamo_timed)"
    with b.annotation("Torch-Compiled Region: 0/0"), b.annotation(name):
        for _ in range(20):
            b.launch("triton_poi_fused_0", 400)
    with b.annotation("Torch-Compiled Region: 0/0"):
        b.launch("triton_poi_fused_0", 400)
    assert found(b)["TUNING"] == pytest.approx(8, abs=0.1)


def test_a_convolution_that_waits_for_each_kernel_searches() -> None:
    b = begun()
    with b.op("aten::cudnn_convolution"):
        for _ in range(3):
            b.launch("candidate", 2_000)
            b.sync("cudaEventSynchronize")
        b.launch("chosen", 500)
    assert found(b)["TUNING"] == pytest.approx(6, abs=0.1)


def test_a_search_includes_what_it_builds_before_it_times_anything() -> None:
    """CuDNN 9 spends most of the time of a search on plans: no call of the driver tells of it."""
    b = begun()
    with b.op("aten::conv2d"), b.op("aten::cudnn_convolution"):
        b.advance(30_000)
        b.runtime("cuModuleLoadData", 4_000)
        for _ in range(3):
            b.launch("candidate", 100)
            b.sync("cudaEventSynchronize")
            b.advance(1_000)
    assert found(b) == {"TUNING": pytest.approx(36.3, abs=0.3)}


def test_what_a_convolution_builds_without_a_search_is_none() -> None:
    b = begun()
    with b.op("aten::conv2d"), b.op("aten::cudnn_convolution"):
        b.advance(30_000)
        b.launch("chosen", 100)
    assert found(b) == {}


def test_a_trace_of_the_cpu_has_none() -> None:
    b = TraceBuilder()
    with b.annotation("_compile.compile_inner (dynamo_timed)"):
        b.advance(30_000)
    assert found(b) == {}
