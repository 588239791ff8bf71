"""Labelled examples of the rule about torch's optimizers."""

from __future__ import annotations

from itertools import pairwise

import torch
from labelled.case import Examples
from labelled.layers_alike import Blur
from support.trace_builder import TraceBuilder
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

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
def adamw_with_amsgrad_and_maximize():
    return training(torch.optim.AdamW, amsgrad=True, maximize=True)


def deep(width=4, layers=6):
    """A model of twice as many parameters as layers."""
    sizes = [3, *[width] * (layers - 1), 2]
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))


@EXAMPLES.positive("single-tensor-optimizer")
def plain_sgd_of_many_parameters():
    experts = nn.ParameterList(torch.rand(16) for _ in range(200))
    optimizer = torch.optim.SGD(experts.parameters(), lr=0.1)
    return stepping(lambda x: torch.stack(list(experts)) @ x, optimizer, torch.rand(16))


@EXAMPLES.near_miss("single-tensor-optimizer")
def plain_sgd_that_is_a_trifle_beside_the_layers():
    model = deep()
    return stepping(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.rand(5, 3))


def filtering(size):
    """A step of Adam after a pass through layers on images of this size."""
    model = nn.Sequential(Blur(3), nn.ReLU(), Blur(3), nn.Flatten())
    images = torch.rand(4, 3, size, size)
    return stepping(model, torch.optim.Adam(model.parameters(), fused=False), images)


@EXAMPLES.positive("single-tensor-optimizer")
def adam_beside_layers_on_small_images():
    return filtering(30)


@EXAMPLES.near_miss("single-tensor-optimizer", cpu_share=0.05)
def adam_that_is_a_trifle_beside_layers_on_large_images():
    return filtering(38)


@EXAMPLES.positive("single-tensor-optimizer", cpu_share=0.02)
def adam_beside_layers_on_large_images_with_a_lower_threshold():
    return filtering(38)


@EXAMPLES.near_miss("single-tensor-optimizer")
def plain_sgd_of_few_parameters():
    return training(torch.optim.SGD, lr=0.1)


@EXAMPLES.near_miss("single-tensor-optimizer")
def plain_sgd_of_large_parameters():
    model = deep(width=128)
    return stepping(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.rand(5, 3))


@EXAMPLES.positive("single-tensor-optimizer")
def sgd_with_momentum_nesterov_and_weight_decay():
    options = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}
    model = deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
    return stepping(model, optimizer, torch.rand(5, 3))


@EXAMPLES.positive("single-tensor-optimizer")
def rmsprop_that_is_centered():
    model = deep()
    optimizer = torch.optim.RMSprop(model.parameters(), centered=True)
    return stepping(model, optimizer, torch.rand(5, 3))


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


class WarmAdamW(torch.optim.AdamW):
    """Raises the learning rate over its first steps."""

    def __init__(self, params, lr=1e-3, warmup=100, **options):
        super().__init__(params, lr=lr, **options)
        self.base, self.warmup, self.done = lr, warmup, 0

    def step(self, closure=None):
        self.done += 1
        for group in self.param_groups:
            group["lr"] = self.base * min(1.0, self.done / self.warmup)
        return super().step(closure)  # <- here


