"""Labelled examples of the rule about work in double precision."""

from __future__ import annotations

import copy

import numpy as np
import torch
from labelled.case import Examples
from support.trace_builder import TraceBuilder
from torch import nn

EXAMPLES = Examples()


def pictures(count=2, size=64):
    return torch.rand(count, 3, size, size)


def classifier():
    return nn.Sequential(nn.Conv2d(3, 2, 3, stride=8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))


def warmed(model, x):
    with torch.no_grad():
        model(x)
    return model


class Normalise:
    """Takes off the mean of each channel."""

    def __init__(self, mean, std):
        self.mean = torch.from_numpy(np.asarray(mean))[:, None, None]
        self.std = torch.from_numpy(np.asarray(std))[:, None, None]

    def __call__(self, x):
        return (x - self.mean) / self.std  # <- here


@EXAMPLES.positive("float64")
def means_that_are_arrays_of_numpys():
    x = pictures()
    model, normalise = warmed(classifier(), x), Normalise([0.5, 0.4, 0.4], [0.2, 0.2, 0.2])

    def step():
        model(normalise(x).float()).sum().backward()

    return step


@EXAMPLES.positive("float64")
def means_that_are_arrays_of_numpys_in_inference():
    x = pictures()
    model, normalise = warmed(classifier(), x), Normalise([0.5, 0.4, 0.4], [0.2, 0.2, 0.2])

    @torch.inference_mode()
    def infer():
        return model(normalise(x).to(torch.float32)).argmax(1)

    return infer


@EXAMPLES.positive("float64")
def a_target_that_is_an_array_of_numpys():
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 64))
    x, y = torch.rand(256, 8), torch.from_numpy(np.random.default_rng(0).random((256, 64)))

    def step():
        (model(x) - y).square().mean().backward()  # <- here

    return step


@EXAMPLES.positive("float64")
def a_schedule_of_noise_in_double_precision():
    betas = np.linspace(1e-4, 0.02, 1000)
    scale = torch.from_numpy(np.sqrt(np.cumprod(1 - betas)))
    x, t = pictures(4), torch.tensor([3, 40, 500, 999])
    model = nn.Conv2d(3, 3, 1)

    def extract(table, like):
        return table[t].reshape(-1, *[1] * (like.ndim - 1))

    def step():
        noisy = extract(scale, x) * x  # <- here
        model(noisy.to(torch.float32)).square().mean().backward()

    return step


@EXAMPLES.positive("float64")
def weights_of_samples_that_are_listed_in_double_precision():
    model = nn.Linear(16, 128)
    x, y = torch.rand(128, 16), torch.rand(128, 128)
    weight = torch.tensor([[0.5 + i] for i in range(128)], dtype=torch.float64)

    def step():
        error = (model(x) - y).square()
        (error * weight).mean().backward()  # <- here

    return step


@EXAMPLES.positive("float64", 2)
def features_that_are_cast_when_all_is_done():
    data = np.random.default_rng(0).random((512, 40))
    model = nn.Linear(40, 4)

    def predict():
        x = torch.from_numpy(data)
        x = x - 0.5  # <- here
        x = x * 2.0  # <- here
        with torch.no_grad():
            return model(x.float())

    return predict


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


@EXAMPLES.positive("float64", 2)
def positions_that_are_added_twice():
    table = np.sin(np.arange(128)[:, None] / np.power(1e4, np.arange(128) / 128))
    model, x = nn.Linear(128, 128), torch.rand(128, 128)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model
            self.register_buffer("table", torch.from_numpy(table))

        def forward(self, x):
            for _ in range(2):
                x = self.model((x + self.table).float())  # <- here
            return x

    encoder = Encoder()
    return lambda: encoder(x).sum().backward()


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


@EXAMPLES.positive("float64")
def a_trace_of_a_loss_on_a_device():
    trace = TraceBuilder("NVIDIA H200")
    with trace.op("aten::linear", [[256, 64], [256, 64], [256]], ["float", "float", "float"]):
        trace.launch("gemm")
    with trace.op("aten::mul", [[256, 256], [256]], ["float", "double"]):
        trace.launch("elementwise_kernel", 50)
    with trace.op("aten::sum", [[256, 256]], ["double"]):
        trace.launch("reduce_kernel", 50)
    return trace


