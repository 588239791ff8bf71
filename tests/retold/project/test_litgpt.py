"""Retold from litgpt: which attention kernel runs."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


@pytest.mark.min_ops(1, op="aten::_scaled_dot_product_flash_attention_for_cpu")
@pytest.mark.max_ops(0, op="aten::_scaled_dot_product_attention_math*")
def test_flash_attention_runs():
    with torch.inference_mode():
        CausalSelfAttention()(torch.ones(2, 16, 64))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="these kernels are CUDA's")
@pytest.mark.min_kernels(1, kernel="*flash*", on="cuda")
@pytest.mark.max_kernels(0, kernel="*softmax*")
def test_the_flash_kernel_runs_on_the_device():
    with torch.inference_mode():
        CausalSelfAttention().half().cuda()(torch.ones(2, 16, 64).half().cuda())
