"""Labelled examples of the rule about modes for finding faults."""

from __future__ import annotations

import contextlib

import torch
from labelled.case import Examples
from support.trace_builder import TraceBuilder
from torch import nn

EXAMPLES = Examples()


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


@contextlib.contextmanager
def deterministic(*, fill: bool = True):
    """Deterministic mode, and back."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------ anomaly detection


@EXAMPLES.positive("debug-left-on", 3)
def epoch_under_anomaly_detection():
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    batches = [torch.randn(4, 8) for _ in range(3)]

    def epoch():
        with torch.autograd.set_detect_anomaly(True):
            for batch in batches:
                optimizer.zero_grad()
                model(batch).square().mean().backward()  # <- here
                optimizer.step()

    return epoch


@EXAMPLES.positive("debug-left-on", 3)
def gradients_of_a_penalty_are_looked_through():
    model = _model()

    def penalties():
        with torch.autograd.set_detect_anomaly(True):
            for _ in range(3):
                x = torch.randn(4, 8, requires_grad=True)
                (slope,) = torch.autograd.grad(model(x).sum(), x)  # <- here
                slope.norm()

    return penalties


@EXAMPLES.positive("debug-left-on", 2, passes=2)
def two_passes_are_enough_where_the_threshold_says_so():
    model = _model()

    def block():
        with torch.autograd.set_detect_anomaly(True):
            for _ in range(2):
                model(torch.randn(4, 8)).sum().backward()  # <- here

    return block


@EXAMPLES.near_miss("debug-left-on", passes=4)
def three_passes_are_few_where_the_threshold_says_so():
    return epoch_under_anomaly_detection()


@EXAMPLES.near_miss("debug-left-on")
def one_step_is_looked_through_by_a_test_of_it():
    model = _model()

    def block():
        with torch.autograd.set_detect_anomaly(True):
            model(torch.randn(4, 8)).sum().backward()

    return block


@EXAMPLES.near_miss("debug-left-on")
def hook_zeroes_gradients_that_are_not_finite():
    model = _model()
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: torch.where(torch.isnan(grad), 0.0, grad))

    def epoch():
        for _ in range(4):
            model(torch.randn(4, 8)).sum().backward()

    return epoch


@EXAMPLES.near_miss("debug-left-on")
def evaluation_under_anomaly_detection_has_no_gradients():
    model = _model()

    def evaluate():
        with torch.autograd.set_detect_anomaly(True), torch.no_grad():
            for _ in range(4):
                model(torch.randn(4, 8))

    return evaluate


# ----------------------------------------------------------------------------- deterministic mode


@EXAMPLES.positive("debug-left-on", 4)
def buffers_are_filled_before_they_are_written():
    frames = [torch.randn(3, 256, 256) for _ in range(4)]

    def collate():
        with deterministic():
            outputs = []
            for frame in frames:
                out = torch.empty(3, 256, 256)  # <- here
                outputs.append(torch.add(frame, 1, out=out))
        return outputs

    return collate


@EXAMPLES.positive("debug-left-on", 2)
def cache_is_allocated_in_deterministic_mode():
    class Cache:
        def __init__(self, like):
            self.keys = torch.empty_like(like)  # <- here
            self.values = torch.empty_like(like)  # <- here

    like = torch.randn(4, 8, 128, 64)

    def block():
        with deterministic():
            Cache(like)

    return block


@EXAMPLES.positive("debug-left-on", 3, filled=10_000)
def small_buffers_count_where_the_threshold_says_so():
    def block():
        with deterministic():
            return [torch.empty(2048) for _ in range(3)]  # <- here

    return block


@EXAMPLES.near_miss("debug-left-on")
def deterministic_algorithms_without_fills():
    def block():
        with deterministic(fill=False):
            return [torch.empty(3, 256, 256) for _ in range(4)]

    return block


@EXAMPLES.near_miss("debug-left-on")
def tensors_are_made_full_of_a_number():
    def block():
        return [torch.full((3, 256, 256), 0.5), torch.ones(3, 256, 256), torch.empty(1000).fill_(1)]

    return block


@EXAMPLES.near_miss("debug-left-on")
def nan_marks_what_is_not_measured_yet():
    def block():
        table = torch.empty(1024, 512)
        return table.fill_(float("nan"))

    return block


@EXAMPLES.positive("debug-left-on", 1, passes=1)
def stored_pass_on_the_autograd_thread():
    b = TraceBuilder()
    step = "autograd::engine::evaluate_function: MmBackward0"
    with b.op("aten::mm", [[4, 4], [4, 4]], args={"Sequence number": 7}):
        b.advance(60)
    node = {"Sequence number": 7, "Fwd thread id": 1}
    with b.thread(2), b.op(step, args=node):
        with b.op("MmBackward0", args=node), b.op("aten::mm", [[4, 4], [4, 4]]):
            pass
        with b.op("aten::isnan", [[4, 4]]):
            pass
        with b.op("aten::_is_any_true", [[4, 4]], ["bool"]):
            pass
    return b


@EXAMPLES.positive("debug-left-on", 5)
def just_enough_is_filled():
    def block():
        with deterministic():
            return [torch.empty(55_000) for _ in range(5)]  # <- here

    return block


@EXAMPLES.near_miss("debug-left-on")
def not_quite_enough_is_filled():
    def block():
        with deterministic():
            return [torch.empty(50_000) for _ in range(5)]

    return block
