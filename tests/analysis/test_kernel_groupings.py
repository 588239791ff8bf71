"""Kernels by operator, kernel and shape: rows, roofline, what there is to gain."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_programs import programs
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.kernels import KernelRow, OperatorCalls, kernel_rows, parse_grouping
from pytest_torchprof.trace.read import parse_trace, read_trace
from pytest_torchprof.work.devices import Device

FINE = "op,kernel,shape"
#: 1 TFLOP/s in single precision, 1 TB/s.
CHIP = Device(
    name="Test Chip",
    peaks={"fp32": 1e12, "bf16": 16e12},
    bandwidth_bytes_per_s=1e12,
    memory_bytes=80 * 2**30,
    capability=(99, 0),
    source="the tests",
)
MM: tuple[Any, ...] = ("aten::mm", [[1000, 1000], [1000, 1000]])  # 2 GFLOP, 12 MB in fp32
GEMM = "ampere_sgemm_128x64_nn"
REAL = (
    *("a100_alexnet", "a100_sam_compiled", "h100_bert_inference", "h100_vit_inference"),
    *("mi300_vllm_graph_replay", "v100_dlrm_rank0", "v100_dlrm_rank1"),
)


def builder() -> TraceBuilder:
    return TraceBuilder("Test Chip", (99, 0))


def rows(b: TraceBuilder, by: str = FINE) -> list[KernelRow]:
    return kernel_rows(parse_trace(b.to_bytes()), by=by, extra=[CHIP])


# ----------------------------------------------------------------------------------- groupings


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name", {"kernel"}),
        ("kernel", {"kernel"}),
        ("op", {"op"}),
        ("op,kernel,shape", {"op", "kernel", "shape"}),
        ("shape, name", {"kernel", "shape"}),
        ("op,shape", {"op", "shape"}),
    ],
)
def test_words_of_a_grouping(text: str, words: set[str]) -> None:
    assert words == parse_grouping(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("color", "must be one of name, op, or several of op, kernel, shape, .* not 'color'"),
        ("op,", "not ''"),
        ("", "not ''"),
        ("op,op", "must not have a part twice"),
        ("name,kernel", "name is the same as kernel"),
        ("shape", "must have op or kernel beside shape"),
    ],
)
def test_what_is_no_grouping_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_grouping(text)


def test_a_row_is_an_operator_a_kernel_and_a_shape() -> None:
    b = builder()
    for size in (1000, 1000, 500):
        with b.op("aten::mm", [[size, size], [size, size]]):
            b.launch(GEMM, device_us=4_000)
    with b.op("aten::addmm", [[1000], *MM[1], [], []]):
        b.launch(GEMM, device_us=4_000)
    found = {(row.operator, str(row.shapes)): row.calls for row in rows(b)}
    assert found == {
        ("aten::mm", "[[1000, 1000], [1000, 1000]]"): 2,
        ("aten::mm", "[[500, 500], [500, 500]]"): 1,
        ("aten::addmm", "[[1000], [1000, 1000], [1000, 1000], [], []]"): 1,
    }
    assert [4] == [row.calls for row in rows(b, "name")]
    assert [3, 1] == [row.calls for row in rows(b, "kernel,op")]
    assert [2, 1, 1] == [row.calls for row in rows(b, "kernel,shape")]


def test_each_device_has_rows_of_its_own() -> None:
    b = builder()
    for index in (0, 1):
        b.device_index = index
        with b.op(*MM):
            b.launch(GEMM)
    assert [0, 1] == sorted(row.device or 0 for row in rows(b))


def test_a_kernel_of_several_operators_lists_them_with_their_calls() -> None:
    b = builder()
    for name, count in (("aten::mm", 3), ("aten::addmm", 1)):
        for _ in range(count):
            with b.op(name, MM[1]):
                b.launch(GEMM)
    b.kernel_without_runtime(GEMM, 1)
    (row,) = rows(b, "name")
    assert "aten::mm ×3, aten::addmm ×1, (unlinked) ×1" == row.operator
    expected = [("aten::mm", 3), ("aten::addmm", 1), (None, 1)]
    assert tuple(OperatorCalls(*pair) for pair in expected) == row.operators
    alone = [row for row in rows(b, FINE) if row.operator is None]
    assert [(OperatorCalls(None, 1),)] == [row.operators for row in alone]
    assert [None] == [row.shapes for row in alone]


# ------------------------------------------------------------------------------------ roofline


def test_a_row_by_hand() -> None:
    """2 GFLOP take 2 ms at the peak, 12 MB 12 us: of 4 ms, all beyond 2 / 0.7 can be gained."""
    b = builder()
    for _ in range(2):
        with b.op(*MM):
            b.launch(GEMM, device_us=4_000)
    (row,) = rows(b)
    assert row.arithmetic_intensity == pytest.approx(2e9 / 12e6)
    assert row.roofline_ms == pytest.approx(4.0)
    assert row.ms_to_gain == pytest.approx(8 - 4 / 0.7)


def test_beyond_70_percent_of_the_roof_there_is_nothing_to_gain() -> None:
    b = builder()
    with b.op(*MM):
        b.launch(GEMM, device_us=2_800)
    assert [0.0] == [row.ms_to_gain for row in rows(b)]


def test_what_does_not_multiply_has_the_roof_of_its_bytes() -> None:
    b = builder()
    with b.op("aten::add", [[10**6], [10**6], []], ["float", "float", "Scalar"], ["", "", "1"]):
        b.launch("add", device_us=24)
    (row,) = rows(b)
    assert row.arithmetic_intensity is None
    assert row.roofline_ms == pytest.approx(0.012)


def test_copies_within_the_device_and_memsets_have_a_roof() -> None:
    b = builder()
    b.memcpy("DtoD", 500_000, device_us=2)  # read and written
    b.memset(1_000_000, device_us=2)
    assert [0.001, 0.001] == pytest.approx([row.roofline_ms for row in rows(b)])


def unknown_copy(b: TraceBuilder) -> None:
    b.memcpy("HtoD", 4_000)


def unknown_replay(b: TraceBuilder) -> None:
    with b.op(*MM):
        b.graph_launch([GEMM])


def unknown_caller(b: TraceBuilder) -> None:
    b.kernel_without_runtime(GEMM)


def unknown_operator(b: TraceBuilder) -> None:
    b.launch(GEMM)


def unknown_flops(b: TraceBuilder) -> None:
    with b.op("aten::convolution", [[1, 3, 9, 9], [8, 3, 3, 3]]):
        b.launch("conv")


def unknown_work(b: TraceBuilder) -> None:
    with b.op("mine::what", [[4]]):
        b.launch("what")


def unknown_peak(b: TraceBuilder) -> None:
    with b.op("aten::mm", MM[1], ["double"] * 2):
        b.launch(GEMM)


@pytest.mark.parametrize(
    "run",
    [unknown_copy, unknown_replay, unknown_caller, unknown_operator, unknown_flops, unknown_work,
     unknown_peak],
)  # fmt: skip
def test_an_unknown_roof_is_not_0(run: Any) -> None:
    b = builder()
    run(b)
    assert [(None, None)] == [(row.roofline_ms, row.ms_to_gain) for row in rows(b)]


def test_one_unknown_call_makes_the_roof_of_its_row_unknown() -> None:
    b = builder()
    with b.op(*MM):
        b.launch(GEMM, device_us=4_000)
    b.kernel_without_runtime(GEMM)
    assert [None] == [row.roofline_ms for row in rows(b, "kernel,shape") if not row.shapes]
    assert [2.0] == pytest.approx([row.roofline_ms for row in rows(b) if row.shapes])


def test_helpers_count_only_where_rows_are_whole_operators() -> None:
    b = builder()
    with b.op(*MM):
        b.launch("splitKreduce_kernel", device_us=1_000)
        b.launch(GEMM, device_us=3_000)
    assert {GEMM: 2.0, "splitKreduce_kernel": None} == {
        row.kernel: row.roofline_ms for row in rows(b)
    }
    (row,) = rows(b, "op,shape")
    assert (row.total_ms, row.roofline_ms) == (4.0, 2.0)
    assert row.ms_to_gain == pytest.approx(4 - 2 / 0.7)


def test_causal_attention_has_the_roof_of_what_its_mask_leaves() -> None:
    b = builder()
    types, given = ["c10::BFloat16"] * 3, ["", "", "", "0.", "True", "False", ""]
    with b.op("aten::_scaled_dot_product_flash_attention", [[4, 16, 2048, 64]] * 3, types, given):
        b.launch("flash_fwd", device_us=10_000)
    (row,) = rows(b)
    assert row.flops == 4 * 4 * 16 * 2048**2 * 64
    assert row.roofline_ms == pytest.approx(1e3 * row.flops / 2 / 16e12, rel=1e-3)


# ---------------------------------------------------------------------------------- properties


@pytest.mark.thorough
@given(programs(), st.sampled_from(["name", "op", "op,kernel", "op,shape", "kernel,shape"]))
@settings(max_examples=150)
def test_rows_of_a_finer_grouping_sum_to_those_of_a_coarser(b: TraceBuilder, by: str) -> None:
    words = parse_grouping(by)

    def key(row: KernelRow) -> tuple[Any, ...]:
        # By operator alone, copies are rows by name.
        copied = row.kernel.startswith("Mem")
        kernel = row.kernel if "kernel" in words or copied else None
        operator = row.operator if "op" in words else None
        return row.device, kernel, operator, str(row.shapes) if "shape" in words else None

    trace = parse_trace(b.to_bytes())
    fine = kernel_rows(trace, by=FINE, extra=[CHIP])
    coarse: dict[Any, KernelRow] = {}
    for row in kernel_rows(trace, by=by, extra=[CHIP]):
        assert coarse.setdefault(key(row), row) is row
    sums: dict[Any, list[KernelRow]] = defaultdict(list)
    for row in fine:
        sums[key(row)].append(row)
    assert sums.keys() == coarse.keys()
    for name, row in coarse.items():
        parts = sums[name]
        assert row.calls == sum(part.calls for part in parts)
        assert row.total_ms == pytest.approx(sum(part.total_ms for part in parts))
        for field in ("flops", "bytes"):
            known = [getattr(part, field) for part in parts if getattr(part, field) is not None]
            assert getattr(row, field) == (sum(known) if known else None)
        operators: dict[str | None, int] = defaultdict(int)
        for part in parts:
            for one in part.operators:
                operators[one.operator] += one.calls
        assert operators == {one.operator: one.calls for one in row.operators}
        roofs = [part.roofline_ms for part in parts]
        if len(words) > 1 and None not in roofs:
            assert row.roofline_ms == pytest.approx(sum(roof for roof in roofs if roof))


@pytest.mark.thorough
@given(programs(), st.sampled_from(["op,kernel,shape", "op,kernel", "op,shape", "kernel,shape"]))
@settings(max_examples=100)
def test_there_is_never_more_to_gain_than_the_time(b: TraceBuilder, by: str) -> None:
    for row in rows(b, by):
        assert (row.ms_to_gain is None) == (row.roofline_ms is None)
        assert row.ms_to_gain is None or 0 <= row.ms_to_gain <= row.total_ms
        assert row.tail is None or 0 <= row.tail < 1


# -------------------------------------------------------------------- traces of real devices


def document_of(name: str) -> Any:
    path = CORPUS / f"{name}.pt.trace.json.gz"
    if not path.exists():
        pytest.skip(f"no real traces: {path.parent} has no {path.name}")
    return path, json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", REAL)
def test_rows_of_real_traces_are_those_of_a_plain_count(name: str) -> None:
    """Event by event: correlation, then the shortest operator around the call."""
    path, events = document_of(name)
    device = [e for e in events if e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}]
    calls = {
        e["args"]["correlation"]: e
        for e in events
        if e.get("cat") in {"cuda_runtime", "cuda_driver"} and "correlation" in e.get("args", {})
    }
    ops: dict[Any, list[Any]] = defaultdict(list)
    for e in events:
        if e.get("cat") == "cpu_op":
            ops[e["tid"]].append(e)
    expected: dict[Any, list[float]] = defaultdict(list)
    for e in device:
        call, operator, shapes = calls.get(e["args"]["correlation"]), None, None
        if call is not None:
            around = [
                op
                for op in ops[call["tid"]]
                if op["ts"] <= call["ts"] and call["ts"] + call["dur"] <= op["ts"] + op["dur"]
            ]
            if around:
                inner = min(around, key=lambda op: op["dur"])
                operator, shapes = inner["name"], inner["args"].get("Input Dims")
        # Copies on AMD are renamed by their direction.
        kernel = "copy" if e["cat"] == "gpu_memcpy" else e["name"]
        expected[operator, kernel, json.dumps(shapes)].append(e["dur"])
    found: dict[Any, list[float]] = {}
    plain = {op["name"] for each in ops.values() for op in each}
    for row in kernel_rows(read_trace(path), by=FINE):
        operator = row.operator if row.operator in plain else None  # else an annotation
        kernel = "copy" if row.kernel.startswith("Memcpy") else str(row.kernel)
        key = (operator, kernel, json.dumps(row.shapes))
        calls_, ms = found.get(key, [0, 0.0])
        found[key] = [calls_ + row.calls, ms + row.total_ms]
    assert found.keys() == expected.keys()
    for key, durations in expected.items():
        assert found[key] == pytest.approx([len(durations), sum(durations) / 1e3])
    whole = [sum(part) for part in zip(*found.values(), strict=True)]
    assert whole == pytest.approx([len(device), sum(e["dur"] for e in device) / 1e3])


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("by", ["op,kernel,shape", "op,kernel", "op,shape", "name,shape"])
def test_real_rows_keep_their_promises(name: str, by: str) -> None:
    path, _ = document_of(name)
    for row in kernel_rows(read_trace(path), by=by):
        assert row.calls == sum(one.calls for one in row.operators)
        assert row.ms_to_gain is None or 0 <= row.ms_to_gain <= row.total_ms
        assert row.tail is None or 0 <= row.tail < 1
        assert row.waves is None or row.waves > 0


def test_a_row_of_an_h100_by_hand() -> None:
    """48 products of 788 by 768 by 768 in bf16: 989.4 TFLOP/s, 3,352 GB/s, 132 multiprocessors.

    A block needs 145 KiB of 228 KiB of shared memory, so each multiprocessor has room for one.
    """
    path, _ = document_of("h100_vit_inference")
    shapes = [[768], [788, 768], [768, 768], [], []]
    (row,) = (row for row in kernel_rows(read_trace(path), by=FINE) if row.shapes == shapes)
    flops, size = 2 * 788 * 768 * 768, 2 * (768 + 788 * 768 + 768 * 768 + 788 * 768)
    assert (row.operator, row.calls, row.flops, row.bytes) == (
        "aten::addmm", 48, 48 * flops, 48 * size,
    )  # fmt: skip
    assert row.total_ms == pytest.approx(0.399136)
    assert row.arithmetic_intensity == pytest.approx(258.0742)
    assert flops / 989.4e12 < size / 3352e9
    assert row.roofline_ms == pytest.approx(48e3 * size / 3352e9)
    assert row.ms_to_gain == pytest.approx(0.325452, abs=1e-6)
    assert (row.grid, row.block) == ((104, 1, 1), (128, 1, 1))
    assert (row.registers_per_thread, row.shared_memory_bytes) == (152, 147456)
    assert (row.waves, row.tail) == pytest.approx((104 / 132, 28 / 132))
    assert row.occupancy_pct is None  # recorded as 0


def test_a_row_of_a_v100_by_hand() -> None:
    """16 by 512 by 512 in fp32, summed by a helper: 15.7 TFLOP/s, 900 GB/s, 80 multiprocessors.

    Three blocks of 32 KiB fit into 96 KiB: 240 at once on the device, of 128.
    """
    path, _ = document_of("v100_dlrm_rank0")
    shapes = [[512], [16, 512], [512, 512], [], []]
    found = {row.kernel: row for row in kernel_rows(read_trace(path), by=FINE)
             if row.shapes == shapes and row.operator == "aten::addmm"}  # fmt: skip
    row = found.pop("volta_sgemm_32x32_sliced1x4_tn")
    size = 4 * (512 + 16 * 512 + 512 * 512 + 16 * 512)
    assert (row.calls, row.total_ms, row.flops, row.bytes) == (1, 0.013, 2 * 16 * 512 * 512, size)
    assert row.roofline_ms == pytest.approx(1e3 * size / 900e9)  # 1.24 us, and 0.53 by FLOPs
    assert row.ms_to_gain == pytest.approx(0.0112283, abs=1e-7)
    assert row.grid == (16, 1, 8)
    assert (row.waves, row.tail) == pytest.approx((128 / 240, 112 / 240))
    (helper,) = found.values()
    assert (helper.total_ms, helper.roofline_ms, helper.ms_to_gain) == (0.006, None, None)
