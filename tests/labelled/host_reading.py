"""Labelled examples of the rule about values that the host would have to wait for."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from labelled.case import ANY, Examples
from torch.utils.data import DataLoader, TensorDataset

EXAMPLES = Examples()


# ------------------------------------------------------------------------------ reads


@EXAMPLES.positive("host-read", 1)
def rows_chosen_by_a_mask():
    scores, boxes = torch.rand(32), torch.rand(32, 4)
    return lambda: boxes[scores > 0.5]  # <- here


@EXAMPLES.positive("host-read", 5)
def loop_until_converged():
    x = torch.full((8,), 16.0)

    def solve():
        y = x
        while (y > 1).any():  # <- here
            y = y / 2.5

    return solve


@EXAMPLES.positive("host-read", 1)
def classes_that_occur():
    labels = torch.randint(5, (64,))
    return lambda: torch.unique(labels)  # <- here


@EXAMPLES.positive("host-read", 1)
def ids_as_a_list():
    logits = torch.randn(4, 10)
    return lambda: logits.argmax(1).tolist()  # <- here


@EXAMPLES.positive("host-read", 2)
def positions_and_values_by_a_mask():
    x = torch.randn(16)

    def pick():
        positions = torch.where(x > 0)  # <- here
        return positions, x.masked_select(x > 0)  # <- here

    return pick


@EXAMPLES.positive("host-read", 1)
def classes_counted_for_one_hot():
    labels = torch.arange(5)
    return lambda: F.one_hot(labels)  # <- here


@EXAMPLES.positive("host-read", 1)
def early_end_by_comparison():
    ids, last = torch.arange(6), torch.arange(6)
    return lambda: torch.equal(ids, last)  # <- here


@EXAMPLES.positive("host-read", ANY)
def losses_of_lbfgs():
    weight = torch.randn(4, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=1)

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)  # <- here


# ------------------------------------------------------------------------------ near misses


@EXAMPLES.near_miss("host-read")
def mask_of_the_same_shape():
    x = torch.randn(16)

    def keep():
        return torch.where(x > 0, x, 0.0), x.masked_fill(x < 0, 1.0)

    return keep


@EXAMPLES.near_miss("host-read")
def number_written_by_a_mask():
    x, mask = torch.randn(16), torch.rand(16) > 0.5

    def clear():
        x[mask] = 0.0

    return clear


@EXAMPLES.near_miss("host-read", also="sync-dataloader")
def shuffling_of_a_loader():
    data = TensorDataset(torch.randn(8, 3))

    def read():
        return [batch.sum() for (batch,) in DataLoader(data, batch_size=4, shuffle=True)]

    return read


@EXAMPLES.near_miss("host-read")
def rows_chosen_by_number():
    table, rows = torch.randn(32, 4), torch.randint(32, (8,))
    return lambda: (table[rows], table.index_select(0, rows), F.embedding(rows, table))


@EXAMPLES.near_miss("host-read")
def spread_of_values():
    x = torch.randn(16)
    return lambda: (x.std(), x.var(), x.float())


@EXAMPLES.near_miss("host-read")
def repeated_to_a_known_size():
    x, times = torch.randn(3, 4), torch.tensor([1, 2, 3])
    return lambda: torch.repeat_interleave(x, times, dim=0, output_size=6)


@EXAMPLES.near_miss("host-read")
def classes_given_to_one_hot():
    labels = torch.arange(5)
    return lambda: F.one_hot(labels, 5)


@EXAMPLES.near_miss("host-read")
def draw_of_a_category():
    weights = torch.rand(8)
    return lambda: torch.multinomial(weights, 2)
