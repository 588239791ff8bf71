"""Kernels that a device would start for what ran on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from support.live import captured
from support.trace_builder import TraceBuilder

from pytest_torchprof.core.results import MissingValue
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.metrics import METRICS, measure

X, W, BIAS = torch.randn(4, 5), torch.randn(6, 5), torch.randn(6)
HALF, Q = torch.randn(4, 5).bfloat16(), torch.randn(1, 2, 8, 4)
IMAGE, KERNEL, CHANNELS = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
ONES, CLASSES = torch.ones(3), torch.tensor([1, 0, 2, 3])
MASK = X > 0
LIST = [torch.zeros(4) for _ in range(5)]
LONG = [torch.zeros(4) for _ in range(120)]
WEIGHT = torch.randn(4, 5, requires_grad=True)


def step(count: int = 2, **how: Any) -> Callable[[], Any]:
    """A step of Adam that has taken one before, on weights with gradients."""
    weights = [torch.nn.Parameter(torch.ones(4)) for _ in range(count)]
    for weight in weights:
        weight.grad = torch.ones(4)
    optimizer = torch.optim.Adam(weights, **how)
    optimizer.step()
    return optimizer.step


CASES: dict[str, tuple[Callable[[], Any], int]] = {
    "views alone": (lambda: X.t()[1:].unsqueeze(0).expand(2, -1, -1), 0),
    "elementwise": (lambda: X + 1, 1),
    "a composite of others": (lambda: F.softmax(X, 1), 1),
    "a linear layer, with what the CPU copies": (lambda: F.linear(X, W, BIAS), 1),
    "products of three dimensions": (lambda: X.expand(3, 4, 5) @ W.t(), 1),
    "a copy that moves nothing around": (X.clone, 0),
    "a copy that transposes": (lambda: X.t().contiguous(), 1),
    "a cast": (X.double, 1),
    "a layer norm": (lambda: F.layer_norm(X, (5,)), 1),
    "a batch norm": (lambda: F.batch_norm(IMAGE, ONES, ONES, training=True), 1),
    "a convolution": (lambda: F.conv2d(IMAGE, KERNEL), 1),
    "with a bias": (lambda: F.conv2d(IMAGE, KERNEL, CHANNELS), 2),
    "dropout, which the CPU makes of three": (lambda: F.dropout(X, 0.5), 1),
    "dropout that does nothing": (lambda: F.dropout(X, 0.5, training=False), 0),
    "attention": (lambda: F.scaled_dot_product_attention(Q, Q, Q), 1),
    "a deviation, which the CPU makes of several": (X.std, 1),
    "a loss": (lambda: F.cross_entropy(X, CLASSES), 2),
    "a row of a table": (lambda: F.embedding(CLASSES, X), 1),
    "a mask as an index": (lambda: X[MASK], 1 + 4),
    "a mask that is filled": (lambda: X.clone().masked_fill_(MASK, 0.0), 1),
    "a value": (lambda: X.sum().item(), 1),
    "a list of tensors": (lambda: torch._foreach_add_(LIST, 1.0), 1),
    "a list longer than one launch takes": (lambda: torch._foreach_add_(LONG, 1.0), 2),
    "two such lists, and a third of results": (lambda: torch._foreach_mul(LONG, LONG), 3),
    "a backward pass": (lambda: torch.autograd.backward((WEIGHT * 2).sum()), 5),
    # step, average, square, root, division, sum, quotient: of lists, but for the host's counters
    "an optimizer on lists": (step(foreach=True), 7),
    "one weight at a time": (step(foreach=False), 2 * 7),
    "all in one": (step(fused=True), 2),
    "many on lists": (step(80, foreach=True), 2 + 1 + 2 + 2 + 1 + 1 + 2),
    "many in one": (step(80, fused=True), 1 + 3),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("case", CASES)
def test_what_runs_on_the_cpu_would_start_so_many(case: str, tmp_path: Path) -> None:
    block, expected = CASES[case]
    block()
    assert expected == measure(METRICS["launches"], captured(block, tmp_path))


def test_an_operator_of_another_library_makes_it_a_lower_bound() -> None:
    b = TraceBuilder()
    with b.op("aten::relu", [[4]], ["float"]):
        pass
    with b.op("mylib::step", [[4]], ["float"]):
        pass
    value = measure(METRICS["launches"], parse_trace(b.to_bytes()))
    assert isinstance(value, MissingValue)
    assert (1, True) == (value.at_hand, value.at_least)
    assert "mylib::step" in in_words(value.reason)
    assert "starts an unknown number of kernels" in in_words(value.reason)


def test_another_library_s_operator_counts_by_its_parts() -> None:
    b = TraceBuilder()
    with b.op("mylib::step", [[4]], ["float"]):
        with b.op("aten::relu", [[4]], ["float"]):
            pass
        with b.op("aten::mul", [[4], [4]], ["float", "float"]):
            pass
    assert 2 == measure(METRICS["launches"], parse_trace(b.to_bytes()))


def test_code_that_was_compiled_for_the_cpu_is_not_measured() -> None:
    b = TraceBuilder()
    with b.op("## Call CompiledFxGraph abc ##"):
        pass
    value = measure(METRICS["launches"], parse_trace(b.to_bytes()))
    assert isinstance(value, MissingValue)
    assert "compiled for the CPU" in in_words(value.reason)


def test_loading_data_stays_on_the_host() -> None:
    b = TraceBuilder()
    with b.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
        with b.op("aten::stack", [[4]], ["float"]), b.op("aten::cat", [[4]], ["float"]):
            pass
        with b.op("aten::item", [[]], ["long"]), b.op("aten::_local_scalar_dense", [[]], ["long"]):
            pass
    with b.op("aten::relu", [[4]], ["float"]):
        pass
    trace = parse_trace(b.to_bytes())
    assert 1 == measure(METRICS["launches"], trace)
    assert 0 == measure(METRICS["host_reads"], trace)
