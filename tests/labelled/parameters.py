"""Labelled examples of the rule about loops over a model's parameters."""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from labelled.case import Examples
from support.trace_builder import TraceBuilder
from torch import nn

EXAMPLES = Examples()


def network(width=6, layers=6, bias=True):
    """A perceptron with this many layers."""
    sizes = [3, *[width] * (layers - 1), 2]
    return nn.Sequential(*(nn.Linear(a, b, bias=bias) for a, b in pairwise(sizes)))


# --------------------------------------------------------------------------------- averages


class ModelEma:
    """Keeps an average of a model's weights."""

    def __init__(self, model, decay=0.999):
        self.module, self.decay = copy.deepcopy(model).eval(), decay

    @torch.no_grad()
    def update(self, model):
        for ours, theirs in zip(self.module.parameters(), model.parameters(), strict=True):
            ours.mul_(self.decay).add_(theirs, alpha=1 - self.decay)  # <- here


def averaged(size):
    """A training step with images of this size, and an average of the weights."""
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(6)))
    ema = ModelEma(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    images = torch.rand(2, size, size, 3)

    def step():
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()
        ema.update(model)

    return step


@EXAMPLES.positive("per-parameter-loop")
def an_average_of_the_weights():
    return averaged(8)


@EXAMPLES.positive("per-parameter-loop", cpu_elements=20)
def an_average_of_weights_as_large_as_the_threshold():
    model = network(width=6)  # 240 elements in 12 parameters: 18, 6, 36, 6 …
    ema = ModelEma(model)
    return lambda: (model(torch.rand(5, 3)).sum().backward(), ema.update(model))


@EXAMPLES.near_miss("per-parameter-loop", cpu_elements=16)
def an_average_of_weights_larger_than_the_threshold():
    model = network(width=6)
    ema = ModelEma(model)
    return lambda: (model(torch.rand(5, 3)).sum().backward(), ema.update(model))


# ----------------------------------------------------------------------- updates and penalties


@EXAMPLES.positive("per-parameter-loop")
def a_penalty_on_the_weights():
    model, x = network(), torch.rand(5, 3)

    def step():
        loss = model(x).square().mean()
        loss = loss + 1e-3 * sum(p.pow(2).sum() for p in model.parameters())  # <- here
        loss.backward()

    return step


@EXAMPLES.positive("per-parameter-loop", parameters=4)
def as_many_parameters_as_the_threshold():
    model = network(layers=2)
    ema = ModelEma(model)
    return lambda: (model(torch.rand(5, 3)).sum().backward(), ema.update(model))


@EXAMPLES.near_miss("per-parameter-loop", parameters=5)
def fewer_parameters_than_the_threshold():
    model = network(layers=2)
    ema = ModelEma(model)
    return lambda: (model(torch.rand(5, 3)).sum().backward(), ema.update(model))


# ---------------------------------------------------------------------------- custom optimizers


class Momentum(torch.optim.Optimizer):
    """Gradient descent with a heavy ball."""

    def __init__(self, params, lr=0.1, by_lists=False):
        super().__init__(params, {"lr": lr})
        self.by_lists = by_lists

    @torch.no_grad()
    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        lr = self.param_groups[0]["lr"]
        balls = [self.state[p].setdefault("ball", torch.zeros_like(p)) for p in params]
        grads = [p.grad for p in params]
        if self.by_lists:
            torch._foreach_mul_(balls, 0.9)
            torch._foreach_add_(balls, grads)
            torch._foreach_add_(params, balls, alpha=-lr)
            return
        for p, ball, grad in zip(params, balls, grads, strict=True):
            ball.mul_(0.9).add_(grad)  # <- here
            p.add_(ball, alpha=-lr)


def trained(model, optimizer, x):
    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


@EXAMPLES.positive("per-parameter-loop", 2)
def two_steps_of_a_heavy_ball():
    model = network(layers=5)
    step = trained(model, Momentum(model.parameters()), torch.rand(5, 3))
    return lambda: (step(), step())


@EXAMPLES.near_miss("per-parameter-loop")
def an_optimizer_of_ones_own_that_makes_updates_orthogonal():
    class Orthogonal(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                g = p.grad / p.grad.norm().clamp_(min=1e-6)
                for _ in range(2):
                    g = 1.5 * g - 0.5 * g @ (g.T @ g)
                p.add_(g, alpha=-0.1)

    model = network(bias=False, layers=11)
    return trained(model, Orthogonal(model.parameters()), torch.rand(5, 3))


# ------------------------------------------------------------------------------ what is none


@EXAMPLES.near_miss("per-parameter-loop", also="missing-no-grad")
def weights_that_are_scaled_before_the_model_runs():
    def make():
        model = network(layers=8)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.1)
        return model(torch.rand(2, 3))

    return make


# ------------------------------------------------------------------------------- on a device


def device_loop(names, together=False, layers=False):
    trace = TraceBuilder("NVIDIA H200")
    shapes = [shape for n in (64, 128, 256, 512, 1024, 2048) for shape in ([n, n], [n])]
    if together:
        with trace.op(f"aten::_foreach_{names[0]}", [shapes, shapes]):
            trace.launch("multi_tensor_apply_kernel")
        return trace
    for weight, bias in zip(shapes[::2], shapes[1::2], strict=True) if layers else ():
        trace.op("aten::linear", [[8, bias[0]], weight, bias])
    for shape in shapes:
        for name in names:
            with trace.op(f"aten::{name}", [shape, shape]):
                trace.launch(f"{name}_kernel")
    return trace


@EXAMPLES.positive("per-parameter-loop")
def a_trace_of_norms_on_a_device():
    return device_loop(["linalg_vector_norm"], layers=True)


@EXAMPLES.near_miss("per-parameter-loop")
def a_trace_of_norms_of_nobody_knows_what_on_a_device():
    return device_loop(["linalg_vector_norm"])


@EXAMPLES.near_miss("per-parameter-loop")
def a_trace_of_lists_on_a_device():
    return device_loop(["lerp_"], together=True)


# ----------------------------------------------------------------------------- new data


@EXAMPLES.positive("per-parameter-loop")
def deltas_of_clients_that_a_server_adds():
    server, client = network(), network()

    def aggregate():
        client(torch.rand(4, 3)).mean().backward()
        server(torch.rand(4, 3))
        for ours, theirs in zip(server.parameters(), client.parameters(), strict=True):
            ours.data = ours.data + theirs.data  # <- here

    return aggregate


# ----------------------------------------------------------------------------- states


@EXAMPLES.positive("per-parameter-loop")
def states_that_are_decayed_in_place():
    states = [torch.rand(*((4 + i, 3) if i % 2 else (4 + i,))) for i in range(12)]

    def forget():
        for state in states:
            state.mul_(0.9).add_(0.1)  # <- here

    return forget
