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
def times_less_a_begin_of_whole_seconds():
    begin = torch.full((SHAPE[0], 1), BEGAN)
    return fed(lambda times: (times - begin).float() / 3600)


@EXAMPLES.near_miss("float64")
def times_less_as_many_whole_seconds():
    begin = torch.full(SHAPE, BEGAN)
    return fed(lambda times: (times - begin).float() / 3600)


@EXAMPLES.near_miss("float64")
def whole_seconds_less_times():
    end = torch.from_numpy(np.full(SHAPE, BEGAN + 100_000))
    return fed(lambda times: torch.sub(end, times).to(torch.float32))


@EXAMPLES.near_miss("float64")
def hours_since_a_begin_of_whole_seconds():
    begin = torch.full((SHAPE[0], 1), BEGAN)
    return fed(lambda times: ((times - begin) / 3600).float())


@EXAMPLES.near_miss("float64")
def whole_seconds_less_a_small_table_of_begins():
    ticks, begins = torch.full(SHAPE, BEGAN), torch.from_numpy(np.full((64, 1), BEGAN - 0.5))
    return fed(lambda times: ((ticks - begins) / 60).float() + times.float())


@EXAMPLES.near_miss("float64")
def times_since_the_first_event():
    return fed(lambda times: (times - times[:, :1]).float())


@EXAMPLES.near_miss("float64")
def times_since_the_mean():
    return fed(lambda times: (times - times.mean(1, keepdim=True)).float())


@EXAMPLES.near_miss("float64")
def times_less_a_number():
    return fed(lambda times: (times - BEGAN).float())


@EXAMPLES.near_miss("float64")
def times_that_are_shifted_in_place():
    return fed(lambda times: times.clone().sub_(times[:, :1]).float())


@EXAMPLES.near_miss("float64")
def times_between_events():
    return fed(lambda times: torch.diff(times, prepend=times[:, :1]).float())


@EXAMPLES.near_miss("float64")
def times_of_day():
    return fed(lambda times: (times % 86_400 * (2 * torch.pi / 86_400)).sin().float())


@EXAMPLES.near_miss("float64")
def running_sums():
    return fed(lambda steps: (steps * 1e-3).cumsum(1).float())


@EXAMPLES.near_miss("float64")
def logarithms_of_gamma():
    return fed(lambda counts: torch.special.gammaln(counts + 1).float())


@EXAMPLES.near_miss("float64")
def means_of_what_is_cast():
    return fed(lambda x: (x.float() - x.mean(1, keepdim=True).float()) / 2)


@EXAMPLES.near_miss("float64")
def statistics_before_the_cast():
    def scaled(x):
        mean, std = x.mean(1, keepdim=True).float(), x.std(1, keepdim=True).float()
        return (x.float() - mean) / std

    return fed(scaled)


# -------------------------------------------------------------------------------------- positives


def measured():
    """Numbers that float32 can represent, as NumPy makes them."""
    return torch.from_numpy(np.random.default_rng(0).random(SHAPE))


@EXAMPLES.positive("float64", 4)
def series_that_are_standardized():
    def standardized(x):
        return ((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)).float()  # <- here

    return fed(standardized, measured)


@EXAMPLES.positive("float64", 2)
def two_arrays_that_are_mixed():
    other = measured()
    return fed(lambda x: (x * 0.7 + other).float(), measured)  # <- here


@EXAMPLES.positive("float64", 1)
def a_scale_before_the_cast_and_times_after_it():
    times = stamps()

    def features(x):
        x = (x * 2).float()  # <- here
        return x + (times - times[:, :1]).float()

    return fed(features, measured)


@EXAMPLES.positive("float64", 1)
def bytes_less_an_array_before_the_cast():
    mean = torch.from_numpy(np.random.default_rng(0).random(SHAPE[1]) * 255)

    def pictures():
        return torch.randint(255, SHAPE, dtype=torch.uint8)

    return fed(lambda x: (x - mean).float(), pictures)  # <- here


@EXAMPLES.positive("float64", 1)
def float32_less_an_array_before_the_cast():
    mean = measured()
    return fed(lambda x: (x - mean[:1]).float(), lambda: torch.rand(SHAPE))  # <- here
