"""Labelled examples of the rule about logits of all positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()

WIDTH, VOCABULARY = 32, 1024


class Decoder(nn.Module):
    """A language model with one block; ``keep`` positions get logits, 0 for all."""

    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.fc, self.proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def hidden(self, tokens):
        x = self.wte(tokens)
        return self.ln_f(x + self.proj(F.gelu(self.fc(x))))

    def forward(self, tokens, keep=0):
        return self.lm_head(self.hidden(tokens)[:, -keep:])  # <- here


def _tokens(batch=2, length=16):
    return torch.randint(VOCABULARY, (batch, length))


# -------------------------------------------------------------------------------------- positives


@EXAMPLES.positive("all-logits", 1)
def prefill_with_a_head_tied_to_the_embedding():
    model = Decoder().eval()
    prompt = _tokens(1, 64)

    @torch.inference_mode()
    def prefill():
        logits = model.hidden(prompt) @ model.wte.weight.t()  # <- here
        return logits[:, -1:].argmax(-1)

    return prefill


@EXAMPLES.positive("all-logits", 2)
def the_last_position_of_the_only_sample():
    model = Decoder().eval()
    prompt = _tokens(1, 64)

    @torch.inference_mode()
    def choose():
        best = model(prompt)[0, -1].argmax()
        top = model(prompt).squeeze(0)[-1].topk(5)
        return best, top.indices

    return choose


@EXAMPLES.positive("all-logits", 1)
def probabilities_of_the_only_sample():
    model = Decoder().eval()
    prompt = _tokens(1, 64)

    @torch.inference_mode()
    def choose():
        logits = model(prompt)[0]
        return logits.softmax(-1)[-1, :].argmax()

    return choose


@EXAMPLES.near_miss("all-logits")
def the_only_sample_as_a_whole():
    model = Decoder().eval()
    prompt = _tokens(1, 64)

    @torch.inference_mode()
    def score():
        logits = model(prompt).squeeze(0)
        return logits[-1].argmax(), F.cross_entropy(logits[:-1], prompt[0, 1:])

    return score


@EXAMPLES.positive("all-logits", 2)
def classifier_of_the_next_item_trains_on_the_last_position():
    model = Decoder()
    data = [(_tokens(), torch.randint(VOCABULARY, (2,))) for _ in range(2)]

    def epoch():
        for tokens, target in data:
            model.zero_grad()
            F.cross_entropy(model(tokens)[:, -1], target).backward()

    return epoch


@EXAMPLES.positive("all-logits", 1)
def masked_token_of_a_fill_mask_pipeline():
    model = Decoder().eval()
    tokens = _tokens(1, 32)

    def fill(position=7):
        with torch.no_grad():
            logits = model(tokens)
            return logits[:, position].softmax(-1)

    return fill


@EXAMPLES.positive("all-logits", 1)
def soft_capped_logits():
    model = Decoder().eval()
    tokens = _tokens(1, 32)

    @torch.no_grad()
    def step():
        logits = 30.0 * torch.tanh(model(tokens) / 30.0)
        return logits.narrow(1, 31, 1).argmax(-1)

    return step


@EXAMPLES.positive("all-logits", 1, vocabulary=40)
def outputs_forty_times_the_inputs():
    head, x = nn.Linear(8, 320).requires_grad_(False), torch.randn(1, 64, 8)
    return lambda: head(x)[:, -1]  # <- here


@EXAMPLES.near_miss("all-logits", vocabulary=41)
def outputs_fewer_times_the_inputs_than_the_threshold():
    head, x = nn.Linear(8, 320).requires_grad_(False), torch.randn(1, 64, 8)
    return lambda: head(x)[:, -1]


# ------------------------------------------------------------------------------------- near misses


@EXAMPLES.near_miss("all-logits")
def draft_tokens_are_verified():
    model = Decoder().eval()
    tokens = _tokens(1, 32)

    @torch.no_grad()
    def verify(drafted=4):
        return model(tokens)[:, -drafted:].argmax(-1)

    return verify


@EXAMPLES.near_miss("all-logits")
def class_token_after_a_layer_of_the_models_width():
    layer, x = nn.Linear(64, 64), torch.randn(8, 65, 64)

    def pooled():
        with torch.no_grad():
            return layer(x)[:, 0].tanh()

    return pooled


@EXAMPLES.near_miss("all-logits", wasted=200_000)
def less_than_the_threshold_is_wasted():
    model = Decoder().eval()
    tokens = _tokens(2, 16)

    @torch.inference_mode()
    def step():
        return model(tokens)[:, -1].argmax(-1)

    return step


@EXAMPLES.positive("all-logits", 1, wasted=100_000)
def more_than_the_threshold_is_wasted():
    return less_than_the_threshold_is_wasted()


@EXAMPLES.near_miss("all-logits")
def prediction_of_the_last_image():
    head, x = nn.Linear(64, 1000), torch.randn(32, 64)

    def shown():
        with torch.no_grad():
            return head(x)[-1].argmax()

    return shown


# ------------------------------------------------------------- rows that are sequences again


@EXAMPLES.near_miss("all-logits")
def channels_of_a_wide_layer_that_are_heads():
    wide, x = nn.Linear(16, 640).requires_grad_(False), torch.rand(64, 16)
    return lambda: wide(x).view(64, 10, 64)[:, 0].tanh() * 2


def _contracted(length):
    """Beside one position, 300 x 4 B x (length - 1) of two samples are computed in vain."""
    table, hidden = torch.rand(300, 16), torch.rand(2, length, 16)
    return lambda: torch.einsum("bsd,vd->bsv", hidden, table)[:, -1].argmax(-1)  # <- here


@EXAMPLES.near_miss("all-logits")
def contraction_just_below_the_threshold():
    return _contracted(28)
