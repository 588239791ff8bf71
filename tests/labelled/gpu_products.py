"""Examples on a GPU of the rules about precision, products, layouts and elementwise kernels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from labelled.case import ANY, Examples
from labelled.gpu_models import BF16, perceptron, resnet
from torch import nn
from torch.nn import functional as F  # noqa: N812

ON_GPU = Examples()
HALF = torch.float16


def highest():
    """As torch is when it is imported: products of float32 are not in TF32."""
    torch.set_float32_matmul_precision("highest")


# -------------------------------------------------------------------- fp32-matmul: positives


@ON_GPU.positive("fp32-matmul", 2)
def two_layers_in_float32():
    highest()
    up, down = nn.Linear(256, 1024, device="cuda"), nn.Linear(1024, 256, device="cuda")
    x = torch.randn(512, 256, device="cuda")

    def block():
        with torch.inference_mode():
            h = F.gelu(up(x))  # <- here
            return down(h)  # <- here

    return block


@ON_GPU.positive("fp32-matmul", 1)
def a_batched_product_by_einsum():
    highest()
    a, b = torch.randn(8, 128, 64, device="cuda"), torch.randn(8, 64, 96, device="cuda")
    return lambda: torch.einsum("bij,bjk->bik", a, b)  # <- here


@ON_GPU.positive("fp32-matmul", 1)
def distances_of_all_pairs():
    highest()
    points = torch.randn(256, 32, device="cuda")
    return lambda: torch.cdist(points, points).argmin(1)  # <- here


# ------------------------------------------------------------------- fp32-matmul: near misses


@ON_GPU.near_miss("fp32-matmul")
def layers_in_tf32():
    model = perceptron()
    x = torch.randn(512, 256, device="cuda")

    def block():
        with torch.inference_mode():
            return model(x)

    return block


@ON_GPU.near_miss("fp32-matmul")
def products_with_vectors():
    highest()
    matrix, vectors = torch.randn(512, 512, device="cuda"), torch.randn(512, 2, device="cuda")
    return lambda: (matrix @ vectors, matrix @ vectors[:, 0], matrix[:4] @ matrix)


@ON_GPU.near_miss("fp32-matmul")
def a_reference_on_the_host():
    highest()
    a = torch.randn(64, 64)
    b = torch.randn(64, 64, device="cuda")
    return lambda: (a @ a, b * 2)


# -------------------------------------------------------------------- unaligned-matmul


@ON_GPU.positive("unaligned-matmul")
def the_vocabulary_of_gpt2():
    head = nn.Linear(768, 50257, bias=False, device="cuda", dtype=BF16)
    x = torch.randn(256, 768, device="cuda", dtype=BF16)

    def block():
        with torch.no_grad():
            return head(x)  # <- here

    return block


@ON_GPU.positive("unaligned-matmul", 1)
def features_with_one_more_for_the_time():
    layer = nn.Linear(1025, 512, device="cuda", dtype=HALF)
    x = torch.randn(256, 1025, device="cuda", dtype=HALF)

    def block():
        with torch.no_grad():
            return layer(x)  # <- here

    return block


@ON_GPU.positive("unaligned-matmul", 1)
def a_batch_of_odd_matrices():
    x = torch.randn(8, 97, 97, device="cuda", dtype=HALF)
    return lambda: x @ x  # <- here


@ON_GPU.near_miss("unaligned-matmul")
def a_padded_vocabulary():
    head = nn.Linear(768, 50304, bias=False, device="cuda", dtype=BF16)
    x = torch.randn(256, 768, device="cuda", dtype=BF16)

    def block():
        with torch.no_grad():
            return head(x)[:, :50257]

    return block


@ON_GPU.near_miss("unaligned-matmul")
def an_odd_number_of_tokens():
    model = perceptron(256, layers=2, classes=64, dtype=BF16)
    x = torch.randn(333, 256, device="cuda", dtype=BF16)

    def block():
        with torch.no_grad():
            return model(x)

    return block


@ON_GPU.near_miss("unaligned-matmul")
def odd_sizes_in_tf32():
    x = torch.randn(201, 201, device="cuda")
    return lambda: x @ x


# -------------------------------------------------------------------- half-unused
# Positives need a device without TF32, which no data center GPU of today is.


@ON_GPU.near_miss("half-unused")
def convolutions_in_float32():
    model = resnet(64, blocks=2).eval().requires_grad_(False)
    x = torch.randn(16, 3, 128, 128, device="cuda")
    return lambda: model(x)


# -------------------------------------------------------------------- float64


@ON_GPU.positive("float64", 1)
def a_mean_from_numpy():
    mean = torch.from_numpy(np.array([0.485, 0.456, 0.406])).cuda()[:, None, None]
    model = nn.Conv2d(3, 8, 3, device="cuda").requires_grad_(False)
    pictures = torch.rand(4, 3, 64, 64, device="cuda")

    def block():
        return model((pictures - mean).float())  # <- here

    return block


@ON_GPU.near_miss("float64")
def a_mean_in_float32():
    mean = torch.tensor([0.485, 0.456, 0.406], device="cuda")[:, None, None]
    model = nn.Conv2d(3, 8, 3, device="cuda").requires_grad_(False)
    pictures = torch.rand(4, 3, 64, 64, device="cuda")
    return lambda: model(pictures - mean)


# -------------------------------------------------------------------- small-grid


@ON_GPU.positive("small-grid", 5)
def a_softmax_of_few_long_rows():
    logits = torch.randn(16, 1 << 20, device="cuda")

    def block():
        for _ in range(5):
            logits.softmax(-1)  # <- here

    return block


@ON_GPU.positive("small-grid", 5)
def a_norm_of_few_long_rows():
    x = torch.randn(8, 1 << 20, device="cuda")

    def block():
        for _ in range(5):
            F.layer_norm(x, (1 << 20,))  # <- here

    return block


@ON_GPU.positive("small-grid", 5)
def a_running_sum_of_few_long_rows():
    x = torch.randn(16, 1 << 20, device="cuda")

    def block():
        for _ in range(5):
            x.cumsum(-1)  # <- here

    return block


@ON_GPU.near_miss("small-grid")
def a_softmax_of_many_rows():
    logits = torch.randn(8192, 2048, device="cuda")

    def block():
        for _ in range(5):
            logits.softmax(-1)

    return block


@ON_GPU.near_miss("small-grid")
def short_kernels_of_few_blocks():
    x = torch.randn(8, 1024, device="cuda")

    def block():
        for _ in range(20):
            F.layer_norm(x, (1024,))

    return block


@ON_GPU.near_miss("small-grid")
def a_large_product():
    x = torch.randn(4096, 4096, device="cuda", dtype=BF16)

    def block():
        for _ in range(5):
            x @ x

    return block


# -------------------------------------------------------------------- unfused-elementwise


@ON_GPU.positive("unfused-elementwise", ANY)
def an_activation_by_hand():
    x = torch.randn(64, 1024, 1024, device="cuda", dtype=BF16)

    def gelu(x):
        return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x.pow(3))))  # <- here

    return lambda: gelu(x)


@ON_GPU.positive("unfused-elementwise", ANY)
def a_norm_by_hand():
    x = torch.randn(16, 2048, 1024, device="cuda", dtype=BF16)
    weight = torch.ones(1024, device="cuda", dtype=BF16)

    def block():
        for _ in range(3):
            h = x.float()  # <- here
            h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)  # <- here
            weight * h.to(x.dtype)  # <- here

    return block


@ON_GPU.positive("unfused-elementwise", ANY)
def a_loss_by_hand():
    logits = torch.randn(32, 1, 1024, 1024, device="cuda")
    target = torch.rand(32, 1, 1024, 1024, device="cuda").round()

    def block():
        p = torch.sigmoid(logits)  # <- here
        weight = (1 - p) * target + p * (1 - target)  # <- here
        return (weight.pow(2) * (p - target).abs()).mean()  # <- here

    return block


@ON_GPU.near_miss("unfused-elementwise")
def the_activation_of_torch():
    x = torch.randn(64, 1024, 1024, device="cuda", dtype=BF16)
    return lambda: F.gelu(x, approximate="tanh")


@ON_GPU.near_miss("unfused-elementwise")
def an_activation_by_hand_of_a_small_tensor():
    x = torch.randn(64, 1024, device="cuda", dtype=BF16)
    return lambda: 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x.pow(3))))


@ON_GPU.near_miss("unfused-elementwise")
def dropout_and_the_sum_after_it():
    x = torch.randn(16, 1024, 1024, device="cuda", dtype=BF16)
    y = torch.randn(16, 1024, 1024, device="cuda", dtype=BF16)

    def block():
        for _ in range(3):
            F.dropout(x, 0.1) + y

    return block


# -------------------------------------------------------------------- layout-transpose


@ON_GPU.positive("layout-transpose", 7)
def a_residual_network_in_half_precision():
    model = resnet(64, blocks=3, dtype=HALF).eval().requires_grad_(False)
    x = torch.randn(16, 3, 128, 128, device="cuda", dtype=HALF)
    return lambda: model(x)


@ON_GPU.positive("layout-transpose", 14)
def a_residual_network_trained_under_autocast():
    model = resnet(64, blocks=3)
    x = torch.randn(16, 3, 128, 128, device="cuda")

    def block():
        with torch.autocast("cuda", dtype=BF16):
            loss = model(x).float().mean()
        loss.backward()

    return block


@ON_GPU.positive("layout-transpose", ANY)
def volumes_in_half_precision():
    widths = pairwise([32, 48, 32, 64, 32])
    layers = [nn.Conv3d(*some, 3, padding=1, device="cuda", dtype=HALF) for some in widths]
    model = nn.Sequential(*layers).requires_grad_(False)
    x = torch.randn(2, 32, 32, 64, 64, device="cuda", dtype=HALF)
    return lambda: model(x)


@ON_GPU.near_miss("layout-transpose")
def a_network_in_channels_last():
    last = torch.channels_last
    model = resnet(64, blocks=3, dtype=HALF).eval().requires_grad_(False).to(memory_format=last)
    x = torch.randn(16, 3, 128, 128, device="cuda", dtype=HALF).to(memory_format=last)
    return lambda: model(x)


@ON_GPU.near_miss("layout-transpose", also="unaligned-matmul")
def patches_of_pictures():
    """Their 196 positions are the columns of what the first layer multiplies."""
    patches = nn.Conv2d(3, 768, 16, 16, device="cuda", dtype=HALF).requires_grad_(False)
    mlp = perceptron(768, layers=3, classes=768, dtype=HALF).requires_grad_(False)
    x = torch.randn(16, 3, 224, 224, device="cuda", dtype=HALF)
    return lambda: mlp(patches(x).flatten(2).transpose(1, 2))


@ON_GPU.near_miss("layout-transpose")
def convolutions_of_sequences():
    layers = [nn.Conv1d(256, 256, 3, padding=1, device="cuda", dtype=HALF) for _ in range(4)]
    model = nn.Sequential(*layers).requires_grad_(False)
    x = torch.randn(16, 256, 2048, device="cuda", dtype=HALF)
    return lambda: model(x)


# -------------------------------------------------------------------- repeated-cast


@ON_GPU.positive("repeated-cast", 7)
def a_weight_cast_for_each_token():
    weight, x = torch.randn(256, 256, device="cuda"), torch.randn(1, 256, device="cuda", dtype=BF16)

    def block():
        with torch.no_grad():
            h = x
            for _ in range(8):
                h = F.linear(h, weight.to(BF16))  # <- here

    return block


@ON_GPU.near_miss("repeated-cast")
def other_batches_each_time():
    data = [torch.randint(256, (16, 64), device="cuda") for _ in range(8)]

    def block():
        for x in data:
            x.float().mean()

    return block


# -------------------------------------------------------------------- contiguous-copy


@ON_GPU.positive("contiguous-copy", 5)
def a_state_cloned_for_each_head():
    state = torch.randn(64, 64, device="cuda")

    def block():
        for i in range(6):
            state.clone() * i  # <- here

    return block


@ON_GPU.near_miss("contiguous-copy")
def other_activations_each_time():
    data = [torch.randn(16, 128, device="cuda").t() for _ in range(8)]

    def block():
        for x in data:
            x.contiguous() * 2

    return block
