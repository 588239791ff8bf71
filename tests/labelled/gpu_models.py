"""Models and steps as strangers write them, for the examples that run on a GPU."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

BF16 = torch.bfloat16


def split_up_to(mib: int = 1 << 20) -> None:
    """Let the caching allocator split blocks of up to this size, by default of any."""
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # torch 2.10
    change = change or torch.cuda.memory._set_allocator_settings
    change(f"max_split_size_mb:{mib}")


def perceptron(width=256, layers=3, classes=16, **where):
    """Linear layers and activations, on the GPU."""
    where = {"device": "cuda", **where}
    parts = []
    for _ in range(layers - 1):
        parts += [nn.Linear(width, width, **where), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(width, classes, **where))


def batches(count=4, size=64, width=256, classes=16, **where):
    """Inputs and labels that are on the GPU already."""
    where = {"device": "cuda", **where}
    return [
        (
            torch.randn(size, width, **where),
            torch.randint(classes, (size,), device=where["device"]),
        )
        for _ in range(count)
    ]


class Block(nn.Module):
    """A residual block of convolutions without biases, as in torchvision."""

    def __init__(self, channels, **where):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False, **where)
        self.bn1 = nn.BatchNorm2d(channels, **where)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False, **where)
        self.bn2 = nn.BatchNorm2d(channels, **where)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(y)))


def resnet(channels=64, blocks=4, **where):
    """A stem and some blocks, on the GPU."""
    where = {"device": "cuda", **where}
    stem = nn.Conv2d(3, channels, 7, 2, 3, bias=False, **where)
    return nn.Sequential(stem, *(Block(channels, **where) for _ in range(blocks)))


class Layer(nn.Module):
    """A layer of a decoder with the fused attention, as in transformers."""

    def __init__(self, width=256, heads=4, **where):
        super().__init__()
        where = {"device": "cuda", **where}
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, **where), nn.LayerNorm(width, **where)
        self.qkv = nn.Linear(width, 3 * width, **where)
        self.out = nn.Linear(width, width, **where)
        self.up = nn.Linear(width, 4 * width, **where)
        self.down = nn.Linear(4 * width, width, **where)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            one.view(b, t, self.heads, -1).transpose(1, 2)
            for one in self.qkv(self.norm1(x)).split(c, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """Token ids to logits of all positions."""

    def __init__(self, vocabulary=512, width=256, layers=2, **where):
        super().__init__()
        where = {"device": "cuda", **where}
        self.tokens = nn.Embedding(vocabulary, width, **where)
        self.layers = nn.ModuleList(Layer(width, **where) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False, **where)

    def hidden(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, ids):
        return self.head(self.hidden(ids))
