"""Idle time by cause and place."""

from __future__ import annotations

import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.breakdown import IDLE, breakdown
from pytest_torchprof.places.idle_rows import idle_rows
from pytest_torchprof.trace.read import parse_trace

H100 = "NVIDIA H100 80GB HBM3"
SGEMM = "ampere_sgemm_128x64_tn"


def two_waits() -> TraceBuilder:
    b = TraceBuilder(H100)
    for _ in range(3):
        with b.python("/home/me/train.py(12): step"):
            with b.op("aten::mm"):
                b.launch(SGEMM, 50)
            item, read = "aten::item", "aten::_local_scalar_dense"
            with b.python("/home/me/metrics.py(7): log"), b.op(item), b.op(read):
                b.memcpy("DtoH", 4, device_us=1)
                b.sync("cudaStreamSynchronize")
            b.advance(20)
    with b.op("aten::mm"):
        b.launch(SGEMM, 50)
    return b


def test_rows_have_line_call_and_number_of_gaps_and_add_up() -> None:
    trace = parse_trace(two_waits().to_bytes())
    rows = idle_rows(trace)
    wait = next(row for row in rows if row.cause == "waiting for the device")
    assert "/home/me/metrics.py:7" == wait.location
    assert "cudaStreamSynchronize" == wait.what
    assert 3 == wait.gaps
    assert wait.path is not None
    assert "aten::_local_scalar_dense" in wait.path
    assert 3 * wait.longest_ms >= wait.time_ms
    (idle,) = (row for row in breakdown(trace) if row.category == IDLE)
    assert idle.time_ms == pytest.approx(sum(row.time_ms for row in rows))
    assert 1 == pytest.approx(sum(row.share for row in rows))
    assert [row.time_ms for row in rows] == sorted((row.time_ms for row in rows), reverse=True)


def test_by_cause_there_is_one_row_for_each() -> None:
    trace = parse_trace(two_waits().to_bytes())
    by_cause = idle_rows(trace, "cause")
    assert len(by_cause) == len({row.cause for row in by_cause})
    assert {None} == {row.what for row in by_cause} == {row.location for row in by_cause}
    for row in by_cause:
        same = [r for r in idle_rows(trace) if r.cause == row.cause]
        assert row.time_ms == pytest.approx(sum(r.time_ms for r in same))
        assert row.longest_ms >= max(r.longest_ms for r in same)


def test_without_a_device_or_with_lost_kernels_there_are_none() -> None:
    b = TraceBuilder()
    b.op("aten::mm")
    assert [] == idle_rows(parse_trace(b.to_bytes()))
    b = TraceBuilder(H100)
    for number in range(10):
        b.advance(50)
        b.launch(SGEMM, 10, record_kernel=bool(number % 2))
    assert [] == idle_rows(parse_trace(b.to_bytes()))
