"""Labelled examples of attention written by hand that run on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from labelled.case import Examples
from torch import Tensor, nn
from torch.nn import functional

EXAMPLES = Examples()


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Queries, keys and values."""
    return [torch.randn(*shape).to(dtype) for _ in range(3)]


def inferred(block: Callable[[], Any]) -> Callable[[], Any]:
    """The block without gradients."""

    def run() -> None:
        with torch.no_grad():
            block()

    return run


# ------------------------------------------------------------------------------------- positives


class CausalHeads(nn.Module):
    """As in minGPT: a triangular mask, and dropout that does nothing in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(128, 384)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(256, 256)).view(1, 1, 256, 256))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (one.view(b, t, 4, 32).transpose(1, 2) for one in self.qkv(x).split(c, 2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        mask = self.get_buffer("mask")[:, :, :t, :t]
        weights = self.drop(
            functional.softmax(scores.masked_fill(mask == 0, float("-inf")), dim=-1)  # <- here
        )
        out: Tensor = weights @ v
        return out.transpose(1, 2).reshape(b, t, c)


@EXAMPLES.positive("manual-attention", 2)
def two_causal_layers_of_a_small_decoder():
    model = nn.Sequential(CausalHeads(), CausalHeads()).eval()
    x = torch.randn(2, 256, 128)
    return inferred(lambda: model(x))


@EXAMPLES.positive("manual-attention")
def slopes_added_to_the_scores_by_baddbmm():
    q, k, v = rand(8, 256, 64)
    slopes = -torch.arange(1.0, 9)[:, None, None] * torch.arange(256.0)[None, None, :]

    def block() -> None:
        scores = torch.baddbmm(slopes, q, k.transpose(1, 2), beta=1.0, alpha=0.125)
        torch.bmm(functional.softmax(scores, dim=-1, dtype=torch.float32), v)  # <- here

    return block


@EXAMPLES.positive("manual-attention")
def words_that_look_at_an_image():
    """Cross attention: 64 queries, 1,024 keys."""
    q, k, v = torch.randn(8, 64, 32), torch.randn(8, 1024, 32), torch.randn(8, 1024, 32)

    def block() -> None:
        scores = torch.bmm(q, k.transpose(1, 2))
        weights = nn.functional.softmax(scores, dim=-1)  # <- here
        torch.bmm(weights, v).transpose(0, 1).contiguous()

    return block


@EXAMPLES.positive("manual-attention")
def attention_as_wide_as_a_window_of_36():
    q, k, v = rand(64, 4, 36, 16)

    def block() -> None:
        torch.softmax(q @ k.transpose(-2, -1) * 0.25, -1) @ v  # <- here

    return block


@EXAMPLES.positive("manual-attention")
def scores_with_a_temperature_for_each_query():
    q, k, v = rand(1, 8, 256, 64)
    temperature = torch.rand(1, 8, 256, 1)

    def block() -> None:
        scores = q @ k.transpose(-2, -1) * temperature / torch.tensor(8.0)
        scores.softmax(-1) @ v  # <- here

    return block


@EXAMPLES.positive("manual-attention", bytes=2**16)
def small_scores_where_small_ones_count():
    q, k, v = rand(1, 2, 128, 32)

    def block() -> None:
        torch.softmax(q @ k.transpose(-2, -1) * 32**-0.5, -1) @ v  # <- here

    return block


# ----------------------------------------------------------------------------------- near misses


@EXAMPLES.near_miss("manual-attention")
def multihead_attention_that_returns_its_weights():
    model, x = nn.MultiheadAttention(64, 4, batch_first=True), torch.randn(2, 256, 64)
    return lambda: model(x, x, x)


@EXAMPLES.near_miss("manual-attention")
def weights_of_each_layer_in_a_list():
    """As with ``output_attentions=True``: no operator takes them, but they are wanted."""
    q, k, v = rand(1, 8, 256, 64)

    def block() -> list[Tensor]:
        x, every = q, []
        for _ in range(2):
            weights = torch.softmax(x @ k.transpose(-2, -1) * 0.125, -1)
            x = weights @ v
            every.append(weights)
        return every

    return inferred(block)


@EXAMPLES.near_miss("manual-attention")
def windows_of_five_by_five():
    q, k, v = rand(128, 4, 25, 16)

    def block() -> None:
        (q @ k.transpose(-2, -1) * 0.25).softmax(-1) @ v

    return block


@EXAMPLES.near_miss("manual-attention")
def attention_that_is_linear_in_the_length():
    q, k, v = rand(4, 8, 512, 32)

    def block() -> None:
        context = k.softmax(dim=-2).transpose(-2, -1) @ v
        q.softmax(dim=-1) @ context

    return block


@EXAMPLES.near_miss("manual-attention")
def dropout_that_the_fused_form_of_a_cpu_lacks():
    q, k, v = rand(1, 8, 256, 64)

    def block() -> None:
        weights = functional.dropout(
            torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1), 0.1, training=True
        )
        weights @ v

    return block


@EXAMPLES.near_miss("manual-attention")
def scores_that_are_squared():
    q, k, v = rand(1, 8, 256, 64)

    def block() -> None:
        scores = q @ k.transpose(-2, -1)
        (scores * scores).softmax(-1) @ v

    return block


@EXAMPLES.near_miss("manual-attention")
def scores_that_divide():
    q, k, v = rand(1, 8, 256, 64)
    total = torch.rand(1, 8, 256, 1)
    return lambda: (total / (q @ k.transpose(-2, -1))).softmax(-1) @ v


@EXAMPLES.near_miss("manual-attention")
def weights_that_are_used_many_calls_later():
    q, k, v = rand(1, 8, 256, 64)

    def block() -> None:
        weights = (q @ k.transpose(-2, -1) / 8).softmax(-1)
        out = weights @ v
        for _ in range(60):
            out = out.cos()
        (weights * weights.log()).sum()

    return block


@EXAMPLES.near_miss("manual-attention")
def heads_that_talk():
    q, k, v = rand(1, 8, 256, 64)
    mix = torch.randn(8, 8)

    def block() -> None:
        scores = torch.einsum("bhij,hg->bgij", q @ k.transpose(-2, -1) * 0.125, mix)
        torch.softmax(scores, -1) @ v

    return block


@EXAMPLES.near_miss("manual-attention")
def some_heads_are_turned_off():
    q, k, v = rand(1, 8, 256, 64)
    on = torch.tensor([1.0, 1, 0, 1, 1, 0, 1, 1]).view(1, 8, 1, 1)

    def block() -> None:
        weights = torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) * on
        weights @ v

    return block


@EXAMPLES.near_miss("manual-attention")
def where_each_point_of_one_image_is_in_another():
    """A correlation of features gives expected coordinates: values of two numbers."""
    one, other, _ = rand(4, 400, 32)
    grid = torch.randn(4, 400, 2)

    def block() -> None:
        weights = torch.softmax(one @ other.transpose(1, 2) / 32**0.5, -1)
        torch.bmm(weights, grid)

    return block
