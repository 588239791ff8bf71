"""Labelled examples of attention written by hand that run on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from labelled.case import Examples
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

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


@EXAMPLES.positive("manual-attention")
def scores_scaled_by_the_root_of_the_size():
    q, k, v = rand(1, 8, 256, 64)

    def block() -> None:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores.softmax(-1) @ v  # <- here

    return block


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
def attention_in_einsum():
    q, k, v = rand(2, 256, 4, 32)

    def block() -> None:
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * 32**-0.5
        weights = torch.softmax(scores, dim=-1)  # <- here
        torch.einsum("bhij,bjhd->bihd", weights, v)

    return block


@EXAMPLES.positive("manual-attention")
def slopes_added_to_the_scores_by_baddbmm():
    q, k, v = rand(8, 256, 64)
    slopes = -torch.arange(1.0, 9)[:, None, None] * torch.arange(256.0)[None, None, :]

    def block() -> None:
        scores = torch.baddbmm(slopes, q, k.transpose(1, 2), beta=1.0, alpha=0.125)
        torch.bmm(functional.softmax(scores, dim=-1, dtype=torch.float32), v)  # <- here

    return block


@EXAMPLES.positive("manual-attention")
def windows_with_a_bias_of_positions():
    """64 windows of 7 x 7 patches, as in Swin: short, but many."""
    q, k, v = rand(64, 4, 49, 32)
    table, index = torch.randn(169, 4), torch.randint(0, 169, (49 * 49,))

    def block() -> None:
        scores = (q * 32**-0.5) @ k.transpose(-2, -1)
        bias = table[index].view(49, 49, -1).permute(2, 0, 1).contiguous()
        scores = scores + bias.unsqueeze(0)
        scores.softmax(dim=-1) @ v  # <- here

    return block


def _llamas(dtype):
    """As in Llama's eager form: keys repeated for groups of queries, a softmax in float32."""
    q, k, v = rand(1, 8, 288, 32, dtype=dtype)
    k, v = k[:, :2], v[:, :2]
    mask = torch.full((288, 288), torch.finfo(dtype).min, dtype=dtype).triu(1)

    def repeated(one: Tensor) -> Tensor:
        b, h, t, d = one.shape
        return one[:, :, None].expand(b, h, 4, t, d).reshape(b, h * 4, t, d)

    def block() -> None:
        scores = torch.matmul(q, repeated(k).transpose(2, 3)) * 32**-0.5
        scores = scores + mask
        weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)  # <- here
        weights = functional.dropout(weights, p=0.0, training=False)
        torch.matmul(weights, repeated(v))

    return block


@EXAMPLES.positive("manual-attention")
def softmax_in_float32_of_half_precision():
    return _llamas(torch.float16)


@EXAMPLES.near_miss("manual-attention")
def products_that_a_cpu_has_in_bfloat16():
    return _llamas(torch.bfloat16)


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
def heads_of_a_speech_model_with_rows_of_padding():
    """Rows without any key become zeros, which the fused form does as well."""
    q, k, v = rand(4, 4, 144, 32)
    lengths = torch.tensor([144, 100, 60, 20]).view(4, 1, 1, 1)
    padded = torch.arange(144)[None, None, None] >= lengths

    def block() -> None:
        scores = torch.matmul(q, k.transpose(-2, -1)) / 32**0.5
        scores = scores.masked_fill(padded, float("-inf"))
        weights = torch.softmax(scores, -1).masked_fill(padded, 0.0)  # <- here
        torch.matmul(weights, v)

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
def probabilities_of_a_classifier():
    model, x = nn.Linear(128, 1000), torch.randn(8, 64, 128)
    return inferred(lambda: model(x).softmax(-1))


@EXAMPLES.near_miss("manual-attention")
def experts_mixed_by_a_gate():
    gate, experts = nn.Linear(64, 32), torch.randn(32, 64)
    x = torch.randn(64, 256, 64)

    def block() -> None:
        weights = gate(x).softmax(-1)
        torch.einsum("btn,nd->btd", weights, experts)

    return inferred(block)


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
        (x @ k.transpose(-2, -1) * 0.125).softmax(-1).sum()
        return every

    return inferred(block)


