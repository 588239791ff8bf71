"""Texts, token by token."""

import torch

from minilm.model import Cache


def choose(logits, temperature, generator=None):
    """The next token of each row: the likeliest one, or one that is drawn."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    shares = torch.softmax(logits / temperature, -1)
    return torch.multinomial(shares, 1, generator=generator)


@torch.no_grad()
def generate(model, prompt, count, temperature=0.0, generator=None):
    """The prompt, and ``count`` tokens after it."""
    batch, length = prompt.shape
    cache = Cache(model.config, batch)
    tokens = prompt.new_empty(batch, length + count)
    tokens[:, :length] = prompt
    new = prompt
    for at in range(length, length + count):
        logits = model(new, cache)[:, -1]
        new = choose(logits, temperature, generator)
        tokens[:, at] = new[:, 0]
    return tokens


@torch.no_grad()
def sequence_scores(model, ids):
    """Log likelihood of each sequence of a batch."""
    shares = torch.log_softmax(model(ids[:, :-1]), -1)
    return shares.gather(-1, ids[:, 1:, None]).sum((1, 2))


def rank(model, candidates):
    """The candidates, a tensor of token ids each, best first."""
    scores = sequence_scores(model, torch.stack(candidates))
    return [candidates[at] for at in scores.argsort(descending=True).tolist()]
