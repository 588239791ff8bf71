"""A call that communicates counts once, however many events show it, with its own time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest
from support.ranked import Call, rank_trace
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.communication import CommCalls, comm_calls
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace, read_trace

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

CHIP = "NVIDIA H100 80GB HBM3"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
NOTED = {"Collective name": "allreduce", "Group size": 2, "In msg nelems": 4, "dtype": "Float"}


def found(b: TraceBuilder) -> CommCalls:
    return comm_calls(parse_trace(b.to_bytes()))


def nested(b: TraceBuilder, names: Sequence[str], inner: Callable[[], None]) -> None:
    """An event in another one, in this order, with something in the last."""
    if not names:
        inner()
        return
    args = NOTED if names[0] == "record_param_comms" else None
    scope = b.annotation(names[0]) if ":" in names[0] and "::" not in names[0] else b.op(
        names[0], args=args)  # fmt: skip
    with scope:
        nested(b, names[1:], inner)


@pytest.mark.parametrize(
    ("names", "kernel", "operation"),
    [
        (["c10d::allreduce_"], REDUCE, "all_reduce"),
        (["c10d::allreduce_", "record_param_comms", "nccl:all_reduce"], REDUCE, "all_reduce"),
        (["_c10d_functional::all_reduce", "c10d::allreduce_"], REDUCE, "all_reduce"),
        (["record_param_comms", "nccl:all_reduce"], REDUCE, "all_reduce"),
        (["nccl:all_reduce"], REDUCE, "all_reduce"),
        (["vllm::all_reduce", "symm_mem::multimem_all_reduce_"], "multimem_x", "all_reduce"),
        (["vllm::all_reduce"], REDUCE, "all_reduce"),
        (["symm_mem::one_shot_all_reduce"], "one_shot_all_reduce_kernel", "all_reduce"),
        (["c10d::send", "record_param_comms", "nccl:send 0->1"], SEND, "send"),
        (["c10d::recv_", "record_param_comms", "nccl:recv 0<-1"], SEND, "receive"),
        (["c10d::barrier", "record_param_comms", "nccl:all_reduce_barrier"], REDUCE, "barrier"),
        (["mylib::step"], REDUCE, "all_reduce"),
        ([], REDUCE, "all_reduce"),
    ],
)
def test_a_call_counts_once(names: list[str], kernel: str, operation: str) -> None:
    b = TraceBuilder(CHIP)
    nested(b, names, lambda: b.launch(kernel, 30))
    calls = found(b)
    assert [operation] == calls.operation
    assert [30_000] == (calls.end - calls.begin).tolist()


def test_a_kernel_without_a_call_counts_by_itself_and_a_known_one_does_not() -> None:
    b = TraceBuilder(CHIP)
    b.graph_launch([REDUCE, "gemm", REDUCE])
    with b.op("c10d::allreduce_"):
        b.kernel_without_runtime(REDUCE)  # its launch is lost
    calls = found(b)
    assert 4 == len(calls)


def test_sends_and_receives_that_are_launched_together_have_one_kernel_by_the_last() -> None:
    b = TraceBuilder(CHIP)
    for name in ("c10d::send", "c10d::recv_"):
        with b.op(name):
            b.op("record_param_comms", args=NOTED | {"Collective name": name[6:10]})
    with b.annotation("nccl:coalesced"):
        b.launch(SEND, 40)
    calls = found(b)
    assert ["send", "receive"] == calls.operation
    assert -1 == calls.end[0]
    assert 40_000 == calls.end[1] - calls.begin[1]


def test_waits_and_what_only_has_such_a_name_are_no_calls() -> None:
    b = TraceBuilder()
    b.op("record_param_comms", args=NOTED | {"Collective name": "wait"})
    b.op("record_param_comms", args=NOTED | {"Collective name": "init"})
    b.op("record_param_comms")
    b.op("_c10d_functional::wait_tensor")
    b.op("_c10d_functional::_wrap_tensor_autograd")
    b.op("aten::scatter")
    b.annotation("all_reduce of my own")
    with b.annotation("gather"):
        b.op("aten::gather")
    b.op("torchrec::reduce")
    assert 0 == len(found(b))


def test_gloos_work_is_the_time_and_belongs_to_the_call_that_was_first() -> None:
    calls = found(rank_trace(0, [Call(100, 900), Call(300, 1200), Call(1500, 1600)]))
    assert ["all_reduce"] * 3 == calls.operation
    assert [800_000, 900_000, 100_000] == (calls.end - calls.begin).tolist()
    assert (calls.work >= 0).all()


def test_gloos_work_of_several_parts_is_one_call() -> None:
    b = TraceBuilder()
    b.op("c10d::reduce_scatter_", [[[5]], [], []], ["TensorList", "", ""], dur_us=10)
    with b.thread(77):
        b.annotation("gloo:all_reduce", 100)
        b.annotation("gloo:all_reduce", 100)
    calls = found(b)
    assert ["reduce_scatter"] == calls.operation
    assert int(calls.end[0] - calls.begin[0]) > 200_000


def test_gloos_work_that_nothing_recorded_has_called_counts() -> None:
    b = TraceBuilder()
    with b.thread(77):
        b.annotation("gloo:all_reduce", 100)
    assert ["all_reduce"] == found(b).operation


def test_gloos_work_from_before_the_recording_is_no_call_of_it() -> None:
    b = TraceBuilder()
    with b.thread(77):
        b.annotation("gloo:all_reduce", 100)
    b.op("c10d::allreduce_", dur_us=10)
    with b.thread(77):
        b.annotation("gloo:all_reduce", 50)
    calls = found(b)
    assert [50_000] == (calls.end - calls.begin).tolist()


def test_a_send_of_gloo_that_lasts_encloses_no_other_call() -> None:
    b = TraceBuilder()
    for _ in range(3):
        start = b.now
        with b.op("c10d::send", [[[4]], []], ["TensorList", ""], dur_us=20):
            event = b.annotation("gloo:send", 5).event
        event["dur"] = 500_000
        b.now = start + 100_000
    calls = found(b)
    assert ["send"] * 3 == calls.operation
    assert [500_000] * 3 == (calls.end - calls.begin).tolist()


def test_only_calls_of_the_region_count() -> None:
    b = TraceBuilder()
    b.op("c10d::allreduce_")
    with b.annotation(REGION):
        b.op("c10d::allreduce_")
        b.op("c10d::broadcast_")
    b.op("c10d::barrier")
    assert ["all_reduce", "broadcast"] == found(b).operation


def plain_count(trace: Events) -> int:
    """Kernels whose names begin with ncclKernel, one by one."""
    return sum(trace.names[n].startswith("ncclKernel") for n in trace.name[trace.device_rows])


@pytest.mark.skipif(not CORPUS.is_dir(), reason="no corpus of real traces here")
@pytest.mark.parametrize("rank", [0, 1])
def test_calls_of_a_real_rank_equal_a_plain_count(rank: int) -> None:
    trace = read_trace(CORPUS / f"v100_dlrm_rank{rank}.pt.trace.json.gz")
    calls = comm_calls(trace)
    assert plain_count(trace) == len(calls) == (calls.kernel >= 0).sum()
    assert sum(trace.dur[calls.kernel].tolist()) == (calls.end - calls.begin).sum()
