"""Labelled examples of the rule about logits of all positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from labelled.case import Examples
from support.trace_builder import TraceBuilder
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


@EXAMPLES.positive("all-logits", 3)
def sampling_from_the_last_position():
    model = Decoder()

    @torch.no_grad()
    def generate(tokens, steps):
        for _ in range(steps):
            logits = model(tokens)
            probabilities = F.softmax(logits[:, -1, :] / 0.8, dim=-1)
            tokens = torch.cat([tokens, torch.multinomial(probabilities, 1)], dim=1)
        return tokens

    prompt = _tokens()
    return lambda: generate(prompt, 3)


@EXAMPLES.positive("all-logits", 1)
def prefill_with_a_head_tied_to_the_embedding():
    model = Decoder().eval()
    prompt = _tokens(1, 64)

    @torch.inference_mode()
    def prefill():
        logits = model.hidden(prompt) @ model.wte.weight.t()  # <- here
        return logits[:, -1:].argmax(-1)

    return prefill


@EXAMPLES.positive("all-logits", 1)
def logits_are_cast_before_the_last_is_taken():
    model = Decoder().to(torch.bfloat16).eval()
    prompt = _tokens(1, 64)

    def first_token():
        with torch.no_grad():
            logits = model(prompt).float()
            logits = logits / 0.7
            return logits[..., -1, :].topk(5).indices

    return first_token


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
def some_positions_of_the_only_sample():
    model = Decoder().eval()
    prompt = _tokens(1, 64)

    @torch.inference_mode()
    def answer():
        logits = model(prompt)[0]
        return logits[-1].argmax(), logits[40:48].argmax(-1)

    return answer


@EXAMPLES.near_miss("all-logits")
def the_only_sample_as_a_whole():
    model = Decoder().eval()
    prompt = _tokens(1, 64)

    @torch.inference_mode()
    def score():
        logits = model(prompt).squeeze(0)
        return logits[-1].argmax(), F.cross_entropy(logits[:-1], prompt[0, 1:])

    return score


@EXAMPLES.near_miss("all-logits")
def rows_of_a_matrix_may_be_samples():
    model = Decoder().eval()
    prompt = torch.randint(VOCABULARY, (64,))

    @torch.inference_mode()
    def step():
        x = model.ln_f(model.wte(prompt))
        logits = F.linear(x, model.lm_head.weight)
        return logits[-1].argmax()

    return step


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


@EXAMPLES.positive("all-logits", 1)
def contraction_written_as_einsum():
    model = Decoder().eval()
    tokens = _tokens(1, 64)

    @torch.no_grad()
    def step():
        logits = torch.einsum("btd,vd->btv", model.hidden(tokens), model.wte.weight)  # <- here
        return logits[:, -1].argmax(-1)

    return step


@EXAMPLES.positive("all-logits", 1, vocabulary=40)
def outputs_forty_times_the_inputs():
    head, x = nn.Linear(8, 320).requires_grad_(False), torch.randn(1, 64, 8)
    return lambda: head(x)[:, -1]  # <- here


@EXAMPLES.near_miss("all-logits", vocabulary=41)
def outputs_fewer_times_the_inputs_than_the_threshold():
    head, x = nn.Linear(8, 320).requires_grad_(False), torch.randn(1, 64, 8)
    return lambda: head(x)[:, -1]


@EXAMPLES.positive("all-logits", 1)
def stored_prefill():
    b = TraceBuilder()
    with b.op("aten::linear", [[1, 512, 64], [32000, 64], []], ["c10::BFloat16"] * 2 + [""]):
        b.advance(500)
    concrete = ["", "1", "-1"]
    with b.op("aten::select", [[1, 512, 32000], [], []], ["c10::BFloat16", "", ""], concrete):
        pass
    return b


# ------------------------------------------------------------------------------------- near misses


@EXAMPLES.near_miss("all-logits")
def last_position_before_the_head():
    model = Decoder().eval()
    tokens = _tokens(1, 64)

    @torch.no_grad()
    def step():
        return model(tokens, keep=1)[:, -1].argmax(-1)

    return step


@EXAMPLES.near_miss("all-logits")
def loss_over_all_positions_and_a_look_at_the_last():
    model = Decoder()
    tokens = _tokens()

    def step():
        model.zero_grad()
        logits = model(tokens)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        return logits[:, -1].argmax(-1)

    return step


@EXAMPLES.near_miss("all-logits")
def prompt_is_scored_before_it_goes_on():
    model = Decoder().eval()
    tokens = _tokens(1, 32)

    @torch.no_grad()
    def score():
        logits = model(tokens)
        scores = logits.log_softmax(-1).gather(-1, tokens[..., None])
        return scores.sum(), logits[:, -1].argmax(-1)

    return score


@EXAMPLES.near_miss("all-logits")
def draft_tokens_are_verified():
    model = Decoder().eval()
    tokens = _tokens(1, 32)

    @torch.no_grad()
    def verify(drafted=4):
        return model(tokens)[:, -drafted:].argmax(-1)

    return verify


@EXAMPLES.near_miss("all-logits")
def two_positions_of_a_span():
    model = Decoder().eval()
    tokens = _tokens(1, 32)

    @torch.no_grad()
    def ends():
        logits = model(tokens)
        return logits[:, 3].argmax(-1), logits[:, 9].argmax(-1)

    return ends


@EXAMPLES.near_miss("all-logits")
def each_sample_has_its_own_last_position():
    model = Decoder().eval()
    tokens, lengths = _tokens(4, 16), torch.tensor([3, 9, 12, 16])

    @torch.no_grad()
    def last():
        logits = model(tokens)
        return logits[torch.arange(4), lengths - 1].argmax(-1)

    return last


@EXAMPLES.near_miss("all-logits")
def one_sample_of_a_batch_is_shown():
    head, x = nn.Linear(64, 1000), torch.randn(32, 64)

    def shown():
        with torch.no_grad():
            return head(x)[0].topk(5)

    return shown


@EXAMPLES.near_miss("all-logits")
def gated_layer_takes_half_of_its_channels():
    up, x = nn.Linear(64, 512), torch.randn(2, 64, 64)

    def gated():
        with torch.no_grad():
            a, b = up(x).chunk(2, dim=-1)
            return a * b.sigmoid()

    return gated


@EXAMPLES.near_miss("all-logits")
def class_token_after_a_layer_of_the_models_width():
    layer, x = nn.Linear(64, 64), torch.randn(8, 65, 64)

    def pooled():
        with torch.no_grad():
            return layer(x)[:, 0].tanh()

    return pooled


@EXAMPLES.near_miss("all-logits")
def tokens_one_by_one_with_a_cache():
    model = Decoder().eval()
    tokens = _tokens(2, 1)

    @torch.inference_mode()
    def step():
        return model(tokens)[:, -1].argmax(-1)

    return step


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


@EXAMPLES.positive("all-logits", 1)
def log_probabilities_of_the_next_token():
    model = Decoder().eval()
    prompt = _tokens(3, 32)

    @torch.inference_mode()
    def step():
        return model(prompt).log_softmax(-1)[:, -1].topk(4)

    return step


# ------------------------------------------------------------- rows that are sequences again


class _Conv1D(nn.Module):
    """A layer as GPT-2 has it: a product of all rows."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        rows = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)  # <- here
        return rows.view(*x.shape[:-1], len(self.bias))


