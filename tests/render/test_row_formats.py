"""Rows as tables, CSV, Markdown and JSON; kernel names that can be read."""

from __future__ import annotations

import copy
import csv
import io
import json
import pickle
from typing import Any

import pytest
from expecttest import assert_expected_inline
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.core.values import CountedNames
from pytest_torchprof.render.kernel_names import readable_kernel
from pytest_torchprof.render.table import Table, cell, to_json

ROWS: list[dict[str, Any]] = [
    {"name": "aten::mm", "calls": 12345, "self_cpu_ms": 1.5, "flops": 2 * 10**9, "share": 0.9996},
    {"name": "aten::add_", "calls": 1, "self_cpu_ms": 0.0021, "flops": None, "share": 0.0004},
]
FIELDS = ("name", "calls", "self_cpu_ms", "flops", "cuda_ms", "share")
TOTAL = {"name": "total", "calls": 12346, "self_cpu_ms": 1.5021, "share": 1.0}


def test_a_table_has_scaled_units_a_total_and_no_empty_column() -> None:
    assert_expected_inline(
        Table(ROWS, FIELDS).text(total=TOTAL),
        """\
name         calls  self_cpu    flops   share
----------  ------  --------  -------  ------
aten::mm    12,345    1.5 ms  2 GFLOP  99.9 %
aten::add_       1    2.1 us        –  <0.1 %
----------  ------  --------  -------  ------
total       12,346    1.5 ms            100 %
""",
    )


def test_markdown_is_a_table_of_github() -> None:
    rows = [{**ROWS[0], "name": "a|b"}]
    assert_expected_inline(
        Table(rows, FIELDS).markdown(),
        """\
| name   |  calls | self_cpu |   flops |  share |
|:-------|-------:|---------:|--------:|-------:|
| `a\\|b` | 12,345 |   1.5 ms | 2 GFLOP | 99.9 % |
""",
    )


def test_csv_has_raw_values_under_the_names_of_the_fields() -> None:
    rows = list(csv.DictReader(io.StringIO(Table(ROWS, FIELDS).csv())))
    assert list(FIELDS) == list(rows[0])
    assert ("12345", "2000000000", "") == tuple(
        rows[0][field] for field in ("calls", "flops", "cuda_ms")
    )
    assert "" == rows[1]["flops"]


def test_json_knows_no_number_that_is_not_finite() -> None:
    text = to_json({"rows": [{"a": float("nan"), "b": float("inf"), "c": (1.5,)}]})
    assert {"rows": [{"a": None, "b": None, "c": [1.5]}]} == json.loads(text)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_table_fits_the_terminal_by_cutting_names_in_the_middle(width: int) -> None:
    rows = [{"kernel": "k" * 300 + "_end", "operator": "aten::mm", "total_ms": 1.0, "calls": 3}]
    lines = Table(rows, ("kernel", "operator", "total_ms", "calls")).text(width).splitlines()
    assert max(map(len, lines)) <= width
    assert "…" in lines[-1]
    assert "_end  aten::mm" in lines[-1]


def test_of_several_names_those_that_fit_are_shown_and_how_many_are_left() -> None:
    long = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
    row = {
        "kernel": CountedNames([(long, 12), ("fill<4, int>", 3), ("b", 1)]),
        "operator": CountedNames([("aten::mm", 9), ("c", 7)]),
    }
    shown = Table([row], ("kernel", "operator")).text(58).splitlines()[-1]
    assert "elementwise add f32 vec4 ×12, +2 more  aten::mm ×9, c ×7" == shown
    assert "add f32 vec4 ×12, fill<4, int> ×3, b ×1" in Table([row], ("kernel", "operator")).text()
    assert "`aten::mm ×9, c ×7`" in Table([row], ("kernel", "operator")).markdown()


