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
def rows_scaled_one_by_one():
    x = torch.randn(32, 64, device="cuda")

    def block():
        y = torch.empty_like(x)
        for i in range(len(x)):
            y[i] = x[i] * i  # <- here
        return y

    return block


@ON_GPU.positive("for-loop-indexing")
def distances_row_by_row():
    points, centers = torch.randn(16, 8, device="cuda"), torch.randn(4, 8, device="cuda")

    def block():
        return torch.stack([(centers - point).square().sum(1) for point in points])  # <- here

    return block


@ON_GPU.positive("for-loop-indexing", also="host-sync")
def a_mean_for_each_class():
    x, labels = torch.randn(256, 8, device="cuda"), torch.arange(256, device="cuda") % 12

    def block():
        return torch.stack([x[labels == c].mean(0) for c in range(12)])  # <- here

    return block


@ON_GPU.near_miss("for-loop-indexing")
def rows_scaled_at_once():
    x = torch.randn(32, 64, device="cuda")
    return lambda: x * torch.arange(32, device="cuda")[:, None]


@ON_GPU.near_miss("for-loop-indexing")
def a_recurrence_over_time():
    x, layer = torch.randn(16, 4, 32, device="cuda"), nn.GRUCell(32, 32, device="cuda")

    def block():
        with torch.no_grad():
            h = torch.zeros(4, 32, device="cuda")
            for t in range(16):
                h = layer(x[t], h)
        return h

    return block


@ON_GPU.near_miss("for-loop-indexing")
def eight_parts():
    x = torch.randn(8, 64, device="cuda")
    return lambda: [x[i] * 2 for i in range(8)]


# -------------------------------------------------------------------- growing-cat


@ON_GPU.positive("growing-cat")
def features_joined_after_each_batch():
    layer = nn.Linear(64, 32, device="cuda")
    data = [torch.randn(16, 64, device="cuda") for _ in range(12)]

    def block():
        out = torch.empty(0, 32, device="cuda")
        with torch.no_grad():
            for x in data:
                out = torch.cat([out, layer(x)])  # <- here
        return out

    return block


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


@ON_GPU.positive("growing-cat")
def losses_stacked_each_time():
    model = nn.Linear(16, 4, device="cuda")
    data = [torch.randn(8, 16, device="cuda") for _ in range(14)]

    def block():
        history = torch.zeros(1, device="cuda")
        with torch.no_grad():
            for x in data:
                history = torch.hstack([history, model(x).mean()[None]])  # <- here
        return history

    return block


@ON_GPU.near_miss("growing-cat")
def features_joined_once():
    layer = nn.Linear(64, 32, device="cuda")
    data = [torch.randn(16, 64, device="cuda") for _ in range(12)]

    def block():
        with torch.no_grad():
            return torch.cat([layer(x) for x in data])

    return block


@ON_GPU.near_miss("growing-cat")
def a_window_of_constant_length():
    frame = torch.randn(1, 64, device="cuda")

    def block():
        window = torch.zeros(16, 64, device="cuda")
        for _ in range(12):
            window = torch.cat([window[1:], frame])
        return window

    return block


@ON_GPU.near_miss("growing-cat")
def five_parts_joined_one_by_one():
    part = torch.randn(16, 64, device="cuda")

    def block():
        out = part
        for _ in range(5):
            out = torch.cat([out, part])
        return out

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


@ON_GPU.positive("decode-without-cache", also="all-logits")
def tokens_written_into_a_buffer():
    model = Decoder().eval()
    prompt = torch.randint(512, (1, 8), device="cuda")

    def block():
        ids = torch.zeros(1, 32, dtype=torch.long, device="cuda")
        ids[:, :8] = prompt
        with torch.no_grad():
            for n in range(8, 28):
                logits = model(ids[:, :n])  # <- here
                ids[:, n] = logits[:, -1].argmax(-1)
        return ids

    return block


@ON_GPU.positive("decode-without-cache", also="growing-cat")
def samples_of_the_last_position_only():
    model = Decoder().eval()
    prompt = torch.randint(512, (2, 8), device="cuda")

    def block():
        ids = prompt
        with torch.no_grad():
            for _ in range(20):
                hidden = model.hidden(ids)  # <- here
                p = model.head(hidden[:, -1]).softmax(-1)
                ids = torch.cat([ids, torch.multinomial(p, 1)], dim=1)
        return ids

    return block


@ON_GPU.near_miss("decode-without-cache", also="growing-cat")
def one_token_at_a_time():
    embed, cell = nn.Embedding(512, 64, device="cuda"), nn.GRUCell(64, 64, device="cuda")
    head = nn.Linear(64, 512, device="cuda")

    def block():
        with torch.no_grad():
            token = torch.zeros(2, dtype=torch.long, device="cuda")
            h, ids = torch.zeros(2, 64, device="cuda"), [token]
            for _ in range(20):
                h = cell(embed(token), h)
                token = head(h).argmax(-1)
                ids.append(token)
        return torch.stack(ids, dim=1)

    return block


@ON_GPU.near_miss("decode-without-cache", also="all-logits")
def texts_of_different_lengths():
    model = Decoder().eval()
    texts = [torch.randint(512, (1, 8 + n), device="cuda") for n in range(18)]

    def block():
        with torch.no_grad():
            return [model(ids)[:, -1] for ids in texts]

    return block


@ON_GPU.near_miss("decode-without-cache", also="all-logits growing-cat")
def a_few_tokens():
    model = Decoder().eval()
    prompt = torch.randint(512, (2, 16), device="cuda")

    def block():
        ids = prompt
        with torch.no_grad():
            for _ in range(6):
                ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], dim=1)
        return ids

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


@ON_GPU.positive("all-logits")
def a_softmax_of_all_positions():
    head = nn.Linear(64, 2048, device="cuda")
    hidden = torch.randn(2, 128, 64, device="cuda")

    def block():
        with torch.no_grad():
            p = head(hidden).float().softmax(-1)  # <- here
            return torch.multinomial(p[:, -1, :], 1)

    return block


@ON_GPU.positive("all-logits")
def weights_tied_to_the_embedding():
    table = nn.Embedding(2048, 64, device="cuda").weight
    hidden = torch.randn(4, 64, 64, device="cuda")

    def block():
        with torch.no_grad():
            logits = hidden @ table.t()  # <- here
            return logits[:, -1, :].topk(5).indices

    return block


@ON_GPU.near_miss("all-logits")
def the_last_position_first():
    head = nn.Linear(64, 2048, bias=False, device="cuda", dtype=BF16)
    hidden = torch.randn(2, 128, 64, device="cuda", dtype=BF16)

    def block():
        with torch.no_grad():
            return head(hidden[:, -1]).argmax(-1)

    return block


@ON_GPU.near_miss("all-logits")
def a_loss_of_all_positions():
    head = nn.Linear(64, 2048, device="cuda")
    hidden = torch.randn(2, 128, 64, device="cuda")
    target = torch.randint(2048, (2, 128), device="cuda")

    def block():
        logits = head(hidden)
        F.cross_entropy(logits.transpose(1, 2), target).backward()

    return block


@ON_GPU.near_miss("all-logits")
def two_positions():
    head = nn.Linear(64, 2048, device="cuda")
    hidden = torch.randn(2, 128, 64, device="cuda")

    def block():
        with torch.no_grad():
            logits = head(hidden)
            return logits[:, -1].argmax(-1), logits[:, 0].argmax(-1)

    return block
