"""An encoder of images, as one vector each."""

import torch
from torch import nn


class PatchBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.GELU(),
            nn.Linear(2 * width, width),
        )

    def forward(self, x):
        normed = self.norm(x)
        mixed, _ = self.attention(normed, normed, normed, need_weights=False)
        x = x + mixed
        return x + self.mlp(x)


class PatchEncoder(nn.Module):
    """Patches as tokens, attention among them, their mean as the result."""

    def __init__(self, size=32, patch=8, width=32, heads=4, layers=2):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.zeros((size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(PatchBlock(width, heads) for _ in range(layers)))

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        return self.blocks(x + self.positions).mean(1)


def contrastive_loss(a, b, temperature=0.1):
    """Vectors of two views of one image shall be each other's nearest."""
    a = nn.functional.normalize(a, dim=-1)
    b = nn.functional.normalize(b, dim=-1)
    logits = a @ b.T / temperature
    return nn.functional.cross_entropy(logits, torch.arange(len(a)))
