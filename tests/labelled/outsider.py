"""Payloads written from the rules' one-line descriptions alone, by somebody who knows no rule.

How a rule counts is left open where its description leaves it open.
"""

from __future__ import annotations

import torch
from labelled.case import Examples
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

EXAMPLES = Examples()


def _pair():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


# -------------------------------------------------------------------------- sync-dataloader


@EXAMPLES.positive("sync-dataloader", 6)
def outside_two_epochs_of_dictionaries():
    data = [{"x": torch.randn(3), "y": number} for number in range(4)]
    loader = DataLoader(data, batch_size=2, shuffle=True)

    def epochs():
        for _ in range(2):
            for batch in loader:  # <- here
                batch["x"].sum()

    return epochs


@EXAMPLES.positive("sync-dataloader", 3)
def outside_stream_of_samples():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(torch.arange(8.0).unbind())

    loader = DataLoader(Stream(), batch_size=4)
    return lambda: [batch.mean() for batch in loader]  # <- here


@EXAMPLES.positive("sync-dataloader", 1)
def outside_first_batch_only():
    loader = DataLoader(torch.randn(8, 3), batch_size=4)
    return lambda: next(iter(loader))  # <- here


@EXAMPLES.near_miss("sync-dataloader")
def outside_loader_with_a_worker():
    loader = DataLoader(
        torch.randn(8, 3), batch_size=4, num_workers=1, multiprocessing_context="fork"
    )
    return lambda: [batch.sum() for batch in loader]


@EXAMPLES.near_miss("sync-dataloader")
def outside_batches_of_a_sampler():
    data = torch.randn(12, 3)
    batches = BatchSampler(RandomSampler(range(12)), 4, drop_last=False)
    return lambda: [data[chosen].sum() for chosen in batches]


@EXAMPLES.near_miss("sync-dataloader")
def outside_loader_that_is_only_measured():
    data = torch.randn(8, 3)
    return lambda: (len(DataLoader(data, batch_size=4)), data.sum())


# ------------------------------------------------------------------------ for-loop-indexing


@EXAMPLES.positive("for-loop-indexing", 1)
def outside_rows_multiplied_one_by_one():
    x, w, out = torch.randn(16, 8), torch.randn(8, 8), torch.empty(16, 8)

    def multiply():
        for i in range(16):
            out[i] = w @ x[i]  # <- here

    return multiply


@EXAMPLES.positive("for-loop-indexing", 1)
def outside_ten_means_of_slices():
    x = torch.randn(20, 4)
    return lambda: [x[2 * i : 2 * i + 2].mean() for i in range(10)]  # <- here


@EXAMPLES.near_miss("for-loop-indexing")
def outside_nine_means_of_slices():
    x = torch.randn(20, 4)
    return lambda: [x[2 * i : 2 * i + 2].mean() for i in range(9)]


@EXAMPLES.near_miss("for-loop-indexing")
def outside_cell_over_unbound_time():
    cell, x = nn.GRUCell(4, 8), torch.randn(12, 2, 4)

    @torch.no_grad()
    def unroll():
        hidden = torch.zeros(2, 8)
        for now in x.unbind(0):
            hidden = cell(now, hidden)
        return hidden

    return unroll


# ------------------------------------------------------------------ single-tensor-optimizer


def _stepping(optimizer, parameters):
    def step():
        sum(p.square().sum() for p in parameters).backward()
        optimizer.step()  # <- here
        optimizer.zero_grad()

    return step


@EXAMPLES.positive("single-tensor-optimizer", 2)
def outside_two_steps_of_default_adam():
    parameters = list(_pair().parameters())
    step = _stepping(torch.optim.Adam(parameters), parameters)

    def steps():
        step()
        step()

    return steps


@EXAMPLES.positive("single-tensor-optimizer", 1)
def outside_step_with_momentum():
    parameters = [p for _ in range(8) for p in _pair().parameters()]
    return _stepping(torch.optim.SGD(parameters, lr=0.1, momentum=0.9), parameters)


# ---------------------------------------------------------------------------- grad-not-none


@EXAMPLES.positive("grad-not-none", 1, also="single-tensor-optimizer")
def outside_plain_optimizer_zeroes_first():
    model = _pair()
    optimizer = torch.optim.Adagrad(model.parameters())
    x = torch.randn(4, 8)

    def step():
        optimizer.zero_grad(set_to_none=False)  # <- here
        model(x).square().mean().backward()
        optimizer.step()

    return step


@EXAMPLES.near_miss("grad-not-none")
def outside_state_that_is_reset():
    hidden, cell = torch.randn(4, 8), torch.randn(4, 8)
    return lambda: (hidden.zero_(), cell.zero_(), torch.zeros(3).add_(1))


@EXAMPLES.near_miss("grad-not-none")
def outside_padding_row_is_kept_zero():
    table = nn.Embedding(10, 4, padding_idx=0)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1, foreach=True)
    ids = torch.arange(6)

    def step():
        optimizer.zero_grad()
        table(ids).square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            table.weight[0].zero_()

    return step


# ---------------------------------------------------------------------- conv-bias-batchnorm


@EXAMPLES.near_miss("conv-bias-batchnorm")
def outside_activation_between():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4))
    x = torch.randn(2, 3, 8, 8)
    return lambda: model(x).sum().backward()
