"""Clean models of text: recurrent nets, attention, transformers in bfloat16 and under autocast."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from labelled.clean import Clean
from torch import nn

EXAMPLES = Clean()
WORDS, WIDTH, HEADS, TIME = 64, 32, 4, 16


def _tokens(batch=2, time=TIME):
    return torch.randint(WORDS, (batch, time))


def _trained(model, ids, targets):
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(ids).flatten(0, 1).float(), targets.flatten()).backward()
        optimizer.step()

    return step


class _Attention(nn.Module):
    """After nanoGPT, fused."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, time, _ = x.shape
        q, k, v = (
            part.view(batch, time, HEADS, -1).transpose(1, 2)
            for part in self.qkv(x).split(WIDTH, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(batch, time, WIDTH))


class _AttentionByHand(_Attention):
    """After nanoGPT, where the fused form is not there."""

    def forward(self, x):
        batch, time, _ = x.shape
        q, k, v = (
            part.view(batch, time, HEADS, -1).transpose(1, 2)
            for part in self.qkv(x).split(WIDTH, dim=2)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
        mask = torch.ones(time, time, dtype=torch.bool, device=x.device).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, time, WIDTH))


class _Block(nn.Module):
    def __init__(self, attention=_Attention):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def _gpt(layers, attention=_Attention):
    return nn.Sequential(
        nn.Embedding(WORDS, WIDTH),
        *(_Block(attention) for _ in range(layers)),
        nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, WORDS, bias=False),
    )


class _RootMeanSquare(nn.Module):
    """After LLaMA: in float32, and back."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        return y.type_as(x) * self.weight


class _Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = _RootMeanSquare(), _RootMeanSquare()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x, turn):
        y = self.norm1(x)
        heads = (TIME, HEADS, WIDTH // HEADS)
        q, k = (
            torch.view_as_real(
                torch.view_as_complex(part.float().unflatten(-1, (-1, 2))) * turn
            ).flatten(-2)
            for part in (self.q(y).view(-1, *heads), self.k(y).view(-1, *heads))
        )
        q, k, v = q.type_as(x), k.type_as(x), self.v(y).view(-1, *heads)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class _LlamaModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(_Llama() for _ in range(12))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        half = WIDTH // HEADS // 2
        angles = torch.arange(TIME)[:, None] / 10000 ** (torch.arange(half) / half)
        self.turn = torch.polar(torch.ones(TIME, half), angles)[:, None]

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x, self.turn)
        return self.head(x)


@EXAMPLES.clean
def fused_transformer_of_twelve_layers():
    return _trained(_gpt(12), _tokens(), _tokens())


@EXAMPLES.clean
def transformer_with_attention_by_hand():
    return _trained(_gpt(6, _AttentionByHand), _tokens(), _tokens())


@EXAMPLES.clean
def transformer_of_twelve_layers_under_autocast():
    model = _gpt(12)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids, targets = _tokens(), _tokens()

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


@EXAMPLES.clean
def accumulation_under_autocast():
    model = _gpt(2)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids, targets = _tokens(8), _tokens(8)

    def step():
        for batch, wanted in zip(ids.split(2), targets.split(2), strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(batch).flatten(0, 1), wanted.flatten())
            (loss / 4).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@EXAMPLES.clean
def llama_of_twelve_layers_in_bfloat16():
    return _trained(_LlamaModel().bfloat16(), _tokens(), _tokens())


@EXAMPLES.clean
def inference_under_autocast():
    model, ids = _gpt(12).eval(), _tokens()

    def infer():
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            return model(ids).float().softmax(-1)

    return infer


@EXAMPLES.clean
def characters_by_a_recurrent_net():
    words, net, head = nn.Embedding(WORDS, 16), nn.GRU(16, 32, 2, batch_first=True), None
    head = nn.Linear(32, WORDS)
    parameters = nn.ModuleList([words, net, head]).parameters()
    optimizer = torch.optim.Adam(parameters, foreach=True)
    ids, targets = _tokens(4, 24), _tokens(4, 24)

    def steps():
        hidden = torch.zeros(2, 4, 32)
        for part, wanted in zip(ids.split(12, 1), targets.split(12, 1), strict=True):
            out, hidden = net(words(part), hidden.detach())
            optimizer.zero_grad()
            F.cross_entropy(head(out).flatten(0, 1), wanted.flatten()).backward()
            optimizer.step()

    return steps


@EXAMPLES.clean
def names_by_a_long_short_term_memory():
    words, net, head = nn.Embedding(WORDS, 16), nn.LSTM(16, 32), nn.Linear(32, 18)
    parameters = nn.ModuleList([words, net, head]).parameters()
    optimizer = torch.optim.SGD(parameters, lr=0.15, foreach=True)
    name, language = _tokens(9, 4), torch.randint(18, (4,))

    def step():
        _, (hidden, _) = net(words(name))
        optimizer.zero_grad()
        F.cross_entropy(head(hidden[0]), language).backward()
        optimizer.step()

    return step


@EXAMPLES.clean
def translation_with_attention():
    words, encoder = nn.Embedding(WORDS, 16), nn.GRU(16, 32, batch_first=True)
    decoder, head = nn.GRU(16, 32, batch_first=True), nn.Linear(64, WORDS)
    parameters = nn.ModuleList([words, encoder, decoder, head]).parameters()
    optimizer = torch.optim.Adam(parameters, foreach=True)
    source, target = _tokens(4, 10), _tokens(4, 12)

    def step():
        memory, hidden = encoder(words(source))
        out, _ = decoder(words(target[:, :-1]), hidden)
        context = (out @ memory.mT / math.sqrt(32)).softmax(-1) @ memory
        logits = head(torch.cat((out, context), dim=-1))
        optimizer.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten()).backward()
        optimizer.step()

    return step


@EXAMPLES.clean
def words_from_their_neighbours():
    model = nn.Sequential(nn.Embedding(WORDS, 8), nn.Flatten(), nn.Linear(32, WORDS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    text = torch.randint(WORDS, (100,))
    windows = text.unfold(0, 5, 1)
    around, centre = windows[:, [0, 1, 3, 4]], windows[:, 2]

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(around), centre).backward()
        optimizer.step()

    return step


@EXAMPLES.clean
def masked_words_of_an_encoder():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.1, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, 4), nn.Linear(WIDTH, WORDS)
    )
    return _trained(model, _tokens(), _tokens())
