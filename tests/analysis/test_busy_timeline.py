"""What a device was busy with over time adds up to the breakdown of its span."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.real_traces import CORPUS

from pytest_torchprof import Trace
from pytest_torchprof.analysis.breakdown import busy_timelines
from pytest_torchprof.trace.read import read_trace

NAMES = ("ampere_sgemm_128x64_tn", "ncclDevKernel_AllReduce_Sum_f32", "void at::native::vec()")


def loaded(tmp: Any, events: list[dict[str, Any]]) -> Trace:
    path = tmp / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return Trace(read_trace(path), path)


def kernel(name: str, ts_us: float, dur_us: float, stream: int = 7) -> dict[str, Any]:
    args = {"device": 0, "stream": stream}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts_us,
            "dur": dur_us, "args": args}  # fmt: skip


def test_each_share_has_the_time_of_the_first_category_that_runs(tmp_path: Any) -> None:
    trace = loaded(tmp_path, [
        kernel(NAMES[0], 0, 10),
        kernel(NAMES[1], 5, 15, stream=8),
        kernel(NAMES[0], 30, 10),
    ])  # fmt: skip
    (found,) = busy_timelines(trace.events, 4)
    assert (0, [0, 10_000, 20_000, 30_000, 40_000]) == (found.device, found.edges)
    expected = {
        "gemm": [10_000, 0, 0, 10_000],
        "communication": [0, 10_000, 0, 0],
        "idle": [0, 0, 10_000, 0],
    }
    assert expected == found.ns_by_category


@pytest.mark.thorough
@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 40), st.integers(0, 15)), min_size=1),
    st.integers(1, 9),
)
def test_the_shares_of_a_category_add_up_to_its_time(
    tmp_path_factory: pytest.TempPathFactory, kernels: list[tuple[str, int, int]], shares: int
) -> None:
    events = [kernel(name, at, long, stream=at) for name, at, long in kernels]
    check(loaded(tmp_path_factory.mktemp("t"), events), shares)


def check(trace: Trace, shares: int) -> None:
    rows = trace.breakdown()
    for found in busy_timelines(trace.events, shares):
        times = {row.category: row.time_ms for row in rows if row.device == found.device}
        sums = {name: sum(ns) / 1e6 for name, ns in found.ns_by_category.items()}
        assert {name: ms for name, ms in times.items() if ms is not None} == sums
        assert all(ns >= 0 for parts in found.ns_by_category.values() for ns in parts)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json.gz")), ids=lambda path: path.name)
def test_so_do_those_of_real_traces(path: Any) -> None:
    check(Trace.load(path), 160)


def test_a_trace_without_a_device_has_none(tmp_path: Any) -> None:
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 5}
    assert [] == busy_timelines(loaded(tmp_path, [op]).events, 10)
    with pytest.raises(ValueError, match="1 or more"):
        busy_timelines(loaded(tmp_path, [op]).events, 0)
