"""The metrics of communication: true zeros, reasons, and times that computation hides or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.ranked import Call, rank_trace
from support.real_traces import CORPUS
from support.trace_builder import EPOCH_NS, TraceBuilder

from pytest_torchprof.analysis.breakdown import breakdown
from pytest_torchprof.analysis.communication import RankTime, rank_time
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace, read_trace
from pytest_torchprof.verdict.metrics import METRICS, measure

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Value

CHIP = "NVIDIA H100 80GB HBM3"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NAMES = ("collectives", "comm_bytes", "comm_ms", "exposed_comm_ms")


def measured(b: TraceBuilder) -> list[Value]:
    trace = parse_trace(b.to_bytes())
    return [measure(METRICS[name], trace) for name in NAMES]


def reasons(values: list[Value]) -> list[str | None]:
    return [value.reason.code if isinstance(value, MissingValue) else None for value in values]


def test_a_test_that_does_not_communicate_has_true_zeros() -> None:
    b = TraceBuilder()
    with b.annotation(REGION):
        b.op("aten::mm", [[4, 4], [4, 4]])
    assert [0, 0, 0.0, 0.0] == measured(b)


def test_an_empty_trace_has_none() -> None:
    assert ["no_operators"] * 4 == reasons(measured(TraceBuilder()))


def test_gloos_work_beside_computation_is_hidden() -> None:
    b = rank_trace(0, [Call(100, 500), Call(700, 900)])
    b.now = EPOCH_NS + 200_000
    b.op("aten::mm", [[4, 4], [4, 4]], dur_us=100)
    b.now = EPOCH_NS + 850_000
    b.op("aten::mm", [[4, 4], [4, 4]], dur_us=100)
    assert [2, 2 * 4096, 0.6, 0.45] == measured(b)


def test_an_operator_that_waits_or_encloses_a_call_does_not_compute() -> None:
    b = rank_trace(0, [Call(100, 500)])
    b.now = EPOCH_NS + 120_000
    b.op("_c10d_functional::wait_tensor", [[4]], dur_us=380)
    b.now = EPOCH_NS + 600_000
    with b.op("MyLayer", dur_us=10), b.op("c10d::barrier"):
        pass
    with b.thread(77):
        b.annotation("gloo:barrier", 100)
    times = rank_time(parse_trace(b.to_bytes()))
    assert isinstance(times, RankTime)
    assert (0, 500_000, 500_000) == (times.compute_ns, times.comm_ns, times.exposed_ns)


def test_unknown_sizes_and_times_are_said_with_a_lower_bound() -> None:
    b = rank_trace(0, [Call(100, 500)])
    b.op("c10d::broadcast_")
    values = measured(b)
    assert [None, "no_comm_sizes", "no_comm_times", "no_comm_times"] == reasons(values)
    size = values[1]
    assert isinstance(size, MissingValue)
    assert (4096, True) == (size.at_hand, size.at_least)


def test_device_times_are_unions_and_exposed_ones_those_of_the_summary() -> None:
    b = TraceBuilder(CHIP)
    for stream, kernel, us in ((7, "gemm", 100), (20, REDUCE, 150), (21, REDUCE, 30)):
        with b.op("c10d::allreduce_" if kernel == REDUCE else "aten::mm"):
            b.launch(kernel, us, stream)
    trace = parse_trace(b.to_bytes())
    rows = {row.category: row for row in breakdown(trace)}
    values = [measure(METRICS[name], trace) for name in NAMES]
    assert (2, rows["communication"].time_ms) == (values[0], values[3])
    assert 0.15 == values[2]


def test_gloos_work_counts_where_a_device_only_computes() -> None:
    b = TraceBuilder(CHIP)
    with b.op("aten::mm"):
        b.launch("gemm", 100)
    b.op("c10d::allreduce_", [[[10]], []], ["TensorList", ""])
    with b.thread(77):
        event = b.annotation("gloo:all_reduce", 200).event
    event["args"] |= {"Input type": ["float"], "Input Dims": [[10]]}
    with b.op("aten::mm"):
        b.launch("gemm", 100)
    assert [1, 40, 0.2] == measured(b)[:3]


@pytest.mark.skipif(not CORPUS.is_dir(), reason="no corpus of real traces here")
@pytest.mark.parametrize(
    ("rank", "span", "idle", "compute", "overlap"),
    [(0, 13009, 6419, 1034, 4.50), (1, 18749, 6428, 1246, 2.47)],
)
def test_times_of_a_real_rank_are_those_of_hta(
    rank: int, span: int, idle: int, compute: int, overlap: float
) -> None:
    """In us and percent: get_temporal_breakdown and get_comm_comp_overlap of HTA 0.5.0."""
    times = rank_time(read_trace(CORPUS / f"v100_dlrm_rank{rank}.pt.trace.json.gz"))
    assert isinstance(times, RankTime)
    found = times.span_ns // 1000, times.idle_ns // 1000, times.compute_ns // 1000
    assert (span, idle, compute) == found
    assert overlap == pytest.approx(100 * (1 - times.exposed_ns / times.comm_ns), abs=0.005)
