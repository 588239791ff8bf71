"""Labelled examples of the rule about torch's optimizers."""

from __future__ import annotations

from itertools import pairwise

import torch
from labelled.case import Examples
from support.trace_builder import TraceBuilder
from torch import nn

EXAMPLES = Examples()

# ------------------------------------------------------------------------ single-tensor-optimizer


def training(kind, *, width=4, **options):
    """A training step of a small model, unless ``options`` say another."""
    model = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2))
    return stepping(model, kind(model.parameters(), **options), torch.rand(5, 3))


def stepping(model, optimizer, batch):
    """A step of this optimizer."""

    def step():
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()  # <- here

    return step


@EXAMPLES.positive("single-tensor-optimizer")
def adam_as_it_is_on_the_cpu():
    return training(torch.optim.Adam)


@EXAMPLES.positive("single-tensor-optimizer")
def adagrad_as_it_is_on_the_cpu():
    return training(torch.optim.Adagrad)


def deep(width=4, layers=6):
    """A model of twice as many parameters as layers."""
    sizes = [3, *[width] * (layers - 1), 2]
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))


@EXAMPLES.positive("single-tensor-optimizer")
def plain_sgd_of_twelve_small_parameters():
    model = deep()
    return stepping(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.rand(5, 3))


@EXAMPLES.near_miss("single-tensor-optimizer", cpu_share=0.7)
def adam_that_is_less_of_the_operators_than_the_threshold():
    return training(torch.optim.Adam)


@EXAMPLES.positive("single-tensor-optimizer", cpu_share=0.2)
def adam_that_is_more_of_the_operators_than_the_threshold():
    return training(torch.optim.Adam)


@EXAMPLES.positive("single-tensor-optimizer", cpu_parameters=12)
def as_many_parameters_as_pay_on_a_cpu():
    model = deep()
    return stepping(model, torch.optim.RMSprop(model.parameters()), torch.rand(5, 3))


@EXAMPLES.near_miss("single-tensor-optimizer", cpu_parameters=13)
def fewer_parameters_than_pay_on_a_cpu():
    model = deep()
    return stepping(model, torch.optim.RMSprop(model.parameters()), torch.rand(5, 3))


@EXAMPLES.positive("single-tensor-optimizer", cpu_elements=64, cpu_parameters=2)
def elements_as_many_as_pay_on_a_cpu():
    model = nn.ParameterList(torch.rand(8, 8) for _ in range(8))
    return stepping(
        lambda x: sum(p.sum() for p in model) * x, torch.optim.NAdam(model), torch.ones(1)
    )


@EXAMPLES.near_miss("single-tensor-optimizer", cpu_elements=63, cpu_parameters=2)
def more_elements_than_pay_on_a_cpu():
    model = nn.ParameterList(torch.rand(8, 8) for _ in range(8))
    return stepping(
        lambda x: sum(p.sum() for p in model) * x, torch.optim.NAdam(model), torch.ones(1)
    )


@EXAMPLES.near_miss("single-tensor-optimizer")
def classes_whose_other_form_is_no_faster_on_a_cpu():
    kinds = (torch.optim.ASGD, torch.optim.Rprop, torch.optim.Adafactor)
    models = [deep() for _ in kinds]
    steps = [
        stepping(model, kind(model.parameters()), torch.rand(5, 3))
        for model, kind in zip(models, kinds, strict=True)
    ]
    return lambda: [step() for step in steps]


def adam_step(trace, parameters):
    """What a step of Adam of these parameters leaves in a trace of a device."""
    names = ["mul_", "lerp_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_"]
    for shape in parameters:
        for name in names:
            with trace.op(f"aten::{name}", [shape, shape]):
                trace.launch(f"{name}_kernel")


@EXAMPLES.positive("single-tensor-optimizer", parameters=4)
def as_many_parameters_as_the_threshold():
    return training(torch.optim.Adam)


@EXAMPLES.near_miss("single-tensor-optimizer", parameters=5)
def fewer_parameters_than_the_threshold():
    return training(torch.optim.Adam)


@EXAMPLES.near_miss("single-tensor-optimizer")
def a_trace_of_a_class_nobody_knows():
    trace = TraceBuilder("NVIDIA H200")
    with trace.annotation("Optimizer.step#AdamWithWarmup.step"):
        adam_step(trace, [[4, 3], [4]])
    return trace


# ----------------------------------------------------------------------------- without other forms


def through_a_step(make, count=12):
    """Weights that an optimizer has stepped, so that a gradient goes through its step."""
    start = [torch.rand(4, 4) for _ in range(count)]

    def learn():
        kept = [w.clone().requires_grad_() for w in start]
        weights = [w.clone() for w in kept]
        optimizer = make(weights)
        gradients = torch.autograd.grad(sum(w.sin().sum() for w in kept), kept)
        for w, grad in zip(weights, gradients, strict=True):
            w.grad = grad
        optimizer.step()
        return torch.autograd.grad(sum(w.square().sum() for w in weights), kept)

    return learn


@EXAMPLES.near_miss("single-tensor-optimizer")
def a_step_of_adam_that_a_gradient_goes_through():
    return through_a_step(lambda weights: torch.optim.Adam(weights, differentiable=True))
