"""Retold from torchtune: a cache of keys and values is filled token by token, and compiled once."""

import pytest
import torch
from torch import nn

LENGTH = 6


class KVCache(nn.Module):
    """Keys and values of the tokens so far; the place of the next ones is a tensor."""

    def __init__(self, heads=2, width=4):
        super().__init__()
        self.register_buffer("k", torch.zeros(1, heads, LENGTH, width))
        self.register_buffer("v", torch.zeros(1, heads, LENGTH, width))
        self.register_buffer("at", torch.arange(LENGTH))

    def update(self, k, v):
        at = self.at[: k.shape[2]]
        self.k.index_copy_(2, at, k)
        self.v.index_copy_(2, at, v)
        self.at.add_(k.shape[2])
        return self.k, self.v


@pytest.mark.min_graphs(1)
@pytest.mark.max_graphs(1)
@pytest.mark.max_recompiles(0)
def test_the_cache_is_compiled_once():
    torch.compiler.reset()
    cache, tokens = KVCache(), torch.rand(1, 2, LENGTH, 4)
    update = torch.compile(cache.update, backend="aot_eager", fullgraph=True)
    half = LENGTH // 2
    cache.update(tokens[:, :, :half], tokens[:, :, :half])
    for at in range(half, LENGTH):
        k, v = update(tokens[:, :, at : at + 1], tokens[:, :, at : at + 1])
    assert torch.equal(k, tokens)
    assert torch.equal(v, tokens)
