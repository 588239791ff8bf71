"""The same as `outsider`, about casts, copies and graphs."""

from __future__ import annotations

import torch
from labelled.case import ANY, Examples
from torch import nn

EXAMPLES = Examples()


# ---------------------------------------------------------------------------- repeated-cast


@EXAMPLES.positive("repeated-cast", ANY)
def outside_autocast_without_its_cache():
    layer, x = nn.Linear(32, 32), torch.randn(4, 32)

    def calls():
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            for _ in range(12):
                layer(x)  # <- here

    return calls


@EXAMPLES.positive("repeated-cast", ANY)
def outside_mask_cast_in_every_layer():
    layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(12))
    x, mask = torch.randn(4, 16), torch.rand(4, 16) > 0.5

    @torch.no_grad()
    def infer():
        y = x
        for layer in layers:
            y = layer(y) * mask.float()  # <- here
        return y

    return infer


@EXAMPLES.near_miss("repeated-cast")
def outside_casts_of_many_shapes():
    tensors = [torch.randn(4, number + 1) for number in range(12)]
    return lambda: [tensor.bfloat16() for tensor in tensors]


# -------------------------------------------------------------------------- contiguous-copy


@EXAMPLES.positive("contiguous-copy", ANY)
def outside_cloned_again_and_again():
    x = torch.randn(64, 64)

    def calls():
        for _ in range(12):
            x.clone().add_(1)  # <- here

    return calls


@EXAMPLES.positive("contiguous-copy", ANY)
def outside_permuted_again_and_again():
    images = torch.randn(2, 8, 8, 3)

    def calls():
        for _ in range(12):
            images.permute(0, 3, 1, 2).contiguous().mean()  # <- here

    return calls
