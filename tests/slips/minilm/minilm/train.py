"""Training and evaluation."""

import math

import torch
import torch.nn.functional as F

from minilm.metrics import accuracy


class LossLog:
    """Sums losses on the device; reads them when somebody asks."""

    def __init__(self):
        self.total = torch.zeros(())
        self.count = 0

    def add(self, loss):
        self.total += loss.detach()
        self.count += 1

    def mean(self):
        return (self.total / max(self.count, 1)).item()


def learning_rate(step, steps, highest=1e-3, warmup=4):
    """Rises linearly, then falls along a cosine."""
    if step < warmup:
        return highest * (step + 1) / warmup
    return highest * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))


def entropy(logits):
    """How undecided a model is, in nats."""
    shares = torch.log_softmax(logits, -1)
    return -(shares.exp() * shares).sum(-1).mean()


class Trainer:
    def __init__(self, model, steps=100, clip=1.0):
        self.model = model.train()
        self.steps = steps
        self.clip = clip
        self.optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        self.losses = LossLog()
        self.entropies = []
        self.done = 0

    def step(self, ids):
        """One update; what the loss was, still on its device."""
        logits = self.model(ids[:, :-1])
        targets = ids[:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip, foreach=True)
        self.update()
        self.losses.add(loss)
        self.entropies.append(entropy(logits).detach())
        return loss.detach()

    def update(self):
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.done, self.steps)
        self.optimizer.step()
        self.done += 1

    def fit(self, batches):
        for ids in batches:
            self.step(ids)
        return self.losses.mean()


def evaluate(model, batches):
    """Perplexity and accuracy over batches."""
    model.eval()
    loss = torch.zeros(())
    right = torch.zeros(())
    with torch.no_grad():
        for ids in batches:
            logits, targets = model(ids[:, :-1]), ids[:, 1:]
            loss += F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            right += accuracy(logits, targets)
    mean = loss / len(batches)
    return {"perplexity": mean.exp().item(), "accuracy": (right / len(batches)).item()}


@torch.no_grad()
def encode(model, chunks):
    """One vector a text, for all chunks of a corpus."""
    found = []
    for ids in chunks:
        vectors = model.hidden(ids).mean(1)
        found.append(vectors)
    return torch.cat(found)
