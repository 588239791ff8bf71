"""Payloads of products: FLOPs by hand and by torch's counter, rates by CUDA events.

By hand: a product of m × k and k × n is 2·m·k·n FLOP; of a layer with n inputs, the backward pass
is as much for its weight, and again for its input if that needs a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from gpu_payloads.payload import SPINS, Made, Payloads
from torch import nn

PAYLOADS = Payloads()
BF16 = torch.bfloat16


@contextmanager
def tf32(allowed: str) -> Iterator[None]:
    """With fp32 products in this precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(allowed)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@PAYLOADS.add(flops=2 * 2 * 1024**3, counter=True, syncs=0, rules={"fp32-matmul": 2})
def products_in_fp32(device: str) -> Made:
    """Two products of 1024 × 1024 with TF32 off."""
    with tf32("highest"):
        x = torch.randn(1024, 1024, device=device)

        def block() -> None:
            for _ in range(2):
                x @ x

        yield block


@PAYLOADS.add(flops=2 * 2 * 1024**3, counter=True, syncs=0)
def products_in_tf32(device: str) -> Made:
    """The same with TF32 on."""
    with tf32("high"):
        x = torch.randn(1024, 1024, device=device)

        def block() -> None:
            for _ in range(2):
                x @ x

        yield block


@PAYLOADS.add(
    anywhere=False, flops=2 * 1024**3 + 2 * 1024 * 512 * 256 + 2 * 8 * 256**3 + 2 * 8 * 256**3,
    counter=True, syncs=0,
)  # fmt: skip
def products_in_bf16(device: str) -> Made:
    """``mm``, ``addmm``, ``bmm`` and ``baddbmm``."""
    x = torch.randn(1024, 1024, device=device, dtype=BF16)
    layer = nn.Linear(512, 256, device=device, dtype=BF16)
    batch = torch.randn(8, 256, 256, device=device, dtype=BF16)

    def block() -> None:
        with torch.no_grad():
            x @ x
            layer(x[:, :512])
            batch @ batch
            torch.baddbmm(batch, batch, batch)

    yield block


@PAYLOADS.add(anywhere=False, flops=2 * 1024**3, counter=True, syncs=0)
def product_in_fp16(device: str) -> Made:
    """One product of 1024 × 1024."""
    x = torch.randn(1024, 1024, device=device, dtype=torch.float16)
    yield lambda: x @ x


@PAYLOADS.add(
    anywhere=False, flops=2 * 1001**3 + 2 * 3 * 97**3, counter=True, syncs=0,
    rules={"unaligned-matmul": 2},
)  # fmt: skip
def unaligned_products(device: str) -> Made:
    """Dimensions of 1001 and 97 in bf16."""
    x = torch.randn(1001, 1001, device=device, dtype=BF16)
    batch = torch.randn(3, 97, 97, device=device, dtype=BF16)

    def block() -> None:
        x @ x
        batch @ batch

    yield block


@PAYLOADS.add(flops=2 * 512**3, counter=True, syncs=0)
def product_in_fp64(device: str) -> Made:
    """One product of 512 × 512 in double precision."""
    x = torch.randn(512, 512, device=device, dtype=torch.float64)
    yield lambda: x @ x


@PAYLOADS.add(
    anywhere=False, flops=8 * 2 * 8192**3, syncs=0, h2d_copies=0, d2h_copies=0,
    timed=(0.97, 1.005), rules=SPINS, rates={"tflops_per_s@aten::mm": 8 * 2 * 8192**3},
)  # fmt: skip
def large_products_in_bf16(device: str) -> Made:
    """Eight products of 8192 × 8192, beside CUDA events."""
    x, y = (torch.randn(8192, 8192, device=device, dtype=BF16) for _ in range(2))
    out = torch.empty_like(x)

    def block() -> None:
        for _ in range(8):
            torch.mm(x, y, out=out)

    yield block


@PAYLOADS.add(
    anywhere=False, flops=4 * 2 * 8192**3, syncs=0,
    timed=(0.97, 1.005), rules=SPINS, rates={"tflops_per_s@aten::mm": 4 * 2 * 8192**3},
)  # fmt: skip
def large_products_in_tf32(device: str) -> Made:
    """Four products of 8192 × 8192 in TF32, beside CUDA events."""
    with tf32("high"):
        x, y = (torch.randn(8192, 8192, device=device) for _ in range(2))
        out = torch.empty_like(x)

        def block() -> None:
            for _ in range(4):
                torch.mm(x, y, out=out)

        yield block


@PAYLOADS.add(
    anywhere=False, flops=8 * 2 * 8192**3, syncs=0,
    timed=(0.97, 1.005), rules=SPINS, rates={"tflops_per_s@aten::_scaled_mm": 8 * 2 * 8192**3},
)  # fmt: skip
def large_products_in_fp8(device: str) -> Made:
    """Eight scaled products of 8192 × 8192 in fp8, beside CUDA events."""
    x = torch.randn(8192, 8192, device=device).to(torch.float8_e4m3fn)
    y = torch.randn(8192, 8192, device=device).to(torch.float8_e4m3fn).t()
    scale = torch.ones((), device=device)

    def block() -> None:
        for _ in range(8):
            torch._scaled_mm(x, y, scale_a=scale, scale_b=scale, out_dtype=BF16)

    yield block


