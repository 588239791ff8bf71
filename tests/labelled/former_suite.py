"""The cases of torch's former pattern matcher that run on a CPU, recorded as its tests did."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from labelled.case import Examples
from support.recorded import Recorded
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

EXAMPLES = Examples()


def _perceptron():
    return nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))


def _loss(model):
    return cross_entropy(model(torch.ones(100, 100)), torch.randint(0, 10, (100,)))


def _named(name: str, make: Callable[[], Any]) -> Callable[[], Any]:
    make.__name__ = name
    return make


# ------------------------------------------------------------------------ for-loop-indexing


@EXAMPLES.positive("for-loop-indexing")
def former_loop_that_sets_rows():
    x = torch.ones(100, 100)

    def block():
        for i in range(100):
            x[i] = i

    return Recorded(block)


@EXAMPLES.positive("for-loop-indexing")
def former_loop_that_sets_ten_rows():
    x = torch.ones(100, 100)

    def block():
        for i in range(10):
            x[i] = i

    return Recorded(block)


@EXAMPLES.near_miss("for-loop-indexing")
def former_loop_that_sets_nine_rows():
    x = torch.ones(100, 100)

    def block():
        for i in range(9):
            x[i] = i

    return Recorded(block)


@EXAMPLES.positive("for-loop-indexing")
def former_loop_that_adds_rows():
    x = torch.ones(100, 100)

    def block():
        y = 0
        for i in range(100):
            y += x[i]

    return Recorded(block)


@EXAMPLES.positive("for-loop-indexing")
def former_loop_that_multiplies_rows():
    x = torch.ones(100, 100)

    def block():
        y = 1
        for i in range(100):
            y *= x[i]

    return Recorded(block)


@EXAMPLES.near_miss("for-loop-indexing")
def former_loop_of_products():
    x = torch.ones(100, 100)

    def block():
        y = x
        for _ in range(100):
            y = y @ x

    return Recorded(block)


@EXAMPLES.positive("for-loop-indexing")
def former_loop_that_sets_rows_to_ranges():
    x = torch.ones(100, 100)

    def block():
        for i in range(100):
            x[i, :] = torch.arange(100) + i

    return Recorded(block)


# ------------------------------------------------------------------ single-tensor-optimizer


def _step_of(make_optimizer: Callable[[Any], torch.optim.Optimizer]) -> Callable[[], Recorded]:
    """A whole training step in which model and optimizer are made too."""

    def block():
        model = _perceptron()
        optimizer = make_optimizer(model.parameters())
        optimizer.zero_grad()
        _loss(model).backward()
        optimizer.step()

    def make():
        # The first step of a process imports torch's compiler, which is not what is recorded.
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()
        return Recorded(block)

    return make


for _kind in (torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW):
    for _foreach in (None, True):
        # Of a plain SGD with four parameters, the loop is the fastest form on a CPU.
        _slow = not _foreach and _kind is not torch.optim.SGD
        EXAMPLES.positive("single-tensor-optimizer", int(_slow))(
            _named(
                f"former_step_of_{_kind.__name__}{'_foreach' if _foreach else ''}",
                _step_of(partial(_kind, lr=0.01, foreach=_foreach)),
            )
        )


# --------------------------------------------------------- sync-dataloader, grad-not-none


@EXAMPLES.positive("sync-dataloader", 1)
def former_batches_of_a_loader_without_and_of_one_with_workers():
    data = torch.rand(100, 100)
    alone, helped = DataLoader(data, batch_size=10), DataLoader(data, batch_size=10, num_workers=4)

    def block():
        next(iter(alone))
        next(iter(helped))

    return Recorded(block)


def _zeroing(zero: Callable[[Any, Any], None]) -> Callable[[], Recorded]:
    def make():
        model = _perceptron()
        optimizer = torch.optim.Adam(model.parameters())

        def block():
            _loss(model).backward()
            optimizer.step()
            zero(model, optimizer)

        return Recorded(block)

    return make


for _name, _matches, _zero in (
    ("former_optimizer_that_sets_to_none", 0, lambda _, o: o.zero_grad()),
    ("former_model_that_sets_to_none", 0, lambda m, _: m.zero_grad()),
    ("former_optimizer_that_zeroes", 1, lambda _, o: o.zero_grad(set_to_none=False)),
    ("former_model_that_zeroes", 1, lambda m, _: m.zero_grad(set_to_none=False)),
):
    EXAMPLES.positive("grad-not-none", _matches, also="single-tensor-optimizer")(
        _named(_name, _zeroing(_zero))
    )


# ---------------------------------------------------------------------- conv-bias-batchnorm


@EXAMPLES.positive("conv-bias-batchnorm", also="missing-no-grad")
def former_convolution_with_bias_and_norm():
    model = nn.Sequential(nn.Conv2d(3, 3, 3, 1, 1), nn.BatchNorm2d(3))
    x = torch.randn(1, 3, 32, 32)
    return Recorded(lambda: model(x))


@EXAMPLES.near_miss("conv-bias-batchnorm", also="missing-no-grad")
def former_convolution_without_bias_and_norm():
    model = nn.Sequential(nn.Conv2d(3, 3, 3, 1, 1, bias=False), nn.BatchNorm2d(3))
    x = torch.randn(1, 3, 32, 32)
    return Recorded(lambda: model(x))


@EXAMPLES.near_miss("conv-bias-batchnorm", also="missing-no-grad")
def former_convolution_alone():
    model = nn.Sequential(nn.Conv2d(3, 3, 3, 1, 1))
    x = torch.randn(1, 3, 32, 32)
    return Recorded(lambda: model(x))


@EXAMPLES.near_miss("conv-bias-batchnorm", also="missing-no-grad")
def former_false_alarm_in_eval_mode():
    model = nn.Sequential(nn.Conv2d(3, 3, 3, 1, 1), nn.BatchNorm2d(3)).eval()
    x = torch.randn(1, 3, 32, 32)
    return Recorded(lambda: model(x))


# --------------------------------------------- what the former matcher took for copies to CUDA


@EXAMPLES.near_miss("extra-cuda-copy")
def former_cast_of_random_numbers():
    return Recorded(lambda: torch.rand((100, 100)).to(dtype=torch.float16))


@EXAMPLES.near_miss("extra-cuda-copy")
def former_halving_of_random_numbers():
    return Recorded(lambda: torch.rand((100, 100)).half())


@EXAMPLES.near_miss("extra-cuda-copy")
def former_false_alarm_of_a_move_to_the_same_device():
    return Recorded(lambda: torch.ones((100, 100)).to("cpu", copy=True))


@EXAMPLES.near_miss("extra-cuda-copy")
def former_false_alarm_of_a_move_to_meta():
    return Recorded(lambda: torch.ones((100, 100)).to("meta"))


@EXAMPLES.near_miss("fp32-matmul")
def former_false_alarm_of_a_product_on_the_cpu():
    x = torch.ones(100, 100)
    return Recorded(lambda: x @ x)