@EXAMPLES.positive("all-logits", 1)
def logits_of_a_product_of_all_rows():
    head, hidden = _Conv1D(16, 300).requires_grad_(False), torch.rand(2, 60, 16)
    return lambda: head(hidden)[:, -1].argmax(-1)


@EXAMPLES.positive("all-logits", 1)
def rows_that_are_reshaped_to_sequences():
    weight, hidden = torch.rand(300, 16), torch.rand(4, 40, 16)

    def step():
        logits = torch.mm(hidden.flatten(0, 1), weight.t())  # <- here
        return (logits / 0.7).reshape(4, -1, 300)[:, -1].softmax(-1)

    return step


@EXAMPLES.near_miss("all-logits")
def loss_of_all_rows_and_the_last_position():
    head, hidden = _Conv1D(16, 300).requires_grad_(False), torch.rand(2, 60, 16)
    targets = torch.randint(300, (120,))

    def step():
        logits = head(hidden)
        return F.cross_entropy(logits.view(-1, 300), targets), logits[:, -1].argmax(-1)

    return step


@EXAMPLES.near_miss("all-logits")
def channels_of_a_wide_layer_that_are_heads():
    wide, x = nn.Linear(16, 640).requires_grad_(False), torch.rand(64, 16)
    return lambda: wide(x).view(64, 10, 64)[:, 0].tanh() * 2


def _contracted(length):
    """Beside one position, 300 x 4 B x (length - 1) of two samples are computed in vain."""
    table, hidden = torch.rand(300, 16), torch.rand(2, length, 16)
    return lambda: torch.einsum("bsd,vd->bsv", hidden, table)[:, -1].argmax(-1)  # <- here


@EXAMPLES.positive("all-logits", 1)
def contraction_just_above_the_threshold():
    return _contracted(29)


@EXAMPLES.near_miss("all-logits")
def contraction_just_below_the_threshold():
    return _contracted(28)
