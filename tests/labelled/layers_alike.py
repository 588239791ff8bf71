"""Layers that cost the same on every CPU: what a convolution allocates, its instructions decide."""

from __future__ import annotations

import torch
from torch import nn


class Blur(nn.Module):
    """Smooths images of so many channels, then scales and shifts each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(channels, 1, 1))
        self.pool = nn.AvgPool2d(3, 1, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The images, in the same shape."""
        smooth: torch.Tensor = self.pool(images)
        return smooth * self.weight + self.bias
