"""Labelled examples of copies of one tensor again and again, and of copies that only look like it.

In the style of libraries: attention, graphs, images, sampling, feature banks, rollouts.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from labelled.case import Examples
from labelled.layers_alike import Blur
from torch import nn

EXAMPLES = Examples()


# -------------------------------------------------------------------- positives


def filtered(size):
    """Layers on images of this size, each with a copy of one table of weights."""
    layers = nn.Sequential(*(Blur(4) for _ in range(6)))
    images, table = torch.rand(8, 4, size, size), torch.rand(16, 8)

    @torch.no_grad()
    def infer():
        x = images
        for layer in layers:
            x = layer(x)
            x = x + torch.dot(x.flatten()[:128], table.t().contiguous().flatten())  # <- here
        return x

    return infer


@EXAMPLES.positive("contiguous-copy", 5, cpu_share=0.003)
def a_table_laid_out_in_each_layer_of_small_images():
    return filtered(63)


@EXAMPLES.positive("contiguous-copy", 7)
def a_window_expanded_for_each_image():
    window = torch.rand(1, 1, 5, 5)
    images = [torch.rand(1, 3, 12, 12) for _ in range(8)]

    def blurred(image):
        kernel = window.expand(3, 1, 5, 5).contiguous()  # <- here
        return F.conv2d(image, kernel, groups=3)

    return lambda: list(map(blurred, images))


@EXAMPLES.positive("contiguous-copy", 7)
def weights_that_are_cloned_to_add_noise_to_them():
    weight, scales = torch.randn(8, 4), torch.rand(8, 8, 4).unbind(0)
    return lambda: [weight.clone().add_(scale) for scale in scales]  # <- here


@EXAMPLES.positive("contiguous-copy", 4)
def sixteen_numbers_are_enough():
    x = torch.randn(4, 4)
    return lambda: [x.t().contiguous() @ x for _ in range(5)]  # <- here


# -------------------------------------------------------------------- near misses


@EXAMPLES.near_miss("contiguous-copy")
def fifteen_numbers_are_a_trifle():
    x = torch.randn(5, 3)
    return lambda: [x.t().contiguous() @ x for _ in range(8)]


@EXAMPLES.near_miss("contiguous-copy")
def a_buffer_that_each_product_writes_to():
    buffer, a = torch.empty(6, 6), torch.randn(6, 6)

    def run():
        total = torch.zeros(6, 6)
        for _ in range(8):
            torch.mm(a, a, out=buffer)
            total += buffer.t().contiguous()
        return total

    return run


@EXAMPLES.near_miss("contiguous-copy")
def heads_that_were_split_before():
    heads, query = torch.randn(8, 5, 4).unbind(0), torch.randn(5, 3)
    return lambda: [head.t().contiguous() @ query for head in heads]


@EXAMPLES.near_miss("contiguous-copy")
def copies_for_a_function_that_jitters_what_it_is_given():
    def jittered(points, scale=0.1):
        noise = torch.randn(4, 8)
        points.add_(noise, alpha=scale)
        return points.norm()

    start = torch.randn(4, 8)
    return lambda: [jittered(start.clone()) for _ in range(8)]


@EXAMPLES.near_miss("contiguous-copy")
def members_of_an_ensemble_begin_alike():
    weight = torch.randn(8, 4)
    return lambda: nn.ParameterList([nn.Parameter(weight.clone()) for _ in range(8)])


@EXAMPLES.positive("contiguous-copy", 5)
def a_projection_made_in_the_test_laid_out_for_each_frame():
    def check():
        head, frame = nn.Linear(16, 16, bias=False), torch.rand(2, 16)
        for _ in range(6):
            frame = (frame @ head.weight.t().contiguous()).tanh()  # <- here

    return check


@EXAMPLES.near_miss("contiguous-copy", cpu_share=0.2)
def a_table_laid_out_in_each_layer_with_a_higher_threshold():
    return a_table_laid_out_in_each_layer_of_small_images()
