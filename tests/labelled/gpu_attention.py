"""Examples on a GPU of the rules about attention."""

from __future__ import annotations

import math

import torch
from labelled.case import Examples
from labelled.gpu_models import BF16, Layer
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

ON_GPU = Examples()


def heads(*shape, dtype=BF16):
    """Queries, keys and values on the GPU."""
    return [torch.randn(*shape, device="cuda", dtype=dtype) for _ in range(3)]


# -------------------------------------------------------------------- math-attention: positives


@ON_GPU.positive("math-attention")
def three_dimensions_instead_of_four():
    q, k, v = heads(8, 1024, 64)

    def block():
        with torch.no_grad():
            return F.scaled_dot_product_attention(q, k, v)  # <- here

    return block


@ON_GPU.positive("math-attention", also="unaligned-matmul")
def an_odd_head_size_above_the_largest():
    q, k, v = heads(2, 4, 256, 257)

    def block():
        with torch.no_grad():
            return F.scaled_dot_product_attention(q, k, v)  # <- here

    return block


@ON_GPU.positive("math-attention")
def float32_attention_whose_kernels_are_off():
    q, k, v = heads(1, 8, 256, 64, dtype=torch.float32)

    def block():
        with torch.no_grad(), sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
            return F.scaled_dot_product_attention(q, k, v)  # <- here

    return block


# ------------------------------------------------------------------- math-attention: near misses


@ON_GPU.near_miss("math-attention")
def four_dimensions_in_half_precision():
    q, k, v = heads(2, 8, 256, 64)
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)


@ON_GPU.near_miss("math-attention", also="float64")
def double_precision():
    q, k, v = heads(2, 4, 128, 64, dtype=torch.float64)
    return lambda: F.scaled_dot_product_attention(q, k, v)


@ON_GPU.near_miss("math-attention")
def training_by_a_fused_kernel():
    layer = Layer(dtype=BF16)
    x = torch.randn(2, 256, 256, device="cuda", dtype=BF16)
    return lambda: layer(x).sum().backward()


# -------------------------------------------------------------------- manual-attention: positives


class Causal(nn.Module):
    """As in minGPT: a triangular mask and a dropout."""

    def __init__(self, length=512, dropout=0.1):
        super().__init__()
        self.qkv = nn.Linear(256, 768, device="cuda", dtype=BF16)
        self.drop = nn.Dropout(dropout)
        mask = torch.ones(length, length, device="cuda").tril()
        self.register_buffer("mask", mask.view(1, 1, length, length))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (one.view(b, t, 4, 64).transpose(1, 2) for one in self.qkv(x).split(c, 2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        weights = self.drop(F.softmax(scores, dim=-1))  # <- here
        return (weights @ v).transpose(1, 2).reshape(b, t, c)


@ON_GPU.positive("manual-attention", 2)
def two_causal_layers_in_training_with_dropout():
    model = nn.Sequential(Causal(), Causal())
    x = torch.randn(2, 512, 256, device="cuda", dtype=BF16)
    return lambda: model(x).float().sum().backward()


@ON_GPU.positive("manual-attention", 2)
def two_causal_layers_in_inference():
    model = nn.Sequential(Causal(), Causal()).eval().requires_grad_(False)
    x = torch.randn(2, 512, 256, device="cuda", dtype=BF16)
    return lambda: model(x)


@ON_GPU.positive("manual-attention")
def einsum_in_an_autocast_region():
    q, k, v = heads(2, 512, 8, 64, dtype=torch.float32)

    def block():
        with torch.no_grad(), torch.autocast("cuda", dtype=BF16):
            scores = torch.einsum("bihd,bjhd->bhij", q, k) * 64**-0.5
            weights = torch.softmax(scores, dim=-1)  # <- here
            return torch.einsum("bhij,bjhd->bihd", weights, v)

    return block


# ------------------------------------------------------------------ manual-attention: near misses


@ON_GPU.near_miss("manual-attention")
def the_fused_form_with_a_mask():
    q, k, v = heads(2, 8, 512, 64)
    mask = torch.zeros(512, 512, device="cuda", dtype=BF16)
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@ON_GPU.near_miss("manual-attention", also="unfused-elementwise")
def scores_with_a_soft_cap():
    q, k, v = heads(2, 8, 512, 64)

    def block():
        with torch.no_grad():
            scores = 30 * torch.tanh(q @ k.transpose(-2, -1) / 30)
            return scores.softmax(-1) @ v

    return block


@ON_GPU.near_miss("manual-attention")
def scores_that_stay_in_the_cache():
    q, k, v = heads(1, 4, 64, 64)

    def block():
        with torch.no_grad():
            return (q @ k.transpose(-2, -1) * 0.125).softmax(-1) @ v

    return block
