"""Bytes that operators must move: counted by hand, and what keeps them from being known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from support.live import captured
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.moved_bytes import moved_bytes
from pytest_torchprof.core.unknown import Sentence, Why, because
from pytest_torchprof.core.values import MissingValue, Value
from pytest_torchprof.trace.facts import Facts
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.metrics import METRICS, measure

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

X, W, COLUMN = torch.randn(4, 5), torch.randn(5, 6), torch.randn(4, 1)
TO, ROWS = torch.zeros(4, 5), torch.tensor([1, 2])
IMAGE, KERNEL, BIAS = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
TO64, MASK = torch.zeros(4, 5, dtype=torch.float64), torch.zeros(4, 5, dtype=torch.bool)
SCORES, CLASSES = torch.randn(4, 5, requires_grad=True), torch.tensor([1, 0, 2, 3])


def moved(trace: Events) -> Value:
    return measure(METRICS["moved_bytes"], trace)


def gap(trace: Events) -> MissingValue:
    value = moved(trace)
    assert isinstance(value, MissingValue)
    return value


# ------------------------------------------------------------------------------- by hand, live

BY_HAND: dict[str, tuple[Callable[[], Any], int]] = {
    "mm": (lambda: X @ W, 4 * (20 + 30 + 24)),
    "add, broadcast": (lambda: X + COLUMN, 4 * (20 + 4 + 20)),
    "relu": (X.relu, 4 * (20 + 20)),
    "cat": (lambda: torch.cat([X, X]), 4 * (40 + 40)),
    "embedding": (lambda: F.embedding(ROWS, X), 8 * 2 + 4 * (10 + 10)),
    "conv2d": (lambda: F.conv2d(IMAGE, KERNEL, BIAS), 4 * (384 + 108 + 4 + 2 * 4 * 36)),
    "layer_norm": (lambda: F.layer_norm(X, (5,)), 4 * (20 + 20 + 2 * 4)),
    "copy_": (lambda: TO.copy_(X), 4 * (20 + 20)),
    "view": (lambda: TO.view(20)[3:].unsqueeze(0), 0),
    "in-place": (lambda: TO.mul_(2), 4 * (20 + 20)),
    # nested operators count once: the sum's own `fill_`, the cast's `copy_`, the batch of lists
    "sum": (X.sum, 4 * (20 + 1)),
    "to": (lambda: X.to(torch.float64), 4 * 20 + 8 * 20),
    "stack of doubles": (lambda: torch.stack([TO64, TO64]), 8 * (40 + 40)),
    "arange": (lambda: torch.arange(2, 9, 3), 8 * 3),
    "item": (lambda: float(COLUMN[0, 0]), 4),
    # without a rule of its own, an operator is its parts: clone, then masked_fill_
    "masked_fill": (lambda: X.masked_fill(MASK, 0.0), 4 * 40 + (4 * 40 + 20)),
    # uniform numbers written; divided in place; multiplied
    "dropout": (lambda: F.dropout(X), 4 * (20 + 40 + 60)),
    "allocation": (lambda: torch.empty(9), 0),
    "nothing": (lambda: None, 0),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_bytes_of_what_ran_are_those_counted_by_hand(name: str, tmp_path: Path) -> None:
    block, expected = BY_HAND[name]
    block()
    assert expected == moved(captured(block, tmp_path))


def test_forward_and_backward_of_a_loss_are_known(tmp_path: Path) -> None:
    def step() -> None:
        F.cross_entropy(SCORES, CLASSES).backward()  # type: ignore[no-untyped-call]
        SCORES.grad = None

    step()
    softmax, loss, ones = 4 * 40, 8 * 4 + 4 * (4 + 1 + 1), 4
    loss_back, softmax_back = 4 + 8 * 4 + 4 * (20 + 1), 4 * 60
    total = softmax + loss + ones + loss_back + softmax_back
    assert total == moved(captured(step, tmp_path))


def test_bytes_of_parts_add_up_to_those_of_the_whole(tmp_path: Path) -> None:
    def block() -> None:
        (X @ W).relu().add_(1)

    block()
    trace = captured(block, tmp_path)
    parts = [moved(trace.within(op=name)) for name in ("aten::mm", "aten::relu", "aten::add_")]
    assert [296, 192, 192] == parts
    assert sum(part for part in parts if isinstance(part, int)) == moved(trace)


# ------------------------------------------------------------------------------- built traces


def built(b: TraceBuilder) -> Events:
    return parse_trace(b.to_bytes())


def test_bytes_of_kernels_are_those_of_their_operators_once() -> None:
    b = TraceBuilder("GPU")
    with b.annotation(REGION):
        with b.op("aten::linear"), b.op("aten::mm", [[4, 5], [5, 6]]):
            b.launch("gemm")
            b.launch("splitk_reduce")
        with b.op("aten::relu", [[4, 6]]), b.op("aten::clamp_min", [[4, 6], []]):
            b.launch("elementwise")
    assert 296 + 192 == moved(built(b))


@pytest.mark.parametrize(
    ("name", "dims", "why"),
    [
        ("aten::_fft_r2c", [[4, 5]], Why.NO_BYTES),  # no rule
        ("aten::mm", [[4, 5], [6, 5]], Why.NO_BYTES),  # no such product
        ("mylib::relu", [[4, 5]], Why.NO_BYTES),
    ],
)
def test_an_operator_without_a_number_makes_the_sum_a_lower_bound(
    name: str, dims: list[Any], why: Sentence
) -> None:
    b = TraceBuilder()
    with b.annotation(REGION):
        b.op("aten::mm", [[4, 5], [5, 6]])
        b.op(name, dims)
        b.op(name, dims)
    value = gap(built(b))
    assert (296, True) == (value.at_hand, value.at_least)
    assert f"{name} (2 calls" in value.reason.text
    assert because(*why).text in value.reason.text


def test_nothing_known_is_no_lower_bound() -> None:
    b = TraceBuilder()
    with b.annotation(REGION):
        b.op("aten::_fft_r2c", [[4, 5]])
    assert (None, True) == (gap(built(b)).at_hand, gap(built(b)).at_least)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("aten::view", True),
        ("aten::empty", True),
        ("aten::size", True),
        ("SumBackward0", True),
        ("autograd::engine::evaluate_function: SumBackward0", True),
        ("aten::index", False),
        ("aten::eye", False),
        ("mylib::step", False),
    ],
)
def test_views_allocations_and_queries_move_nothing(name: str, known: bool) -> None:
    b = TraceBuilder()
    with b.annotation(REGION):
        b.op(name, [[4, 5]])
    assert known == (moved(built(b)) == 0)


def test_the_innermost_operator_without_a_number_is_named() -> None:
    b = TraceBuilder()
    with b.annotation(REGION), b.op("mylib::outer", [[4]]), b.op("aten::index", [[4], []]):
        b.op("aten::view", [[4]])
    assert "aten::index" in gap(built(b)).reason.text
    assert "mylib" not in gap(built(b)).reason.text


@pytest.mark.parametrize(("elements", "known"), [(20, True), (21, False)])
def test_parts_account_for_an_operator_if_they_take_as_much_as_it_does(
    elements: int, known: bool
) -> None:
    b = TraceBuilder()
    with b.annotation(REGION), b.op("mylib::outer", [[elements]]):
        b.op("aten::relu", [[20]])
    assert known == (moved(built(b)) == 160)


def test_a_kernel_that_no_operator_launched_is_a_gap() -> None:
    b = TraceBuilder("GPU")
    with b.annotation(REGION):
        with b.op("aten::mm", [[4, 5], [5, 6]]):
            b.launch("gemm")
        b.launch("triton_mine")
        b.graph_launch(["k1", "k2"])
    text = gap(built(b)).reason.text
    assert "triton_mine (1 call" in text
    assert "k1 (1 call" in text
    assert because(*Why.REPLAYED).text in text


@pytest.mark.parametrize(
    ("mark", "known"),
    [
        ("## Call CompiledFxGraph f2p ##", False),
        ("Torch-Compiled Region: 0/0", True),  # of another backend: all it did are operators
    ],
)
def test_loops_of_inductors_are_no_operators(mark: str, known: bool) -> None:
    b = TraceBuilder()
    b.facts(Facts(marks_graphs=True))
    with b.annotation(REGION), b.annotation(mark):
        b.op("aten::mm", [[4, 5], [5, 6]])
    assert known == (moved(built(b)) == 296)
    if not known:
        value = gap(built(b))
        assert (296, True) == (value.at_hand, value.at_least)
        assert because(*Why.LOOPS).text in value.reason.text


def test_calls_of_packages_are_a_gap() -> None:
    b = TraceBuilder()
    b.facts(Facts(packages=2))
    with b.annotation(REGION):
        b.op("aten::relu", [[20]])
    assert 160 == gap(built(b)).at_hand


def test_where_nothing_ran_there_is_nothing_to_move_but_a_package_may() -> None:
    def alone(facts: Facts) -> TraceBuilder:
        b = TraceBuilder()
        b.facts(facts)
        with b.annotation(REGION):
            pass
        return b

    assert moved(built(alone(Facts()))) == 0
    assert gap(built(alone(Facts(packages=1)))).at_hand is None


def test_the_element_size_of_a_list_is_that_of_its_kernel_or_its_block() -> None:
    def joined(kernel: str | None, *blocks: int) -> Value:
        b = TraceBuilder("GPU" if kernel else None)
        with b.annotation(REGION):
            strides = [[[5, 1], [5, 1]], []]
            with b.op("aten::cat", [[[2, 5], [3, 5]], []], ["TensorList", ""], strides=strides):
                for block in blocks:
                    b.memory(block, "cpu")
                if kernel:
                    b.launch(kernel)
        return moved(built(b))

    assert 2 * 25 * 4 == joined(None, 100)
    assert 2 * 25 * 8 == joined(None, 200)
    assert 2 * 25 * 2 == joined("CatArrayBatchedCopy<OpaqueType<2u>, unsigned int, 2, 64, 64>")
    for blocks in ((), (128,), (75,), (100, 100)):
        assert isinstance(joined(None, *blocks), MissingValue)
    assert isinstance(joined("mine"), MissingValue)


def test_the_bytes_of_a_selection_are_computed_once() -> None:
    b = TraceBuilder()
    with b.annotation(REGION):
        b.op("aten::relu", [[20]])
    trace = built(b)
    assert moved_bytes(trace) is moved_bytes(trace)
