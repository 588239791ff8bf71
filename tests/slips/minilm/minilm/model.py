"""The transformer."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from minilm.functions import squared_relu
from minilm.initial import initialize


class Cache:
    """Keys and values of the positions so far, for all layers, in one buffer."""

    def __init__(self, config, batch):
        shape = (config.layers, 2, batch, config.heads, config.context, config.head_width)
        self.held = torch.zeros(shape)
        self.length = 0

    def extend(self, layer, key, value):
        end = self.length + key.shape[2]
        keys, values = self.held[layer]
        keys[:, :, self.length : end] = key
        values[:, :, self.length : end] = value
        return keys[:, :, :end], values[:, :, :end]


class Embedding(nn.Module):
    """Tokens and their positions."""

    def __init__(self, config):
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Parameter(torch.empty(config.context, config.width))

    def forward(self, ids, start=0):
        return self.tokens(ids) + self.positions[start : start + ids.shape[1]]


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.layer = layer
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def split(self, qkv):
        batch, length, _ = qkv.shape
        return qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)

    def forward(self, x, cache=None):
        query, key, value = self.split(self.qkv(x))
        if cache is not None:
            key, value = cache.extend(self.layer, key, value)
        causal = x.shape[1] > 1
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden = config.widening * config.width
        self.up = nn.Linear(config.width, hidden)
        self.down = nn.Linear(hidden, config.width)

    def forward(self, x):
        return self.down(squared_relu(self.up(x)))


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.before_attention = nn.LayerNorm(config.width)
        self.attention = Attention(config, layer)
        self.before_mlp = nn.LayerNorm(config.width)
        self.mlp = MLP(config)

    def forward(self, x, cache=None):
        x = x + self.attention(self.before_attention(x), cache)
        return x + self.mlp(self.before_mlp(x))


class MiniLM(nn.Module):
    """Logits of the next token at each position."""

    def __init__(self, config, initialized=True):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        if initialized:
            initialize(self)

    def hidden(self, ids, cache=None):
        x = self.embedding(ids, cache.length if cache is not None else 0)
        for block in self.blocks:
            if self.config.recompute and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x, cache)
        if cache is not None:
            cache.length += ids.shape[1]
        return self.norm(x)

    def forward(self, ids, cache=None):
        return self.head(self.hidden(ids, cache))

    def loss(self, ids):
        """Mean negative log likelihood of each token after the first."""
        logits = self(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
