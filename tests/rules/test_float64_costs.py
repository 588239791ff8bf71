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


def to_float32(b: TraceBuilder) -> None:
    b.op("aten::to", [ROWS, [], [], [], []], ["double", "Scalar", "", "", ""], CONVERT, dur_us=100)


def test_a_promotion_and_what_takes_it_cost_half() -> None:
    b = TraceBuilder()
    b.op("aten::sub", [ROWS, [64], []], ["float", "double", "Scalar"], dur_us=100)
    b.op("aten::div", [ROWS, []], ["double", "Scalar"], dur_us=100)
    to_float32(b)
    assert cost_us(b) == pytest.approx(50 + 50, abs=1)


def test_what_is_not_promoted_costs_half_without_its_cast_which_is_needed_somewhere() -> None:
    b = TraceBuilder()
    b.op("aten::div", [ROWS, []], ["double", "Scalar"], dur_us=100)
    to_float32(b)
    assert cost_us(b) == pytest.approx(50, abs=1)


def test_on_a_device_the_kernels_cost_half() -> None:
    b = TraceBuilder("NVIDIA A100-SXM4-40GB", (8, 0))
    for name in ("mul", "std"):
        with b.op(f"aten::{name}", [ROWS, [64]], ["float", "double"]):
            b.launch(name, 100)
    assert cost_us(b) == pytest.approx(50 + 50, abs=1)
