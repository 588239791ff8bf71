"""Examples on a GPU of the rules about training, gradients and graphs."""

from __future__ import annotations

import copy

import torch
from labelled.case import ANY, Examples
from labelled.gpu_models import BF16, batches, perceptron, resnet
from support.live import Compiling
from torch import nn
from torch.nn import functional as F  # noqa: N812

ON_GPU = Examples()


def stepping(optimizer_of, model=None, steps=2):
    """Some steps of training; ``optimizer_of`` makes an optimizer from parameters."""
    model = model or perceptron()
    optimizer = optimizer_of(model.parameters())
    data = batches(steps)

    def block():
        for x, y in data:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()  # <- here

    return block


# -------------------------------------------------------------------- single-tensor-optimizer


@ON_GPU.positive("single-tensor-optimizer", 2)
def adamw_without_foreach():
    return stepping(lambda p: torch.optim.AdamW(p, foreach=False))


@ON_GPU.near_miss("single-tensor-optimizer")
def adamw_as_it_is_by_default():
    return stepping(torch.optim.AdamW)


# -------------------------------------------------------------------- per-parameter-loop


@ON_GPU.positive("per-parameter-loop")
def an_average_of_weights():
    model, data = perceptron(layers=6), batches(1)
    average = copy.deepcopy(model).requires_grad_(False)

    def block():
        (x, _) = data[0]
        with torch.no_grad():
            model(x)
            for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                mean.mul_(0.999).add_(p, alpha=0.001)  # <- here

    return block


@ON_GPU.near_miss("per-parameter-loop")
def gradients_clipped_by_torch():
    model, data = perceptron(layers=6), batches(1)

    def block():
        (x, y) = data[0]
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        model.zero_grad()

    return block


# -------------------------------------------------------------------- grad-not-none


@ON_GPU.positive("grad-not-none", 3)
def gradients_zeroed_by_the_optimizer():
    model = perceptron()
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.1), batches(3)

    def block():
        for x, y in data:
            optimizer.zero_grad(set_to_none=False)  # <- here
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    return block


@ON_GPU.near_miss("grad-not-none")
def gradients_set_to_none():
    return stepping(torch.optim.AdamW, steps=3)


# -------------------------------------------------------------------- missing-no-grad


@ON_GPU.positive("missing-no-grad")
def a_validation_that_records():
    model, data = perceptron().eval(), batches(4)

    def block():
        correct = torch.zeros((), device="cuda")
        for x, y in data:
            correct += (model(x).argmax(1) == y).sum()  # <- here
        return correct

    return block


@ON_GPU.near_miss("missing-no-grad")
def one_look_at_a_model():
    model, data = perceptron(), batches(1)
    return lambda: model(data[0][0]).shape


# -------------------------------------------------------------------- conv-bias-batchnorm


def pictures():
    return torch.randn(8, 3, 32, 32, device="cuda")


@ON_GPU.positive("conv-bias-batchnorm", 2)
def two_convolutions_with_biases():
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16)
    ).cuda()
    x = pictures()
    return lambda: model(x).mean().backward()  # <- here


@ON_GPU.near_miss("conv-bias-batchnorm")
def convolutions_without_biases():
    model = resnet(16, blocks=1)
    x = pictures()
    return lambda: model(x).mean().backward()


# -------------------------------------------------------------------- debug-left-on


@ON_GPU.positive("debug-left-on")
def memory_filled_by_deterministic_mode():
    x = torch.ones(1 << 20, device="cuda")

    def block():
        torch.use_deterministic_algorithms(True)
        out = torch.empty(1 << 20, device="cuda")  # <- here
        torch.mul(x, 2, out=out)
        torch.use_deterministic_algorithms(False)
        return out

    return block


@ON_GPU.near_miss("debug-left-on")
def training_without_a_debugging_mode():
    return stepping(torch.optim.SGD, steps=3)


# -------------------------------------------------------------------- backward-twice


def heads_of_one_body():
    """A body, two heads, and what they see."""
    body = perceptron(classes=256)
    first, second = (nn.Linear(256, 4, device="cuda") for _ in range(2))
    return body, first, second, torch.randn(64, 256, device="cuda")


@ON_GPU.positive("backward-twice")
def two_losses_of_one_body():
    body, first, second, x = heads_of_one_body()

    def block():
        h = body(x)
        first(h).square().mean().backward(retain_graph=True)
        second(h).square().mean().backward()  # <- here

    return block


@ON_GPU.near_miss("backward-twice")
def two_losses_added_up():
    body, first, second, x = heads_of_one_body()

    def block():
        h = body(x)
        (first(h).square().mean() + second(h).square().mean()).backward()

    return block


# -------------------------------------------------------------------- accumulated-graph


@ON_GPU.positive("accumulated-graph")
def a_total_with_its_graph():
    model, data = perceptron(), batches(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def block():
        total = 0
        for x, y in data:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss  # <- here
        return total

    return block


@ON_GPU.near_miss("accumulated-graph")
def losses_of_micro_batches_for_one_backward():
    model, data = perceptron(), batches(4)

    def block():
        total = 0
        for x, y in data:
            total = total + F.cross_entropy(model(x), y)
        total.backward()

    return block


# -------------------------------------------------------------------- train-mode-inference


def predicting(model):
    """Classes of each batch."""
    data = batches(4)

    @torch.inference_mode()
    def predict():
        return [model(x).argmax(1) for x, _ in data]  # <- here

    return predict


@ON_GPU.positive("train-mode-inference")
def a_prediction_with_dropout():
    return predicting(nn.Sequential(perceptron(), nn.Dropout(0.1)))


@ON_GPU.near_miss("train-mode-inference")
def a_prediction_without_dropout():
    return predicting(nn.Sequential(perceptron(), nn.Dropout(0.1)).eval())


# -------------------------------------------------------------------- growing-graph


def logged(log, steps=8):
    """Steps of training, each of whose losses is logged."""
    model, data = perceptron(), batches(steps)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fit():
        losses = []
        for x, y in data:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            log(losses)

    return fit


@ON_GPU.positive("growing-graph")
def losses_that_are_summed_up_again():
    def log(losses):
        return sum(losses)  # <- here

    return logged(log)


@ON_GPU.near_miss("growing-graph")
def the_last_loss_alone():
    return logged(lambda losses: losses[-1] * 2)


# -------------------------------------------------------------------- graph-break and recompile


def compiled(function):
    return torch.compile(function, backend="eager")


@ON_GPU.positive("graph-break", also="host-sync")
def a_list_of_values_of_the_device():
    x = torch.randn(64, device="cuda")

    def step(x):
        number = x.sum().tolist()  # <- here
        return x * number

    return Compiling(lambda: compiled(step)(x))


@ON_GPU.near_miss("graph-break")
def a_whole_model_compiled():
    model, data = perceptron(), batches(1)

    def step(x):
        return model(x)

    return Compiling(lambda: compiled(step)(data[0][0]).sum().backward())


@ON_GPU.positive("recompile", ANY)
def another_dtype_each_time():
    tensors = [torch.ones(8, device="cuda", dtype=d) for d in (BF16, torch.float32, torch.half)]

    def step(x):  # <- here
        return x.sin()

    def block():
        one = compiled(step)
        for x in tensors:
            one(x)

    return Compiling(block)


@ON_GPU.near_miss("recompile")
def two_functions_for_two_dtypes():
    tensors = [torch.ones(8, device="cuda", dtype=dtype) for dtype in (BF16, torch.float32)]

    def block():
        compiled(lambda x: x.sin())(tensors[0])
        compiled(lambda x: x.cos())(tensors[1])

    return Compiling(block)
