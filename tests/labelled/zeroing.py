"""Labelled examples of gradients that are filled with zeros."""

from __future__ import annotations

import torch
from labelled.case import Examples
from torch import nn
from trace_builder import TraceBuilder

EXAMPLES = Examples()


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


# ---------------------------------------------------------------------------------- grad-not-none


def resetting(zero_grad, model=None, batch=None):
    """A training step that ends with ``zero_grad(model, optimizer)``."""
    model = model or network()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batch = torch.rand(5, 3) if batch is None else batch

    def step():
        model(batch).sum().backward()
        optimizer.step()
        zero_grad(model, optimizer)

    return step


@EXAMPLES.positive("grad-not-none")
def an_optimizer_that_fills_in_one_go():
    return resetting(lambda _, optimizer: optimizer.zero_grad(set_to_none=False))  # <- here


@EXAMPLES.positive("grad-not-none")
def an_optimizer_that_fills_one_by_one():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.rand(5, 3)

    def step():
        optimizer.zero_grad(set_to_none=False)  # <- here
        model(batch).sum().backward()

    return step


@EXAMPLES.positive("grad-not-none")
def a_module_that_fills():
    return resetting(lambda model, _: model.zero_grad(set_to_none=False))  # <- here


@EXAMPLES.positive("grad-not-none")
def a_module_that_fills_before_the_forward_pass():
    model = network()
    batch = torch.rand(5, 3)

    def step():
        model.zero_grad(set_to_none=False)  # <- here
        model(batch).sum().backward()

    return step


@EXAMPLES.positive("grad-not-none", 2)
def a_module_and_its_optimizer():
    def both(model, optimizer):
        optimizer.zero_grad(set_to_none=False)  # <- here
        model.zero_grad(set_to_none=False)  # <- here

    return resetting(both)


@EXAMPLES.positive("grad-not-none", 3)
def three_steps():
    model = network()
    batch = torch.rand(5, 3)

    def steps():
        for _ in range(3):
            model.zero_grad(set_to_none=False)  # <- here
            model(batch).sum().backward()

    return steps


@EXAMPLES.positive("grad-not-none")
def gradients_of_two_passes_that_are_added_up():
    model = network()
    batch = torch.rand(5, 3)

    def step():
        for part in batch.split(3):
            model(part).sum().backward()
        model.zero_grad(set_to_none=False)  # <- here

    return step


@EXAMPLES.positive("grad-not-none")
def one_of_two_models():
    first, second = network(), nn.Linear(3, 7)
    batch = torch.rand(5, 3)

    def step():
        first(batch).sum().backward()
        second(batch).sum().backward()
        first.zero_grad(set_to_none=False)  # <- here
        second.zero_grad()

    return step


@EXAMPLES.positive("grad-not-none")
def gradients_that_are_zeroed_by_hand():
    def by_hand(model, _):
        for parameter in model.parameters():
            parameter.grad.zero_()  # <- here

    return resetting(by_hand)


@EXAMPLES.positive("grad-not-none", 2)
def a_trace_of_both_ways_on_a_device():
    trace = TraceBuilder("NVIDIA H200")
    with trace.annotation("Optimizer.zero_grad#SGD.zero_grad"):
        for shape in ([4, 3], [4]):
            with trace.op("aten::zero_", [shape]), trace.op("aten::fill_", [shape, []]):
                trace.launch("fill_kernel")
    with (
        trace.annotation("Optimizer.zero_grad#SGD.zero_grad"),
        trace.op("aten::_foreach_zero_", [[[4, 3], [4]]]),
    ):
        trace.launch("multi_tensor_apply_kernel")
    return trace


@EXAMPLES.near_miss("grad-not-none")
def an_optimizer_as_it_is():
    return resetting(lambda _, optimizer: optimizer.zero_grad())


@EXAMPLES.near_miss("grad-not-none")
def a_module_as_it_is():
    return resetting(lambda model, _: model.zero_grad())


@EXAMPLES.near_miss("grad-not-none")
def nothing_to_fill():
    def twice(_, optimizer):
        optimizer.zero_grad()
        optimizer.zero_grad(set_to_none=False)

    return resetting(twice)


@EXAMPLES.near_miss("grad-not-none")
def a_cache_that_is_cleared():
    keys, values = torch.ones(2, 8, 4), torch.ones(2, 8, 4)

    def clear(*_):
        keys.zero_()
        values.zero_()

    return resetting(clear)


@EXAMPLES.near_miss("grad-not-none")
def metrics_of_the_shape_of_a_parameter():
    hits, total = torch.ones(4), torch.ones(())

    def reset(*_):
        hits.zero_()
        total.zero_()

    return resetting(reset)


@EXAMPLES.near_miss("grad-not-none")
def statistics_of_a_batch_norm():
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4))
    return resetting(lambda model, _: model[1].reset_running_stats(), model)


@EXAMPLES.near_miss("grad-not-none")
def new_tensors_of_zeros():
    def make(model, _):
        for parameter in model.parameters():
            torch.zeros_like(parameter)
            parameter.new_zeros(parameter.shape)

    return resetting(make)


@EXAMPLES.near_miss("grad-not-none")
def zeros_within_a_backward_pass():
    model = nn.Sequential(nn.Embedding(6, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    return resetting(lambda _, optimizer: optimizer.zero_grad(), model, torch.tensor([1, 4]))


@EXAMPLES.near_miss("grad-not-none")
def parameters_that_are_initialised():
    def initialise(model, _):
        nn.init.zeros_(model[0].bias)
        nn.init.ones_(model[0].weight)
        nn.init.zeros_(model[2].bias)

    return resetting(initialise)


@EXAMPLES.near_miss("grad-not-none")
def buffers_without_any_backward_pass():
    buffers = [torch.ones(4, 3), torch.ones(4)]
    return lambda: [buffer.zero_() for buffer in buffers]
