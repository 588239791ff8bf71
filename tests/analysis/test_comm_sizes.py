"""The payload, dtype and group of calls that communicate, as nccl-tests define sizes."""

from __future__ import annotations

from typing import Any

import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.communication import (
    BUS_FACTORS,
    CommSizes,
    collective_rows,
    comm_sizes,
)
from pytest_torchprof.trace.read import parse_trace

CHIP = "NVIDIA H100 80GB HBM3"
KERNEL = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
LIST, TENSOR = "TensorList", "float"


def groups(b: TraceBuilder, *sizes: int) -> None:
    """The groups of the job, as torch lists them."""
    config = [
        {"pg_name": str(i), "pg_desc": "undefined", "pg_size": n, "ranks": [*range(n)]}
        for i, n in enumerate(sizes)
    ]
    b.metadata("distributedInfo", {"rank": 0, "world_size": 4, "pg_config": config})


def sizes(b: TraceBuilder) -> CommSizes:
    return comm_sizes(parse_trace(b.to_bytes()))


@pytest.mark.parametrize(
    ("name", "dims", "types", "size"),
    [
        ("c10d::allreduce_", [[[10]], []], [LIST, ""], 40),
        ("c10d::allreduce_coalesced_", [[[3], [2, 2]], []], [LIST, ""], 28),
        ("c10d::broadcast_", [[[2, 5]], []], [LIST, ""], 40),
        ("c10d::reduce_", [[[10]], []], [LIST, ""], 40),
        ("c10d::allgather_", [[], [[10]], []], ["", LIST, ""], 4 * 40),
        ("c10d::_allgather_base_", [[40], [10], []], [TENSOR, TENSOR, ""], 160),
        ("c10d::allgather_into_tensor_coalesced_", [[[40]], [[10]], []], [LIST, LIST, ""], 160),
        ("c10d::gather_", [[], [[10]], []], ["", LIST, ""], 160),
        ("c10d::scatter_", [[[10]], [], []], [LIST, "", ""], 160),
        ("c10d::_reduce_scatter_base_", [[10], [40], []], [TENSOR, TENSOR, ""], 160),
        ("c10d::reduce_scatter_", [[[10]], [], []], [LIST, "", ""], 160),
        ("c10d::reduce_scatter_tensor_coalesced_", [[[10]], [[40]]], [LIST, LIST], 160),
        ("c10d::alltoall_base_", [[8], [12], []], [TENSOR, TENSOR, ""], 48),
        ("c10d::alltoall_", [[[1], [2]], [[4], [5]], []], [LIST, LIST, ""], 36),
        ("c10d::send", [[[7]], []], [LIST, ""], 28),
        ("c10d::recv_", [[[7]], []], [LIST, ""], 28),
        ("c10d::barrier", [[1], []], ["unsigned char", ""], 0),
        ("_c10d_functional::all_reduce", [[8, 32], []], [TENSOR, ""], 1024),
        ("symm_mem::multimem_all_reduce_", [[8], []], [TENSOR, ""], 32),
    ],
)
def test_sizes_follow_from_shapes(name: str, dims: list[Any], types: list[str], size: int) -> None:
    b = TraceBuilder()
    groups(b, 4)
    with b.op(name, dims, types):
        mark = b.annotation("nccl:x").event  # the dtype of lists is in the back end's annotation
    mark["args"] |= {"Input type": ["float"], "Input Dims": [[3]]}
    found = sizes(b)
    assert [size] == found.size.tolist()
    assert [("" if name == "c10d::barrier" else "float32", "0", 4)] == [
        *zip(found.dtype, found.group, found.ranks.tolist(), strict=True)
    ]