def bytes_of_pictures(count=2, size=64):
    return torch.randint(255, (count, 3, size, size), dtype=torch.uint8)


class Scaled(nn.Module):
    """Takes pictures as they are decoded, and scales them itself."""

    def __init__(self, mean, std=None):
        super().__init__()
        self.mean = torch.from_numpy(np.array(mean)).view(-1, 1, 1)
        self.std = None if std is None else torch.from_numpy(np.array(std)).view(-1, 1, 1)
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, images):
        x = images - self.mean  # <- here
        if self.std is not None:
            x = x / self.std  # <- here
        return self.conv(x.to(torch.float32))


@EXAMPLES.positive("float64", 1)
def bytes_of_pictures_less_a_mean_of_numpys():
    model, images = Scaled([120.0, 110.0, 100.0]), bytes_of_pictures()
    return lambda: model(images).square().mean().backward()


@EXAMPLES.positive("float64", 2)
def bytes_of_pictures_less_a_mean_and_divided_by_a_deviation():
    model, images = Scaled([120.0, 110.0, 100.0], [60.0, 61.0, 62.0]), bytes_of_pictures()

    @torch.inference_mode()
    def infer():
        return model(images)

    return infer


@EXAMPLES.near_miss("float64")
def bytes_of_pictures_that_are_cast_before_the_mean():
    model, images = nn.Conv2d(3, 4, 3), bytes_of_pictures()
    mean = torch.from_numpy(np.array([120.0, 110.0, 100.0], np.float32)).view(3, 1, 1)

    @torch.inference_mode()
    def infer():
        return model(images - mean)

    return infer


@EXAMPLES.near_miss("float64")
def bytes_of_a_small_picture_less_a_mean():
    model, images = Scaled([120.0, 110.0, 100.0]), bytes_of_pictures(size=16)
    return lambda: model(images).square().mean().backward()


@EXAMPLES.positive("float64", 1)
def counts_that_are_weighted_by_an_array():
    weight = torch.from_numpy(1 / np.log(np.arange(2, 130)))
    model, counts = nn.Linear(128, 2), torch.randint(9, (200, 128))

    def logits(counts):
        return model((counts * weight).float())  # <- here

    return lambda: logits(counts).sum().backward()


@EXAMPLES.near_miss("float64")
def times_since_their_begin():
    stamps = torch.randint(1_700_000_000, 1_700_090_000, (200, 128))
    begin = torch.from_numpy(np.full((200, 1), 1.7e9))
    model = nn.Linear(128, 2)

    @torch.no_grad()
    def embed():
        return model((stamps - begin).float())

    return embed


@EXAMPLES.near_miss("float64")
def rows_of_a_small_table_that_integers_choose():
    table = torch.from_numpy(np.random.default_rng(0).random(50))
    model, ids = nn.Linear(128, 2), torch.randint(50, (200, 128))

    @torch.no_grad()
    def score():
        return model(ids.float()), table[ids].float().mean()

    return score


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
def a_model_that_is_all_in_double_precision():
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 4)).double()
    x = torch.rand(128, 64, dtype=torch.float64)
    return lambda: model((x - 0.5) / 2).square().mean().backward()


@EXAMPLES.near_miss("float64", also="missing-no-grad")
def a_reference_in_double_precision():
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 128))
    exact = copy.deepcopy(model).double()
    x = torch.rand(128, 64)

    def check():
        with torch.no_grad():
            return (model(x) - exact(x.double())).abs().max()

    return check


@EXAMPLES.near_miss("float64")
def a_reference_of_numpys():
    model, x = nn.Linear(64, 256), torch.rand(128, 64)

    @torch.no_grad()
    def check():
        weight, bias = model.weight.numpy(), model.bias.numpy()
        exact = x.numpy().astype(np.float64) @ weight.T.astype(np.float64) + bias
        return (model(x) - torch.from_numpy(exact)).abs().max().item() < 1e-3

    return check


