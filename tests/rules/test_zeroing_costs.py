"""What filling gradients with zeros costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.rules import grad_not_none
from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.chip import on_cpu
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.facts import FACTS_KEY
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: As many float32 numbers as fill 1 MiB.
MIB = 1 << 18
ZERO_GRAD = "Optimizer.zero_grad#SGD.zero_grad"


def cost_us(b: TraceBuilder) -> float | None:
    (found,) = check(parse_trace(b.to_bytes()), [RULES["grad-not-none"]]).findings()
    return None if found.cost_ms is None else found.cost_ms * 1e3


@pytest.mark.parametrize(
    ("shapes", "expected_us"),
    [
        ([[4]], 52),  # what the operators take
        ([[MIB]], 52),
        ([[MIB + 1]], None),
        ([[512, 256], [512, 256], [1]], None),
    ],
)
def test_the_time_is_known_where_the_allocator_keeps_the_memory(
    shapes: list[list[int]], expected_us: float | None
) -> None:
    b = TraceBuilder()
    b.metadata(FACTS_KEY, {"torch": "2.13.0"})
    with b.annotation(REGION, 100):
        with b.annotation(ZERO_GRAD):
            for shape in shapes:
                b.op("aten::zero_", [shape], ["float"], dur_us=50 / len(shapes))
        b.advance(100)
        for shape in shapes:
            with b.op("torch::autograd::AccumulateGrad", [shape], ["float"]):
                b.op("aten::add_", [shape, shape], ["float"] * 2, dur_us=2 / len(shapes))
    assert cost_us(b) == (expected_us and pytest.approx(expected_us, rel=0.03))


@pytest.mark.parametrize(("dtype", "known"), [("c10::BFloat16", True), ("double", False)])
def test_what_the_allocator_keeps_is_counted_in_bytes(dtype: str, *, known: bool) -> None:
    b = TraceBuilder()
    with b.annotation(ZERO_GRAD):
        b.op("aten::zero_", [[MIB * 2 if known else MIB]], [dtype], dur_us=50)
    assert (cost_us(b) is not None) == known


@pytest.mark.parametrize("shape", [[], [0], [1]])
def test_the_smallest_gradients_have_a_cost(shape: list[int]) -> None:
    b = TraceBuilder()
    with b.annotation(ZERO_GRAD):
        b.op("aten::zero_", [shape], ["float"], dur_us=2)
    assert cost_us(b) == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize("by_memset", [True, False])
@pytest.mark.parametrize("shapes", [[[40 * MIB]], [[40 * MIB], [0]]])
@pytest.mark.parametrize("work_us", [50, 5000])
def test_on_a_device_gradients_of_any_size_cost_what_their_kernels_take(
    shapes: list[list[int]], work_us: float, *, by_memset: bool
) -> None:
    cost = cost_us(trained(shapes, work_us, by_memset=by_memset))
    assert cost == pytest.approx(2 * work_us, abs=15)


def test_of_gradients_on_both_those_on_the_cpu_decide() -> None:
    assert cost_us(trained([[40 * MIB]], 50, on_cpu=[MIB + 1])) is None
    assert cost_us(trained([[40 * MIB]], 50, on_cpu=[MIB])) is not None


def trained(
    shapes: list[list[int]],
    work_us: float,
    *,
    by_memset: bool = False,
    on_cpu: list[int] | None = None,
) -> TraceBuilder:
    """A step on a device, in which each gradient but an empty one is filled, and added to."""
    b = TraceBuilder("NVIDIA H100 80GB HBM3", (9, 0))
    with b.annotation(ZERO_GRAD):
        for shape in shapes:
            with b.op("aten::zero_", [shape], ["float"]):
                if by_memset and shape != [0]:
                    b.memset(160 * MIB, work_us)
                elif shape != [0]:
                    b.launch("fill", work_us)
        if on_cpu:
            b.op("aten::zero_", [on_cpu], ["float"], dur_us=5)
    with b.op("aten::mm", [[8, 8], [8, 8]], ["float"] * 2):
        b.launch("gemm", 30_000)
    for shape in shapes:
        with (
            b.op("torch::autograd::AccumulateGrad", [shape], ["float"]),
            b.op("aten::add_", [shape, shape], ["float"] * 2),
        ):
            if shape != [0]:
                b.launch("add", work_us)
    return b


def test_the_time_is_unknown_of_a_list_whose_shapes_torch_omits() -> None:
    b = TraceBuilder()
    with b.annotation(ZERO_GRAD):
        b.op("aten::_foreach_zero_", dur_us=50)
    assert cost_us(b) is None


def test_the_time_is_unknown_of_an_operator_without_operands() -> None:
    b = TraceBuilder()
    with b.annotation(ZERO_GRAD):
        b.op("aten::zero_", [], [], dur_us=50)
    assert cost_us(b) is None


def test_several_calls_look_through_the_trace_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()

    def counted(trace: Events, rows: Ints) -> Bools:
        asked.append(len(rows))
        return on_cpu(trace, rows)

    monkeypatch.setattr(grad_not_none, "on_cpu", counted)
    b = TraceBuilder()
    for _ in range(5):
        with b.annotation(ZERO_GRAD):
            b.op("aten::zero_", [[4]], ["float"], dur_us=2)
    assert cost_us(b) == pytest.approx(10, rel=0.1)
    assert asked == [5]
