"""What double precision costs."""

from __future__ import annotations

import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.read import parse_trace

ROWS = [1024, 64]
CONVERT = ["", "6", "False", "False", ""]


def cost_us(b: TraceBuilder) -> float:
    """All of it, in a test whose model is in float32."""
    b.op("aten::linear", [ROWS, [64, 64], [64]], ["float"] * 3, dur_us=1000)
    found = check(parse_trace(b.to_bytes()), [RULES["float64"]]).findings()
    return sum(one.cost_ms or 0 for one in found) * 1e3


def to_float32(b: TraceBuilder, shape: list[int] = ROWS) -> None:
    b.op("aten::to", [shape, [], [], [], []], ["double", "Scalar", "", "", ""], CONVERT, dur_us=100)


def test_a_promotion_costs_two_thirds_what_takes_it_half_and_the_cast_back_all() -> None:
    b = TraceBuilder()
    b.op("aten::sub", [ROWS, [64], []], ["float", "double", "Scalar"], dur_us=100)
    b.op("aten::div", [ROWS, []], ["double", "Scalar"], dur_us=100)
    to_float32(b)
    assert cost_us(b) == pytest.approx(65 + 50 + 100, abs=1)


def test_casts_of_other_tensors_are_not_those_back() -> None:
    b = TraceBuilder()
    to_float32(b)
    b.op("aten::mul", [ROWS, [64]], ["float", "double"], dur_us=100)
    for _ in range(3):
        to_float32(b)
    assert cost_us(b) == pytest.approx(65 + 100, abs=1)


def promoted(b: TraceBuilder) -> None:
    b.op("aten::mul", [ROWS, [64]], ["float", "double"], dur_us=100)


def test_each_promotion_has_a_cast_back() -> None:
    b = TraceBuilder()
    promoted(b)
    promoted(b)
    for _ in range(3):
        to_float32(b)
    assert cost_us(b) == pytest.approx(2 * (65 + 100), abs=1)


@pytest.mark.parametrize(("other", "expected_us"), [("slice", 165), ("relu", 65)])
def test_a_cast_of_another_size_is_one_back_if_it_follows(other: str, expected_us: float) -> None:
    b = TraceBuilder()
    promoted(b)
    b.op(f"aten::{other}", [ROWS], ["double" if other == "slice" else "float"], dur_us=1)
    to_float32(b, [512, 64])
    assert cost_us(b) == pytest.approx(expected_us, abs=1)


def test_what_is_not_promoted_costs_half_without_its_cast_which_is_needed_somewhere() -> None:
    b = TraceBuilder()
    b.op("aten::div", [ROWS, []], ["double", "Scalar"], dur_us=100)
    to_float32(b)
    assert cost_us(b) == pytest.approx(50, abs=1)


@pytest.mark.parametrize("name", ["std", "var_mean", "sort", "median"])
def test_on_a_cpu_some_operators_cost_the_same_in_any_precision(name: str) -> None:
    b = TraceBuilder()
    b.op("aten::mul", [ROWS, [64]], ["float", "double"], dur_us=100)
    b.op(f"aten::{name}", [ROWS, []], ["double", "Scalar"], dur_us=100)
    assert cost_us(b) == pytest.approx(65, abs=1)


@pytest.mark.parametrize(("name", "count"), [("sort", 0), ("sin", 1)])
def test_they_alone_are_left_alone(name: str, count: int) -> None:
    b = TraceBuilder()
    b.op(f"aten::{name}", [ROWS, []], ["double", "Scalar"], dur_us=100)
    to_float32(b)
    b.op("aten::linear", [ROWS, [64, 64], [64]], ["float"] * 3, dur_us=1000)
    found = check(parse_trace(b.to_bytes()), [RULES["float64"]])
    assert found.counts.get("float64", 0) == count


def test_on_a_device_they_cost_more_in_double_precision() -> None:
    b = TraceBuilder("NVIDIA A100-SXM4-40GB", (8, 0))
    with b.op("aten::mul", [ROWS, [64]], ["float", "double"]):
        b.launch("mul", 100)
    with b.op("aten::std", [ROWS, []], ["double", "Scalar"]):
        b.launch("reduce", 100)
    assert cost_us(b) == pytest.approx(65 + 50, abs=1)


def test_on_the_cpu_beside_a_device_they_cost_the_same() -> None:
    b = TraceBuilder("NVIDIA A100-SXM4-40GB", (8, 0))
    promoted(b)
    b.op("aten::std", [ROWS, []], ["double", "Scalar"], dur_us=10_000)
    with b.op("aten::linear", [ROWS, [64, 64], [64]], ["float"] * 3):
        b.launch("gemm", 1000)
    found = check(parse_trace(b.to_bytes()), [RULES["float64"]]).findings()
    assert [one.cost_ms is not None and one.cost_ms < 0.1 for one in found] == [True]
