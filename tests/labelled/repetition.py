"""Labelled examples of the rules about casts and copies that are done again."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F  # noqa: N812
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()

BF16 = torch.bfloat16


# -------------------------------------------------------------------- repeated-cast: positives


class CastingLinear(nn.Linear):
    """Keeps its weight in float32, and casts it in every call."""

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))  # <- here


@EXAMPLES.positive("repeated-cast", 2, repeats=3)
def a_lower_threshold_finds_three():
    x = torch.randn(4, 8)

    def block():
        for _ in range(3):
            x.to(BF16).sum()  # <- here

    return block


@EXAMPLES.positive("repeated-cast", 11, also="for-loop-indexing")
def a_weight_that_is_cast_for_each_frame_of_one_tensor():
    weight, frames = torch.randn(16, 32), torch.randn(12, 4, 32).to(BF16)

    def block():
        for x in frames:
            F.linear(x, weight.to(BF16))  # <- here

    return block


# -------------------------------------------------------------------- repeated-cast: near misses


@EXAMPLES.near_miss("repeated-cast", repeats=11)
def a_higher_threshold_lets_ten_pass():
    x = torch.randn(4, 8)

    def block():
        for _ in range(10):
            x.to(BF16).sum()

    return block


@EXAMPLES.near_miss("repeated-cast")
def casting_layers_in_training_each_with_its_own_weight():
    model = nn.Sequential(*(CastingLinear(16, 16, bias=False) for _ in range(12)))
    x = torch.randn(4, 16).to(BF16)

    def block():
        model(x).float().sum().backward()
        for p in model.parameters():
            p.grad = None

    return block


# -------------------------------------------------------------------- contiguous-copy: positives


@EXAMPLES.positive("contiguous-copy", 7)
def channels_last_in_every_call():
    conv = nn.Conv2d(3, 4, 3, bias=False)
    x = torch.randn(2, 3, 8, 8)

    def block():
        with torch.no_grad():
            for _ in range(8):
                conv(x.contiguous(memory_format=torch.channels_last))  # <- here

    return block


@EXAMPLES.positive("contiguous-copy", 4)
def five_clones():
    x = torch.randn(8, 8)

    def block():
        for _ in range(5):
            x.clone().sum()  # <- here

    return block


@EXAMPLES.positive("contiguous-copy", 11, also="for-loop-indexing")
def a_weight_made_contiguous_for_each_frame_of_one_tensor():
    weight, frames = torch.randn(16, 32), torch.randn(12, 4, 32)

    def block():
        for x in frames:
            x @ weight.t().contiguous()  # <- here

    return block


@EXAMPLES.positive("contiguous-copy", 7)
def a_weight_made_contiguous_for_each_chunk_of_a_batch():
    weight, batch = torch.randn(16, 32), torch.randn(40, 32)

    def block():
        for x in batch.chunk(8):
            x @ weight.t().contiguous()  # <- here

    return block


# ------------------------------------------------------------------- contiguous-copy: near misses


@EXAMPLES.near_miss("contiguous-copy")
def four_clones():
    x = torch.randn(8, 8)

    def block():
        for _ in range(4):
            x.clone().sum()

    return block


@EXAMPLES.near_miss("contiguous-copy", repeats=11)
def ten_clones_where_eleven_are_too_many():
    x = torch.randn(8, 8)

    def block():
        for _ in range(10):
            x.clone().sum()

    return block


class Residual(nn.Module):
    """A block of a small network for images."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))

    def forward(self, x):
        y = F.relu(self.norms[0](self.convs[0](x)))
        return F.relu(x + self.norms[1](self.convs[1](y)))


@EXAMPLES.near_miss("contiguous-copy")
def a_deep_copy_of_a_network_for_images_that_is_trained():
    model, x = nn.Sequential(*(Residual() for _ in range(6))), torch.randn(2, 8, 4, 4)

    def block():
        copied = copy.deepcopy(model)
        optimizer = torch.optim.SGD(copied.parameters(), lr=0.1, foreach=True)
        for _ in range(2):
            copied(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return block


@EXAMPLES.near_miss("contiguous-copy", also="for-loop-indexing")
def pieces_of_the_parts_of_one_tensor():
    x, w = torch.randn(12, 4, 32), torch.randn(8, 4)

    def block():
        for part in x.unbind():
            part[:, :8].t().contiguous().t() @ w

    return block
