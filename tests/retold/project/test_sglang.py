"""Retold from sglang: decoding does not get slower; its throughput has a lower limit."""

import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

PROMPT, NEW = 48, 8  # tokens


class Decoder(nn.Module):
    """One layer of attention over a cache of keys and values."""

    def __init__(self, width=128, vocabulary=64):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.qkv, self.head = nn.Linear(width, 3 * width), nn.Linear(width, vocabulary)

    def attend(self, ids, cache=None):
        q, k, v = self.qkv(self.tokens(ids)).chunk(3, -1)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
        return self.head(out[:, -1]).argmax(-1, keepdim=True), (k, v)

    @torch.inference_mode()
    def generate(self, ids):
        new, cache = self.attend(ids)
        for _ in range(NEW):
            new, cache = self.attend(new, cache)
        return new


class Server:
    """Decodes for those who wait, all in one batch."""

    def __init__(self, decoder):
        self.decoder, self.waiting = decoder, []

    def submit(self, ids):
        self.waiting.append(ids)

    @torch.inference_mode()
    def run(self):
        ids = torch.stack(self.waiting)
        new, cache = self.decoder.attend(ids)
        for _ in range(NEW):
            new, cache = self.decoder.attend(new, cache)
        return new


def serve(decoder, prompt):
    server = Server(decoder)
    for ids in prompt:
        server.submit(ids)
    return server.run()


@pytest.fixture
def prompt():
    return torch.arange(PROMPT)[None].expand(4, -1)


def test_work_of_a_token(torchprof, prompt):
    decoder = Decoder()
    with torchprof("prefill"), torch.inference_mode():
        new, cache = decoder.attend(prompt)
    for _ in range(NEW):
        with torchprof("decode"), torch.inference_mode():
            new, cache = decoder.attend(new, cache)
    for lap in torchprof["decode"].laps:
        assert PROMPT * lap.flops <= 1.2 * torchprof["prefill"].flops


def test_the_server_is_as_fast_as_its_decoder(torchprof, prompt):
    decoder = Decoder()
    result = torchprof.ab(Decoder.generate, serve, args=(decoder, prompt))
    result.assert_not_slower(by="25 %")


@pytest.mark.min_metric("tokens_per_s", 20, region="serve")
def test_tokens_per_second(torchprof, prompt):
    with torchprof("serve"):
        began = time.perf_counter()
        serve(Decoder(), prompt)
        rate = len(prompt) * (1 + NEW) / (time.perf_counter() - began)
        torchprof.record("tokens_per_s", rate, unit="1/s", better="higher")
