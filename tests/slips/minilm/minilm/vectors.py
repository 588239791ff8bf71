"""Word vectors: skip-gram with negative samples."""

import torch
import torch.nn.functional as F
from torch import nn


class WordVectors(nn.Module):
    """A vector a word; a step touches the rows of few of them."""

    def __init__(self, words, width=32):
        super().__init__()
        self.inner = nn.Embedding(words, width, sparse=True)
        self.outer = nn.Embedding(words, width, sparse=True)
        nn.init.uniform_(self.inner.weight, -0.5 / width, 0.5 / width)
        nn.init.zeros_(self.outer.weight)

    def forward(self, words, near, far):
        """The loss: ``near`` occur beside ``words``, ``far`` do not."""
        inner = self.inner(words)[:, None]
        others = self.outer(torch.cat([near[:, None], far], 1))
        scores = (inner * others).sum(-1)
        truth = torch.zeros_like(scores)
        truth[:, 0] = 1
        return F.binary_cross_entropy_with_logits(scores, truth)


def pairs(tokens, reach=2):
    """Each token with each of its neighbors."""
    steps = [step for step in range(-reach, reach + 1) if step]
    middle = tokens[reach:-reach].repeat(len(steps))
    others = [tokens[reach + step : len(tokens) - reach + step] for step in steps]
    return middle, torch.cat(others)


def train_vectors(vectors, tokens, words, lr=0.1, batch=256, negatives=4, seed=0):
    """One pass over a text; the mean loss."""
    optimizer = torch.optim.SGD(vectors.parameters(), lr=lr, foreach=False)
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(())
    middle, others = pairs(tokens)
    batches = list(zip(middle.split(batch), others.split(batch), strict=True))
    for word, near in batches:
        far = torch.randint(words, (len(word), negatives), generator=generator)
        loss = vectors(word, near, far)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return (total / len(batches)).item()
