"""Where a device's time goes: a partition, checked against counting every nanosecond."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.breakdown import IDLE, OUTSIDE, breakdown
from pytest_torchprof.analysis.device_time import device_time, spans_of
from pytest_torchprof.analysis.idle_causes import idle_parts
from pytest_torchprof.analysis.steps import step_numbers
from pytest_torchprof.core.values import StepRange
from pytest_torchprof.trace.read import parse_trace, read_trace
from pytest_torchprof.trace.steps import at_steps
from pytest_torchprof.work.kernels import CATEGORIES

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_torchprof.trace.events import Events

H100 = "NVIDIA H100 80GB HBM3"
KERNELS = {
    "gemm": "ampere_sgemm_128x64_tn",
    "attention": "flash_fwd_kernel",
    "convolution": "cudnn_winograd_kernel",
    "normalization": "layer_norm_kernel",
    "reduction": "softmax_warp_forward",
    "elementwise": "vectorized_elementwise_kernel",
    "other": "my_own_kernel",
    "communication": "ncclDevKernel_AllReduce_Sum_f32",
}
TRACES = sorted(CORPUS.glob("*.json.gz"))


def device_events(trace: Path) -> list[tuple[int, int, int]]:
    """(start, end, index in `CATEGORIES`) in ns of the kernels, read by the json module alone."""
    document = json.loads(gzip.decompress(trace.read_bytes()), parse_float=str)
    found = []
    for event in document["traceEvents"]:
        kind = str(event.get("cat")).lower()
        if kind not in {"kernel", "gpu_memcpy", "gpu_memset"}:
            continue
        start, length = (_ns(event[key]) for key in ("ts", "dur"))
        hidden = "nccl" in event["name"].lower()
        found.append((start, start + length, 2 if kind != "kernel" else int(hidden)))
    return found


def _ns(us: str | int) -> int:
    whole, _, part = str(us).partition(".")
    return int(whole) * 1000 + int((part + "000")[:3])


def plain_partition(events: list[tuple[int, int, int]], ranks: int) -> list[int]:
    """Time of each rank where no lower one is open, then idle time: interval by interval."""
    out = [0] * (ranks + 1)
    times = sorted({time for start, end, _ in events for time in (start, end)})
    for a, b in pairwise(times):
        open_now = [rank for start, end, rank in events if start <= a < end]
        out[min(open_now, default=ranks)] += b - a
    return out


def built(events: list[tuple[int, int, str]]) -> Events:
    """A trace of kernels and copies: (pause before the launch, duration, category), in us."""
    b = TraceBuilder(H100)
    for number, (pause, length, category) in enumerate(events):
        b.advance(pause)
        if category == "copy":
            b.memcpy("HtoD", 64, device_us=length, stream=number % 3)
        else:
            b.launch(KERNELS[category], length, stream=number % 3)
    return parse_trace(b.to_bytes())


some_events = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 60), st.sampled_from(CATEGORIES)),
    min_size=1,
    max_size=25,
)


@pytest.mark.thorough
@given(some_events)
def test_each_nanosecond_belongs_to_one_category(events: list[tuple[int, int, str]]) -> None:
    trace = built(events)
    rows = breakdown(trace)
    device = trace.device_rows
    begins, lengths = trace.ts[device].tolist(), trace.dur[device].tolist()
    order = sorted(range(len(device)), key=lambda i: trace.correlation[device[i]])
    spelled = [
        (begins[i], begins[i] + lengths[i], CATEGORIES.index(events[n][2]))
        for n, i in enumerate(order)
    ]
    expected = plain_partition(spelled, len(CATEGORIES))
    found = {row.category: round((row.time_ms or 0) * 1e6) for row in rows}
    assert {
        name: ns
        for name, ns in zip((*CATEGORIES, IDLE), expected, strict=True)
        if ns or name in found
    } == found
    ((begin, end),) = spans_of(trace).values()
    assert sum(found.values()) == end - begin
    assert 1 == pytest.approx(sum(row.share or 0 for row in rows))
    assert int(idle_parts(trace).ns.sum()) == found[IDLE]
    assert (idle_parts(trace).ns >= 0).all()


@pytest.mark.thorough
@pytest.mark.skipif(not TRACES, reason="no folder of real traces")
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.partition(".")[0])
def test_real_traces_add_up_as_counted_without_us(path: Path) -> None:
    trace = read_trace(path)
    rows = breakdown(trace)
    events = device_events(path)
    edges = sorted(events)
    busy, reach = 0, edges[0][0]
    for start, end, _ in edges:
        busy += max(end - max(start, reach), 0)
        reach = max(reach, end)
    idle = reach - edges[0][0] - busy
    by_category = {row.category: round((row.time_ms or 0) * 1e6) for row in rows}
    assert idle == by_category[IDLE] == int(idle_parts(trace).ns.sum())
    assert idle + busy == sum(by_category.values())
    if len(events) < 500:
        compute, communication, copy, _ = plain_partition(events, 3)
        hidden = {"communication": communication, "copy": copy}
        assert hidden == {name: by_category.get(name, 0) for name in hidden}
        others = [ns for name, ns in by_category.items() if name not in {*hidden, IDLE}]
        assert compute == sum(others)


def test_computation_takes_shared_time_and_what_it_hides_is_not_exposed() -> None:
    b = TraceBuilder(H100)
    b.launch(KERNELS["gemm"], 100, stream=1)
    b.launch(KERNELS["communication"], 150, stream=2)
    b.memcpy("HtoD", 64, device_us=200, stream=3)
    rows = {row.category: row for row in breakdown(parse_trace(b.to_bytes()))}
    # Launches are 5.5 us apart.
    times = {name: round((row.time_ms or 0) * 1000, 3) for name, row in rows.items()}
    assert {"gemm": 100, "communication": 55.5, "copy": 55.5, IDLE: 0} == times
    assert (0.15, 1) == (rows["communication"].total_ms, rows["communication"].calls)


def test_without_a_device_it_is_the_self_time_of_operators() -> None:
    b = TraceBuilder()
    with b.op("aten::linear", dur_us=10):
        b.op("aten::addmm", dur_us=60)
    b.op("aten::relu", dur_us=30)
    rows = {row.category: row for row in breakdown(parse_trace(b.to_bytes()))}
    assert {"gemm", "elementwise"} == set(rows)
    assert rows["elementwise"].time_ms == pytest.approx(0.03)
    assert rows["elementwise"].share == pytest.approx(0.03 / 0.091)
    assert 2 == rows["gemm"].calls


def test_a_trace_that_lost_kernels_has_no_shares_and_no_idle_time() -> None:
    b = TraceBuilder(H100)
    for number in range(10):
        with b.op("aten::mm"):
            b.launch(KERNELS["gemm"], 10, record_kernel=bool(number % 2))
    rows = {row.category: row for row in breakdown(parse_trace(b.to_bytes()))}
    assert (None, None) == (rows[IDLE].time_ms, rows[IDLE].share)
    assert (0.05, None, 5) == (rows["gemm"].total_ms, rows["gemm"].share, rows["gemm"].calls)


def test_a_trace_without_events_has_no_rows() -> None:
    assert [] == breakdown(parse_trace(b'{"traceEvents": []}'))


def two_steps() -> TraceBuilder:
    """Two steps, and a kernel of 5 ms between them."""
    b = TraceBuilder(H100)
    for number in range(2):
        with b.annotation(f"ProfilerStep#{number}"):
            b.launch(KERNELS["gemm"], 10)
            b.launch(KERNELS["gemm"], 10)
        if not number:
            b.launch(KERNELS["elementwise"], 5000)
    return b


def test_in_a_part_what_the_device_ran_for_others_is_not_idle() -> None:
    trace = at_steps(parse_trace(two_steps().to_bytes()), StepRange(None, None))
    rows = {row.category: row for row in breakdown(trace)}
    assert rows[OUTSIDE].time_ms == pytest.approx(5)
    assert (None, None) == (rows[OUTSIDE].calls, rows[OUTSIDE].total_ms)
    assert 1 == pytest.approx(sum(row.share or 0 for row in rows.values()))
    assert rows[IDLE].time_ms is not None
    assert rows[IDLE].time_ms < 0.05
    assert rows[IDLE].time_ms * 1e6 == pytest.approx(int(idle_parts(trace).ns.sum()))
    assert rows[IDLE].time_ms * 1e6 == pytest.approx(device_time(trace).idle_ns)


def test_events_without_durations_have_no_times() -> None:
    b = TraceBuilder()
    b.op("aten::mm", dur_us=5)
    document = b.document()
    for event in document["traceEvents"]:
        if event.get("cat") == "cpu_op":
            del event["dur"]
    (row,) = breakdown(parse_trace(json.dumps(document).encode()))
    assert ("gemm", None, None, None, 1) == (
        row.category, row.time_ms, row.share, row.total_ms, row.calls
    )  # fmt: skip


def test_annotations_that_were_recorded_as_operators_are_no_work() -> None:
    b = TraceBuilder()
    with b.op("ProfilerStep#2", dur_us=500):
        b.op("aten::mm", dur_us=100)
    (row,) = breakdown(parse_trace(b.to_bytes()))
    assert ("gemm", 0.1, 1.0) == (row.category, row.time_ms, row.share)


def test_idle_time_of_steps_adds_up_to_that_of_the_trace() -> None:
    b = TraceBuilder(H100)
    for number in range(5):
        b.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 900)
        with b.annotation(f"ProfilerStep#{number}"):
            b.launch(KERNELS["gemm"], 30 * number + 5)
            b.advance(70)
            b.launch(KERNELS["gemm"], 5)
    trace = parse_trace(b.to_bytes())
    parts = [at_steps(trace, StepRange(n, n + 1)) for n in range(5)]
    whole = device_time(trace).idle_ns
    assert whole == sum(device_time(part).idle_ns for part in parts)
    assert whole == sum(int(idle_parts(part).ns.sum()) for part in parts)
    assert whole == int(step_numbers(trace, "").columns["cuda_idle_ns"][:5].sum())
    for part in parts[1:]:
        rows = {row.category: row for row in breakdown(part)}
        assert (rows[IDLE].time_ms or 0) > 0.8
