"""Labelled examples of the rules about training loops."""

from __future__ import annotations

import torch
from labelled.case import Examples
from torch.utils.data import DataLoader

EXAMPLES = Examples()


@EXAMPLES.positive("sync-dataloader", 3)
def two_batches_and_the_end_of_the_loader():
    loader = DataLoader(torch.rand(8, 4), batch_size=4)

    def epoch():
        for batch in loader:  # <- here
            batch.sum()

    return epoch


@EXAMPLES.near_miss("sync-dataloader")
def a_loop_over_chunks_of_a_tensor():
    data = torch.rand(8, 4)

    def epoch():
        for batch in data.split(4):
            batch.sum()

    return epoch
