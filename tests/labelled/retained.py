"""Labelled examples of the rule about graphs that are walked twice."""

from __future__ import annotations

import torch
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()


def _trunk():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh())


# -------------------------------------------------------------------------------------- positives


@EXAMPLES.positive("backward-twice", 1, nodes=3)
def three_shared_nodes_count_where_the_threshold_says_so():
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)

    def step():
        layer.zero_grad()
        h = layer(x).relu()
        h.sum().backward(retain_graph=True)
        h.mean().backward()  # <- here

    return step


# ------------------------------------------------------------------------------------- near misses


@EXAMPLES.near_miss("backward-twice")
def three_shared_nodes_are_few():
    return three_shared_nodes_count_where_the_threshold_says_so()


@EXAMPLES.near_miss("backward-twice")
def rows_of_a_jacobian():
    model = _trunk()

    def jacobian():
        x = torch.randn(8, requires_grad=True)
        y = model(x)
        return [torch.autograd.grad(one, x, retain_graph=True)[0] for one in y.unbind()]

    return jacobian


@EXAMPLES.positive("backward-twice", 1)
def four_nodes_are_shared():
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)

    def step():
        layer.zero_grad()
        h = layer(x).relu().tanh()
        h.sum().backward(retain_graph=True)
        h.mean().backward()  # <- here

    return step
