"""Key averages: what each grouping counts, and that the parts are the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.operators import (
    GROUPINGS,
    NO_OPERATOR,
    By,
    OpStats,
    op_stats,
    self_cpu_ns,
)
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.work.counting import op_flops

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

H100 = "NVIDIA H100 80GB HBM3"


def model() -> TraceBuilder:
    """Two steps of a linear layer, and a kernel without a launch."""
    builder = TraceBuilder(H100)
    for step in range(2):
        with (
            builder.annotation(f"ProfilerStep#{step}"),
            builder.module("nn.Module: Net_0"),
            builder.module(f"nn.Module: Linear_{step}"),
            builder.op("aten::linear", [[2, 3], [4, 3]]),
        ):
            with builder.op("aten::addmm", [[4], [2, 3], [3, 4]]):
                builder.launch("gemm", 10)
            with builder.op("aten::add", [[2 + step, 4], [2, 4]]):
                builder.launch("add", 5)
    builder.kernel_without_runtime("ghost", 3)
    return builder


def trace_of(builder: TraceBuilder) -> Events:
    return parse_trace(builder.to_bytes())


def by_name(builder: TraceBuilder, by: By = "name") -> dict[str, OpStats]:
    return {row.name: row for row in op_stats(trace_of(builder), by)}


def test_device_time_belongs_to_the_operator_that_launched_and_to_those_around_it() -> None:
    rows = by_name(model())
    times = {name: (row.calls, row.self_cuda_ms, row.cuda_ms) for name, row in rows.items()}
    assert times["aten::addmm"] == (2, 0.02, 0.02)
    assert times["aten::add"] == (2, 0.01, 0.01)
    assert times["aten::linear"] == (2, 0.0, 0.03)
    assert times["ProfilerStep*"] == (2, 0.0, 0.03)
    assert times[NO_OPERATOR] == (0, 0.003, 0.003)


def test_flops_stand_where_they_count() -> None:
    flops = {name: row.flops for name, row in by_name(model()).items() if row.flops}
    assert {"aten::addmm": 2 * 48} == flops


@pytest.mark.parametrize("by", GROUPINGS)
def test_the_parts_are_the_whole(by: By) -> None:
    trace = trace_of(model())
    rows = op_stats(trace, by)
    assert pytest.approx(1.0) == sum(row.share or 0 for row in rows)
    assert pytest.approx(self_cpu_ns(trace) / 1e6) == sum(row.self_cpu_ms for row in rows)
    assert pytest.approx(0.033) == sum(row.self_cuda_ms or 0 for row in rows)
    assert int(op_flops(trace).sum()) == sum(row.flops or 0 for row in rows)


@pytest.mark.parametrize(
    ("by", "field", "expected"),
    [
        ("shape", "shapes", [[[2, 4], [2, 4]], [[3, 4], [2, 4]]]),
        ("stack", "stack", [f"nn.Module: Net_0;nn.Module: Linear_{i}" for i in (0, 1)]),
        ("module", "module", ["Net_0.Linear_0", "Net_0.Linear_1"]),
    ],
)
def test_calls_are_grouped_as_requested(by: By, field: str, expected: list[Any]) -> None:
    rows = [row for row in op_stats(trace_of(model()), by) if row.name == "aten::add"]
    assert expected == sorted(getattr(row, field) for row in rows)


def test_a_recursive_operator_is_as_long_as_its_outermost_call() -> None:
    builder = TraceBuilder(H100)
    with builder.op("aten::to", dur_us=10), builder.op("aten::to", dur_us=4):
        builder.launch("copy", 7)
    row = by_name(builder)["aten::to"]
    outer = max(int(d) for d in trace_of(builder).dur)
    assert (2, outer / 1e6, 0.007, 0.007) == (row.calls, row.cpu_ms, row.self_cuda_ms, row.cuda_ms)


def test_memory_is_that_of_the_innermost_operator_allocated_less_freed() -> None:
    builder = TraceBuilder()
    with builder.op("aten::outer"):
        block = builder.memory(512, "cpu")
        with builder.op("aten::inner"):
            builder.memory(64, "cpu")
            builder.free(block)
    rows = by_name(builder)
    sizes = {name: (row.self_cpu_bytes, row.self_cuda_bytes) for name, row in rows.items()}
    assert {"aten::outer": (512, None), "aten::inner": (64 - 512, None)} == sizes


def test_what_was_not_recorded_is_unknown() -> None:
    builder = TraceBuilder(device=None)
    builder.op("aten::add")
    (row,) = op_stats(trace_of(builder))
    unknown = (row.self_cuda_ms, row.cuda_ms, row.self_cpu_bytes, row.self_cuda_bytes)
    assert (None,) * 4 == unknown
    assert (0, 1.0) == (row.flops, row.share)


def test_an_empty_trace_has_no_rows() -> None:
    assert [] == op_stats(trace_of(TraceBuilder()))
