"""Labelled examples of the rules about loops."""

from __future__ import annotations

import torch
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()

# ------------------------------------------------------------------------------ for-loop-indexing


def filling(count):
    x = torch.ones(count, 4)

    def loop():
        for i in range(count):
            x[i] = i  # <- here

    return loop


@EXAMPLES.positive("for-loop-indexing", repeats=5)
def five_rows_with_a_lower_threshold():
    return filling(5)


@EXAMPLES.near_miss("for-loop-indexing", repeats=101)
def rows_with_a_higher_threshold():
    return filling(100)


@EXAMPLES.positive("for-loop-indexing")
def elements_of_a_matrix():
    x = torch.rand(3, 15)

    def loop():
        for i in range(3):
            for j in range(15):
                x[i, j] *= 2  # <- here

    return loop


@EXAMPLES.near_miss("for-loop-indexing")
def positions_made_from_the_one_before():
    layer = nn.Linear(4, 4)

    @torch.no_grad()
    def loop():
        x = torch.zeros(14, 2, 4)
        for t in range(13):
            x[t + 1] = layer(x[t])

    return loop


@EXAMPLES.positive("for-loop-indexing")
def images_one_by_one_through_a_convolution():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
    x = torch.rand(12, 1, 6, 6)

    @torch.inference_mode()
    def loop():
        return [model(x[i].unsqueeze(0)) for i in range(12)]  # <- here

    return loop


@EXAMPLES.near_miss("for-loop-indexing", operators=2)
def a_body_longer_than_the_threshold():
    x = torch.rand(20, 4)
    return lambda: [x[i].exp().sum() for i in range(20)]


@EXAMPLES.positive("for-loop-indexing", operators=3)
def a_body_as_long_as_the_threshold():
    x = torch.rand(20, 4)
    return lambda: [x[i].exp().sum() for i in range(20)]  # <- here


@EXAMPLES.near_miss("for-loop-indexing")
def two_statements_that_carry_a_state():
    gates, inputs = torch.rand(2, 16, 8)

    def scan():
        state = torch.zeros(8)
        for row in range(16):
            state = state * gates[row] + inputs[row]
            state = state * inputs[row] + gates[row]
        return state

    return scan


@EXAMPLES.positive("for-loop-indexing")
def single_rows_that_are_scored_by_one_matrix():
    users, items = torch.randn(20, 32), torch.randn(32, 40)

    def rank():
        return torch.stack([(user @ items).amax() for user in users])  # <- here

    return rank
