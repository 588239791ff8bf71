"""Clean steps of every optimizer of torch: foreach or fused, or a kind that has neither form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from labelled.clean import Clean
from torch import nn

EXAMPLES = Clean()


def _perceptron(size_in=16, size_out=4):
    return nn.Sequential(
        nn.Linear(size_in, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, size_out)
    )


def _data(count=32, size_in=16, classes=4):
    return torch.randn(count, size_in), torch.randint(classes, (count,))


def _step(model, optimizer, inputs, labels):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _with_optimizer(make_optimizer: Callable[[Any], Any]) -> Callable[[], Any]:
    def make():
        model, batch = _perceptron(), _data()
        optimizer = make_optimizer(model.parameters())
        return lambda: _step(model, optimizer, *batch)

    return make


for _kind in (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.ASGD,
    torch.optim.Adafactor,
):
    _make = _with_optimizer(partial(_kind, lr=1e-3, foreach=True))
    _make.__name__ = f"foreach_{_kind.__name__}"
    EXAMPLES.clean(_make)

for _kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad):
    _make = _with_optimizer(partial(_kind, lr=1e-3, fused=True))
    _make.__name__ = f"fused_{_kind.__name__}"
    EXAMPLES.clean(_make)


@EXAMPLES.clean
def momentum_and_decay():
    return _with_optimizer(
        lambda p: torch.optim.SGD(
            p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4, foreach=True
        )
    )()


@EXAMPLES.clean
def amsgrad_and_groups():
    model, batch = _perceptron(), _data()
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, amsgrad=True, foreach=True)
    return lambda: _step(model, optimizer, *batch)


@EXAMPLES.clean
def a_single_parameter():
    weight = nn.Parameter(torch.zeros(16, 4))
    optimizer = torch.optim.Adam([weight])
    inputs, labels = _data()

    def step():
        optimizer.zero_grad()
        F.cross_entropy(inputs @ weight, labels).backward()
        optimizer.step()

    return step


if hasattr(torch.optim, "Muon"):

    @EXAMPLES.clean
    def muon_for_matrices_and_adam_for_the_rest():
        model, batch = _perceptron(), _data()
        muon = torch.optim.Muon([p for p in model.parameters() if p.ndim == 2])
        adam = torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], foreach=True)

        def step():
            muon.zero_grad()
            adam.zero_grad()
            F.cross_entropy(model(batch[0]), batch[1]).backward()
            muon.step()
            adam.step()

        return step


@EXAMPLES.clean
def lbfgs_with_a_closure():
    weight = nn.Parameter(torch.zeros(16, 4))
    optimizer = torch.optim.LBFGS([weight], max_iter=4)
    inputs, labels = _data()

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(inputs @ weight, labels)
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)
