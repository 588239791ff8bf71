"""Labelled examples of casts of one tensor again and again, and of casts that only look like it.

In the style of libraries: language models, metrics, samplers, quantized weights, videos.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from labelled.case import Examples
from labelled.layers_alike import Blur
from torch import nn

EXAMPLES = Examples()
BF16 = torch.bfloat16


# -------------------------------------------------------------------- positives


def masked(size):
    """Layers on images of this size, after each of which padding is masked."""
    layers = nn.Sequential(*(Blur(4) for _ in range(6)))
    images, mask = torch.rand(8, 4, size, size), torch.rand(8, 16) > 0.2

    @torch.no_grad()
    def infer():
        x = images
        for layer in layers:
            x = layer(x)
            x = x + x.mean() * mask.to(x.dtype).sum()  # <- here
        return x

    return infer


@EXAMPLES.positive("repeated-cast", 5, cpu_share=0.003)
def a_mask_cast_after_each_layer_of_small_images():
    return masked(62)


class Positions(nn.Module):
    """Adds as many positions of a table as there are tokens."""

    def __init__(self, longest, width):
        super().__init__()
        self.register_buffer("table", torch.randn(longest, width))

    def forward(self, x):
        return x + self.table[: x.shape[1]].to(dtype=x.dtype)  # <- here


@EXAMPLES.positive("repeated-cast", 7)
def positions_cast_for_each_batch():
    positions = Positions(32, 8)
    batches = [torch.randn(2, 6, 8).to(BF16) for _ in range(8)]
    return lambda: [positions(batch).amax(1) for batch in batches]


class Adapter(nn.Module):
    """A low-rank weight kept in single precision beside a layer in half."""

    def __init__(self, width, rank=2):
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, width), requires_grad=False)
        self.up = nn.Parameter(torch.zeros(width, rank), requires_grad=False)

    def forward(self, x):
        down, up = (p.to(x.dtype) for p in (self.down, self.up))  # <- here
        return x + x @ down.t() @ up.t()


@EXAMPLES.positive("repeated-cast", 10)
def an_adapter_cast_in_each_call():
    adapter, x = Adapter(12), torch.randn(3, 12).to(BF16)

    def calls():
        y = x
        for _ in range(6):
            y = adapter(y)
        return y

    return calls


@EXAMPLES.positive("repeated-cast", 7)
def one_target_cast_in_each_step_of_an_attack():
    model, image = nn.Linear(6, 4), torch.rand(5, 6)
    target = torch.randint(0, 2, (5, 4))

    def attack(steps=8):
        x = image
        for _ in range(steps):
            x = x.detach().requires_grad_()
            loss = F.binary_cross_entropy_with_logits(model(x), target.float())  # <- here
            (slope,) = torch.autograd.grad(loss, x)
            x = x + 0.01 * slope.sign()
        return x

    return attack


@EXAMPLES.positive("repeated-cast", 5)
def a_decorated_predictor_that_enters_autocast_each_time():
    layer = nn.Linear(8, 4)
    batches = [torch.randn(2, 8) for _ in range(6)]

    @torch.no_grad()
    @torch.autocast("cpu", dtype=BF16)
    def predict(batch):
        return layer(batch).argmax(-1)  # <- here

    return lambda: [predict(batch) for batch in batches]


@EXAMPLES.positive("repeated-cast", 4)
def sixteen_numbers_are_enough():
    mean, xs = torch.rand(16), [torch.rand(2, 16).double() for _ in range(5)]
    return lambda: [x - mean.double() for x in xs]  # <- here


# -------------------------------------------------------------------- near misses


@EXAMPLES.near_miss("repeated-cast")
def fifteen_numbers_are_a_trifle():
    mean, xs = torch.rand(15), [torch.rand(2, 15).double() for _ in range(8)]
    return lambda: [x - mean.double() for x in xs]


@EXAMPLES.near_miss("repeated-cast")
def eight_images_each_cast_once():
    images = [torch.randint(0, 255, (3, 6, 6), dtype=torch.uint8) for _ in range(8)]
    return lambda: torch.stack([image.float().div_(255) for image in images])


@EXAMPLES.near_miss("repeated-cast")
def norms_of_each_layer_in_single_precision():
    weights = [torch.ones(8, dtype=BF16) for _ in range(8)]
    x = torch.randn(2, 4, 8).to(BF16)

    def norm(x, weight):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        return weight * y.to(x.dtype)

    def layers():
        y = x
        for weight in weights:
            y = y + norm(y, weight)
        return y

    return layers


@EXAMPLES.near_miss("repeated-cast")
def one_mask_in_four_layers():
    keep, scores = torch.rand(2, 1, 1, 8) > 0.2, [torch.randn(2, 2, 8, 8) for _ in range(4)]
    return lambda: [score.mul(keep.to(score.dtype)).softmax(-1) for score in scores]


@EXAMPLES.near_miss("repeated-cast")
def parts_of_one_table_each_cast_once():
    table, x = torch.randn(32, 8), torch.randn(2, 8).double()

    def sweep():
        return [x @ table[at : at + 4].double().t() for at in range(0, 32, 4)]

    return sweep


# -------------------------------------------------------------------- parameters made in the test


@EXAMPLES.positive("repeated-cast", 5)
def a_weight_of_a_layer_made_in_the_test_cast_for_each_batch():
    def check():
        layer, x = nn.Linear(64, 64), torch.rand(2, 64)
        for _ in range(6):
            x = F.linear(x.to(BF16), layer.weight.to(BF16)).float()  # <- here

    return check


@EXAMPLES.positive("repeated-cast", 4)
def the_first_rows_of_a_table_made_in_the_test_cast_in_each_layer():
    def check():
        table, x = nn.Parameter(torch.rand(16, 8)), torch.rand(4, 8, dtype=torch.double)
        for _ in range(5):
            x = x.sin() + table[:4].double()  # <- here

    return check


@EXAMPLES.near_miss("repeated-cast")
def experts_of_one_parameter_made_in_the_test_cast_once_each():
    def check():
        experts, x = nn.Parameter(torch.rand(6, 8, 8)), torch.rand(3, 8, dtype=BF16)
        return [x @ expert.to(BF16) for expert in experts.unbind()]

    return check


@EXAMPLES.near_miss("repeated-cast", cpu_share=0.2)
def a_mask_cast_after_each_layer_with_a_higher_threshold():
    return a_mask_cast_after_each_layer_of_small_images()
