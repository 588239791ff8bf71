"""Kernels against the device's peaks: who did which work, how fast, under which limit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from support.kernel_programs import NAMES, programs
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder
from support.trace_styles import STYLES

from pytest_torchprof.analysis.attribution import attribute
from pytest_torchprof.analysis.kernels import (
    FINE_FIELDS,
    OperatorCalls,
    kernel_rows,
    kernel_work,
    unlinked_events,
)
from pytest_torchprof.trace.names import DEVICE_KINDS
from pytest_torchprof.trace.read import parse_trace, read_trace
from pytest_torchprof.work.counting import op_flops
from pytest_torchprof.work.devices import DTYPES, Device

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

#: A device with round numbers: 1 TFLOP/s in single precision, 1 TB/s.
CHIP = Device(
    name="Test Chip",
    peaks={"fp32": 1e12, "tf32": 8e12, "bf16": 16e12, "fp16": 16e12, "fp8": 32e12, "fp64": 0.5e12},
    bandwidth_bytes_per_s=1e12,
    memory_bytes=80 * 2**30,  # as much as the builder says
    capability=(99, 0),
    architecture=None,
    source="the tests",
)

MM: tuple[Any, ...] = ("aten::mm", [[1000, 1000], [1000, 1000]])  # 2 GFLOP, 12 MB in fp32
GEMM = "ampere_sgemm_128x64_nn"


def builder(device: str | None = "Test Chip", **options: Any) -> TraceBuilder:
    return TraceBuilder(device, (99, 0), **options)


def rows(b: TraceBuilder, by: Any = "name") -> dict[str, Any]:
    """By kernel, or by operator."""
    found = kernel_rows(parse_trace(b.to_bytes()), by=by, extra=[CHIP])
    return {row.kernel if by == "name" else str(row.operator): row for row in found}


def one(b: TraceBuilder, by: Any = "name") -> Any:
    (row,) = rows(b, by).values()
    return row


# ---------------------------------------------------------------------------------------- one row


def test_a_row_by_hand() -> None:
    """2 GFLOP and 12 MB in 4 ms, twice, where 2 ms and 12 µs would do."""
    b = builder()
    for _ in range(2):
        with b.op(*MM):
            b.launch(GEMM, device_us=4_000)
    row = vars(one(b))
    assert row.pop("operators") == (OperatorCalls("aten::mm", 2),)
    assert {name for name, value in row.items() if value is None} == {*FINE_FIELDS, "kernel_short"}
    assert {name: value for name, value in row.items() if value is not None} == {
        "device": 0,
        "kernel": GEMM,
        "operator": "aten::mm",
        "calls": 2,
        "total_ms": 8.0,
        "mean_us": 4_000.0,
        "flops": 4 * 10**9,
        "tflops_per_s": pytest.approx(0.5),
        "bytes": 24 * 10**6,
        "gb_per_s": pytest.approx(3.0),
        "compute_pct": pytest.approx(50.0),
        "bandwidth_pct": pytest.approx(0.3),
        "bound": "compute",
    }


def test_nothing_ran_on_a_device() -> None:
    b = builder(None)
    b.op(*MM)
    trace = parse_trace(b.to_bytes())
    assert kernel_rows(trace) == kernel_rows(trace, by="op") == []
    assert not len(kernel_work(trace).event)


def test_an_unknown_device_has_no_percentages() -> None:
    b = builder("Some Other Chip")
    with b.op(*MM):
        b.launch(GEMM, device_us=4_000)
    row = one(b)
    assert (row.flops, row.tflops_per_s) == (2 * 10**9, pytest.approx(0.5))
    assert (row.compute_pct, row.bandwidth_pct, row.bound) == (None, None, None)


def test_a_device_that_is_not_the_first() -> None:
    b = builder(device_index=3)
    with b.op(*MM):
        b.launch(GEMM, device_us=4_000)
    assert (one(b).device, one(b).compute_pct) == (3, pytest.approx(50.0))


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["Test Chip"], 50.0), (["Test Chip"] * 2, 50.0), (["Test Chip", "Other"], None), ([], None)],
)
def test_a_device_of_a_number_that_no_entry_has(names: list[str], expected: float | None) -> None:
    """ROCm counts the processors among the agents: its events may be on device 2 of 1."""
    b = builder(device_index=2)
    with b.op(*MM):
        b.launch(GEMM, device_us=4_000)
    trace = parse_trace(b.to_bytes())
    listed = [{"id": i, "name": name} for i, name in enumerate(names)]
    found = replace(trace, metadata={"deviceProperties": listed})
    (row,) = kernel_rows(found, extra=[CHIP])
    assert row.compute_pct == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("listed", [None, 7, "text", [None, 3], {"id": 0}, [{"id": 0, "name": 7}]])
def test_junk_in_the_place_of_devices(listed: Any) -> None:
    b = builder()
    with b.op(*MM):
        b.launch(GEMM)
    (row,) = kernel_rows(replace(parse_trace(b.to_bytes()), metadata={"deviceProperties": listed}))
    assert (row.flops, row.compute_pct) == (2 * 10**9, None)


def test_a_kernel_of_no_duration_has_no_rate() -> None:
    b = builder()
    with b.op(*MM):
        b.launch(GEMM, device_us=0)
    row = one(b)
    assert (row.flops, row.tflops_per_s, row.gb_per_s, row.compute_pct) == (2 * 10**9, *[None] * 3)


# ------------------------------------------------------------------------------- who did the work


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        # the product, although it is the shorter
        ({GEMM: 10, "void splitKreduce_kernel<32, 16, cublasGemm>(int)": 30}, {GEMM: 2e9}),
        ({"void at::native::elementwise_kernel<128, 2, copy>": 90, GEMM: 10}, {GEMM: 2e9}),
        (
            {"cudnn::ops::nchwToNhwcKernel<float>": 90, "sm80_xmma_fprop": 5},
            {"sm80_xmma_fprop": 2e9},
        ),
        # … of layouts that its own name has, the filter's in between
        (
            {"cudnn::nchwToNhwcKernel<float>": 90, "sm80_xmma_fprop_nhwckrsc_nchw_tilesize": 5},
            {"sm80_xmma_fprop_nhwckrsc_nchw_tilesize": 2e9},
        ),
        # no name says so: the longest
        ({"a": 10, "b": 30, "c": 20}, {"b": 2e9}),
        # two products of unknown sizes: by time
        ({"gemm_1": 30, "gemm_2": 10}, {"gemm_1": 1.5e9, "gemm_2": 0.5e9}),
        # those of a backward pass are as much work, however long they take
        (
            {"cutlass_wgrad": 30, "cutlass_dgrad": 10},
            {"cutlass_wgrad": 1e9, "cutlass_dgrad": 1e9},
        ),
        (
            {"cutlass_wgrad": 30, "sm80_xmma_dgrad": 5, "cutlass_dgrad": 10, "nchwToNhwc": 9},
            {"cutlass_wgrad": 1e9, "sm80_xmma_dgrad": 333_333_333, "cutlass_dgrad": 666_666_667},
        ),
        ({"cutlass_wgrad": 30, "gemm": 10}, {"cutlass_wgrad": 1.5e9, "gemm": 0.5e9}),
        # a product in the arguments of the template alone
        (
            {"cudnn::init_device_workspace_kernel<wgrad::Params>(wgrad::Params)": 9, GEMM: 1},
            {GEMM: 2e9},
        ),
    ],
)
def test_flops_go_to_the_main_kernel_and_are_not_multiplied(
    kernels: dict[str, float], expected: dict[str, float]
) -> None:
    b = builder()
    with b.op(*MM):
        for name, us in kernels.items():
            b.launch(name, device_us=us)
    assert {k: row.flops for k, row in rows(b).items() if row.flops} == expected
    assert one(b, "op").flops == 2 * 10**9


def test_bytes_of_what_has_no_main_kernel_are_shared_by_time() -> None:
    """A sort, or a list of tensors, is many kernels that each move a part."""
    b = builder()
    with b.op("aten::add", [[1000], [1000], []], ["float", "float", "Scalar"], ["", "", "1"]):
        b.launch("first", device_us=10)
        b.launch("second", device_us=20)
    found = rows(b)
    assert (found["first"].bytes, found["second"].bytes) == (4_000, 8_000)
    assert found["first"].gb_per_s == pytest.approx(found["second"].gb_per_s)


def test_the_operators_of_a_convolution_keep_their_own_bytes() -> None:
    """FLOPs are the outermost operator's, bytes the innermost's: a bias is added on its own."""
    b = builder()
    x, w, out = [1, 4, 9, 9], [8, 4, 3, 3], [1, 8, 7, 7]
    given = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    types = ["float", "float", "float", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"]
    inner = ["", "", "[0, 0]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"]
    with b.op("aten::convolution", [x, w, [8], *[[]] * 6], types, given):
        with b.op(
            "aten::cudnn_convolution", [x, w, *[[]] * 7], ["float"] * 2 + ["Scalar"] * 7, inner
        ):
            b.launch("implicit_convolve_sgemm")
            b.memset(64)
        with b.op(
            "aten::add_", [out, [1, 8, 1, 1], []], ["float", "float", "Scalar"], ["", "", "1"]
        ):
            b.launch("elementwise_kernel")
    found = rows(b)
    gemm, add = found["implicit_convolve_sgemm"], found["elementwise_kernel"]
    assert (gemm.flops, gemm.operator) == (2 * 49 * 8 * 36, "aten::cudnn_convolution")
    assert gemm.bytes == 4 * (324 + 288 + 392)
    assert (add.flops, add.bytes) == (0, 4 * (392 + 8 + 392))
    assert found["Memset (Device)"].bytes == 64


def test_an_unknown_operator_inherits_from_its_caller() -> None:
    """As a backend's own operator within aten's, unless other parts say what they moved."""
    b = builder()
    with b.op(*MM), b.op("mine::product"):
        b.launch("tuned")
    assert (one(b).flops, one(b).bytes) == (2 * 10**9, 12 * 10**6)
    with b.op("aten::addmm", [[10], [10, 10], [10, 10], [], []]):
        with b.op("aten::mm", [[10, 10], [10, 10]]):
            b.launch("gemm")
        with b.op("mine::bias"):
            b.launch("bias")
    assert (rows(b)["bias"].bytes, rows(b)["gemm"].bytes) == (None, 1_200)


def test_a_kernel_under_two_operators_has_the_rate_of_the_known_one() -> None:
    b = builder()
    with b.op(*MM):
        b.launch(GEMM, device_us=4_000)
    with b.op("mine::product"):
        b.launch(GEMM, device_us=6_000)
    row = one(b)
    assert row.operator == "mine::product ×1, aten::mm ×1"  # the one with most of the time first
    assert (row.calls, row.flops) == (2, 2 * 10**9)
    assert (row.tflops_per_s, row.compute_pct) == (pytest.approx(0.5), pytest.approx(50.0))


def test_by_operator_the_rate_is_of_all_its_time() -> None:
    b = builder()
    with b.op(*MM):
        b.launch("convert_layout", device_us=1_000)
        b.launch(GEMM, device_us=3_000)
    assert rows(b)[GEMM].compute_pct == pytest.approx(200 / 3)
    row = one(b, "op")
    assert row.kernel == f"{GEMM} ×1, convert_layout ×1"
    assert (row.calls, row.total_ms) == (2, 4.0)
    assert (row.compute_pct, row.gb_per_s) == (pytest.approx(50.0), pytest.approx(3.0))


def test_the_kernels_of_a_graph_have_no_numbers() -> None:
    """One launch, many kernels: what is around it is not what each of them did."""
    b = builder()
    with b.op(*MM):
        b.graph_launch([GEMM, "elementwise"])
    for row in rows(b).values():
        assert (row.flops, row.bytes, row.bound, row.operator) == (None, None, None, "aten::mm")


def test_what_is_launched_beside_a_graph_does_not_do_its_work() -> None:
    """Inputs are copied to where the graph reads them."""
    b = builder()
    with b.op(*MM):
        with b.op("aten::copy_", [[10], [10], []], ["float", "float", "Scalar"], ["", "", "0"]):
            b.launch("copy", device_us=90)
        b.graph_launch([GEMM])
    assert (0, 80) == (rows(b)["copy"].flops, rows(b)["copy"].bytes)
    assert (None, None) == (rows(b)[GEMM].flops, rows(b)[GEMM].bytes)


def test_events_without_a_runtime_call_are_counted_and_have_no_operator() -> None:
    b = builder()
    b.kernel_without_runtime("lost")
    with b.op(*MM):
        b.launch(GEMM)
    assert rows(b)["lost"].operator is None
    assert rows(b, "op")["None"].calls == 1
    assert unlinked_events(parse_trace(b.to_bytes())) == 1


def test_a_row_of_several_names_each_with_its_calls() -> None:
    """Six calls of a row that names gemm alone would not be gemm's, if three of them are fills."""
    b = builder()
    for _ in range(3):
        with b.op(*MM):
            b.launch("fill", device_us=1)
            b.launch(GEMM, device_us=5)
    with b.op("aten::add"):
        b.launch("fill", device_us=2)
    b.launch("fill", device_us=1)
    b.kernel_without_runtime("fill", 1)
    b.kernel_without_runtime("fill", 1)
    by_name, by_op = rows(b), rows(b, "op")
    assert "aten::mm ×3, aten::add ×1, (unlinked) ×2, (no operator) ×1" == by_name["fill"].operator
    assert "aten::mm" == by_name[GEMM].operator
    assert f"{GEMM} ×3, fill ×3" == by_op["aten::mm"].kernel
    assert {"aten::mm": 6, "aten::add": 1, "(no operator)": 1, "None": 2} == {
        name: row.calls for name, row in by_op.items()
    }
    assert sum(row.calls for row in by_name.values()) == 10
    assert sum(row.flops or 0 for row in by_name.values()) == 3 * 2 * 10**9


