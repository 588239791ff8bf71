"""Labelled examples of the rules about layers."""

from __future__ import annotations

import torch
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()


def forward(*layers, batch=None):
    """A forward pass of these layers, one after the other."""
    model = nn.Sequential(*layers)
    batch = torch.rand(2, 3, 6, 6) if batch is None else batch

    @torch.no_grad()
    def run():
        return model(batch)  # <- here

    return run


def normalised(convolution, between, norm, batch=None):
    """A forward pass written by hand; ``between`` comes between the two."""
    batch = torch.rand(2, 3, 6, 6) if batch is None else batch

    @torch.no_grad()
    def run():
        return norm(between(convolution(batch)))  # <- here

    return run


@EXAMPLES.positive("conv-bias-batchnorm")
def in_three_dimensions():
    return forward(nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4), batch=torch.rand(2, 3, 4, 4, 4))


@EXAMPLES.positive("conv-bias-batchnorm")
def a_transposed_convolution():
    return forward(nn.ConvTranspose2d(3, 4, 3, stride=2), nn.BatchNorm2d(4))


@EXAMPLES.positive("conv-bias-batchnorm")
def padding_in_words():
    return forward(nn.Conv2d(3, 4, 3, padding="same"), nn.BatchNorm2d(4))


@EXAMPLES.positive("conv-bias-batchnorm")
def statistics_that_are_not_tracked():
    return forward(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False).eval())


@EXAMPLES.near_miss("conv-bias-batchnorm")
def dropout_between():
    return forward(nn.Conv2d(3, 4, 3), nn.Dropout2d(0.1), nn.BatchNorm2d(4))


@EXAMPLES.near_miss("conv-bias-batchnorm")
def pooling_between():
    return forward(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.BatchNorm2d(4))


@EXAMPLES.positive("conv-bias-batchnorm")
def an_instance_norm():
    return forward(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4), nn.ReLU())


@EXAMPLES.near_miss("conv-bias-batchnorm")
def an_instance_norm_added_to_what_it_normalises():
    norm = nn.InstanceNorm2d(4)
    return normalised(nn.Conv2d(3, 4, 3), lambda x: x, lambda x: norm(x) + x)


@EXAMPLES.near_miss("conv-bias-batchnorm")
def an_instance_norm_of_a_sequence_whose_channels_are_its_steps():
    linear = nn.Linear(6, 6)
    return forward(linear, nn.InstanceNorm1d(3), batch=torch.rand(2, 3, 6))


@EXAMPLES.positive("conv-bias-batchnorm")
def a_linear_layer():
    return forward(nn.Linear(3, 4), nn.BatchNorm1d(4), batch=torch.rand(5, 3))


class Towers(nn.Module):
    """Two inputs share an encoder; ``last`` is what comes after that of the second."""

    def __init__(self, last):
        super().__init__()
        self.encoder, self.norm, self.last = nn.Linear(8, 6), nn.BatchNorm1d(6), last

    def forward(self, query, key):
        hidden = self.norm(self.encoder(query))  # <- here
        return (hidden * self.last(self.encoder(key))).sum(-1)  # <- here


@EXAMPLES.near_miss("conv-bias-batchnorm")
def an_encoder_of_two_towers_of_which_one_is_normalised():
    model, pair = Towers(nn.ReLU()), torch.rand(2, 5, 8)
    return lambda: model(*pair).mean().backward()


@EXAMPLES.near_miss("conv-bias-batchnorm")
def branches_of_a_batch():
    convolution, norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
    batch = torch.rand(2, 4, 6, 6)
    return lambda: (convolution(batch) + norm(batch)).sum().backward()


# -------------------------------------------------------------------- under torch.func


def one_bias_in_a_network(blocks):
    """A training step of a network whose first convolution has a bias; the others have none."""
    first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    others = (
        layer
        for _ in range(blocks)
        for layer in (nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    )
    model, batch = nn.Sequential(first, *others), torch.rand(2, 3, 12, 12)
    return lambda: model(batch).square().mean().backward()  # <- here


@EXAMPLES.positive("conv-bias-batchnorm", cpu_share=0.01)
def a_bias_that_matters_beside_the_other_layers():
    return one_bias_in_a_network(6)


@EXAMPLES.near_miss("conv-bias-batchnorm", cpu_share=0.01)
def a_bias_that_is_a_trifle_beside_the_other_layers():
    return one_bias_in_a_network(14)
