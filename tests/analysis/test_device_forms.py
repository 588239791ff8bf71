"""What a device runs as a whole and the CPU by parts, in the forward and the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from support.live import captured
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.estimates import others_only_help
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.metrics import METRICS, measure
from pytest_torchprof.verdict.values import bound_ms
from pytest_torchprof.work.devices import chip_named

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

Q = torch.randn(2, 2, 16, 8)
GRADIENT = torch.randn(2, 2, 16, 8, requires_grad=True)
STEPS, MATRIX = torch.randn(5, 2, 8), torch.eye(4) + 1
T4 = chip_named("T4")


def attention(x: torch.Tensor) -> torch.Tensor:
    """With dropout, the CPU runs it by parts."""
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)


def backward() -> None:
    """A forward and a backward pass of attention."""
    torch.autograd.backward(attention(GRADIENT).sum())


def trained(layer: torch.nn.Module) -> Callable[[], Any]:
    """A forward and a backward pass."""
    return lambda: torch.autograd.backward(layer(STEPS)[0].sum())


def value(name: str, block: Callable[[], Any], folder: Path) -> Any:
    block()
    return measure(METRICS[name], captured(block, folder))


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (torch.nn.LSTM(8, 8), "aten::lstm"),
        (torch.nn.GRU(8, 8), "aten::gru"),
        (torch.nn.RNN(8, 8), "aten::rnn_tanh"),
    ],
)
def test_recurrent_layers_start_an_unknown_number(
    layer: torch.nn.Module, name: str, tmp_path: Path
) -> None:
    """One of their own, and one for each state that the layer fills."""
    found = value("launches", lambda: layer(STEPS), tmp_path)
    assert isinstance(found, MissingValue)
    assert found.at_least
    assert found.at_hand is not None
    assert found.at_hand <= 3
    assert name in found.reason.text


@pytest.mark.parametrize("make", [torch.nn.LSTM, torch.nn.GRU])
def test_steps_of_a_recurrent_layer_s_backward_pass_do_not_count(make: Any, tmp_path: Path) -> None:
    """What counts beside the layer: its states, the sum, and gradients of parameters."""
    layer = make(8, 8)
    found = value("launches", trained(layer), tmp_path)
    assert isinstance(found, MissingValue)
    assert found.at_hand is not None
    assert found.at_hand <= 3 + 2 + 4


@pytest.mark.parametrize(
    "block",
    [
        lambda: torch.linalg.inv(MATRIX),
        lambda: torch.linalg.solve(MATRIX, MATRIX),
        lambda: torch.linalg.cholesky(torch.eye(3)),
    ],
)
def test_decompositions_start_an_unknown_number_and_read_their_error(
    block: Callable[[], Any], tmp_path: Path
) -> None:
    assert isinstance(value("launches", block, tmp_path), MissingValue)
    assert 1 == value("host_reads", block, tmp_path)


def test_what_a_library_may_read_is_not_known(tmp_path: Path) -> None:
    found = value("host_reads", lambda: torch.linalg.eig(MATRIX), tmp_path)
    assert isinstance(found, MissingValue)
    assert (1, True) == (found.at_hand, found.at_least)


def test_attention_by_parts_is_three_kernels_backward(tmp_path: Path) -> None:
    """With one forward, a sum, its gradient, and the accumulation."""
    found = value("launches", backward, tmp_path)
    assert 1 + 1 + 1 + 3 + 1 == found


def test_attention_by_parts_moves_no_more_than_fused(tmp_path: Path) -> None:
    """A bound on the products alone, and a kernel's time."""
    large = torch.randn(1, 4, 512, 64)

    def run(drop: float) -> Events:
        return captured(
            lambda: F.scaled_dot_product_attention(large, large, large, dropout_p=drop), tmp_path
        )

    by_parts, fused = run(0.1), run(0.0)
    at_least, whole = bound_ms(by_parts, T4), bound_ms(fused, T4)
    assert isinstance(at_least, float)
    assert isinstance(whole, float)
    assert 0 < at_least <= whole


@pytest.mark.parametrize(
    ("block", "names"),
    [
        (lambda: attention(GRADIENT), "aten::scaled_dot_product_attention"),
        (backward, "aten::scaled_dot_product_attention"),
        (trained(torch.nn.GRU(8, 8)), "aten::gru"),
    ],
)
def test_a_peak_with_results_of_parts_is_not_measured(
    block: Callable[[], Any], names: str, tmp_path: Path
) -> None:
    found = value("estimated_cuda_bytes", block, tmp_path)
    assert isinstance(found, MissingValue)
    assert f"the CPU runs {names} by parts" in found.reason.text


def test_without_gradients_the_parts_leave_nothing(tmp_path: Path) -> None:
    """A result of 2 KiB, which is all that is left of it."""
    assert 2048 == value("estimated_cuda_bytes", lambda: attention(Q), tmp_path)


@pytest.mark.parametrize("within", [True, False])
def test_threads_that_work_within_a_call_only_help(within: bool) -> None:
    b = TraceBuilder()
    with b.annotation(REGION):
        with b.op("aten::relu", [[4]], ["float"]):
            b.advance(10)
            if within:
                with b.thread(77), b.op("aten::empty", [[4]], ["float"]):
                    pass
            b.advance(10)
        if not within:
            with b.thread(77), b.op("aten::empty", [[4]], ["float"]):
                pass
    assert within == others_only_help(parse_trace(b.to_bytes()))
