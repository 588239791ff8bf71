"""The cases of torch's former pattern matcher that run on a CPU, recorded as its tests did."""

from __future__ import annotations

import torch
from labelled.case import Examples
from support.recorded import Recorded
from torch import nn
from torch.utils.data import DataLoader

EXAMPLES = Examples()


# ------------------------------------------------------------------------ for-loop-indexing


@EXAMPLES.positive("for-loop-indexing")
def former_loop_that_sets_rows_to_ranges():
    x = torch.ones(100, 100)

    def block():
        for i in range(100):
            x[i, :] = torch.arange(100) + i

    return Recorded(block)


# --------------------------------------------------------- sync-dataloader, grad-not-none


@EXAMPLES.positive("sync-dataloader", 1)
def former_batches_of_a_loader_without_and_of_one_with_workers():
    data = torch.rand(100, 100)
    alone, helped = DataLoader(data, batch_size=10), DataLoader(data, batch_size=10, num_workers=4)

    def block():
        next(iter(alone))
        next(iter(helped))

    return Recorded(block)


@EXAMPLES.positive("grad-not-none", 2)
def former_model_that_zeroes():
    model = nn.Linear(8, 4)

    def block():
        for _ in range(2):
            model(torch.ones(2, 8)).sum().backward()
            model.zero_grad(set_to_none=False)

    return Recorded(block)


# --------------------------------------------- what the former matcher took for copies to CUDA


@EXAMPLES.near_miss("extra-cuda-copy")
def former_cast_of_random_numbers():
    return Recorded(lambda: torch.rand((100, 100)).to(dtype=torch.float16))


@EXAMPLES.near_miss("extra-cuda-copy")
def former_halving_of_random_numbers():
    return Recorded(lambda: torch.rand((100, 100)).half())


@EXAMPLES.near_miss("extra-cuda-copy")
def former_false_alarm_of_a_move_to_the_same_device():
    return Recorded(lambda: torch.ones((100, 100)).to("cpu", copy=True))
