"""What the host did in the gaps of a device."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis import (
    idle_causes,
)
from pytest_torchprof.analysis.idle_causes import Cause, idle_parts
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchprof.trace.events import Events

H100 = "NVIDIA H100 80GB HBM3"
SGEMM = "ampere_sgemm_128x64_tn"
FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def causes(b: TraceBuilder) -> dict[str, float]:
    """Idle us by cause."""
    return causes_of(parse_trace(b.to_bytes()))


def causes_of(trace: Events) -> dict[str, float]:
    parts = idle_parts(trace)
    found = Counter[str]()
    for cause, ns in zip(parts.cause.tolist(), parts.ns.tolist(), strict=True):
        found[Cause(cause).name] += ns
    return {name: ns / 1000 for name, ns in found.items() if ns}


def between(b: TraceBuilder, what: Callable[[], object]) -> dict[str, float]:
    """The causes of one gap, in which the host did this and then launched a kernel."""
    with b.op("aten::mm"):
        b.launch(SGEMM, 1)
    what()
    with b.op("aten::mm"):
        b.launch(SGEMM, 1)
    return causes(b)


def test_a_fetch_is_data_loading_whatever_it_runs() -> None:
    b = TraceBuilder(H100)

    def fetch() -> None:
        with b.annotation(FETCH, 500), b.op("aten::stack", dur_us=200):
            b.runtime("cudaHostAlloc", 50)

    found = between(b, fetch)
    assert 500 == pytest.approx(found["LOADING"], abs=2)
    assert {"LOADING", "LAUNCHING", "PYTHON"} == set(found)


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        ("cudaMalloc", "ALLOCATING"),
        ("cudaFree", "ALLOCATING"),
        ("cudaHostAlloc", "ALLOCATING"),
        ("cuMemMap", "ALLOCATING"),
        ("cuModuleLoadData", "COMPILING"),
        ("cudaFuncGetAttributes", "COMPILING"),
        ("cudaDeviceSynchronize", "WAITING"),
        ("cudaStreamSynchronize", "WAITING"),
    ],
)
def test_a_call_is_what_it_is_named_after(call: str, cause: str) -> None:
    b = TraceBuilder(H100)

    def inside() -> None:
        with b.op("aten::empty"):
            b.runtime(call, 300)

    assert 300 <= between(b, inside)[cause] < 330


def test_after_a_wait_the_host_starts_anew_on_its_account_and_no_longer_than_it_waited() -> None:
    b = TraceBuilder(H100)
    with b.op("aten::mm"):
        b.launch(SGEMM, 200)
    b.sync("cudaDeviceSynchronize")
    waited = 192
    b.advance(500)  # Python
    with b.op("aten::mm"):
        b.launch(SGEMM, 1)
    found = causes(b)
    assert found["WAITING"] == pytest.approx(waited, abs=8)
    assert found["PYTHON"] == pytest.approx(500 - waited, abs=12)


def test_a_blocking_copy_counts_by_its_direction() -> None:
    b = TraceBuilder(H100)

    def to_device() -> None:
        with b.op("aten::copy_"):
            b.memcpy("HtoD", 1 << 20, device_us=3, host_us=400)

    # The device is idle until the copy arrives, then from its end until the kernel.
    assert between(b, to_device)["COPYING"] > 380


def test_an_operator_without_launches_computes_and_short_ones_launch() -> None:
    b = TraceBuilder(H100)
    found = between(b, lambda: b.op("aten::sort", dur_us=400))
    assert 400 == pytest.approx(found["CPU_WORK"], abs=2)
    b = TraceBuilder(H100)
    found = between(b, lambda: b.op("aten::view", dur_us=50))
    assert "CPU_WORK" not in found
    assert found["LAUNCHING"] > 50


def test_python_is_what_no_event_covers() -> None:
    b = TraceBuilder(H100)
    found = between(b, lambda: b.advance(700))
    assert 700 == pytest.approx(found["PYTHON"], abs=6)


def test_python_frames_do_not_hide_what_they_call() -> None:
    b = TraceBuilder(H100)

    def step() -> None:
        with b.python("train.py(12): step", 400), b.op("aten::empty"):
            b.runtime("cudaMalloc", 300)

    found = between(b, step)
    assert 300 <= found["ALLOCATING"] < 310
    assert found["PYTHON"] == pytest.approx(95, abs=20)


def test_garbage_collection_and_compilation_are_named() -> None:
    b = TraceBuilder(H100)
    found = between(b, lambda: b.python("<built-in function collect>", 350))
    assert 350 == pytest.approx(found["COLLECTING"], abs=2)
    b = TraceBuilder(H100)

    def compile_() -> None:
        with b.annotation("_compile.compile_inner (dynamo_timed)", 900):
            b.op("aten::add", dur_us=300)

    assert 900 == pytest.approx(between(b, compile_)["COMPILING"], abs=2)


def test_a_wait_within_a_collective_is_for_other_ranks() -> None:
    b = TraceBuilder(H100)

    def barrier() -> None:
        with b.op("c10d::barrier"):
            b.sync("cudaStreamSynchronize", 800)

    found = between(b, barrier)
    assert 800 == pytest.approx(found["COMMUNICATING"], abs=10)
    assert "WAITING" not in found


def test_what_another_launching_thread_does_explains_the_silence_of_this_one() -> None:
    b = TraceBuilder(H100)
    with b.op("aten::mm"):
        b.launch(SGEMM, 1)
    with b.thread(77):
        with b.op("autograd::engine::evaluate_function: MmBackward0"):
            b.launch(SGEMM, 1)
        with b.op("aten::empty"):
            b.runtime("cudaMalloc", 600)
    with b.op("aten::mm"):
        b.launch(SGEMM, 1)
    assert 600 <= causes(b)["ALLOCATING"] < 620


def test_work_that_was_launched_in_time_is_queued_and_without_a_launch_it_is_unknown() -> None:
    b = TraceBuilder(H100)
    with b.op("aten::mm"):
        b.graph_launch([SGEMM], 1)
    assert {} == causes(b)
    b.launch(SGEMM, 1, stream=9)
    b.advance(100)
    b.kernel_without_runtime(SGEMM, 5)
    found = causes(b)
    assert found["UNKNOWN"] > 90


def test_work_that_does_not_start_though_it_was_launched_is_not_the_hosts_fault() -> None:
    b = TraceBuilder(H100)
    with b.op("aten::mm"):
        b.launch(SGEMM, 1)
    with b.op("aten::mm"):
        b.launch(SGEMM, 1)
    document = b.document()
    kernels = [e for e in document["traceEvents"] if e.get("cat") == "kernel"]
    kernels[1]["ts"] += 5000
    found = causes_of(parse_trace(json.dumps(document).encode()))
    assert found["STALLED"] == pytest.approx(5000, abs=12)
    assert "QUEUED" not in found


@pytest.mark.parametrize(("waits_us", "shown"), [(4500, "hipMemcpyWithStream"), (2000, "aten::mm")])
def test_the_call_in_which_the_host_waits_for_work_that_does_not_start_is_shown(
    waits_us: float, shown: str
) -> None:
    b = TraceBuilder("AMD Instinct MI300X", vendor="amd")
    with b.op("aten::mm"):
        b.launch(SGEMM, 1)
    with b.op("aten::mm"):
        b.launch(SGEMM, 1)
    with b.op("aten::copy_"):
        b.runtime("hipMemcpyWithStream", waits_us)
    document = b.document()
    kernels = [e for e in document["traceEvents"] if e.get("cat") == "kernel"]
    kernels[1]["ts"] += 5000
    trace = parse_trace(json.dumps(document).encode())
    parts = idle_parts(trace)
    stalled = parts.event[parts.cause == Cause.STALLED]
    assert [shown] == [trace.names[trace.name[event]] for event in stalled.tolist()]


def test_our_own_mark_of_the_region_is_not_what_the_host_did() -> None:
    b = TraceBuilder(H100)
    with b.annotation(REGION):
        between(b, lambda: b.advance(300))
    trace = parse_trace(b.to_bytes())
    parts = idle_parts(trace)
    shown = {trace.names[trace.name[event]] for event in parts.event.tolist()}
    assert REGION not in shown


def test_annotations_that_were_recorded_as_operators_do_not_launch() -> None:
    b = TraceBuilder(H100)
    with b.op("ProfilerStep#3"):
        found = between(b, lambda: b.advance(300))
    assert 300 == pytest.approx(found["PYTHON"], abs=10)


def test_a_child_that_outlasts_its_parent_by_a_nanosecond_does_not_hide_what_follows() -> None:
    b = TraceBuilder(H100)

    def crooked() -> None:
        with b.op("aten::outer", dur_us=20):
            inner = b.op("aten::inner", dur_us=19)
            inner.event["dur"] += 1_501
        b.advance(300)

    found = between(b, crooked)
    assert found["PYTHON"] > 290


pieces = st.lists(
    st.tuples(
        st.sampled_from(["python", "op", "sync", "malloc", "fetch", "launch", "copy", "frame"]),
        st.integers(1, 300),
        st.integers(1, 2),
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.thorough
@given(pieces)
def test_parts_add_up_to_the_gaps_and_are_in_the_gaps(work: list[tuple[str, int, int]]) -> None:
    b = TraceBuilder(H100)
    for what, us, thread in work:
        with b.thread(b.pid if thread == 1 else 77):
            if what == "python":
                b.advance(us)
            elif what == "op":
                b.op("aten::add", dur_us=us)
            elif what == "sync":
                b.sync("cudaDeviceSynchronize")
            elif what == "malloc":
                b.runtime("cudaMalloc", us)
            elif what == "fetch":
                b.annotation(FETCH, us)
            elif what == "frame":
                b.python("train.py(3): loop", us)
            elif what == "copy":
                b.memcpy("HtoD", 100, device_us=us / 2)
            else:
                with b.op("aten::mm"):
                    b.launch(SGEMM, us / 2, stream=thread)
    trace = parse_trace(b.to_bytes())
    parts = idle_parts(trace)
    device = trace.device_rows
    edges = sorted((int(trace.ts[i]), int(trace.ts[i] + trace.dur[i])) for i in device.tolist())
    gaps, reach = [], edges[0][0] if edges else 0
    for start, end in edges:
        if start > reach:
            gaps.append(start - reach)
        reach = max(reach, end)
    found = Counter[int]()
    for gap, ns in zip(parts.gap.tolist(), parts.ns.tolist(), strict=True):
        found[gap] += ns
    assert gaps == [found[number] for number in sorted(found)]


@pytest.mark.parametrize("block", [1, 3])
def test_any_block_explains_alike(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    b = TraceBuilder(H100)
    for number in range(7):
        with b.annotation(FETCH, 50 * number), b.op("aten::stack", dur_us=20):
            b.runtime("cudaHostAlloc", 5)
        with b.op("aten::linear"), b.op("aten::mm"):
            b.launch(SGEMM, 1)
        b.runtime("cudaStreamSynchronize", 10 * number)
    text = b.to_bytes()

    def columns() -> list[list[int]]:
        parts = idle_parts(parse_trace(text))
        return [getattr(parts, name).tolist() for name in parts.__struct_fields__]

    expected = columns()
    assert len(set(expected[1])) > 5
    for name in ("_CAUSES_AT_ONCE", "_EVENTS_AT_ONCE"):
        monkeypatch.setattr(idle_causes, name, block)
    assert expected == columns()