def test_unknown_flops_are_not_zero() -> None:
    b = builder()
    with b.op("aten::convolution", [[1, 3, 9, 9], [8, 3, 3, 3]]):
        b.launch("conv")
    assert (one(b).flops, one(b).bytes, one(b).bound) == (None, None, None)


@pytest.mark.parametrize(
    ("kernel", "types", "expected"),
    [
        ("CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, int>", None, 120),
        ("CatArrayBatchedCopy<float, unsigned int, 2, 64, 64>", None, 240),
        ("CatArrayBatchedCopy_aligned16_contig<c10::BFloat16, unsigned int, 1, 128>", None, 120),
        ("multi_tensor_apply_kernel<BinaryOpScalarFunctor<float, 1, 1, 0>, float>", None, 240),
        ("multi_tensor_apply_kernel<FusedAdamMathFunctor<c10::BFloat16, 4, ADAM>>", None, 120),
        ("something_else", None, None),
    ],
)
def test_the_elements_of_a_list_are_those_of_the_kernel(
    kernel: str, types: None, expected: int | None
) -> None:
    b = builder()
    with b.op("aten::cat", [[[4, 5], [2, 5]], []], ["TensorList", "Scalar"], ["", "0"]):
        b.launch(kernel)
    assert (one(b).bytes, types) == (expected, None)


