"""Payloads of the allocator: peaks, leaks, frees of older memory, workspaces, and running out.

By hand: the caching allocator rounds up to blocks of 512 bytes; the rest of the answers are its own
statistics.
"""

from __future__ import annotations

import torch
from gpu_payloads.payload import Made, Payloads, Run

PAYLOADS = Payloads()
MIB = 1 << 20


@PAYLOADS.add(
    kernels=3, peak_cuda_bytes=8 * MIB, allocated_cuda_bytes=10 * MIB, leaked_cuda_bytes=0
)
def peak(device: str) -> Made:
    """4 and 4 MiB are live together, and 2 MiB after one of them is freed."""

    def block() -> None:
        a = torch.ones(MIB, device=device)
        b = torch.ones(MIB, device=device)
        del a
        c = torch.ones(MIB // 2, device=device)
        del b, c

    yield block


@PAYLOADS.add(kernels=3, peak_cuda_bytes=5 * MIB + 512, leaked_cuda_bytes=MIB + 512)
def planted_leak(device: str) -> Made:
    """1 MiB, and 100 bytes that take a block of 512, stay; 4 MiB do not."""
    kept: list[torch.Tensor] = []

    def block() -> None:
        kept.append(torch.ones(MIB // 4, device=device))
        kept.append(torch.ones(25, device=device))
        torch.ones(MIB, device=device)

    yield Run(block, kept.clear)


@PAYLOADS.add(kernels=2, peak_cuda_bytes=4 * MIB + 512, leaked_cuda_bytes=0)
def cycle(device: str) -> Made:
    """Garbage in a cycle is no leak: it is collected before the end is looked at."""

    def block() -> None:
        loop: list[object] = [torch.ones(MIB, device=device)]
        loop.append(loop)
        torch.ones(1, device=device)

    yield block


@PAYLOADS.add(kernels=1, peak_cuda_bytes=0, leaked_cuda_bytes=-8 * MIB)
def frees_older_memory(device: str) -> Made:
    """8 MiB from before the block are freed, and 1 MiB lives for a while."""
    held: list[torch.Tensor] = []

    def prepare() -> None:
        held.clear()
        held.append(torch.ones(2 * MIB, device=device))

    def block() -> None:
        held.clear()
        torch.ones(MIB // 4, device=device)

    yield Run(block, prepare)


@PAYLOADS.add(anywhere=False, may="fp32-matmul small-grid", flops=2 * 256**3)
def workspace_of_another_stream(device: str) -> Made:
    """The first product on a stream allocates cuBLAS's workspace, which stays."""
    x = torch.ones(256, 256, device=device, dtype=torch.bfloat16)
    streams: list[torch.cuda.Stream] = []

    def block() -> None:
        with torch.cuda.stream(streams[-1]):
            x @ x

    def prepare() -> None:
        torch.cuda.synchronize()
        streams.append(torch.cuda.Stream())

    yield Run(block, prepare)
    torch.cuda.synchronize()


@PAYLOADS.add(anywhere=False, kernels=1, leaked_cuda_bytes=0, h2d_copies=0, d2h_copies=0,
              may="host-sync")  # fmt: skip
def out_of_memory(device: str) -> Made:
    """1 PiB cannot be had; the error is caught, and another kernel runs."""
    x = torch.ones(1000, device=device)

    def block() -> None:
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:
            x.add_(1)

    yield block


@PAYLOADS.add(kernels=2, peak_cuda_bytes=20 * MIB, leaked_cuda_bytes=0)
def joined(device: str) -> Made:
    """``cat`` of 4 and 4 MiB beside 12 MiB; both inputs are from before."""
    a, b = (torch.ones(MIB, device=device) for _ in range(2))

    def block() -> None:
        c = torch.cat([a, b])
        torch.ones(3 * MIB, device=device)
        del c

    yield block
