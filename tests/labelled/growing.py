"""Labelled examples of growing-cat: tensors that get longer by being copied."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()


class _Metric:
    """Keeps what it is given as one tensor."""

    def __init__(self, width):
        self.seen = torch.empty(0, width)

    def update(self, batch):
        self.seen = torch.cat([self.seen, batch])  # <- here

    def compute(self):
        return self.seen.mean()


def _metric(updates):
    def run():
        metric = _Metric(3)
        for _ in range(updates):
            metric.update(torch.rand(4, 3))
        return metric.compute()

    return run


@EXAMPLES.positive("growing-cat")
def a_metric_that_keeps_all_predictions():
    return _metric(14)


@EXAMPLES.positive("growing-cat")
def ten_updates_of_a_metric():
    return _metric(10)


@EXAMPLES.near_miss("growing-cat")
def nine_updates_of_a_metric():
    return _metric(9)


@EXAMPLES.near_miss("growing-cat", cpu_share=0.9)
def a_metric_that_is_a_trifle_with_a_higher_threshold():
    return _metric(14)


@EXAMPLES.positive("growing-cat", repeats=5)
def five_updates_with_a_lower_threshold():
    return _metric(5)


def _evaluation(layers):
    model, x = nn.Sequential(*(nn.Tanh() for _ in range(layers))), torch.rand(4, 3)

    @torch.inference_mode()
    def run():
        metric = _Metric(3)
        for _ in range(12):
            metric.update(model(x + 1)[:2])
        return metric.compute()

    return run


@EXAMPLES.positive("growing-cat", operators=100)
def a_metric_beside_its_model_with_a_higher_threshold():
    return _evaluation(80)


@EXAMPLES.near_miss("growing-cat", operators=10)
def a_metric_beside_a_small_model_with_a_lower_threshold():
    return _evaluation(20)


@EXAMPLES.positive("growing-cat")
def rows_put_below_one_another():
    def run():
        path = torch.zeros(1, 3)
        for _ in range(12):
            path = torch.vstack((path, torch.randn(3)))  # <- here
        return path

    return run


@EXAMPLES.positive("growing-cat")
def a_buffer_that_is_padded_for_each_row():
    def collect():
        rows = torch.rand(1, 5)
        for _ in range(12):
            rows = F.pad(rows, (0, 0, 0, 1))  # <- here
        return rows

    return collect


class _CachedAttention(nn.Module):
    """Keys and values that a cache has, and one more."""

    def __init__(self, width, heads):
        super().__init__()
        self.qkv, self.heads = nn.Linear(width, 3 * width), heads

    def forward(self, x, cache):
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k = torch.cat((cache[0], k), dim=-2)  # <- here
            v = torch.cat((cache[1], v), dim=-2)  # <- here
        y = F.scaled_dot_product_attention(q, k, v)
        return y.transpose(1, 2).reshape(batch, time, width), (k, v)


def _decoding(prompt, width=64, steps=12, layers=1):
    model = nn.ModuleList(_CachedAttention(width, 2) for _ in range(layers)).eval()

    @torch.inference_mode()
    def decode():
        x, caches = torch.rand(1, prompt, width), [None] * layers
        for _ in range(steps):
            for number, layer in enumerate(model):
                x, caches[number] = layer(x, caches[number])
            x = x[:, -1:]
        return x

    return decode


@EXAMPLES.positive("growing-cat", 2, bytes=500_000, cpu_share=0)
def a_middling_cache_with_a_lower_threshold():
    return _decoding(280)


@EXAMPLES.near_miss("growing-cat", bytes=100_000_000)
def a_long_cache_with_a_higher_threshold():
    return _decoding(400)


def _rejoined(join, first, last):
    """A list that is joined again for each part that it gets, from so many parts to so many."""

    def run():
        chunks, peaks = [torch.rand(64, 64) for _ in range(first)], []
        for _ in range(last - first):
            chunks.append(torch.rand(64, 64))
            peaks.append(join(chunks).amax())  # <- here
        return peaks

    return run


@EXAMPLES.positive("growing-cat")
def a_long_list_put_beside_one_another():
    return _rejoined(torch.hstack, 25, 40)


@EXAMPLES.near_miss("growing-cat")
def a_long_list_of_which_ten_joins_are_not_reached():
    return _rejoined(torch.cat, 40, 49)


@EXAMPLES.near_miss("growing-cat")
def large_batches_that_are_collated():
    def run():
        return [torch.stack([torch.rand(64, 64) for _ in range(40)]).mean() for _ in range(14)]

    return run


@EXAMPLES.positive("growing-cat")
def values_of_a_cache_that_a_product_takes():
    def decode():
        values, query = torch.rand(48, 256), torch.rand(1, 256)
        for _ in range(40):
            values = torch.cat([values, query.sin()])  # <- here
            query = values.mean(1).softmax(0)[None] @ values
        return query

    return decode


@EXAMPLES.positive("growing-cat")
def similarities_of_all_points_so_far():
    def kernels():
        points, traces = torch.rand(32, 128), []
        for _ in range(16):
            points = torch.cat((points, torch.rand(16, 128)))  # <- here
            traces.append((points @ points.t()).trace())
        return traces

    return kernels


# ------------------------------------------------------------------------------ near misses


@EXAMPLES.near_miss("growing-cat")
def layers_that_get_a_list_of_all_before_them():
    layers = nn.ModuleList(nn.Conv2d(4 + 2 * i, 2, 1) for i in range(14)).eval()
    x = torch.rand(8, 4, 16, 16)

    @torch.inference_mode()
    def run():
        features = [x]
        for layer in layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)

    return run


@EXAMPLES.near_miss("growing-cat")
def a_pattern_that_doubles():
    def tile():
        pattern = torch.rand(1, 3)
        while len(pattern) < 3000:
            pattern = torch.cat([pattern, pattern])
        return pattern

    return tile
