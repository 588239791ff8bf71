"""Payloads in which the host waits for the device, or does not.

By hand: reading a value is one copy and one ``cudaStreamSynchronize``.
Source: aten/src/ATen/native/cuda/CUDAScalar.cu, Nonzero.cu.
"""

from __future__ import annotations

import torch
from gpu_payloads.payload import Made, Payloads

PAYLOADS = Payloads()


@PAYLOADS.add(kernels=1, syncs=1, d2h_copies=1, d2h_bytes=4, h2d_copies=0, rules={"host-sync": 1})
def item(device: str) -> Made:
    """``item`` of a sum of 1,000 numbers."""
    x = torch.ones(1000, device=device)
    yield lambda: x.sum().item()


@PAYLOADS.add(kernels=1, syncs=1, d2h_copies=1, d2h_bytes=1, h2d_copies=0, rules={"host-sync": 1})
def condition(device: str) -> Made:
    """``if`` of a comparison of one element."""
    x = torch.ones(1, device=device)

    def block() -> int:
        return 1 if x > 2 else 0

    yield block


@PAYLOADS.add(syncs=1, d2h_copies=1, h2d_copies=0, rules={"host-sync": 1})
def nonzero(device: str) -> Made:
    """``nonzero`` reads the number of results."""
    x = torch.ones(1000, device=device)
    yield x.nonzero


@PAYLOADS.add(syncs=1, d2h_copies=1, h2d_copies=0, rules={"host-sync": 1})
def indexed_by_a_mask(device: str) -> Made:
    """A mask as an index reads the number of results."""
    x = torch.ones(1000, device=device)
    mask = x > 0
    yield lambda: x[mask]


@PAYLOADS.add(kernels=1, syncs=0, d2h_copies=0, h2d_copies=0)
def filled_by_a_mask(device: str) -> Made:
    """``masked_fill_`` does not read anything."""
    x = torch.ones(1000, device=device)
    mask = x > 0
    yield lambda: x.masked_fill_(mask, 0.5).shape


@PAYLOADS.add(kernels=1, syncs=1, d2h_copies=1, d2h_bytes=64, h2d_copies=0, rules={"host-sync": 1})
def as_a_list(device: str) -> Made:
    """``tolist`` of 16 numbers after a kernel."""
    x = torch.ones(16, device=device)
    yield lambda: x.mul(2).tolist()


@PAYLOADS.add(kernels=1, syncs=1, d2h_copies=1, d2h_bytes=64, h2d_copies=0, rules={"host-sync": 1})
def as_an_array(device: str) -> Made:
    """``.cpu().numpy()`` of 16 numbers after a kernel."""
    x = torch.ones(16, device=device)
    yield lambda: x.mul(2).cpu().numpy()


@PAYLOADS.add(
    anywhere=False, kernels=4, syncs=3, d2h_copies=0, h2d_copies=0, rules={"host-sync": 3}
)
def explicit_waits(device: str) -> Made:
    """For the device, a stream, and an event; each between two kernels."""
    x = torch.ones(1 << 20, device=device)
    event = torch.cuda.Event()
    event.record()

    def block() -> None:
        x.add_(1)
        torch.cuda.synchronize()
        x.add_(1)
        torch.cuda.current_stream().synchronize()
        x.add_(1)
        event.record()
        event.synchronize()
        x.add_(1)

    yield block


@PAYLOADS.add(anywhere=False, kernels=1, syncs=1, d2h_copies=0, h2d_copies=0)
def wait_at_the_end(device: str) -> Made:
    """Waiting after all work delays nothing: a sync, but no finding."""
    x = torch.ones(1 << 20, device=device)

    def block() -> None:
        x.add_(1)
        torch.cuda.synchronize()

    yield block


@PAYLOADS.add(anywhere=False, kernels=3, syncs=0, h2d_copies=0, d2h_copies=1, d2h_bytes=4 << 20)
def side_stream_with_events(device: str) -> Made:
    """A copy to pinned memory on another stream, which waits by events: the host does not."""
    x = torch.ones(1 << 20, device=device)
    out = torch.empty(1 << 20).pin_memory()
    side, ready, done = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
    ready.record()
    done.record()

    def block() -> None:
        y = x.add(1)
        ready.record()
        with torch.cuda.stream(side):
            side.wait_event(ready)
            out.copy_(y, non_blocking=True)
            done.record()
        y.record_stream(side)
        x.mul_(1)
        torch.cuda.current_stream().wait_event(done)
        x.mul_(1)

    yield block


@PAYLOADS.add(anywhere=False, kernels=4, syncs=0, h2d_copies=0, d2h_copies=0)
def two_streams(device: str) -> Made:
    """Two kernels on each of two streams."""
    x, y = (torch.ones(1 << 20, device=device) for _ in range(2))
    side = torch.cuda.Stream()

    def block() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y.add_(1).mul_(2)
        x.add_(1).mul_(2)
        torch.cuda.current_stream().wait_stream(side)

    yield block