@EXAMPLES.near_miss("float64")
def a_softmax_that_is_cast_up_for_accuracy():
    model, x = nn.Linear(64, 256), torch.rand(128, 64)

    def step():
        scores = model(x).double()
        (scores - scores.logsumexp(-1, keepdim=True)).float().mean().backward()

    return step


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


@EXAMPLES.positive("float64", 1)
def coordinates_of_numpys_beside_the_colors():
    model, x = Coordinates(64, "f8"), pictures()
    return lambda: model(x).mean().backward()


@EXAMPLES.near_miss("float64")
def coordinates_in_float32_beside_the_colors():
    model, x = Coordinates(64, "f4"), pictures()
    return lambda: model(x).mean().backward()


@EXAMPLES.near_miss("float64")
def coordinates_beside_the_colors_of_a_small_picture():
    model, x = Coordinates(16, "f8"), pictures(size=16)
    return lambda: model(x).mean().backward()


def _frames(kinds):
    """Many frames in one batch, the last of them from NumPy; torch records no shapes of them."""
    model = nn.Linear(64, 4)
    frames = [torch.rand(16, 64) for _ in range(39)]
    frames.append(torch.from_numpy(np.random.default_rng(0).random((16, 64)).astype(kinds)))
    return lambda: model(torch.cat(frames).float()).mean().backward()  # <- here


@EXAMPLES.positive("float64", 1)
def one_of_many_frames_is_numpys():
    return _frames("f8")


@EXAMPLES.near_miss("float64")
def many_frames_in_float32():
    return _frames("f4")


@EXAMPLES.near_miss("float64")
def arrays_joined_before_they_are_cast():
    rng = np.random.default_rng(0)
    tables, model = [rng.random((300, 40)), rng.random((300, 24))], nn.Linear(64, 4)

    @torch.no_grad()
    def predict():
        return model(torch.cat([torch.from_numpy(table) for table in tables], dim=1).float())

    return predict


@EXAMPLES.near_miss("float64")
def numbers_of_pythons_and_tensors_without_dimensions():
    model, x = nn.Linear(40, 4), torch.rand(512, 40)
    scale = torch.tensor(np.float64(2.0))

    def step():
        model((x - 0.5) * 2.0 / scale).mean().backward()

    return step


@EXAMPLES.near_miss("float64")
def a_total_in_double_precision():
    model, x = nn.Linear(64, 256), torch.rand(128, 64)
    total = torch.zeros(256, dtype=torch.float64)

    @torch.no_grad()
    def evaluate():
        total.add_(model(x).sum(0, dtype=torch.float64))
        return total / 128

    return evaluate


@EXAMPLES.near_miss("float64")
def a_decomposition_in_double_precision():
    data = np.random.default_rng(0).normal(size=(200, 128))
    model = nn.Linear(128, 4)

    @torch.no_grad()
    def whiten():
        x = torch.from_numpy(data)
        x = x - x.mean(0)
        values, vectors = torch.linalg.eigh(x.T @ x / len(x))
        return model((x @ vectors / values.clamp(min=1e-6).sqrt()).float())

    return whiten


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
def gradients_that_are_checked():
    layer = nn.Linear(3, 2).double()
    x = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    return lambda: torch.autograd.gradcheck(layer, (x,))


@EXAMPLES.near_miss("float64")
def whole_numbers_and_times():
    model, x = nn.Linear(64, 256), torch.rand(128, 64)
    times = torch.from_numpy(np.arange(100) + 1.7e9)

    @torch.no_grad()
    def batch():
        age = (times - times[0]).floor().long()
        return model(x), age.max()

    return batch


@EXAMPLES.near_miss("float64")
def work_in_double_precision_without_a_model():
    data = torch.from_numpy(np.random.default_rng(0).random((256, 256)))
    other = torch.rand(256, 256)
    return lambda: data * other
