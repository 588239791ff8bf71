"""What stretches of the host's time are worth to the device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.breakdown import IDLE, Elapsed, Gain, breakdown, exposed_ns, gain
from pytest_torchprof.trace.events import Events
from pytest_torchprof.trace.read import parse_trace, read_trace

H100 = "NVIDIA H100 80GB HBM3"


def parsed(b: TraceBuilder) -> Events:
    return parse_trace(b.to_bytes())


def worth(trace: Events, name: str) -> int:
    (row,) = np.flatnonzero(trace.named(name))
    begin = trace.ts[[row]]
    return int(gain(trace).between(begin, begin + trace.dur[[row]])[0])


def test_without_a_device_time_is_worth_its_length() -> None:
    b = TraceBuilder()
    b.op("aten::mul", [[2]], dur_us=50)
    trace = parsed(b)
    assert isinstance(gain(trace), Elapsed)
    assert worth(trace, "aten::mul") == 50_000


def test_what_the_host_does_while_the_device_works_is_worth_nothing() -> None:
    b = TraceBuilder(H100)
    b.launch("long", 10_000)
    b.op("aten::on_the_host", [[2]], dur_us=500)
    b.launch("next", 10)
    assert worth(parsed(b), "aten::on_the_host") == 0


def test_what_the_host_does_while_the_device_is_idle_is_worth_that_time() -> None:
    b = TraceBuilder(H100)
    b.launch("short", 10)
    b.advance(100)
    b.op("aten::on_the_host", [[2]], dur_us=500)
    b.launch("next", 10)
    assert worth(parsed(b), "aten::on_the_host") == 500_000


def test_an_operator_is_worth_what_it_launches() -> None:
    b = TraceBuilder(H100)
    b.launch("long", 10_000)
    with b.op("aten::mm", [[4, 4], [4, 4]]):
        b.launch("gemm", 300)
        b.launch("epilogue", 200)
    assert worth(parsed(b), "aten::mm") == 500_000


def test_a_copy_beside_computation_is_worth_what_is_left_of_it() -> None:
    b = TraceBuilder(H100)
    b.launch("long", 1_000, stream=7)
    with b.op("aten::copy_", [[1 << 20], [1 << 20]]):
        b.memcpy("HtoD", 4 << 20, device_us=3_000, stream=20)
    trace = parsed(b)
    (copy,) = np.flatnonzero(trace.bytes > 0)
    (kernel,) = np.flatnonzero(trace.named("long"))
    end = trace.ts[copy] + trace.dur[copy]
    assert worth(trace, "aten::copy_") == end - (trace.ts[kernel] + trace.dur[kernel])


EVENTS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 25), st.booleans()), min_size=1, max_size=12
)


@pytest.mark.thorough
@given(EVENTS)
def test_exposed_time_is_a_partition_of_busy_time(drawn: list[tuple[int, int, bool]]) -> None:
    b = TraceBuilder(H100)
    b.launch("kernel")
    b.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    made = parsed(b)
    compute, nccl = (int(made.name[made.device_rows[i]]) for i in range(2))
    kind = made.kind[made.device_rows[0]]
    drawn = sorted(drawn, key=lambda one: one[0])
    trace = Events(
        ts=np.array([begin for begin, _, _ in drawn], np.int64),
        dur=np.array([length for _, length, _ in drawn], np.int64),
        kind=np.full(len(drawn), kind),
        name=np.array([nccl if other else compute for _, _, other in drawn], np.int64),
        thread=np.zeros(len(drawn), np.int32),
        names=made.names,
        args=made.args[np.full(len(drawn), made.device_rows[0])],
        threads=((0, 0),),
    )
    rows = np.arange(len(drawn))
    own = exposed_ns(trace, rows)
    taken = {False: set[int](), True: set[int]()}
    for begin, length, other in drawn:
        taken[other] |= set(range(begin, begin + length))
    computing = np.array([not other for _, _, other in drawn])
    assert (own >= 0).all()
    assert own[computing].sum() == len(taken[False])
    assert own[~computing].sum() == len(taken[True] - taken[False])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.gz")), ids=lambda p: p.name.split(".")[0])
def test_all_stretches_together_are_worth_the_device_s_busy_and_idle_time(path: Path) -> None:
    trace = read_trace(path)
    found = gain(trace)
    assert isinstance(found, Gain)
    rows = breakdown(trace)
    span = sum(row.time_ms or 0 for row in rows)
    idle = sum(row.time_ms or 0 for row in rows if row.category == IDLE)
    times = np.linspace(trace.ts.min(), trace.ts.max() + 1, 100).astype(np.int64)
    parts = found.between(times[:-1], times[1:])
    assert (parts >= 0).all()
    assert span - idle <= parts.sum() / 1e6 + 1e-6
    assert parts.sum() / 1e6 <= span + 1e-6