@PAYLOADS.add(anywhere=False, flops=2 * 1024**3, syncs=0)
def product_in_int8(device: str) -> Made:
    """One product of 1024 × 1024 of int8, which FlopCounterMode does not know."""
    x = torch.randint(-8, 8, (1024, 1024), device=device, dtype=torch.int8)
    y = torch.randint(-8, 8, (1024, 1024), device=device, dtype=torch.int8).t()
    yield lambda: torch._int_mm(x, y)


@PAYLOADS.add(flops=2 * 4096 * 64, or_unknown="flops")
def sparse_product(device: str) -> Made:
    """A sparse matrix of 1024 rows with four values each, by a dense one with 64 columns."""
    columns = torch.arange(1024).repeat(1024, 1)[:, :4].flatten()
    matrix = torch.sparse_csr_tensor(
        torch.arange(0, 4097, 4), columns, torch.ones(4096), (1024, 1024)
    ).to(device)
    dense = torch.randn(1024, 64, device=device)
    yield lambda: matrix @ dense


@PAYLOADS.add(
    flops=2 * 3 * (2 * 8 * 64 * 64 * 32 * 32 * 9), counter=True, syncs=0,
    may="layout-transpose small-grid",
)  # fmt: skip
def convolutions_with_batch_norm(device: str) -> Made:
    """Two convolutions of 3 × 3 without bias and their batch norms, forward and backward.

    Each pass is 2·8·64·64·32·32·9 FLOP: forward, for the weight, and for the input.
    """
    yield from _convolutions(device, bias=False)


@PAYLOADS.add(
    flops=2 * 3 * (2 * 8 * 64 * 64 * 32 * 32 * 9), counter=True, syncs=0,
    rules={"conv-bias-batchnorm": 2}, may="layout-transpose small-grid",
)  # fmt: skip
def convolutions_with_bias_and_batch_norm(device: str) -> Made:
    """The same with biases, which the batch norms take out again."""
    yield from _convolutions(device, bias=True)


def _convolutions(device: str, *, bias: bool) -> Made:
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [nn.Conv2d(64, 64, 3, padding=1, bias=bias), nn.BatchNorm2d(64), nn.ReLU()]
    model = nn.Sequential(*layers).to(device)
    x = torch.randn(8, 64, 32, 32, device=device, requires_grad=True)

    def block() -> None:
        model(x).sum().backward()
        model.zero_grad()
        x.grad = None

    yield block


@PAYLOADS.add(flops=3 * (2 * 8 * 64 * 64 * 32 * 32 * 9), counter=True, syncs=0, may="small-grid")
def convolution_in_channels_last(device: str) -> Made:
    """One convolution of 3 × 3 in bf16 and channels last, forward and backward."""
    layer = nn.Conv2d(64, 64, 3, padding=1, bias=False, device=device, dtype=BF16)
    with torch.no_grad():
        layer.weight.data = layer.weight.to(memory_format=torch.channels_last)
    x = torch.randn(8, 64, 32, 32, device=device, dtype=BF16)
    x = x.to(memory_format=torch.channels_last).requires_grad_()

    def block() -> None:
        layer(x).sum().backward()
        layer.zero_grad()
        x.grad = None

    yield block


@PAYLOADS.add(
    flops=2 * 8 * 64 * 32 * 32 * 9 + 2 * 8 * 64 * 16 * 16 * 32 * 2 * 2,
    counter=True, syncs=0, may="layout-transpose small-grid",
)  # fmt: skip
def depthwise_and_transposed_convolutions(device: str) -> Made:
    """A depthwise convolution of 3 × 3, and a transposed one of 2 × 2 with a stride of 2."""
    depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False).to(device)
    transposed = nn.ConvTranspose2d(64, 32, 2, stride=2, bias=False).to(device)
    x, y = (torch.randn(8, 64, size, size, device=device) for size in (32, 16))

    def block() -> None:
        with torch.no_grad():
            depthwise(x)
            transposed(y)

    yield block


@PAYLOADS.add(flops=2 * 4 * 128 * (64 + 128) * 16 * 32, syncs=0, may="fp32-matmul small-grid")
def recurrent_layer(device: str) -> Made:
    """An LSTM of 64 inputs and 128 hidden units over 32 steps of 16 samples, in cuDNN.

    FlopCounterMode does not count it.
    """
    layer = nn.LSTM(64, 128).to(device)
    x = torch.randn(32, 16, 64, device=device)

    def block() -> None:
        with torch.no_grad():
            layer(x)

    yield block
