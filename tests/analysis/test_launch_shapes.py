"""Grid, block, occupancy, waves and tail of kernels."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.kernels import kernel_rows, multiprocessors
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchprof.analysis.kernels import KernelRow

H100 = "NVIDIA H100 80GB HBM3"
SHAPE_FIELDS = (
    *("grid", "block", "registers_per_thread", "shared_memory_bytes", "occupancy_pct"),
    *("blocks_per_sm", "warps_per_sm", "waves", "tail"),
)


def one(b: TraceBuilder, change: Callable[[dict[str, Any]], None] | None = None) -> KernelRow:
    """The only row, of a trace whose kernels' arguments were changed."""
    document = b.document()
    for event in document["traceEvents"]:
        if change is not None and event.get("cat") == "kernel":
            change(event["args"])
    found = kernel_rows(parse_trace(json.dumps(document).encode()), by="op,kernel,shape")
    (row,) = found
    return row


def launched(*grids: tuple[int, int, int], block: int = 128) -> TraceBuilder:
    b = TraceBuilder(H100)
    for grid in grids:
        with b.op("aten::relu", [[4]]):
            b.launch("relu", grid=grid, block=(block, 1, 1))
    return b


def test_what_kineto_recorded_is_in_the_row() -> None:
    """Blocks of 4 warps: 16 fit on a multiprocessor, 2,112 on 132; 3,168 are one and a half."""
    row = one(launched((1056, 3, 1)))
    assert {field: getattr(row, field) for field in SHAPE_FIELDS} == {
        "grid": (1056, 3, 1),
        "block": (128, 1, 1),
        "registers_per_thread": 32,
        "shared_memory_bytes": 0,
        "occupancy_pct": 100.0,
        "blocks_per_sm": 24.0,
        "warps_per_sm": 96.0,
        "waves": 1.5,
        "tail": 0.5,
    }


@pytest.mark.parametrize(
    ("blocks", "waves", "tail"),
    [(2112, 1.0, 0.0), (2113, 2113 / 2112, 2111 / 2112), (4224, 2.0, 0.0), (528, 0.25, 0.75)],
)
def test_the_tail_is_what_the_last_wave_leaves_empty(
    blocks: int, waves: float, tail: float
) -> None:
    row = one(launched((blocks, 1, 1)))
    assert (row.waves, row.tail) == pytest.approx((waves, tail))


def test_where_calls_differ_only_what_they_share_is_known() -> None:
    row = one(launched((132, 1, 1), (264, 1, 1)))
    assert row.calls == 2
    known = {field for field in SHAPE_FIELDS if getattr(row, field) is not None}
    assert known == {"block", "registers_per_thread", "shared_memory_bytes"}


@pytest.mark.parametrize("key", ["registers per thread", "shared memory", "block", "grid"])
def test_without_one_of_its_parts_a_wave_is_unknown(key: str) -> None:
    row = one(launched((132, 1, 1)), lambda args: args.pop(key))
    assert (row.waves, row.tail) == (None, None)
    assert sum(getattr(row, field) is None for field in SHAPE_FIELDS) >= 3


@pytest.mark.parametrize(
    "grid", [[1, 1], [0, 1, 1], [-1, 1, 1], "132", None, [1.5, None, "x"], [2**40, 1, 1], {"x": 1}]
)
def test_junk_in_the_place_of_a_grid_is_unknown(grid: Any) -> None:
    row = one(launched((132, 1, 1)), lambda args: args.update(grid=grid))
    assert (row.grid, row.waves, row.block) == (None, None, (128, 1, 1))


@pytest.mark.parametrize("value", [2**40, 2**70, -5, "many", None, 1e300])
@pytest.mark.parametrize("key", ["registers per thread", "shared memory"])
def test_junk_in_the_place_of_a_number_is_unknown(key: str, value: Any) -> None:
    row = one(launched((132, 1, 1)), lambda args: args.update({key: value}))
    assert (row.waves, row.tail) == (None, None)


def test_numbers_may_be_text() -> None:
    def written(args: dict[str, Any]) -> None:
        args["grid"] = [str(size) for size in args["grid"]]
        args["registers per thread"] = str(args["registers per thread"])

    assert one(launched((132, 1, 1)), written) == one(launched((132, 1, 1)))


def test_an_occupancy_of_0_is_unknown_if_blocks_do_fit() -> None:
    """Kineto takes kernels for impossible that ask for more than 48 KiB of shared memory."""

    def impossible(args: dict[str, Any]) -> None:
        args.update({"shared memory": 147456, "est. achieved occupancy %": 0})

    row = one(launched((264, 1, 1)), impossible)
    assert (row.occupancy_pct, row.waves) == (None, 2.0)


def test_an_occupancy_of_0_is_0_if_there_are_few_blocks() -> None:
    row = one(launched((3, 1, 1), block=64))
    assert row.occupancy_pct == 0.0
    assert row.blocks_per_sm == pytest.approx(3 / 132, abs=1e-6)


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_without_kinetos_numbers_everything_is_unknown(vendor: str) -> None:
    b = TraceBuilder(H100 if vendor == "nvidia" else "AMD Instinct MI300X", vendor=vendor)
    with b.op("aten::relu", [[4]]):
        b.graph_launch(["relu"])
    row = one(b, dict.clear if vendor == "nvidia" else None)
    assert [None] * len(SHAPE_FIELDS) == [getattr(row, field) for field in SHAPE_FIELDS]


def test_copies_have_no_launch() -> None:
    b = TraceBuilder(H100)
    b.memcpy("DtoD", 4_000)
    row = one(b)
    assert [None] * len(SHAPE_FIELDS) == [getattr(row, field) for field in SHAPE_FIELDS]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"numSms": 104}, 104),
        ({"numSms": "104"}, 104),
        ({"numSms": None, "totalGlobalMem": 192 * 2**30}, 304),
        ({"numSms": None, "name": "a device of the future"}, None),
        ({"numSms": -1, "name": ""}, None),
    ],
)
def test_multiprocessors_are_those_of_the_driver_or_of_the_table(
    properties: dict[str, Any], expected: int | None
) -> None:
    b = TraceBuilder("AMD Instinct MI300X", (9, 4), vendor="amd")
    b.launch("k")
    document = b.document()
    entry = document["deviceProperties"][0] | properties
    document["deviceProperties"] = [{k: v for k, v in entry.items() if v is not None}]
    trace = parse_trace(json.dumps(document).encode())
    assert multiprocessors(trace, 0) == expected
