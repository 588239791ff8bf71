"""Examples on a GPU of the rules about loops over a tensor and about generation."""

from __future__ import annotations

import torch
from labelled.case import Examples
from labelled.gpu_models import BF16, Decoder
from torch import nn
from torch.nn import functional as F  # noqa: N812

ON_GPU = Examples()


# -------------------------------------------------------------------- for-loop-indexing


@ON_GPU.positive("for-loop-indexing")
def distances_row_by_row():
    points, centers = torch.randn(16, 8, device="cuda"), torch.randn(4, 8, device="cuda")

    def block():
        return torch.stack([(centers - point).square().sum(1) for point in points])  # <- here

    return block


@ON_GPU.near_miss("for-loop-indexing")
def rows_scaled_at_once():
    x = torch.randn(32, 64, device="cuda")
    return lambda: x * torch.arange(32, device="cuda")[:, None]


# -------------------------------------------------------------------- growing-cat


@ON_GPU.positive("growing-cat")
def a_cache_of_keys_that_grows():
    keys = torch.randn(4, 8, 256, 64, device="cuda", dtype=BF16)
    query = torch.randn(4, 8, 1, 64, device="cuda", dtype=BF16)

    def block():
        cache = keys
        for _ in range(12):
            cache = torch.cat([cache, query], dim=2)  # <- here
            F.scaled_dot_product_attention(query, cache, cache)

    return block


@ON_GPU.near_miss("growing-cat")
def features_joined_once():
    layer = nn.Linear(64, 32, device="cuda")
    data = [torch.randn(16, 64, device="cuda") for _ in range(12)]

    def block():
        with torch.no_grad():
            return torch.cat([layer(x) for x in data])

    return block


# -------------------------------------------------------------------- decode-without-cache


@ON_GPU.positive("decode-without-cache", also="all-logits growing-cat")
def tokens_appended_to_the_prompt():
    model = Decoder().eval()
    prompt = torch.randint(512, (2, 16), device="cuda")

    def block():
        ids = prompt
        with torch.inference_mode():
            for _ in range(18):
                logits = model(ids)  # <- here
                ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
        return ids

    return block


@ON_GPU.near_miss("decode-without-cache", also="all-logits")
def texts_of_different_lengths():
    model = Decoder().eval()
    texts = [torch.randint(512, (1, 8 + n), device="cuda") for n in range(18)]

    def block():
        with torch.no_grad():
            return [model(ids)[:, -1] for ids in texts]

    return block


# -------------------------------------------------------------------- all-logits


@ON_GPU.positive("all-logits")
def a_prompt_of_which_the_last_token_counts():
    head = nn.Linear(64, 2048, bias=False, device="cuda", dtype=BF16)
    hidden = torch.randn(2, 128, 64, device="cuda", dtype=BF16)

    def block():
        with torch.no_grad():
            logits = head(hidden)  # <- here
            return logits[:, -1].argmax(-1)

    return block


@ON_GPU.near_miss("all-logits")
def the_last_position_first():
    head = nn.Linear(64, 2048, bias=False, device="cuda", dtype=BF16)
    hidden = torch.randn(2, 128, 64, device="cuda", dtype=BF16)

    def block():
        with torch.no_grad():
            return head(hidden[:, -1]).argmax(-1)

    return block


# -------------------------------------------------------------------- recomputed


def _turned(*, once):
    layers = nn.ModuleList(nn.Linear(64, 64, device="cuda") for _ in range(6)).requires_grad_(False)
    frequencies, x = torch.rand(32, device="cuda"), torch.randn(2, 48, 64, device="cuda")

    def table():
        angles = torch.outer(torch.arange(48.0, device="cuda"), frequencies)  # <- here
        return torch.cat([angles.cos(), angles.sin()], -1)

    def block():
        hidden, known = x, table() if once else None
        for layer in layers:
            hidden = layer(hidden) * (known if once else table())
        return hidden

    return block


@ON_GPU.positive("recomputed")
def a_table_of_angles_for_each_layer_on_a_gpu():
    return _turned(once=False)


@ON_GPU.near_miss("recomputed")
def a_table_of_angles_made_once_on_a_gpu():
    return _turned(once=True)


# -------------------------------------------------------------------- unused-result


def _scored(*, both):
    head, other = nn.Linear(64, 4, device="cuda"), nn.Linear(64, 1200, device="cuda")
    x = torch.randn(512, 64, device="cuda")

    @torch.no_grad()
    def block():
        hidden = x.relu()
        labels, words = head(hidden), other(hidden).softmax(-1)  # <- here
        return int((labels.sum() + words.sum() if both else labels.sum()) > 0)

    return block


@ON_GPU.positive("unused-result", also="host-sync")
def a_head_whose_result_is_dropped_on_a_gpu():
    return _scored(both=False)


@ON_GPU.near_miss("unused-result", also="host-sync")
def two_heads_that_are_used_on_a_gpu():
    return _scored(both=True)
