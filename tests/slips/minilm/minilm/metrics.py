"""How good predictions are."""

import torch


def accuracy(logits, targets):
    return (logits.argmax(-1) == targets).float().mean()


def top_accuracy(logits, targets, count=5):
    """Share of targets among the ``count`` likeliest."""
    best = logits.topk(count, dim=-1).indices
    return (best == targets[..., None]).any(-1).float().mean()


def confusion(guesses, targets, classes):
    """How often each class (row) was taken for each (column)."""
    pairs = targets * classes + guesses
    return torch.bincount(pairs, minlength=classes * classes).view(classes, classes)


def f1(guesses, targets, classes):
    """F1 of each class."""
    table = confusion(guesses, targets, classes).float()
    right = table.diagonal()
    return 2 * right / (table.sum(0) + table.sum(1)).clamp(min=1)


def calibration_error(logits, targets, bins=10):
    """Mean distance between confidence and accuracy, over bins of confidence."""
    confidence, guesses = logits.softmax(-1).max(-1)
    right = (guesses == targets).float()
    index = (confidence * bins).long().clamp(max=bins - 1)
    count = torch.zeros(bins).index_add_(0, index, torch.ones_like(right))
    gap = torch.zeros(bins).index_add_(0, index, confidence - right)
    return gap.abs().sum() / count.sum()


def distances(a, b):
    """Euclidean distance of each row of ``a`` to each of ``b``."""
    squares = a.square().sum(1, keepdim=True) + b.square().sum(1)
    return (squares - 2 * a @ b.T).clamp(min=0).sqrt()


def nearest(queries, vectors, count=1):
    """Indices of the nearest vectors of each query."""
    return distances(queries, vectors).topk(count, largest=False).indices