def test_wide_characters_take_two_columns() -> None:
    rows = [{"name": "テスト" * 20, "calls": 1}, {"name": "aten::mm", "calls": 2}]
    lines = Table(rows, ("name", "calls")).text(40).splitlines()
    assert [
        "name                               calls",
        "---------------------------------  -----",
        "テストテストテス…ストテストテスト      1",
        "aten::mm                               2",
    ] == lines


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("calls", None, "–"),
        ("calls", 0, "0"),
        ("total_ms", 0.0, "0 ms"),
        ("mean_us", 12.5, "12.5 us"),
        ("cuda_ms_b", 12.5, "12.5 ms"),
        ("mean_us", 12500.0, "12.5 ms"),
        ("bytes", 2**21, "2 MiB"),
        ("self_cuda_bytes", -1024, "-1 KiB"),
        ("tflops_per_s", 494.71, "495"),
        ("gb_per_s", 3350.2, "3,350"),
        ("compute_pct", 0.004, "<0.1 %"),
        ("compute_pct", 99.99, "99.9 %"),
        ("bandwidth_pct", 140.0, "140.0 %"),
        ("share", 1.0, "100 %"),
        ("share", 0.0, "0 %"),
        ("shapes", [[2, 3], []], "[[2, 3], []]"),
        ("grid", [104, 2, 1], "104×2×1"),
        ("grid", None, "–"),
        ("ms_to_gain", 0.0123, "12.3 us"),
        ("arithmetic_intensity", 2340.9, "2,341"),
        ("waves", 0.75, "0.75"),
        ("tail", 0.25, "25.0 %"),
        ("occupancy_pct", 12.0, "12.0 %"),
        ("shared_memory_bytes", 1024, "1 KiB"),
        ("registers_per_thread", 255, "255"),
        ("compute_pct", float("nan"), "–"),
    ],
)
def test_the_suffix_of_a_field_says_how_its_value_reads(
    field: str, value: Any, expected: str
) -> None:
    assert expected == cell(field, value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x256_tn", "ampere_bf16_s16816gemm_bf16_128x256_tn"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        (
            (
                "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, "
                "2, 64, 64>(float*, at::native::(anonymous namespace)::Meta<float>, int)"
            ),
            "CatArrayBatchedCopy<float, unsigned int, 2, 64, 64>",
        ),
        (
            (
                "void at::native::vectorized_elementwise_kernel<4, at::native::sqrt_kernel_cuda("
                "at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda()#2}"
                "::operator()() const::{lambda(float)#1}, at::detail::Array<char*, 2> >(int, int)"
            ),
            "vectorized_elementwise_kernel<4, sqrt_kernel_cuda(float)>",
        ),
        (
            "void cutlass::Kernel<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32>(Params)",
            "Kernel<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32>",
        ),
        (
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
            "ncclKernel_AllReduce_RING_LL_Sum_float",
        ),
        ("", ""),
        ("()", "()"),
        ("void", "void"),
    ],
)
def test_a_kernel_is_named_without_what_all_of_its_kind_repeat(name: str, expected: str) -> None:
    assert expected == readable_kernel(name)


@given(st.text(alphabet="ab<>(){}:,#*& _operator()lambda", max_size=80))
def test_any_name_has_a_readable_form(name: str) -> None:
    text = readable_kernel(name)
    assert bool(text) == bool(name.removeprefix("void "))


def test_a_narrow_terminal_drops_the_least_informative_columns() -> None:
    row = {"kernel": "k" * 99, "operator": "aten::mm", "calls": 3, "total_ms": 1.0, "mean_us": 5.0}
    row |= {"flops": 10**9, "tflops_per_s": 1.0, "bytes": 10**6, "gb_per_s": 1.0, "share": 0.5}
    text = Table([row], list(row)).text(60)
    *lines, note = text.splitlines()
    assert max(map(len, lines)) <= 60
    assert "… without mean, bytes, flops, GB/s, TFLOP/s: COLUMNS=160 shows more" == note
    assert {"kernel", "calls", "total", "share"} <= set(lines[0].split())
    assert "without" not in Table([row], list(row)).text(160)
    assert "without" not in Table([row], list(row)).text()


def test_a_sentence_is_wrapped_and_stretches_no_table() -> None:
    row: dict[str, Any] = {"metric": "flops", "value": 1, "reason": "the mask is unknown, " * 9}
    lines = Table([row] * 2, list(row)).text(60, {"metric": "total"}).splitlines()
    assert max(map(len, lines)) <= 60
    assert ["flops", "flops", "total"] == [line.split()[0] for line in lines if line[0].isalpha()][
        1:
    ]
    assert 2 == sum(line.startswith("---") for line in lines)
    assert row["reason"].strip() in Table([row], list(row)).text()


def test_of_a_stack_the_innermost_end_is_kept() -> None:
    rows = [{"stack": "outer.py(1): run;" * 9 + "model.py(7): forward", "calls": 1}]
    assert "…" == Table(rows, ("stack", "calls")).text(50).splitlines()[-1][0]
    assert "model.py(7): forward" in Table(rows, ("stack", "calls")).text(50)


def test_counted_names_survive_a_copy_and_a_pickle() -> None:
    names = CountedNames([("gemm", 3), ("fill", 2)])
    for same in (copy.deepcopy(names), pickle.loads(pickle.dumps(names))):
        assert (same, same.parts, same.counted) == ("gemm ×3, fill ×2", names.parts, True)
