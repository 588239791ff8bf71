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

from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.metrics import METRICS, measure
from pytest_torchprof.verdict.values import bound_ms
from pytest_torchprof.work.devices import chip_named

T4 = chip_named("T4")
X, W, BIAS = torch.randn(4, 5), torch.randn(6, 5), torch.randn(6)
HALF, Q = torch.randn(4, 5).bfloat16(), torch.randn(1, 2, 8, 4)
IMAGE, KERNEL, CHANNELS = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
ONES, CLASSES = torch.ones(3), torch.tensor([1, 0, 2, 3])
MASK = X > 0
LIST = [torch.zeros(4) for _ in range(5)]
LONG = [torch.zeros(4) for _ in range(120)]
DOUBLE = Q.double()
EYE, COMPLEX = torch.eye(3), torch.ones(2, dtype=torch.complex64)
CELL = torch.nn.LSTMCell(5, 3)
HEADS = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
TOKENS = torch.ones(1, 3, 8)
WEIGHT = torch.randn(4, 5, requires_grad=True)


def step(count: int = 2, **how: Any) -> Callable[[], Any]:
    """A step of Adam that has taken one before, on weights with gradients."""
    weights = [torch.nn.Parameter(torch.ones(4)) for _ in range(count)]
    for weight in weights:
        weight.grad = torch.ones(4)
    optimizer = torch.optim.Adam(weights, **how)
    optimizer.step()
    return optimizer.step


def adagrad(count: int) -> Callable[[], Any]:
    """A step of Adagrad on this many weights."""
    weights = [torch.nn.Parameter(torch.ones(4)) for _ in range(count)]
    for weight in weights:
        weight.grad = torch.ones(4)
    return torch.optim.Adagrad(weights, fused=True).step


@torch.no_grad()
def heads() -> None:
    """Attention with several heads, without its weights."""
    HEADS(TOKENS, TOKENS, TOKENS, need_weights=False)


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
    "many of Adagrad, whose counters are apart": (adagrad(80), 1 + 2),
    # what the CPU makes of others, and a device, too
    "draws with deviations, checked twice": (lambda: torch.normal(X, X.abs()), 1 + 7),
    "draws with one deviation": (lambda: torch.normal(X, 1.0), 2),
    "places": (EYE.to_sparse, 4 + 1),
    "a choice without replacement": (lambda: torch.multinomial(ONES, 2), 13),
    "and with it": (lambda: torch.multinomial(ONES, 2, replacement=True), 1),
    "all pairs compared": (lambda: torch.isin(CLASSES, CLASSES[:2]), 2),
    # what only the CPU checks
    "a quantile": (lambda: X.quantile(0.5), 15),
    # nothing at all
    "channels that are not dropped": (lambda: F.dropout2d(IMAGE, training=False), 0),
    "alpha dropout in evaluation": (lambda: F.alpha_dropout(X, training=False), 0),
    "a product of one": (lambda: torch.cartesian_prod(ONES), 0),
    "axes that einsum swaps": (lambda: torch.einsum("ij->ji", X), 0),
    "a list of one": (lambda: torch.cat([X]), 0),
    "a list of two": (lambda: torch.cat([X, X]), 1),
    "a list longer than torch records": (lambda: torch.cat(LONG), 1),
    "a sum to the same size": (lambda: X.sum_to_size(4, 5), 0),
    "an einsum": (lambda: torch.einsum("ij,kj->ik", X, W), 1),
    "the conjugate of a real tensor": (X.conj_physical, 0),
    "of a complex one": (COMPLEX.conj_physical, 1),
    # what a device does as a whole
    "attention with dropout": (lambda: F.scaled_dot_product_attention(Q, Q, Q, None, 0.1), 1),
    "in a type that has no fused form": (
        lambda: F.scaled_dot_product_attention(DOUBLE, DOUBLE, DOUBLE, None, 0.1), 10),
    "a cell": (lambda: CELL(X), 1 + 3),
    "heads in evaluation": (heads, 3),
}  # fmt: skip


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
    assert "mylib::step" in value.reason.text
    assert "starts an unknown number of kernels" in value.reason.text


@pytest.mark.parametrize("on_device", [False, True])
def test_parts_of_another_library_s_operator_count_where_a_device_ran_them(
    on_device: bool,
) -> None:
    """How it works on the CPU says nothing of a device: there, it starts one kernel at least."""
    b = TraceBuilder("NVIDIA H100 80GB HBM3" if on_device else None)
    with b.op("mylib::step", [[4]], ["float"]):
        for name in ("aten::relu", "aten::neg", "aten::exp"):
            with b.op(name, [[4]], ["float"]):
                if on_device:
                    b.launch(name)
    value = measure(METRICS["launches"], parse_trace(b.to_bytes()))
    assert isinstance(value, MissingValue)
    assert (3 if on_device else 1, True) == (value.at_hand, value.at_least)


def test_code_that_was_compiled_for_the_cpu_is_not_measured() -> None:
    b = TraceBuilder()
    b.op("aten::relu", [[4]], ["float"])
    with b.op("## Call CompiledFxGraph abc ##"):
        b.op("aten::mm", [[4, 4], [4, 4]], ["float", "float"])
    value = measure(METRICS["launches"], parse_trace(b.to_bytes()))
    assert isinstance(value, MissingValue)
    assert "compiled for the CPU" in value.reason.text


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


@pytest.mark.parametrize("metric", ["launches", "host_reads", "bound_ms"])
def test_without_shapes_nothing_is_told(metric: str) -> None:
    b = TraceBuilder()
    for name in ("aten::relu", "aten::item"):
        with b.op(name), b.op("aten::_local_scalar_dense"):
            pass
    trace = parse_trace(b.to_bytes())
    value = bound_ms(trace, T4) if metric == "bound_ms" else measure(METRICS[metric], trace)
    assert isinstance(value, MissingValue)
    assert "recorded without shapes" in value.reason.text


def test_where_of_three_reads_nothing_even_without_shapes() -> None:
    b = TraceBuilder()
    with b.op("aten::where"):
        pass
    assert 0 == measure(METRICS["host_reads"], parse_trace(b.to_bytes()))


def test_kernels_of_a_graph_make_it_a_lower_bound() -> None:
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    with b.op("aten::relu", [[4]], ["float"]):
        b.launch("relu")
    b.graph_launch(["one", "two"])
    value = measure(METRICS["launches"], parse_trace(b.to_bytes()))
    assert isinstance(value, MissingValue)
    assert (1, True) == (value.at_hand, value.at_least)
    assert "was replayed from a graph" in value.reason.text
