"""Labelled examples of for-loop-indexing: parts that are only written, and who needs them."""

from __future__ import annotations

import numpy as np
import torch
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()


# --------------------------------------------------------------------------- rows from outside


@EXAMPLES.near_miss("for-loop-indexing")
def arrays_whose_memory_is_used_again():
    draw = np.random.default_rng(0)

    def load():
        out = torch.empty(16, 3, 8, 8)
        for i in range(16):
            out[i] = torch.from_numpy(draw.random((3, 8, 8), dtype=np.float32)) * 2
            out[i] = torch.from_numpy(draw.random((3, 8, 8), dtype=np.float32))
        return out

    return load


@EXAMPLES.positive("for-loop-indexing")
def harmonics_of_one_grid():
    grid = torch.linspace(0, 1, 16)

    def basis():
        out = torch.empty(12, 16)
        for k in range(12):
            out[k] = (grid * k).sin()  # <- here
        return out

    return basis


@EXAMPLES.positive("for-loop-indexing")
def powers_in_columns():
    x = torch.rand(16)

    def vandermonde():
        out = torch.empty(16, 12)
        for k in range(12):
            out[:, k] = x**k  # <- here
        return out

    return vandermonde


# ------------------------------------------------------- what a repetition needs of all before it


@EXAMPLES.near_miss("for-loop-indexing")
def a_queue_of_negatives():
    encoder, images = nn.Linear(6, 4), torch.rand(14, 6)

    @torch.no_grad()
    def contrast():
        queue, scores = torch.zeros(16, 4), []
        for t in range(14):
            key = encoder(images[t])
            scores.append(queue @ key)
            queue[t] = key
        return torch.stack(scores)

    return contrast
