"""What elementwise operators read and write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.work.bytes import REDUCTIONS, compulsory_bytes, is_elementwise, read, written
from pytest_torchprof.work.operands import Operands, Tensor, UnknownOperandError

HALF, FLOAT, LONG, NUMBER = "c10::Half", "float", "long int", "Scalar"


def call(dims: list[Any], types: list[str], concrete: list[str] | None = None) -> Operands:
    return Operands(dims, types, concrete or [""] * len(dims))


def plain(tensors: list[Tensor]) -> list[tuple[tuple[int, ...], str]]:
    return [(t.shape, t.dtype) for t in tensors]


@pytest.mark.parametrize(
    ("name", "operands", "inputs", "output"),
    [
        ("relu", call([[4, 5]], [HALF]), [((4, 5), HALF)], ((4, 5), HALF)),
        ("mul", call([[4, 1], [5]], [HALF, FLOAT]),
         [((4, 1), HALF), ((5,), FLOAT)], ((4, 5), FLOAT)),
        ("mul", call([[4, 5], []], [HALF, "double"]), [((4, 5), HALF)], ((4, 5), HALF)),
        ("add_", call([[4, 5], [5], []], [HALF, HALF, NUMBER]),
         [((4, 5), HALF), ((5,), HALF)], ((4, 5), HALF)),
        ("gt", call([[4, 5], []], [FLOAT, NUMBER], ["", "0"]), [((4, 5), FLOAT)],
         ((4, 5), "bool")),
        ("div", call([[4, 5], [5]], [LONG, LONG]), [((4, 5), LONG), ((5,), LONG)],
         ((4, 5), FLOAT)),
        ("copy_", call([[4, 5], [4, 5], []], [FLOAT, HALF, NUMBER]), [((4, 5), HALF)],
         ((4, 5), FLOAT)),
        ("native_dropout", call([[4, 5], [], []], [HALF, NUMBER, NUMBER]), [((4, 5), HALF)],
         ((4, 5), HALF)),
        ("native_dropout_backward", call([[4, 5], [4, 5], []], [HALF, "bool", NUMBER]),
         [((4, 5), HALF), ((4, 5), "bool")], ((4, 5), HALF)),
    ],
)  # fmt: skip
def test_what_a_call_reads_and_writes(
    name: str, operands: Operands, inputs: list[Any], output: Any
) -> None:
    assert is_elementwise(f"aten::{name}")
    assert plain(read(f"aten::{name}", operands)) == inputs
    assert plain([written(f"aten::{name}", operands)]) == [output]


def test_a_reduction_reads_its_input_and_is_not_elementwise() -> None:
    operands = call([[4, 5], [], [], []], [HALF, "ScalarList", NUMBER, ""])
    assert {one: plain(read(one, operands)) for one in sorted(REDUCTIONS)} == {
        one: [((4, 5), HALF)] for one in sorted(REDUCTIONS)
    }
    assert not any(map(is_elementwise, REDUCTIONS))


@pytest.mark.parametrize("name", ["aten::mm", "aten::fill_", "aten::embedding", "mylib::mul", ""])
def test_other_operators_are_not_elementwise(name: str) -> None:
    assert not is_elementwise(name)


def test_shapes_that_do_not_fit_are_unknown() -> None:
    with pytest.raises(UnknownOperandError):
        written("aten::add", call([[4, 5], [3]], [HALF] * 2))


SHAPES = st.lists(st.integers(0, 5), max_size=3)


@given(st.sampled_from(["mul", "sub_", "atan2", "lt", "true_divide"]), SHAPES, SHAPES)
def test_the_bytes_of_a_call_are_those_that_it_reads_and_writes(
    name: str, left: list[int], right: list[int]
) -> None:
    operands = call([left, right], [FLOAT, FLOAT])
    known = compulsory_bytes(f"aten::{name}", [left, right], [FLOAT] * 2, None, ["", ""])
    try:
        moved = sum(t.bytes for t in read(f"aten::{name}", operands))
        moved += written(f"aten::{name}", operands).bytes
    except UnknownOperandError:
        assert known is None
    else:
        assert known == moved
