"""Labelled examples of work in double precision on times, and on other numbers that need it."""

from __future__ import annotations

import numpy as np
import torch
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()

BEGAN = 1_700_000_000
SHAPE = (64, 300)


def stamps():
    """Times of events in seconds since 1970, in order."""
    since = np.sort(np.random.default_rng(0).uniform(0, 1e5, SHAPE))
    return torch.from_numpy(BEGAN + since)


def fed(make, source=stamps):
    """A layer on what this makes of the times."""
    layer, times = nn.Linear(SHAPE[1], 4), source()

    @torch.inference_mode()
    def score():
        return layer(make(times))

    return score


# ------------------------------------------------------------------------------------- near misses


@EXAMPLES.near_miss("float64")
def times_that_are_shifted_in_place():
    return fed(lambda times: times.clone().sub_(times[:, :1]).float())


@EXAMPLES.near_miss("float64")
def times_between_events():
    return fed(lambda times: torch.diff(times, prepend=times[:, :1]).float())


# -------------------------------------------------------------------------------------- positives


def measured():
    """Numbers that float32 can represent, as NumPy makes them."""
    return torch.from_numpy(np.random.default_rng(0).random(SHAPE))


@EXAMPLES.positive("float64", 1)
def float32_less_an_array_before_the_cast():
    mean = measured()
    return fed(lambda x: (x - mean[:1]).float(), lambda: torch.rand(SHAPE))  # <- here
