"""Labelled examples of layers that run again within one call of a module, and of calls again."""

from __future__ import annotations

import torch
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()


# -------------------------------------------------------------------------------- one or two calls


@EXAMPLES.near_miss("missing-no-grad")
def crops_of_several_sizes():
    class Crops(nn.Module):
        def __init__(self):
            super().__init__()
            pooled = nn.AdaptiveAvgPool2d(1)
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), pooled, nn.Flatten())
            self.head = nn.Linear(4, 2)

        def forward(self, crops):
            return self.head(torch.cat([self.body(crop) for crop in crops]))

    model, crops = Crops(), [torch.randn(2, 3, size, size) for size in (12, 12, 6, 6, 6)]
    return lambda: model(crops)


# -------------------------------------------------------------------------------- many calls


@EXAMPLES.positive("missing-no-grad")
def samples_that_a_module_draws_in_its_forward():
    class Sampler(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.out = nn.Linear(6, 12), nn.Linear(12, 6)

        def forward(self, x):
            for _ in range(5):
                noise = self.out(self.inner(x).relu())
                x = x - noise / 5 + 0.1 * torch.randn_like(x)
            return x

    model, start = Sampler(), torch.randn(2, 6)
    return lambda: model(start)  # <- here
