"""Labelled examples of for-loop-indexing, most of them near misses: what the next one needs."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()


# -------------------------------------------------------------------------- dynamic programming


@EXAMPLES.near_miss("for-loop-indexing")
def alignments_of_a_table_in_place():
    log_probabilities = torch.rand(14, 6).log()

    def forward():
        alpha = torch.full((14, 6), -20.0)
        alpha[0] = log_probabilities[0]
        for t in range(1, 14):
            stay = alpha[t - 1]
            move = F.pad(stay[:-1], (1, 0), value=-20.0)
            alpha[t] = torch.logaddexp(stay, move) + log_probabilities[t]
        return alpha[-1]

    return forward


# ------------------------------------------------------------------------------- recurrent models


@EXAMPLES.near_miss("for-loop-indexing")
def a_moving_average_by_lerp():
    x, mean = torch.rand(16, 4), torch.zeros(4)

    def run():
        for i in range(16):
            mean.lerp_(x[i], 0.1)

    return run


@EXAMPLES.near_miss("for-loop-indexing")
def the_last_state_is_a_view_of_what_was_kept():
    inputs, kept = torch.rand(14, 4), torch.zeros(14, 4)

    def run():
        hidden = torch.zeros(4)
        for t in range(14):
            kept[t] = torch.tanh(hidden + inputs[t])
            hidden = kept[t]
        return hidden

    return run


@EXAMPLES.near_miss("for-loop-indexing")
def a_perceptron_that_learns_from_each_sample():
    x, y = torch.rand(16, 3), torch.rand(16).round()

    def fit():
        w = torch.zeros(3)
        for sample, label in zip(x, y, strict=True):
            w += 0.1 * (label - (sample @ w).sigmoid()) * sample
        return w

    return fit


# ------------------------------------------------------------------------------ stacked weights


@EXAMPLES.near_miss("for-loop-indexing")
def layers_kept_as_one_tensor():
    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.Parameter(torch.rand(12, 4, 4), requires_grad=False)

        def forward(self, x):
            for weight in self.weights:
                x = x @ weight
            return x

    stack, x = Stack(), torch.rand(2, 4)
    return lambda: stack(x)


@EXAMPLES.near_miss("for-loop-indexing")
def a_flow_of_stacked_scales():
    scales, shifts, x = torch.rand(12, 4), torch.rand(12, 4), torch.rand(3, 4)

    def forward():
        y = x
        for scale, shift in zip(scales.unbind(), shifts.unbind(), strict=True):
            y = y * scale + shift
        return y

    return forward


# --------------------------------------------------------------------------------- ragged pieces


@EXAMPLES.near_miss("for-loop-indexing")
def texts_without_their_padding():
    ids = torch.randint(1, 9, (12, 8))
    ids[torch.arange(8)[None] > torch.arange(12)[:, None] % 8] = 0
    return lambda: [row[row != 0].tolist() for row in ids]


# ------------------------------------------------------------------- what is no loop over elements


@EXAMPLES.near_miss("for-loop-indexing")
def a_sheet_of_small_pictures():
    pictures = torch.rand(16, 3, 6, 6)

    def sheet():
        grid = torch.zeros(3, 32, 32)
        for k in range(16):
            top, left = k // 4 * 8, k % 4 * 8
            grid.narrow(1, top, 6).narrow(2, left, 6).copy_(pictures[k])
        return grid

    return sheet


@EXAMPLES.near_miss("for-loop-indexing")
def sizes_that_a_nested_tensor_keeps():
    rows = [torch.rand(1 + n % 5, 8) for n in range(12)]

    @torch.no_grad()
    def attend():
        x = torch.nested.nested_tensor(rows, layout=torch.jagged)
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads)

    return attend


@EXAMPLES.near_miss("for-loop-indexing")
def numbers_that_a_test_compares():
    x = torch.rand(15)

    def check():
        for value in x:
            assert 0 <= value
            assert value <= 1

    return check


@EXAMPLES.near_miss("for-loop-indexing", unlike="2.6.")
def vectors_that_are_printed():
    some = [torch.rand(14), torch.arange(14), torch.rand(14) > 0.5, torch.rand(14).double() * 1e6]
    return lambda: [repr(one) for one in some]


@EXAMPLES.near_miss("for-loop-indexing")
def queries_compared_with_a_table_batch_by_batch():
    queries, table = torch.rand(64, 4), torch.rand(100, 4)
    return lambda: torch.cat([torch.cdist(some, table).argmin(1) for some in queries.split(4)])


# ------------------------------------------------------------------- sums, and what is like them


@EXAMPLES.near_miss("for-loop-indexing")
def a_season_of_twelve_steps():
    noise = torch.rand(60, 3)

    def simulate():
        seen = [noise[i] for i in range(12)]
        for t in range(12, 60):
            seen.append(0.5 * seen[t - 12] + noise[t])
        return torch.stack(seen)

    return simulate


@EXAMPLES.near_miss("for-loop-indexing")
def a_season_longer_than_a_first_look():
    noise = torch.rand(90, 3)

    def simulate():
        seen = list(noise[:24].clone().split(1))
        for t in range(24, 90):
            seen.append((seen[t - 24] + noise[t]).tanh())
        return torch.cat(seen)

    return simulate