class ClippedAdam(torch.optim.Adam):
    """Nothing of its own but a default."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.95)):
        super().__init__(params, lr=lr, betas=betas)


@EXAMPLES.positive("single-tensor-optimizer")
def a_class_derived_from_adamw_that_warms_up():
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    optimizer = WarmAdamW(model.parameters(), weight_decay=0.05)
    batch = torch.rand(5, 3)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


@EXAMPLES.positive("single-tensor-optimizer", 2)
def a_class_derived_from_adam_in_a_trainer():
    class Trainer:
        def __init__(self, model):
            self.model, self.optimizer = model, ClippedAdam(model.parameters())

        def fit(self, batches):
            for x in batches:
                self.optimizer.zero_grad(set_to_none=True)
                self.model(x).pow(2).mean().backward()
                self.optimizer.step()  # <- here

    trainer = Trainer(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1)))
    return lambda: trainer.fit([torch.rand(5, 3), torch.rand(5, 3)])


@EXAMPLES.near_miss("single-tensor-optimizer")
def a_class_derived_from_adam_that_is_fused():
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    return stepping(model, WarmAdamW(model.parameters(), fused=True), torch.rand(5, 3))


@EXAMPLES.near_miss("single-tensor-optimizer")
def a_hand_written_adam_of_four_parameters():
    class Adam(torch.optim.Optimizer):
        def __init__(self, params, lr=1e-3):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    if not state:
                        state.update(m=torch.zeros_like(p), v=torch.zeros_like(p))
                    state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                    state["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                    p.addcdiv_(state["m"], state["v"].sqrt().add_(1e-8), value=-group["lr"])

    Adam.__name__ = "LegacyAdam"
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    return stepping(model, Adam(model.parameters()), torch.rand(5, 3))


@EXAMPLES.positive("single-tensor-optimizer")
def a_learning_rate_that_is_a_tensor():
    return training(torch.optim.Adam, lr=torch.tensor(0.1))


@EXAMPLES.positive("single-tensor-optimizer", 2)
def the_first_step_with_momentum_and_the_second():
    batch = torch.rand(5, 3)

    def train():
        model = deep(layers=12)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # <- here
        for _ in range(2):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()

    return train


@EXAMPLES.positive("single-tensor-optimizer")
def two_groups_and_a_parameter_without_a_gradient():
    model = deep()
    unused = nn.Parameter(torch.rand(3))
    first, *others = model.parameters()
    groups = [{"params": [first, unused]}, {"params": others, "lr": 0.1}]
    return stepping(model, torch.optim.Adagrad(groups), torch.rand(5, 3))


@EXAMPLES.positive("single-tensor-optimizer")
def a_step_with_a_closure():
    model = deep(layers=24)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01, momentum=0.9)
    batch = torch.rand(5, 3)

    def closure():
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)  # <- here


@EXAMPLES.positive("single-tensor-optimizer", 2)
def one_of_each_other_class():
    models = [deep(), deep()]
    kinds = (torch.optim.NAdam, torch.optim.RAdam)
    optimizers = [kind(m.parameters()) for m, kind in zip(models, kinds, strict=True)]
    batch = torch.rand(5, 3)

    def step():
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()  # <- here

    return step


def adam_step(trace, parameters):
    """What a step of Adam of these parameters leaves in a trace of a device."""
    names = ["mul_", "lerp_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_"]
    for shape in parameters:
        for name in names:
            with trace.op(f"aten::{name}", [shape, shape]):
                trace.launch(f"{name}_kernel")


@EXAMPLES.positive("single-tensor-optimizer")
def a_trace_of_adam_on_a_device():
    trace = TraceBuilder("NVIDIA H200")
    with trace.annotation("Optimizer.step#Adam.step"):
        adam_step(trace, [[4, 3], [4]])
    return trace


@EXAMPLES.positive("single-tensor-optimizer")
def a_trace_of_a_subclass_with_stacks():
    trace = TraceBuilder("NVIDIA H200")
    with (
        trace.python("train.py(12): train"),
        trace.annotation("Optimizer.step#AdamWithWarmup.step"),
        trace.python("torch/optim/adam.py(225): step"),
        trace.python("torch/optim/adam.py(345): _single_tensor_adam"),
    ):
        adam_step(trace, [[4, 3], [4]])
    return trace


@EXAMPLES.positive("single-tensor-optimizer", parameters=4)
def as_many_parameters_as_the_threshold():
    return training(torch.optim.Adam)


@EXAMPLES.near_miss("single-tensor-optimizer", parameters=5)
def fewer_parameters_than_the_threshold():
    return training(torch.optim.Adam)


@EXAMPLES.near_miss("single-tensor-optimizer")
def adam_with_foreach():
    return training(torch.optim.Adam, foreach=True)


@EXAMPLES.near_miss("single-tensor-optimizer")
def fused_adamw():
    return training(torch.optim.AdamW, fused=True)


@EXAMPLES.near_miss("single-tensor-optimizer")
def sgd_with_momentum_and_foreach():
    return training(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True)


@EXAMPLES.near_miss("single-tensor-optimizer")
def rprop_with_foreach_that_clamps_one_by_one():
    return training(torch.optim.Rprop, foreach=True)


@EXAMPLES.near_miss("single-tensor-optimizer")
def a_single_parameter():
    model = nn.Linear(3, 2, bias=False)
    return stepping(model, torch.optim.Adam(model.parameters()), torch.rand(5, 3))


@EXAMPLES.near_miss("single-tensor-optimizer")
def a_single_parameter_with_momentum():
    model = nn.Linear(3, 2, bias=False)
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    return stepping(model, torch.optim.SGD(model.parameters(), **options), torch.rand(5, 3))


@EXAMPLES.near_miss("single-tensor-optimizer")
def a_class_that_has_no_other_form():
    model = nn.Linear(3, 2)
    batch = torch.rand(5, 3)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(batch), torch.ones(5, 2))
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


@EXAMPLES.near_miss("single-tensor-optimizer")
def sparse_gradients():
    first = nn.Embedding(8, 2, sparse=True)
    second = nn.Embedding(8, 2, sparse=True)
    model = lambda rows: first(rows) + second(rows)
    parameters = [first.weight, second.weight]
    optimizer = torch.optim.SGD(parameters, lr=0.1, foreach=True)
    return stepping(model, optimizer, torch.tensor([1, 2]))


@EXAMPLES.near_miss("single-tensor-optimizer")
def gradients_of_one_parameter_only():
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2).requires_grad_(False))
    optimizer = torch.optim.Adam(model.parameters())
    return stepping(model, optimizer, torch.rand(5, 3))


@EXAMPLES.near_miss("single-tensor-optimizer")
def an_update_written_by_hand():
    model = nn.Linear(3, 2)
    batch = torch.rand(5, 3)

    def step():
        model.zero_grad()
        model(batch).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.grad, alpha=-0.1)

    return step


@EXAMPLES.near_miss("single-tensor-optimizer")
def a_trace_of_a_class_nobody_knows():
    trace = TraceBuilder("NVIDIA H200")
    with trace.annotation("Optimizer.step#AdamWithWarmup.step"):
        adam_step(trace, [[4, 3], [4]])
    return trace


@EXAMPLES.near_miss("single-tensor-optimizer")
def a_trace_of_foreach_on_a_device():
    trace = TraceBuilder("NVIDIA H200")
    with trace.annotation("Optimizer.step#Adam.step"):
        for name in ("lerp_", "mul_", "addcmul_", "addcdiv_"):
            with trace.op(f"aten::_foreach_{name}", [[[4, 3], [4]]]):
                trace.launch("multi_tensor_apply_kernel")
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


@EXAMPLES.near_miss("single-tensor-optimizer")
def a_step_with_momentum_that_a_gradient_goes_through():
    return through_a_step(
        lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, differentiable=True)
    )


@EXAMPLES.positive("single-tensor-optimizer")
def a_loop_by_hand_with_a_graph_before_a_step_without():
    model, x = deep(layers=4), torch.rand(5, 3)
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)

    def meta_step():
        optimizer.zero_grad()
        names, weights = zip(*model.named_parameters(), strict=True)
        loss = torch.func.functional_call(model, dict(model.named_parameters()), x).sum()
        grads = torch.autograd.grad(loss, weights, create_graph=True)
        fast = {n: w - 0.1 * g for n, w, g in zip(names, weights, grads, strict=True)}
        torch.func.functional_call(model, fast, x).square().mean().backward()
        optimizer.step()  # <- here

    return meta_step


@EXAMPLES.near_miss("single-tensor-optimizer")
def filters_of_a_spectrum_that_are_complex():
    filters = nn.ParameterList(nn.Parameter(torch.randn(4, 8).cfloat()) for _ in range(12))
    optimizer, x = torch.optim.Adam(filters.parameters()), torch.rand(3, 4, 14)

    def step():
        optimizer.zero_grad()
        y = x
        for one in filters:
            y = torch.fft.irfft(torch.fft.rfft(y) * one, n=14)
        y.square().mean().backward()
        optimizer.step()

    return step


@EXAMPLES.near_miss("single-tensor-optimizer")
def complex_weights_with_momentum_beside_others():
    weights = [nn.Parameter(torch.randn(4, dtype=torch.cfloat)) for _ in range(4)]
    weights += [nn.Parameter(torch.randn(4)) for _ in range(8)]
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)

    def step():
        optimizer.zero_grad()
        sum(w.abs().sum() for w in weights).backward()
        optimizer.step()

    return step