# ---------------------------------------------------------------------------------- dtype and limit


@pytest.mark.parametrize(
    ("types", "kernel", "dtype"),
    [
        ("c10::BFloat16", "gemm", "bf16"),
        ("c10::Half", "gemm", "fp16"),
        ("double", "gemm", "fp64"),
        ("c10::complex<float>", "cgemm", "fp32"),
        ("signed char", "gemm", "int8"),
        ("c10::Float8_e4m3fn", "nvjet_qqtst", "fp8"),
        ("float", "ampere_sgemm_128x64_nn", "fp32"),
        ("float", "void cutlass::Kernel<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>", "fp32"),
        ("float", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8", "fp32"),
        ("float", "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16", "tf32"),
        ("float", "cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4", "tf32"),
        ("float", "ampere_sgemm_tf32x3", "tf32"),
        ("c10::BFloat16", "ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_tn", "bf16"),
        ("float", "fmha_cutlassF_f32_aligned_64x64_rf_sm80", "tf32"),
        ("unheard of", "gemm", None),
    ],
)
def test_the_dtype_that_a_kernel_computed_in(types: str, kernel: str, dtype: str | None) -> None:
    b = builder()
    with b.op("aten::mm", [[4, 5], [5, 6]], [types] * 2):
        b.launch(kernel)
    work = attribute(parse_trace(b.to_bytes()))
    assert [dtype] == [DTYPES[code] if code >= 0 else None for code in work.dtype]


@pytest.mark.parametrize(
    ("kernel", "dtype"), [("mystery", "tf32"), ("volta_sgemm_128x64_nn", "fp32")]
)
def test_flags_give_the_dtype_where_the_name_does_not(kernel: str, dtype: str) -> None:
    b = builder()
    with b.op("aten::mm", [[4, 5], [5, 6]]):
        b.launch(kernel)
    b.metadata("torchprof", {"allow_tf32": True})
    b.region = ""
    trace = parse_trace(b.to_bytes())
    assert [DTYPES[code] for code in attribute(trace).dtype] == [dtype]


def test_autocast_computes_in_the_dtype_of_the_inner_operator() -> None:
    b = builder()
    with b.op("aten::mm", [[4, 5], [5, 6]], ["float"] * 2):
        with b.op("aten::_to_copy", [[4, 5]]):
            b.launch("cast")
        with b.op("aten::mm", [[4, 5], [5, 6]], ["c10::BFloat16"] * 2):
            b.launch("gemm")
    found = rows(b)
    assert (found["gemm"].flops, found["gemm"].bytes) == (240, 2 * (20 + 30 + 24))
    work = attribute(parse_trace(b.to_bytes()))
    assert [-1, DTYPES.index("bf16")] == work.dtype.tolist()


def test_dtypes_mix_in_one_row() -> None:
    """2 GFLOP take 2 ms at the peak of single precision, and 0.125 ms at that of half."""
    b = builder()
    for types in ("float", "c10::Half"):
        with b.op(MM[0], MM[1], [types] * 2):
            b.launch("triton_mm", device_us=5_000)
    assert one(b).compute_pct == pytest.approx(100 * 2.125 / 10)


def product_in(us: float, size: int) -> TraceBuilder:
    b = builder()
    with b.op("aten::mm", [[size, size], [size, size]]):
        b.launch(GEMM, device_us=us)
    return b


def addition_in(us: float, size: int) -> TraceBuilder:
    b = builder()
    with b.op("aten::add", [[size], [size], []], ["float", "float", "Scalar"], ["", "", "1"]):
        b.launch("add", device_us=us)
    return b


def nobody_in(us: float) -> TraceBuilder:
    b = builder()
    with b.op("mine::what"):
        b.launch("what", device_us=us)
    return b


@pytest.mark.parametrize(
    ("b", "expected"),
    [
        (product_in(4_000, 1000), "compute"),
        (product_in(10, 3), "latency"),  # far from both roofs
        (product_in(1_000_000, 1000), "latency"),  # … however long it takes
        (product_in(0.001, 4), "memory"),  # 128 operations, 192 bytes
        (addition_in(24, 10**6), "memory"),  # 12 MB at half of the peak
        (addition_in(5, 1000), "latency"),
        (addition_in(9_999, 1000), None),  # its own arithmetic may be what takes so long
        (nobody_in(10), None),
    ],
)
def test_the_limit_that_a_kernel_is_under(b: TraceBuilder, expected: str | None) -> None:
    assert expected == one(b).bound


def test_copies_and_memsets_are_rows_with_their_own_bytes() -> None:
    """What crosses the bus has no peak here; within the device, it is read and written."""
    b = builder()
    with b.op("aten::copy_", [[1000], [1000], []], ["float", "float", "Scalar"]):
        b.memcpy("HtoD", 4_000, device_us=4)
        b.memcpy("DtoD", 500_000, device_us=2)
        b.launch("copy_kernel", device_us=8)
    b.memset(1_000_000, device_us=2)
    for by in ("name", "op"):
        found = {
            row.kernel: row for row in kernel_rows(parse_trace(b.to_bytes()), by=by, extra=[CHIP])
        }
        up, within = (
            found[n] for n in ("Memcpy HtoD (Pageable -> Device)", "Memcpy DtoD (Device -> Device)")
        )
        assert (up.bytes, up.gb_per_s, up.bandwidth_pct, up.bound) == (4_000, 1.0, None, None)
        assert (within.bytes, within.gb_per_s) == (500_000, 250.0)
        assert within.bandwidth_pct == pytest.approx(50.0)
        assert found["Memset (Device)"].bandwidth_pct == pytest.approx(50.0)
        assert (found["copy_kernel"].operator, found["copy_kernel"].bytes) == ("aten::copy_", 8_000)
        assert up.operator == "aten::copy_"


def test_what_stays_in_a_cache_may_exceed_the_memory() -> None:
    """Percentages are not capped: 12 MB in 6 µs did not come from a memory of 1 TB/s."""
    assert one(addition_in(6, 10**6)).bandwidth_pct == pytest.approx(200.0)


@pytest.mark.parametrize("style", [*STYLES, "bare_list", "compact"])
def test_every_way_to_write_a_trace(style: str) -> None:
    """What a trace lacks is unknown; its device events are in rows all the same."""
    b = builder()
    with b.op(*MM):
        b.launch(GEMM, device_us=4_000)
    b.memcpy("DtoH", 4)
    b.graph_launch(["a", "b"])
    trace = parse_trace(b.to_bytes(style))
    device = int(trace.is_kind(*DEVICE_KINDS).sum())
    for by in ("name", "op"):
        found = kernel_rows(trace, by=by, extra=[CHIP])
        assert sum(row.calls for row in found) == device
        assert all(row.flops in {None, 0, 2 * 10**9} for row in found)
    assert len(kernel_work(trace, [CHIP]).event) == device


# -------------------------------------------------------------------------------------- properties


def ancestors(trace: Events, event: int) -> list[int]:
    """The operators and annotations around the launch of a device event."""
    call, found = int(trace.launch[event]), list[int]()
    above = int(trace.parent[call]) if call >= 0 else -1
    while above >= 0:
        found.append(above)
        above = int(trace.parent[above])
    return found


@pytest.mark.thorough
@given(programs())
@settings(max_examples=150)
def test_no_work_is_lost_or_done_twice(b: TraceBuilder) -> None:
    """FLOPs of the rows are those of operators that launched a kernel, and no graph; each event is
    in one row.
    """
    trace = parse_trace(b.to_bytes())
    device = np.flatnonzero(trace.is_kind(*DEVICE_KINDS))
    launched = 0
    for op in np.flatnonzero(op_flops(trace)):
        below = [event for event in device.tolist() if op in ancestors(trace, event)]
        calls = [trace.names[trace.name[trace.launch[event]]] for event in below]
        if not any("Graph" in call for call in calls) and any(
            trace.names[trace.name[event]] in NAMES for event in below
        ):
            launched += int(op_flops(trace)[op])
    work = kernel_work(trace, [CHIP])
    assert work.event.tolist() == device.tolist()
    assert int(work.flops[work.flops > 0].sum()) == launched
    for by in ("name", "op"):
        found = kernel_rows(trace, by=by, extra=[CHIP])
        assert sum(row.flops or 0 for row in found) == launched
        assert sum(row.bytes or 0 for row in found) == int(work.bytes[work.bytes > 0].sum())
        assert sum(row.calls for row in found) == len(device)
        total_ns = int(trace.dur[device].sum())
        assert sum(row.total_ms for row in found) == pytest.approx(total_ns / 1e6)
        assert [row.total_ms for row in found] == sorted((r.total_ms for r in found), reverse=True)


# ------------------------------------------------------------------------- traces of real devices


def real(name: str) -> Events:
    path = CORPUS / f"{name}.pt.trace.json.gz"
    if not path.exists():
        pytest.skip(f"no real traces: {path.parent} has no {path.name}")
    return read_trace(path)


@pytest.mark.parametrize(
    ("name", "gemm", "attention", "convolution"),
    [("h100_bert_inference", 8.036, 0.163, 0), ("h100_vit_inference", 133.927, 5.723, 0.925)],
)
@pytest.mark.parametrize("by", ["name", "op"])
def test_flops_of_real_kernels_are_those_of_another_tool(
    name: str, gemm: float, attention: float, convolution: float, by: Any
) -> None:
    """TraceLens's reference tables, in GFLOP."""
    found = kernel_rows(real(name), by=by)
    for part, expected in (("mm", gemm), ("attention", attention), ("conv", convolution)):
        total = sum(row.flops or 0 for row in found if part in str(row.operator))
        assert total == pytest.approx(1e9 * expected, rel=0.01)


@pytest.mark.parametrize(
    "name",
    ["h100_bert_inference", "h100_vit_inference", "a100_alexnet", "mi300_vllm_graph_replay",
     "v100_dlrm_rank0", "v100_dlrm_rank1", "a100_sam_compiled"],
)  # fmt: skip
def test_no_real_kernel_exceeds_its_peak_but_out_of_a_cache(name: str) -> None:
    """The exceptions are small enough for the A100's L2 of 40 MB, and its clock counts in µs."""
    trace = real(name)
    for by in ("name", "op"):
        for row in kernel_rows(trace, by=by):
            assert row.compute_pct is None or row.compute_pct < 100
            small = row.bytes is not None and row.bytes / row.calls < 40e6
            assert row.bandwidth_pct is None or row.bandwidth_pct < (115 if small else 100)
            assert row.calls > 0


def test_large_products_of_a_real_trace_are_at_tens_of_percent() -> None:
    """An A100 of 312 TFLOP/s in bf16: 124 calls of 43 GFLOP in 189 µs each."""
    row = {row.operator: row for row in kernel_rows(real("a100_sam_compiled"), by="op")}["aten::mm"]
    assert (row.bound, row.calls) == ("compute", 126)
    assert row.compute_pct == pytest.approx(72.3, abs=0.1)


def test_graph_replay_in_a_real_trace() -> None:
    """Of 434 device events, only those outside the graph have numbers."""
    found = kernel_rows(real("mi300_vllm_graph_replay"))
    assert [row.operator for row in found if row.flops] == ["aten::mm"]
    assert sum(row.calls for row in found) == 434


def test_unlinked_events_of_a_real_trace() -> None:
    assert unlinked_events(real("v100_dlrm_rank1")) == 64
    assert unlinked_events(real("v100_dlrm_rank0")) == 0


@pytest.mark.parametrize(
    ("strides", "us", "expected"), [(True, 4, 200.0), (False, 4, None), (False, 16, 50.0)]
)
def test_without_strides_more_bytes_than_the_device_can_move_are_none_that_are_known(
    strides: bool, us: float, expected: float | None
) -> None:
    """8 MB at 1 TB/s take 8 us: in 4 us, an operand was in the cache, or was expanded."""
    b = builder()
    with b.op("aten::add_", [[1000, 1000], []]):
        b.launch("add", device_us=us)
    text = b.to_bytes() if strides else b.to_bytes().replace(b'"Input Strides"', b'"Other"')
    (row,) = kernel_rows(parse_trace(text), extra=[CHIP])
    assert row.bandwidth_pct == (expected if expected is None else pytest.approx(expected))
    assert (row.bytes is None) == (expected is None)


def test_steps_are_one_row() -> None:
    b = builder()
    for step in range(3):
        with b.annotation(f"ProfilerStep#{step}"):
            b.launch("kernel")
    assert ("ProfilerStep*", 3) == (one(b, "op").operator, one(b, "op").calls)
    assert "ProfilerStep*" == one(b).operator


def test_by_operator_each_has_its_own_copies() -> None:
    b = builder()
    for name, count in (("aten::nonzero", 3), ("aten::item", 1)):
        for _ in range(count):
            with b.op(name, [[4]]):
                b.launch("kernel", device_us=2)
                b.memcpy("DtoH", 8, device_us=1)
    found = kernel_rows(parse_trace(b.to_bytes()), by="op")
    calls = {(row.operator, row.kernel.partition(" ")[0]): row.calls for row in found}
    assert calls == {
        ("aten::nonzero", "kernel"): 3,
        ("aten::nonzero", "Memcpy"): 3,
        ("aten::item", "kernel"): 1,
        ("aten::item", "Memcpy"): 1,
    }
