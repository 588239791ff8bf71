"""Collectives of a trace: their kind, their group, and what nothing hides of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.breakdown import breakdown
from pytest_torchprof.analysis.communication import Collectives, collectives
from pytest_torchprof.trace.read import parse_trace, read_trace

CHIP = "NVIDIA H100 80GB HBM3"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"


def found(b: TraceBuilder) -> Collectives:
    return collectives(parse_trace(b.to_bytes()))


def one(operators: list[str], kernel: str, args: dict[str, Any] | None = None) -> Collectives:
    """A collective that such operators launch, the last one with these arguments."""
    b = TraceBuilder(CHIP)
    if not operators:
        b.kernel_without_runtime(kernel, 10)
        return found(b)
    scopes = [b.op(operators[0], [[4]], args=args if len(operators) == 1 else None)]
    with scopes[0]:
        if len(operators) > 1:
            with b.op(operators[1], [[4]], args=args):
                b.launch(kernel, 10)
        else:
            b.launch(kernel, 10)
    return found(b)


@pytest.mark.parametrize(
    ("operators", "kernel", "noted", "kind"),
    [
        (["c10d::allreduce_"], REDUCE, None, "all_reduce"),
        (["c10d::allreduce_", "record_param_comms"], SEND, None, "all_reduce"),
        (["c10d::alltoall_base_", "record_param_comms"], SEND, None, "all_to_all"),
        (["c10d::_reduce_scatter_base_"], GENERIC, None, "reduce_scatter"),
        (["_c10d_functional::all_gather_into_tensor"], GENERIC, None, "all_gather"),
        (["nccl:broadcast"], GENERIC, None, "broadcast"),
        (["## alltoall_fwd_single ##", "record_param_comms"], SEND, None, "all_to_all"),
        (["record_param_comms"], GENERIC, "allreduce", "all_reduce"),
        (["record_param_comms"], GENERIC, "barrier", "barrier"),
        (["record_param_comms"], SEND, None, "send and receive"),
        (["record_param_comms"], GENERIC, None, "collective"),
        (["mylib::step"], REDUCE, None, "all_reduce"),
        ([], REDUCE, None, "all_reduce"),
        ([], SEND, None, "send and receive"),
        ([], "ncclKernel_Reduce_RING_LL_Sum_float(ncclWorkElem)", None, "reduce"),
        ([], "void multimem_all_reduce_kernel<c10::BFloat16, 16>", None, "all_reduce"),
    ],
)
def test_the_kind_is_from_arguments_then_operators_then_the_kernel(
    operators: list[str], kernel: str, noted: str | None, kind: str
) -> None:
    args = {"Collective name": noted} if noted else None
    assert one(operators, kernel, args).kind == [kind]


def test_a_kernel_that_computes_is_no_collective() -> None:
    assert len(one(["aten::sum"], "void at::native::reduce_kernel<512, 1>")) == 0


def test_the_group_is_from_the_arguments_else_the_job() -> None:
    args = {"Collective name": "allreduce", "Process Group Name": "7", "Group size": 4}
    noted = one(["record_param_comms"], GENERIC, args)
    described = one(["record_param_comms"], GENERIC, args | {"Process Group Description": "dp"})
    b = TraceBuilder(CHIP)
    b.metadata("distributedInfo", {"rank": 1, "world_size": 16})
    b.kernel_without_runtime(REDUCE)
    of_job = found(b)
    assert (noted.group, noted.ranks.tolist()) == (["7"], [4])
    assert described.group == ["dp"]
    assert (of_job.group, of_job.ranks.tolist()) == ([""], [16])
    assert one([], REDUCE).ranks.tolist() == [0]


def sent_between(*, send_us: float, beside_us: float = 0, late_us: float = 0) -> Collectives:
    """A collective after a kernel; some computation beside it, and one that waits for it."""
    b = TraceBuilder(CHIP)
    b.launch("gemm", 100)
    b.wait(20, 7)
    with b.op("c10d::allreduce_", [[4]]):
        b.launch(REDUCE, send_us, 20)
    if beside_us:
        b.launch("gemm", beside_us)
    b.wait(7, 20)
    b.advance(late_us)
    b.launch("gemm", 100)
    return found(b)


def test_what_computation_hides_is_not_exposed() -> None:
    assert sent_between(send_us=80).exposed_ns.tolist() == [80_000]
    assert sent_between(send_us=80, beside_us=30).exposed_ns.tolist() == [50_000]
    assert sent_between(send_us=80, beside_us=90).exposed_ns.tolist() == [0]


def test_nothing_is_gained_where_the_host_is_late_anyway() -> None:
    ahead, late = sent_between(send_us=80), sent_between(send_us=80, late_us=1_000)
    assert ahead.gain_ns.tolist() == [80_000]
    assert late.exposed_ns.tolist() == [80_000]
    assert late.gain_ns.tolist() == [0]


def test_it_is_gained_where_the_host_is_late_as_it_waits() -> None:
    b = TraceBuilder(CHIP)
    b.launch("gemm", 100)
    b.wait(20, 7)
    with b.op("c10d::alltoall_base_", [[4]]):
        b.launch(REDUCE, 500, 20)
    b.sync("cudaStreamSynchronize", stream=20)
    b.launch("gemm", 100)
    assert found(b).gain_ns.tolist()[0] > 450_000


def test_before_all_computation_and_after_it_there_is_nothing_to_hide_behind() -> None:
    b = TraceBuilder(CHIP)
    b.launch(REDUCE, 50)
    b.launch("gemm", 100)
    b.launch(REDUCE, 50)
    assert found(b).exposed_ns.tolist() == [0, 0]


def test_two_at_once_are_exposed_once() -> None:
    b = TraceBuilder(CHIP)
    b.launch("gemm", 100)
    for stream in (20, 21):
        b.wait(stream, 7)
        b.launch(REDUCE, 80, stream)
    b.wait(7, 21)
    b.launch("gemm", 10)
    assert found(b).exposed_ns.tolist() == [80_000, 0]


@pytest.mark.parametrize(
    ("durations_us", "waits"),
    [
        ([10, 20, 30, 25], True),
        ([10, 11, 12, 11], False),
        ([10, 90, 90], False),  # too few
        ([10, 20, 20, 30], True),
        ([10, 19, 20, 30], False),  # less than twice the fastest
    ],
)
def test_collectives_of_one_size_that_vary_wait(durations_us: list[float], waits: bool) -> None:
    b = TraceBuilder(CHIP)
    for us in durations_us:
        b.launch("gemm", 10)
        with b.op("c10d::allreduce_", [[4096]]):
            b.launch(REDUCE, us)
    assert found(b).waits.tolist() == [waits] * len(durations_us)


def test_collectives_of_several_or_unknown_sizes_do_not_tell_whether_they_wait() -> None:
    sizes, unknown = TraceBuilder(CHIP), TraceBuilder(CHIP)
    for number in range(6):
        with sizes.op("c10d::allreduce_", [[4 << number]]):
            sizes.launch(REDUCE, 10 << number)
        unknown.kernel_without_runtime(REDUCE, 10 << number)
    assert not found(sizes).waits.any()
    assert not found(unknown).waits.any()


@pytest.mark.thorough
@given(
    st.lists(
        st.tuples(st.sampled_from(["gemm", REDUCE]), st.integers(1, 60), st.sampled_from([7, 20])),
        max_size=12,
    )
)
def test_exposed_time_is_that_of_the_breakdown(kernels: list[tuple[str, int, int]]) -> None:
    b = TraceBuilder(CHIP)
    b.launch("gemm", 5)
    for name, us, stream in kernels:
        b.launch(name, us, stream)
        b.advance(us / 2)
    b.advance(2_000)
    b.launch("gemm", 5)
    trace = parse_trace(b.to_bytes())
    ms = sum(row.time_ms or 0 for row in breakdown(trace) if row.category == "communication")
    every = collectives(trace)
    assert every.exposed_ns.sum() / 1e6 == pytest.approx(ms)
    assert (every.gain_ns <= every.exposed_ns).all()
    assert (every.gain_ns >= 0).all()


@pytest.mark.skipif(not CORPUS.is_dir(), reason="no real traces here")
@pytest.mark.parametrize(("rank", "exposed_ms"), [(0, 5.54), (1, 11.06)])
def test_real_ranks_expose_what_was_counted_by_hand(rank: int, exposed_ms: float) -> None:
    path = CORPUS / f"v100_dlrm_rank{rank}.pt.trace.json.gz"
    if not path.exists():
        pytest.skip("this trace is not here")
    every = collectives(read_trace(path))
    assert every.exposed_ns.sum() / 1e6 == pytest.approx(exposed_ms, abs=0.01)
    assert set(every.kind) == {"all_to_all", "all_reduce"}
    assert set(every.ranks.tolist()) == {8}
