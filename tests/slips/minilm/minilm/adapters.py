"""Fine-tuning by low-rank changes of frozen weights."""

import torch
from torch import nn
from torch.nn.utils import parametrize


class LowRank(nn.Module):
    """A weight plus a product of two thin matrices."""

    def __init__(self, rows, columns, rank=4, scale=1.0):
        super().__init__()
        self.left = nn.Parameter(torch.zeros(rows, rank))
        self.right = nn.Parameter(torch.randn(rank, columns) / rank)
        self.scale = scale

    def forward(self, weight):
        return torch.addmm(weight, self.left, self.right, alpha=self.scale)


def adapt(model, names, rank=4):
    """Freeze a model, and add low-rank changes to its layers of these names."""
    model.requires_grad_(requires_grad=False)
    for name, module in list(model.named_modules()):
        if name.rpartition(".")[2] in names:
            change = LowRank(*module.weight.shape, rank=rank)
            parametrize.register_parametrization(module, "weight", change)
    return model


def merge(model):
    """Make the changes part of the weights."""
    for module in list(model.modules()):
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight")
    return model


class SharedLayers(nn.Module):
    """One layer that is applied again and again, with adapters."""

    def __init__(self, width, depth, rank=4):
        super().__init__()
        self.depth = depth
        self.layer = adapt(nn.Sequential(nn.Linear(width, width)), ["0"], rank)

    def forward(self, x):
        with parametrize.cached():
            for _ in range(self.depth):
                x = x + torch.tanh(self.layer(x))
        return x
