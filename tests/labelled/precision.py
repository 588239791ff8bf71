"""Labelled examples of the rule about work in double precision."""

from __future__ import annotations

import numpy as np
import torch
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()


def pictures(count=2, size=64):
    return torch.rand(count, 3, size, size)


@EXAMPLES.positive("float64")
def a_target_that_is_an_array_of_numpys():
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 64))
    x, y = torch.rand(256, 8), torch.from_numpy(np.random.default_rng(0).random((256, 64)))

    def step():
        (model(x) - y).square().mean().backward()  # <- here

    return step


@EXAMPLES.positive("float64")
def a_projection_that_is_drawn_by_numpy():
    rng = np.random.default_rng(0)
    basis, data = torch.from_numpy(rng.normal(size=(64, 256))), rng.normal(size=(128, 64))
    model = nn.Linear(256, 4)

    @torch.inference_mode()
    def infer():
        features = torch.as_tensor(data) @ basis  # <- here
        return model(features.to(torch.float32))

    return infer


@EXAMPLES.positive("float64")
def a_mask_of_numbers_on_the_scores():
    bias = torch.from_numpy(np.triu(np.full((128, 128), -1e9), 1))
    layer, x = nn.Linear(16, 48), torch.rand(128, 16)

    @torch.no_grad()
    def attend():
        q, k, v = layer(x).chunk(3, -1)
        scores = q @ k.T + bias  # <- here
        return scores.softmax(-1).float() @ v

    return attend


@EXAMPLES.positive("float64", elements=16)
def as_many_elements_as_the_threshold():
    model, x = nn.Linear(4, 2), torch.rand(4, 4)
    shift = torch.from_numpy(np.ones(4))
    return lambda: model((x * shift).float()).sum().backward()  # <- here


@EXAMPLES.near_miss("float64", elements=17)
def fewer_elements_than_the_threshold():
    model, x = nn.Linear(4, 2), torch.rand(4, 4)
    shift = torch.from_numpy(np.ones(4))
    return lambda: model((x * shift).float()).sum().backward()


# ------------------------------------------------------------------------------- what is meant


@EXAMPLES.positive("float64", 1)
def a_spectrum_under_a_window_of_numpys():
    net, wave = nn.Conv1d(129, 4, 3), torch.rand(4, 8192)
    window = torch.from_numpy(np.hanning(256))

    @torch.no_grad()
    def encode():
        frames = wave.unfold(-1, 256, 128) * window  # <- here
        return net(torch.fft.rfft(frames).abs().float().transpose(1, 2))

    return encode


@EXAMPLES.near_miss("float64")
def a_spectrum_of_what_was_cast_up():
    net, wave = nn.Conv1d(129, 4, 3), torch.rand(4, 8192)

    @torch.no_grad()
    def encode():
        frames = wave.double().unfold(-1, 256, 128)
        return net(torch.fft.rfft(frames).abs().float().transpose(1, 2))

    return encode


@EXAMPLES.near_miss("float64")
def arrays_that_are_cast_at_once():
    data = np.random.default_rng(0).random((512, 40))
    model = nn.Linear(40, 4)

    @torch.no_grad()
    def predict():
        x = torch.from_numpy(data).float()
        return model((x - 0.5) * 2.0)

    return predict


class Coordinates(nn.Module):
    """Gives a convolution the place of each pixel, as two channels more."""

    def __init__(self, size, dtype):
        super().__init__()
        places = np.stack(np.meshgrid(np.linspace(-1, 1, size), np.linspace(-1, 1, size)))
        self.grid = torch.from_numpy(places.astype(dtype))
        self.conv = nn.Conv2d(5, 2, 3)

    def forward(self, x):
        grid = self.grid.expand(len(x), -1, -1, -1)
        return self.conv(torch.cat([x, grid], dim=1).float())  # <- here


@EXAMPLES.near_miss("float64")
def coordinates_beside_the_colors_of_a_small_picture():
    model, x = Coordinates(16, "f8"), pictures(size=16)
    return lambda: model(x).mean().backward()


@EXAMPLES.near_miss("float64")
def angles_that_torch_makes_in_double_precision():
    model = nn.Linear(128, 4)

    @torch.no_grad()
    def table():
        position = torch.arange(256, dtype=torch.float64)[:, None]
        rate = torch.pow(10000.0, -torch.arange(128, dtype=torch.float64) / 128)
        return model((position * rate).sin().float())

    return table


@EXAMPLES.near_miss("float64")
def whole_numbers_and_times():
    model, x = nn.Linear(64, 256), torch.rand(128, 64)
    times = torch.from_numpy(np.arange(100) + 1.7e9)

    @torch.no_grad()
    def batch():
        age = (times - times[0]).floor().long()
        return model(x), age.max()

    return batch
