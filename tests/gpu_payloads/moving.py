"""Payloads that copy: which way, how many bytes, and whether the host waits.

By hand: a copy between host and device is one ``cudaMemcpyAsync``, and unless ``non_blocking`` one
``cudaStreamSynchronize``. A contiguous copy within the device is a ``cudaMemcpyAsync``, a strided
one a kernel. Source: aten/src/ATen/native/cuda/Copy.cu.
"""

from __future__ import annotations

import torch
from gpu_payloads.payload import SPINS, Made, Payloads, Run

PAYLOADS = Payloads()
MIB = 1 << 20


def pinned(x: torch.Tensor, device: str) -> torch.Tensor:
    """The tensor in pinned memory, where there is a device to pin it for."""
    return x.pin_memory() if device == "cuda" else x


@PAYLOADS.add(kernels=3, syncs=0, h2d_copies=0, d2h_copies=0, d2d_copies=0, memsets=0)
def three_additions(device: str) -> Made:
    """Three additions in place."""
    x = torch.ones(1024, device=device)

    def block() -> None:
        for _ in range(3):
            x.add_(1)

    yield block


@PAYLOADS.add(
    kernels=0, syncs=1, h2d_copies=1, h2d_bytes=MIB, d2h_copies=0, rules={"pageable-copy": 1}
)
def pageable_to_device(device: str) -> Made:
    """1 MiB from pageable memory to the device."""
    x = torch.randn(MIB // 4)
    yield lambda: x.to(device)


@PAYLOADS.add(kernels=0, syncs=1, h2d_copies=1, h2d_bytes=4096, d2h_copies=0)
def small_pageable_to_device(device: str) -> Made:
    """4 KiB from pageable memory to the device."""
    x = torch.randn(1024)
    yield lambda: x.to(device)


@PAYLOADS.add(kernels=0, syncs=1, h2d_copies=1, h2d_bytes=MIB, d2h_copies=0)
def pinned_to_device(device: str) -> Made:
    """1 MiB from pinned memory to the device; the host waits."""
    x = pinned(torch.randn(MIB // 4), device)
    yield lambda: x.to(device)


@PAYLOADS.add(kernels=0, syncs=0, h2d_copies=1, h2d_bytes=MIB, d2h_copies=0)
def pinned_to_device_without_waiting(device: str) -> Made:
    """1 MiB from pinned memory to the device; the host does not wait."""
    x = pinned(torch.randn(MIB // 4), device)
    yield lambda: x.to(device, non_blocking=True)


@PAYLOADS.add(
    kernels=1, syncs=1, d2h_copies=1, d2h_bytes=MIB, h2d_copies=0,
    rules={"host-sync": 1, "pageable-copy": 1},
)  # fmt: skip
def to_pageable_host(device: str) -> Made:
    """1 MiB from the device by ``.cpu()``, after a kernel."""
    x = torch.randn(MIB // 4, device=device)
    yield lambda: x.add_(1).cpu()


@PAYLOADS.add(kernels=0, syncs=0, d2h_copies=1, d2h_bytes=MIB, h2d_copies=0)
def to_pinned_host_without_waiting(device: str) -> Made:
    """1 MiB from the device to pinned memory; the host does not wait."""
    x = torch.randn(MIB // 4, device=device)
    out = pinned(torch.empty(MIB // 4), device)
    yield lambda: out.copy_(x, non_blocking=True)


@PAYLOADS.add(kernels=0, syncs=0, d2h_copies=1, d2h_bytes=MIB, h2d_copies=0)
def to_host_without_waiting(device: str) -> Made:
    """1 MiB by ``.to("cpu", non_blocking=True)``, which makes a pinned tensor.

    Source: aten/src/ATen/native/TensorConversions.cpp, ``_to_copy``.
    """
    x = torch.randn(MIB // 4, device=device)
    yield lambda: x.to("cpu", non_blocking=True)


@PAYLOADS.add(
    kernels=1, d2h_copies=1, d2h_bytes=MIB, h2d_copies=0,
    rules={"host-sync": 1, "pageable-copy": 1},
)  # fmt: skip
def to_pageable_host_in_vain(device: str) -> Made:
    """``non_blocking`` does not help with pageable memory: the driver waits all the same."""
    x, out = torch.randn(MIB // 4, device=device), torch.empty(MIB // 4)
    yield lambda: out.copy_(x.add_(1), non_blocking=True)


@PAYLOADS.add(kernels=0, syncs=0, d2d_copies=2, d2d_bytes=2 * MIB, h2d_copies=0, d2h_copies=0)
def within_the_device(device: str) -> Made:
    """1 MiB by ``copy_``, and again by ``clone``."""
    x, y = torch.randn(MIB // 4, device=device), torch.empty(MIB // 4, device=device)

    def block() -> None:
        y.copy_(x)
        x.clone()

    yield block


@PAYLOADS.add(kernels=1, syncs=0, d2d_copies=0, h2d_copies=0, d2h_copies=0)
def transposed_within_the_device(device: str) -> Made:
    """A strided copy is a kernel."""
    x, y = torch.randn(512, 512, device=device), torch.empty(512, 512, device=device)
    yield lambda: y.copy_(x.t())


@PAYLOADS.add(
    kernels=0, syncs=2, h2d_copies=1, d2h_copies=1, h2d_bytes=MIB, d2h_bytes=MIB,
    rules={"copy-round-trip": 1, "pageable-copy": 2}, may="host-sync",
)  # fmt: skip
def round_trip(device: str) -> Made:
    """1 MiB to the host, and back."""
    x = torch.randn(MIB // 4, device=device)
    yield lambda: x.cpu().to(device)


@PAYLOADS.add(
    kernels=0, syncs=2, h2d_copies=2, h2d_bytes=80_000, d2h_copies=0, rules={"extra-cuda-copy": 2}
)
def made_on_the_host(device: str) -> Made:
    """Two tensors of 100 × 100 that are filled and drawn on the CPU, and moved."""

    def block() -> None:
        torch.ones(100, 100).to(device)
        torch.randn(100, 100).to(device)

    yield block


@PAYLOADS.add(kernels=2, syncs=0, h2d_copies=0, d2h_copies=0, d2d_copies=0)
def made_on_the_device(device: str) -> Made:
    """The same, made where they are used."""

    def block() -> None:
        torch.ones(100, 100, device=device)
        torch.randn(100, 100, device=device)

    yield block


@PAYLOADS.add(kernels=2, memsets=0, h2d_copies=0, syncs=0)
def zeroed(device: str) -> Made:
    """``zero_`` and ``zeros`` are kernels that fill, not memsets."""
    x = torch.ones(MIB, device=device)

    def block() -> None:
        x.zero_()
        torch.zeros(MIB, device=device)

    yield block


@PAYLOADS.add(kernels=1, memsets=1, h2d_copies=0, syncs=0)
def summed(device: str) -> Made:
    """A large sum: a memset of the blocks' semaphores, and one kernel.

    Source: aten/src/ATen/native/cuda/Reduce.cuh, ``gpu_reduce_kernel``.
    """
    x = torch.ones(16 * MIB, device=device)
    yield x.sum


@PAYLOADS.add(kernels=0, syncs=0, h2d_copies=0, d2h_copies=0, d2d_copies=0, memsets=0,
              h2d_bytes=0, d2h_bytes=0, peak_cuda_bytes=0, leaked_cuda_bytes=0,
              flops=2 * 64**3)  # fmt: skip
def on_the_host_only(device: str) -> Made:
    """A product of 64 × 64 on the CPU of a machine with a GPU: nothing runs on the device."""
    x = torch.randn(64, 64)
    yield lambda: x @ x


@PAYLOADS.add(kernels=0, syncs=0, h2d_copies=0, d2h_copies=0, d2d_copies=0, memsets=0, ops=0,
              peak_cuda_bytes=0, allocated_cuda_bytes=0, leaked_cuda_bytes=0, flops=0)  # fmt: skip
def nothing_at_all(device: str) -> Made:
    """An empty block."""
    yield lambda: None


@PAYLOADS.add(kernels=4, kernels__decode=2, kernels__encode=1, syncs=0, syncs__decode=0)
def regions(device: str) -> Made:
    """Regions of ``record_function`` and NVTX ranges around single kernels."""
    x = torch.ones(1024, device=device)

    def block() -> None:
        x.add_(1)
        with torch.profiler.record_function("encode"):
            x.mul_(2)
        for _ in range(2):
            if device == "cuda":
                torch.cuda.nvtx.range_push("decode")  # which the profiler does not see
            with torch.profiler.record_function("decode"):
                x.add_(1)
            if device == "cuda":
                torch.cuda.nvtx.range_pop()

    yield block


@PAYLOADS.add(
    anywhere=False, syncs=0, h2d_copies=0, d2h_copies=0, d2d_copies=4, d2d_bytes=4 << 30,
    timed=(0.95, 1.01), rules=SPINS,
)  # fmt: skip
def large_copies_within_the_device(device: str) -> Made:
    """1 GiB four times, beside CUDA events."""
    x, y = (torch.empty(1 << 28, device=device) for _ in range(2))

    def block() -> None:
        for _ in range(4):
            y.copy_(x)

    yield block


@PAYLOADS.add(
    anywhere=False, syncs=0, h2d_copies=0, d2h_copies=0, d2d_copies=0,
    timed=(0.95, 1.01), rules=SPINS, rates={"gb_per_s@aten::mul": 8 * 2.0 * (1 << 30)},
    may="unfused-elementwise",
)  # fmt: skip
def large_multiplications(device: str) -> Made:
    """1 GiB is read and 1 GiB is written, eight times, beside CUDA events."""
    x, y = (torch.ones(1 << 28, device=device) for _ in range(2))

    def block() -> None:
        for _ in range(8):
            torch.mul(x, 2.0, out=y)

    yield block


@PAYLOADS.add(kernels=300, syncs=0, rules={"launch-bound": 1})
def many_small_kernels(device: str) -> Made:
    """300 kernels that are shorter than their launches."""
    x = torch.ones(16, device=device)

    def block() -> None:
        for _ in range(300):
            x.mul_(1.0)

    yield block


@PAYLOADS.add(
    kernels=1, syncs=2, h2d_copies=1, h2d_bytes=8, d2h_copies=1, d2h_bytes=4, rules={"host-sync": 1}
)
def values_both_ways(device: str) -> Made:
    """``torch.tensor(…, device=…)`` of two numbers, and ``item`` of their sum."""
    yield Run(lambda: torch.tensor([1.0, 2.0], device=device).sum().item())