@pytest.mark.parametrize(
    ("noted", "given", "got", "size"),
    [
        ("allreduce", 10, 10, 20),
        ("_allgather_base", 10, 80, 160),
        ("reduce_scatter", 80, 10, 160),
        ("all_to_allv", 10, 12, 20),
        ("gather", 10, 0, 160),
        ("scatter", 0, 10, 160),
        ("send", 10, 10, 20),
        ("broadcast", 10, 10, 20),
        ("barrier", 1, 1, 0),
        ("allreduce", 0, 0, 0),
    ],
)
def test_sizes_are_those_that_nccl_records(noted: str, given: int, got: int, size: int) -> None:
    b = TraceBuilder(CHIP)
    args = {"Collective name": noted, "dtype": "BFloat16", "Group size": 8}
    args |= {"In msg nelems": given, "Out msg nelems": got, "Process Group Name": "3"}
    args |= {"Process Group Description": "tp", "Process Group Ranks": "[0, 1]"}
    with b.op("record_param_comms", args=args):
        b.launch(KERNEL, 10)
    found = sizes(b)
    assert ([size], ["tp"], [8]) == (found.size.tolist(), found.group, found.ranks.tolist())


@pytest.mark.parametrize(
    ("name", "dims", "types"),
    [
        ("c10d::allreduce_", None, None),
        ("c10d::allreduce_", [[], []], [LIST, ""]),
        ("c10d::allgather_", [[], [[10]]], ["", LIST]),  # by an unknown number of ranks
        ("_c10d_functional::all_reduce", [[4]], ["MyFloat"]),
    ],
)
def test_what_is_unknown_is_not_zero(name: str, dims: Any, types: Any) -> None:
    b = TraceBuilder()
    groups(b, 2, 4)
    b.op(name, dims, types)
    found = sizes(b)
    assert ([-1], [0]) == (found.size.tolist(), found.ranks.tolist())


@pytest.mark.parametrize("odd", [-1, 2**70, "x", "", None, [], [[]], {}, 1e308])
def test_values_of_any_type_are_unknown_and_no_error(odd: Any) -> None:
    b = TraceBuilder()
    b.metadata("distributedInfo", {"pg_config": [{"pg_size": odd, "ranks": odd, "pg_name": odd}]})
    args = {"Collective name": "_allgather_base", "In msg nelems": odd, "Out msg nelems": odd}
    args |= {"Group size": odd, "Process Group Ranks": odd, "dtype": odd}
    with b.op("c10d::_allgather_base_", [odd, odd], [odd, odd], strides=[[], []]):
        b.op("record_param_comms", args=args)
    found = sizes(b)
    assert 1 == len(found.size)
    assert found.size[0] <= 0
    assert 0 <= found.ranks[0] < 2**32


def test_groups_of_one_description_are_told_apart() -> None:
    b = TraceBuilder(CHIP)
    for name in ("3", "4"):
        args = {"Collective name": "allreduce", "Process Group Name": name, "dtype": "Float"}
        with b.op("record_param_comms", args=args | {"Process Group Description": "tp"}):
            b.launch(KERNEL, 10)
    assert ["tp 3", "tp 4"] == sizes(b).group


@pytest.mark.parametrize(
    ("operation", "of_2", "of_8"),
    [
        ("all_reduce", 1, 1.75),
        ("all_gather", 0.5, 0.875),
        ("reduce_scatter", 0.5, 0.875),
        ("all_to_all", 0.5, 0.875),
        ("broadcast", 1, 1),
        ("send", 1, 1),
    ],
)
def test_factors_of_nccl_tests(operation: str, of_2: float, of_8: float) -> None:
    assert (of_2, of_8) == tuple(BUS_FACTORS[operation](n) for n in (2, 8))


def test_bandwidths_are_bytes_by_time() -> None:
    b = TraceBuilder(CHIP)
    for _ in range(2):
        args = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 10**6}
        with b.op("record_param_comms", args=args | {"Group size": 8}):
            b.launch("ncclDevKernel_AllReduce", 50)
    (row,) = collective_rows(parse_trace(b.to_bytes()))
    assert (2, 8_000_000, 0.1) == (row.calls, row.bytes, row.total_ms)
    assert (80.0, 140.0) == (row.algbw_gb_per_s, row.busbw_gb_per_s)
    assert row.wait_ms is None
