"""Kernels that an operator starts on a device, by its operands."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.work.dispatch import COMPOSITES
from pytest_torchprof.work.launches import (
    LAUNCHES,
    READS,
    TO_PYTHON,
    chunked,
    count_launches,
    count_long_list,
    count_reads,
    is_part,
    launches_of,
)
from pytest_torchprof.work.operands import Operands

FLOAT = "float"
CASES: dict[str, tuple[str, Any, int]] = {
    "one, as most": ("relu", ([[4, 5]], [FLOAT], [""]), 1),
    "a view": ("transpose", ([[4, 5], [], []], [FLOAT, "Scalar", "Scalar"], ["", "0", "1"]), 0),
    "an allocation": ("empty", ([[]], ["ScalarList"], ["[4]"]), 0),
    "on nothing": ("relu", ([[0, 5]], [FLOAT], [""]), 0),
    "a cast": ("copy_", ([[4], [4]], ["double", FLOAT], ["", ""], [[1], [1]]), 1),
    "a plain copy": ("copy_", ([[4, 5]] * 2, [FLOAT] * 2, ["", ""], [[5, 1]] * 2), 0),
    "a transposing copy": ("copy_", ([[4, 5]] * 2, [FLOAT] * 2, ["", ""], [[5, 1], [1, 4]]), 1),
    "a copy with gaps": ("copy_", ([[4, 5]] * 2, [FLOAT] * 2, ["", ""], [[9, 1]] * 2), 1),
    "a copy without strides": ("copy_", ([[4, 5]] * 2, [FLOAT] * 2, ["", ""]), 1),
    "dropout in training": ("dropout", ([[4], [], []], None, ["", "0.5", "True"]), 1),
    "dropout in evaluation": ("dropout", ([[4], [], []], None, ["", "0.5", "False"]), 0),
    "a convolution": ("convolution", ([[1, 3, 8, 8], [4, 3, 3, 3], []], None, None), 1),
    "with a bias": ("convolution", ([[1, 3, 8, 8], [4, 3, 3, 3], [4]], None, None), 2),
    "its backward": ("convolution_backward", ([[1]], None, ["", "[True, True, False]"]), 2),
    "a layer norm's backward": (
        "native_layer_norm_backward", ([[1]], None, ["", "[True, True, True]"]), 2),
    "only of its input": (
        "native_layer_norm_backward", ([[1]], None, ["", "[True, False, False]"]), 1),
    "positions in a vector": ("nonzero", ([[16]], ["bool"], [""]), 3),
    "in a matrix": ("nonzero", ([[4, 4]], ["bool"], [""]), 4),
    "of many": ("nonzero", ([[8192]], ["bool"], [""]), 4),
    "a scan of a vector": ("cumsum", ([[9], [], []], [FLOAT], None), 2),
    "of rows": ("cumsum", ([[9, 9], [], []], [FLOAT], None), 1),
    "a sum of bits": ("sum", ([[9]], ["bool"], None), 2),
    "a mean loss": ("mse_loss", ([[9], [9], []], None, ["", "", "1"]), 2),
    "each loss": ("mse_loss", ([[9], [9], []], None, ["", "", "0"]), 1),
    "a list": ("_foreach_add_", ([[[4], [4]], []], ["TensorList", "Scalar"], ["", "1"]), 1),
    "a long list": ("_foreach_add_", ([[[9_000_000]] * 3, []], ["TensorList", "Scalar"], []), 2),
    "counters on the host": (
        "_foreach_add_", ([[[], []], [], []], ["TensorList", FLOAT, "Scalar"], []), 0),
    "counters on the device": ("_foreach_add_", ([[[], []], []], ["TensorList", "Scalar"], []), 1),
    "an unknown list": ("_foreach_add_", ([[], []], ["", "Scalar"], ["", "1"]), 1),
    "norms of a list": ("_foreach_norm", ([[[4]] * 2, []], ["TensorList", "Scalar"], ["", "2"]), 3),
    "a square": ("pow", ([[4], []], [FLOAT, "Scalar"], ["", "2"]), 1),
    "a square's gradient": ("pow", ([[4], []], [FLOAT, "Scalar"], ["", "1."]), 0),
    "a power of each": ("pow", ([[4], [4]], [FLOAT] * 2, ["", ""]), 1),
    "a power of a number": ("pow", ([[], [4]], ["Scalar", FLOAT], ["1", ""]), 1),
    "sums of a sparse tensor": ("_coalesce", ([[9, 9]], [FLOAT], [""]), 6),
    "a sparse tensor of others": (
        "sparse_coo_tensor", ([[1, 4], [4, 2], []], ["long", FLOAT, "ScalarList"],
                              ["", "", "[9, 2]"]), 0),
    "places of a dense tensor": (
        "sparse_mask", ([[9, 2]] * 2, [FLOAT] * 2, ["", ""], [[2, 1], []]), 3),
    "places of a sparse tensor": (
        "sparse_mask", ([[9, 2]] * 2, [FLOAT] * 2, ["", ""], [[], []]), 1),
    "attention's gradients": (
        "_scaled_dot_product_efficient_attention_backward", ([[1, 2, 8, 4]], [FLOAT], [""]), 3),
    "a value": ("_local_scalar_dense", ([[]], [FLOAT], [""]), 0),
    "where of one": ("where", ([[16]], ["bool"], [""]), 3),
    "where of three": ("where", ([[16]] * 3, ["bool", FLOAT, FLOAT], [""] * 3), 1),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_call_starts_so_many(case: str) -> None:
    name, operands, expected = CASES[case]
    row = launches_of(f"aten::{name}")
    assert row is not None
    assert expected == count_launches(row, Operands(*operands))


def test_norms_of_a_long_list_take_zeros_and_sums() -> None:
    call = Operands([[], [], []], ["TensorList", "Scalar", ""], ["", "2", ""])
    assert 3 == count_long_list("aten::_foreach_norm", call, [[4]] * 70)


def test_what_nobody_knows_has_no_number() -> None:
    assert launches_of("mylib::step") is None
    assert launches_of("aten::linalg_svd") is None or is_part("aten::linalg_svd")
    assert launches_of("aten::lstm") is None


@pytest.mark.parametrize("name", sorted(LAUNCHES))
def test_a_call_with_strange_operands_starts_one_at_most(name: str) -> None:
    strange: list[Any] = [None, [], [None], "x", [[[[]]]]]
    for dims in strange:
        row = launches_of(name)
        assert row is not None
        count = count_launches(row, Operands(dims, None, None))
        assert count == row.count if isinstance(row.count, int) else count >= 0


@pytest.mark.thorough
@given(st.lists(st.integers(0, 10**8), max_size=40), st.integers(1, 5))
def test_a_longer_list_starts_no_fewer(sizes: list[int], lists: int) -> None:
    count = chunked(sizes, lists)
    assert count <= chunked([*sizes, 1], lists) <= count + 1
    assert count >= sum(-(-size // 65_536) for size in sizes) / 320
    assert (count == 0) == (not any(sizes))


@pytest.mark.thorough
def test_composites_have_no_kernel_for_the_cpu() -> None:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    every: dict[str, list[bool]] = {}
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.partition(".")
        if base in COMPOSITES and "out" not in overload:
            every.setdefault(base, []).append(has(name, "CPU"))
    assert [] == [name for name, on_cpu in every.items() if any(on_cpu)]


@pytest.mark.parametrize(
    ("name", "operands", "expected"),
    [
        ("_local_scalar_dense", ([[]], [FLOAT], [""]), 1),
        ("one_hot", ([[4], []], ["long", "Scalar"], ["", "-1"]), 1),
        ("one_hot", ([[4], []], ["long", "Scalar"], ["", "5"]), 0),
        ("one_hot", ([[4], []], ["long", "Scalar"], None), 1),
        ("bincount", ([[4]], ["long"], [""]), 2),
        ("_coalesce", ([[1000, 16]], [FLOAT], [""]), 1),
    ],
)
def test_a_call_reads_so_often(name: str, operands: Any, expected: int) -> None:
    assert expected == count_reads(f"aten::{name}", Operands(*operands))


def test_what_reads_is_an_operator_of_torch() -> None:
    known = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    assert set() == {name for name in (*READS, *LAUNCHES) if name.startswith("aten::")} - known - {
        "aten::cudnn_convolution_backward",  # of torch before 1.11
        "aten::miopen_convolution_backward",
        "aten::mkldnn_convolution_backward",
    }


def test_the_rule_is_triggered_by_what_reads() -> None:
    (pattern,) = RULES["host-read"].least
    assert all(re.match(pattern, name) for name in (*READS, TO_PYTHON[1]))