@EXAMPLES.near_miss("manual-attention")
def weights_whose_entropy_is_a_loss():
    q, k, v = rand(1, 8, 256, 64)

    def block() -> None:
        weights = torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1)
        out = weights @ v
        out.sum() - (weights * weights.clamp(min=1e-9).log()).sum()

    return block


@EXAMPLES.near_miss("manual-attention")
def one_query_that_pools_a_sequence():
    _, k, v = rand(64, 8, 1024, 32)
    query = torch.randn(64, 8, 1, 32)

    def block() -> None:
        torch.softmax(query @ k.transpose(-2, -1) * 32**-0.5, -1) @ v

    return block


@EXAMPLES.near_miss("manual-attention")
def frames_of_eight_that_look_at_each_other():
    """As attention over time in a video transformer: thousands of tiny ones."""
    q, k, v = rand(784, 12, 8, 16)

    def block() -> None:
        (q @ k.transpose(-2, -1) * 0.25).softmax(-1) @ v

    return block


@EXAMPLES.near_miss("manual-attention")
def windows_of_five_by_five():
    q, k, v = rand(128, 4, 25, 16)

    def block() -> None:
        (q @ k.transpose(-2, -1) * 0.25).softmax(-1) @ v

    return block


@EXAMPLES.near_miss("manual-attention")
def scores_of_less_than_a_mebibyte():
    q, k, v = rand(1, 8, 168, 32)

    def block() -> None:
        (q @ k.transpose(-2, -1) * 32**-0.5).softmax(-1) @ v

    return block


@EXAMPLES.near_miss("manual-attention")
def attention_that_is_linear_in_the_length():
    q, k, v = rand(4, 8, 512, 32)

    def block() -> None:
        context = k.softmax(dim=-2).transpose(-2, -1) @ v
        q.softmax(dim=-1) @ context

    return block


@EXAMPLES.near_miss("manual-attention")
def the_math_form_of_torch():
    q, k, v = rand(1, 8, 256, 64)

    def block() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            functional.scaled_dot_product_attention(q, k, v)

    return block


@EXAMPLES.near_miss("manual-attention")
def the_fused_form_of_torch():
    q, k, v = rand(1, 8, 256, 64)
    return lambda: functional.scaled_dot_product_attention(q, k, v)


@EXAMPLES.near_miss("manual-attention")
def attention_trained_on_a_cpu():
    q, k, v = (one.requires_grad_() for one in rand(1, 8, 256, 64))

    def block() -> None:
        (torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) @ v).sum().backward()

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
def scores_with_a_soft_cap():
    q, k, v = rand(1, 8, 256, 64)

    def block() -> None:
        scores = torch.tanh(q @ k.transpose(-2, -1) * 0.125 / 50) * 50
        torch.softmax(scores, -1) @ v

    return block


@EXAMPLES.near_miss("manual-attention")
def scores_that_are_squared():
    q, k, v = rand(1, 8, 256, 64)

    def block() -> None:
        scores = q @ k.transpose(-2, -1)
        (scores * scores).softmax(-1) @ v

    return block


@EXAMPLES.near_miss("manual-attention")
def scores_that_a_gate_of_their_size_scales():
    q, k, v = rand(1, 8, 256, 64)
    gate = torch.rand(1, 8, 256, 256)

    def block() -> None:
        scores = (q @ k.transpose(-2, -1)) / 8
        (scores * gate).softmax(-1) @ v

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
def only_the_best_keys_count():
    q, k, v = rand(1, 8, 256, 64)

    def block() -> None:
        scores = q @ k.transpose(-2, -1) * 0.125
        least = scores.topk(32, dim=-1).values[..., -1:]
        torch.softmax(scores.masked_fill(scores < least, float("-inf")), -1) @ v

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


@EXAMPLES.near_miss("manual-attention")
def slots_that_compete_for_each_input():
    """The softmax is over the slots, the sum over the inputs."""
    slots, k, v = torch.randn(64, 33, 32), torch.randn(64, 256, 32), torch.randn(64, 256, 32)

    def block() -> None:
        weights = torch.softmax(k @ slots.transpose(1, 2), -1)
        weights = weights / weights.sum(1, keepdim=True)
        weights.transpose(1, 2) @ v

    return block
