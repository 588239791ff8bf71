"""Labelled examples of gradients that are filled with zeros."""

from __future__ import annotations

import torch
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


# ---------------------------------------------------------------------------------- grad-not-none


def resetting(zero_grad, model=None, batch=None):
    """Two training steps that each end with ``zero_grad(model, optimizer)``."""
    model = model or network()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batch = torch.rand(5, 3) if batch is None else batch

    def steps():
        for _ in range(2):
            model(batch).sum().backward()
            optimizer.step()
            zero_grad(model, optimizer)

    return steps


@EXAMPLES.positive("grad-not-none", 2)
def a_module_and_its_optimizer():
    def both(model, optimizer):
        optimizer.zero_grad(set_to_none=False)  # <- here
        model.zero_grad(set_to_none=False)  # <- here

    return resetting(both)


@EXAMPLES.near_miss("grad-not-none")
def a_module_as_it_is():
    return resetting(lambda model, _: model.zero_grad())


# ------------------------------------------------------------------------------ by hand, or nearly


class Trainer:
    """Steps with whatever resets its gradients."""

    def __init__(self, reset, model=None):
        self.model, self.reset = model or network(), reset
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=True)
        self.batch = torch.rand(5, 3)

    def fit(self, steps=2):
        for _ in range(steps):
            self.reset(list(self.model.parameters()))
            self.model(self.batch).square().mean().backward()
            self.optimizer.step()


@EXAMPLES.positive("grad-not-none", 2)
def gradients_that_are_filled_with_a_number():
    def reset(parameters):
        for p in parameters:
            if p.grad is not None:
                p.grad.data.fill_(0)  # <- here

    return Trainer(reset).fit


def one_gradient():
    x = torch.rand(3, requires_grad=True)

    def check():
        x.square().sum().backward()
        x.grad.zero_()  # <- here
        x.exp().sum().backward()

    return check


@EXAMPLES.positive("grad-not-none", gradients=1)
def one_gradient_with_a_lower_threshold():
    return one_gradient()


@EXAMPLES.near_miss("grad-not-none", gradients=10)
def few_gradients_with_a_higher_threshold():
    return gradients_that_are_filled_with_a_number()


@EXAMPLES.near_miss("grad-not-none")
def one_gradient_that_is_zeroed_once():
    return one_gradient()


@EXAMPLES.positive("grad-not-none")
def two_gradients_that_are_zeroed_once():
    x, y = torch.rand(3, requires_grad=True), torch.rand(4, requires_grad=True)

    def both():
        (x.square().sum() + y.sum()).backward()
        for one in (x, y):
            one.grad.zero_()  # <- here
        (x.exp().sum() + y.exp().sum()).backward()

    return both


@EXAMPLES.near_miss("grad-not-none")
def layers_that_do_not_learn_yet():
    model, batch = network(), torch.rand(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)

    def fit():
        for _ in range(3):
            optimizer.zero_grad()
            model(batch).sum().backward()
            for p in model[0].parameters():
                p.grad.zero_()
            optimizer.step()

    return fit


@EXAMPLES.positive("grad-not-none", 2)
def a_list_of_more_gradients_than_torch_writes_the_shapes_of():
    def reset(parameters):
        gradients = [p.grad for p in parameters if p.grad is not None]
        if gradients:
            torch._foreach_zero_(gradients)  # <- here

    model = nn.Sequential(nn.Linear(3, 2), *[nn.Linear(2, 2) for _ in range(20)])
    return Trainer(reset, model).fit
