"""Labelled examples of decode-without-cache: language models that generate."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()
WORDS, WIDTH, HEADS = 24, 16, 2


class _Block(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, time, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(batch, time, width))


class _Model(nn.Module):
    """A small language model that knows no cache."""

    def __init__(self, layers=2, words=WORDS, width=WIDTH):
        super().__init__()
        self.words, self.blocks = nn.Embedding(words, width), nn.ModuleList()
        self.blocks.extend(_Block(width) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def features(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, ids):
        return self.head(self.features(ids))

    @torch.no_grad()
    def generate(self, ids, steps, window=64):
        for _ in range(steps):
            seen = ids if ids.size(1) <= window else ids[:, -window:]
            chosen = self(seen)[:, -1].argmax(-1, keepdim=True)  # <- here
            ids = torch.cat((ids, chosen), dim=1)
        return ids


def _ids(batch=1, time=4):
    return torch.randint(WORDS, (batch, time))


# ----------------------------------------------------------------------- decode-without-cache


@EXAMPLES.positive("decode-without-cache")
def sixteen_tokens():
    model, prompt = _Model().eval(), _ids()
    return lambda: model.generate(prompt, 16)


@EXAMPLES.near_miss("decode-without-cache")
def fifteen_tokens():
    model, prompt = _Model().eval(), _ids()
    return lambda: model.generate(prompt, 15)


@EXAMPLES.positive("decode-without-cache", repeats=5)
def five_tokens_with_a_lower_threshold():
    model, prompt = _Model().eval(), _ids()
    return lambda: model.generate(prompt, 5)


@EXAMPLES.positive("decode-without-cache")
def a_translation_decoded_from_its_start():
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 32, batch_first=True)
    decoder, words = nn.TransformerDecoder(layer, 1).eval(), nn.Embedding(WORDS, WIDTH)
    head, memory = nn.Linear(WIDTH, WORDS), torch.rand(1, 6, WIDTH)

    @torch.inference_mode()
    def translate():
        target = torch.zeros(1, 1, dtype=torch.long)
        for _ in range(18):
            mask = nn.Transformer.generate_square_subsequent_mask(target.size(1))
            out = decoder(words(target), memory, tgt_mask=mask)  # <- here
            best = head(out[:, -1]).argmax(-1)
            target = torch.cat([target, best[:, None]], dim=1)
        return target

    return translate


@EXAMPLES.positive("decode-without-cache")
def sound_generated_by_convolutions():
    first, second = nn.Conv1d(1, 4, 3).eval(), nn.Conv1d(4, 1, 3).eval()

    @torch.inference_mode()
    def generate():
        wave = torch.zeros(1, 1, 8)
        for _ in range(18):
            sample = second(first(wave).relu())[:, :, -1:]  # <- here
            wave = torch.cat((wave, sample), dim=-1)
        return wave

    return generate


@EXAMPLES.positive("decode-without-cache")
def a_forecast_fed_back_into_a_recurrent_net():
    net, head = nn.LSTM(2, 8, batch_first=True).eval(), nn.Linear(8, 2)

    @torch.inference_mode()
    def forecast():
        series = torch.rand(3, 5, 2)
        for _ in range(18):
            out, _ = net(series)  # <- here
            series = torch.cat([series, head(out[:, -1:])], dim=1)
        return series

    return forecast


@EXAMPLES.positive("decode-without-cache")
def attention_written_by_hand():
    words, mix = torch.rand(WORDS, WIDTH), torch.rand(WIDTH, WIDTH)
    later = torch.ones(32, 32, dtype=torch.bool).triu(1)

    @torch.no_grad()
    def decode():
        ids = torch.zeros(1, 2, dtype=torch.long)
        for _ in range(18):
            x = F.embedding(ids, words)  # <- here
            scores = x @ mix @ x.mT
            scores = scores.masked_fill(later[: ids.shape[1], : ids.shape[1]], -torch.inf)
            y = scores.softmax(-1) @ x
            ids = torch.cat([ids, (y[:, -1] @ words.T).argmax(-1, keepdim=True)], -1)
        return ids

    return decode


@EXAMPLES.positive("decode-without-cache", 2)
def two_texts_one_after_the_other():
    model, prompts = _Model(1).eval(), [_ids(1, 3), _ids(1, 5)]
    return lambda: [model.generate(prompt, 17) for prompt in prompts]


@EXAMPLES.positive("decode-without-cache")
def a_recurrent_net_before_a_deep_head():
    words, net = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True).eval()
    head = nn.Sequential(*[nn.Linear(WIDTH, WIDTH), nn.GELU()] * 4, nn.Linear(WIDTH, WORDS))

    @torch.inference_mode()
    def write():
        ids = torch.zeros(2, 1, dtype=torch.long)
        for _ in range(18):
            states, _ = net(words(ids))  # <- here
            ids = torch.cat([ids, head(states[:, -1:]).argmax(-1)], dim=1)
        return ids

    return write


# ------------------------------------------------------------------------------ near misses


@EXAMPLES.near_miss("decode-without-cache")
def a_window_that_grows_in_training():
    model, ids = _Model(1), _ids(2, 28)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)

    def curriculum():
        seen = ids[:, :2]
        for n in range(2, 24):
            logits = model(seen)
            F.cross_entropy(logits.flatten(0, 1), ids[:, 1 : n + 1].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen = torch.cat([seen, ids[:, n : n + 1]], 1)

    return curriculum


@EXAMPLES.near_miss("decode-without-cache", also="growing-cat")
def a_set_that_gets_one_more_sample_each_time():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).eval()

    @torch.inference_mode()
    def explore():
        known = torch.rand(3, 4)
        for _ in range(18):
            scores = model(known)
            known = torch.cat([known, known[scores.argmax()][None] + 0.1 * torch.randn(1, 4)])
        return known

    return explore


class _RelativeAttention(nn.Module):
    """Attention with a cache, and a bias by the distance of two positions."""

    def __init__(self, *, lookup):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.relative_bias = nn.Embedding(8, 1) if lookup else nn.Linear(WIDTH, 1)

    def bias(self, length):
        distance = torch.arange(length)[None] - length + 1
        if isinstance(self.relative_bias, nn.Embedding):
            return self.relative_bias(distance.clamp(-7, 0) + 7).mT
        waves = (distance[..., None] * torch.arange(1, WIDTH + 1)).sin()
        return self.relative_bias(waves).mT

    def forward(self, x, past):
        k, v = self.k(x), self.v(x)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=1), torch.cat([past[1], v], dim=1)
        scores = self.q(x) @ k.mT + self.bias(k.size(1))
        return self.o(scores.softmax(-1) @ v), (k, v)


class _RelativeDecoder(nn.Module):
    def __init__(self, *, lookup):
        super().__init__()
        self.shared, self.attention = nn.Embedding(WORDS, WIDTH), _RelativeAttention(lookup=lookup)
        self.wi, self.wo = nn.Linear(WIDTH, 32, bias=False), nn.Linear(32, WIDTH, bias=False)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids, past=None):
        x = self.shared(ids)
        attended, past = self.attention(x, past)
        x = x + attended
        x = x + self.wo(self.wi(x).relu())
        return self.lm_head(x), past


def _decoded_with_a_cache(*, lookup):
    model = _RelativeDecoder(lookup=lookup).eval()

    @torch.no_grad()
    def generate():
        ids, past = torch.zeros(4, 1, dtype=torch.long), None
        for _ in range(18):
            logits, past = model(ids[:, -1:], past)
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=-1)
        return ids

    return generate


@EXAMPLES.near_miss("decode-without-cache", also="growing-cat")
def one_small_layer_for_all_distances():
    return _decoded_with_a_cache(lookup=False)


@EXAMPLES.near_miss("decode-without-cache")
def words_that_are_only_averaged():
    words, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    @torch.inference_mode()
    def write():
        ids = _ids(2)
        for _ in range(18):
            odds = head(words(ids).mean(1)).softmax(-1)
            ids = torch.cat([ids, torch.multinomial(odds, 1)], 1)
        return ids

    return write


class _Composer(nn.Module):
    """Its encoder layers are single operators where nothing records a graph."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, 0.0, batch_first=True)
        self.notes, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, notes):
        mask = nn.Transformer.generate_square_subsequent_mask(notes.size(1))
        return self.head(self.encoder(self.notes(notes), mask=mask, is_causal=True)[:, -1])


@EXAMPLES.positive("decode-without-cache")
def music_in_a_buffer_by_layers_that_are_one_operator():
    model = _Composer().eval()

    @torch.inference_mode()
    def compose():
        piece = torch.zeros(2, 30, dtype=torch.long)
        for at in range(4, 30):
            odds = model(piece[:, :at]).softmax(-1)  # <- here
            piece[:, at] = torch.multinomial(odds, 1)[:, 0]
        return piece

    return compose
