"""Attention in each of torch's backends, forward and backward.

By hand, for the products of one pair of S × S scores of D features: 4·B·H·S²·D forward; backward
10·B·H·S²·D, where the scores are computed again, and 8·B·H·S²·D in the math form, which keeps them.
"""

from __future__ import annotations

import torch
from gpu_payloads.payload import Made, Payloads
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

PAYLOADS = Payloads()
#: Batch, heads, length, features of a head.
SHAPE = (4, 16, 1024, 64)
PAIRS = 4 * 16 * 1024 * 1024 * 64


def _attention(device: str, backend: SDPBackend, dtype: torch.dtype = torch.bfloat16) -> Made:
    q, k, v = (torch.randn(SHAPE, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    gradient = torch.ones(SHAPE, device=device, dtype=dtype)

    def block() -> None:
        with sdpa_kernel([backend]):
            scaled_dot_product_attention(q, k, v).backward(gradient)
        q.grad = k.grad = v.grad = None

    yield block


@PAYLOADS.add(anywhere=False, flops=14 * PAIRS, counter=True, syncs=0, h2d_copies=0, d2h_copies=0)
def flash_attention(device: str) -> Made:
    """In bf16 by the flash kernels."""
    yield from _attention(device, SDPBackend.FLASH_ATTENTION)


@PAYLOADS.add(anywhere=False, flops=14 * PAIRS, counter=True, syncs=0)
def efficient_attention(device: str) -> Made:
    """In bf16 by the memory-efficient kernels."""
    yield from _attention(device, SDPBackend.EFFICIENT_ATTENTION)


@PAYLOADS.add(anywhere=False, flops=14 * PAIRS, counter=True, syncs=0)
def efficient_attention_in_fp32(device: str) -> Made:
    """In fp32 by the memory-efficient kernels."""
    yield from _attention(device, SDPBackend.EFFICIENT_ATTENTION, torch.float32)


@PAYLOADS.add(anywhere=False, flops=14 * PAIRS, counter=True, syncs=0)
def cudnn_attention(device: str) -> Made:
    """In bf16 by cuDNN's kernels."""
    yield from _attention(device, SDPBackend.CUDNN_ATTENTION)


@PAYLOADS.add(
    anywhere=False, flops=12 * PAIRS, counter=True, rules={"math-attention": 1},
    may="unfused-elementwise",
)  # fmt: skip
def math_attention(device: str) -> Made:
    """In bf16, composed of products and a softmax."""
    yield from _attention(device, SDPBackend.MATH)


@PAYLOADS.add(anywhere=False, flops=14 * PAIRS, counter=True, syncs=0)
def causal_attention(device: str) -> Made:
    """With a causal mask; the masked half counts, too."""
    q, k, v = (
        torch.randn(SHAPE, device=device, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    gradient = torch.ones_like(q)

    def block() -> None:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            scaled_dot_product_attention(q, k, v, is_causal=True).backward(gradient)
        q.grad = k.grad = v.grad = None

    yield block


@PAYLOADS.add(
    anywhere=False, flops=4 * PAIRS, counter=True, rules={"manual-attention": 1},
    may="unfused-elementwise",
)  # fmt: skip
def attention_by_hand(device: str) -> Made:
    """Scores, a softmax, and their product with the values."""
    q, k, v = (torch.randn(SHAPE, device=device, dtype=torch.bfloat16) for _ in range(3))
    yield lambda: torch.softmax(q @ k.transpose(-1, -2) / 8, dim=-1) @ v


@PAYLOADS.add(anywhere=False, flops=4 * PAIRS, syncs=0, h2d_copies=0, d2h_copies=0)
def attention_of_grouped_queries(device: str) -> Made:
    """Four heads of keys and values for 16 of queries, forward, by the flash kernels."""
    q = torch.randn(SHAPE, device=device, dtype=torch.bfloat16)
    k, v = (torch.randn(4, 4, 1024, 64, device=device, dtype=torch.bfloat16) for _ in range(2))

    def block() -> None:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            scaled_dot_product_attention(q, k, v, enable_gqa=True)

    yield block


@PAYLOADS.add(anywhere=False, flops=4 * PAIRS, counter=True, syncs=0)
def attention_with_a_mask(device: str) -> Made:
    """With a mask of numbers, forward, by the memory-efficient kernels."""
    q, k, v = (torch.randn(SHAPE, device=device, dtype=torch.bfloat16) for _ in range(3))
    mask = torch.zeros(1024, 1024, device=device, dtype=torch.bfloat16)

    def block() -> None:
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
            scaled_dot_product_attention(q, k, v, attn_mask=mask)

    yield block


@PAYLOADS.add(anywhere=False, counter=True, syncs=0, h2d_copies=0, d2h_copies=0)
def transformer_layer(device: str) -> Made:
    """A layer of a transformer in bf16, forward and backward."""
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model = layer.to(device, torch.bfloat16)
    x = torch.randn(8, 128, 256, device=device, dtype=torch.bfloat16, requires_grad=True)

    def block() -> None:
        model(x).sum().backward()
        model.zero_grad()
        x.grad = None

    yield block
