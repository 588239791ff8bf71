"""Retold from peft: a batch that mixes adapters costs little more than one without."""

import torch
from torch import nn


class LoraLinear(nn.Module):
    """A linear layer with adapters of low rank, of which each row of a batch may have its own."""

    def __init__(self, width=128, rank=4, adapters=("one", "two")):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.down = nn.ModuleDict({name: nn.Linear(width, rank, bias=False) for name in adapters})
        self.up = nn.ModuleDict({name: nn.Linear(rank, width, bias=False) for name in adapters})

    def forward(self, x, names):
        out = self.base(x)
        for name in self.down:
            rows = [row for row, given in enumerate(names) if given == name]
            if rows:
                out[rows] += self.up[name](self.down[name](x[rows]))
        return out


def test_a_mixed_batch_costs_little_more(torchprof):
    layer, x = LoraLinear(), torch.rand(24, 8, 128)
    mixed = ["base", "one", "two"] * 8
    with torch.inference_mode():
        with torchprof("base"):
            base = layer(x, ["base"] * 24)
        with torchprof("mixed"):
            out = layer(x, mixed)
    assert torch.allclose(out[::3], base[::3], atol=1e-5)
    assert torchprof["mixed"].flops <= 1.1 * torchprof["base"].flops
    assert torchprof["mixed"].ops <= torchprof["base"].ops + 2 * 8  # of two adapters
