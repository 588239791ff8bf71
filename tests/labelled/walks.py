"""Labelled examples of graphs that a backward pass walks again."""

from __future__ import annotations

import torch
from labelled.case import Examples
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

EXAMPLES = Examples()


class TwoHeads(nn.Module):
    """What most networks with two tasks look like."""

    def __init__(self, width=4):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))
        self.label, self.box = nn.Linear(width, 5), nn.Linear(width, 4)

    def forward(self, x):
        hidden = self.trunk(x).relu()
        return self.label(hidden), self.box(hidden)


X, LABELS, BOXES = torch.rand(6, 3), torch.arange(6) % 5, torch.rand(6, 4)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)


# --------------------------------------------------------------------------------- backward-twice


@EXAMPLES.positive("backward-twice", 2)
def a_sequence_whose_graph_grows():
    cell, out, sequence = nn.GRUCell(3, 4), nn.Linear(4, 3), torch.rand(3, 2, 3)
    optimizer = adam(nn.ModuleList([cell, out]))

    def step():
        hidden = torch.zeros(2, 4)
        optimizer.zero_grad()
        for x in sequence:
            hidden = cell(x, hidden)
            F.mse_loss(out(hidden), x).backward(retain_graph=True)  # <- here
        optimizer.step()

    return step


@EXAMPLES.positive("backward-twice")
def gradients_that_are_given():
    model = TwoHeads()
    gradients = [torch.ones(6, 5), torch.ones(6, 4)]

    def step():
        label, box = model(X)
        torch.autograd.backward([label], [gradients[0]], retain_graph=True)
        loss = (box * gradients[1]).sum()
        loss.backward()  # <- here
        for parameter in model.parameters():
            parameter.data.sub_(parameter.grad, alpha=0.1)

    return step


@EXAMPLES.near_miss("backward-twice")
def an_adversary_that_steps_between():
    generator = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3), nn.Tanh())
    critic = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    of_generator, of_critic = adam(generator), adam(critic)

    def step():
        fake = generator(X)
        critic(fake).mean().backward(retain_graph=True)
        of_critic.step()
        of_critic.zero_grad()
        (-critic(fake).mean()).backward()
        of_generator.step()
        of_generator.zero_grad()

    return step
