"""Training steps: optimizers in each form, autocast, loaders, embeddings, indices.

By hand: the products of a step through layers of 256 × 256 with 128 samples are 2·128·256² FLOP
each, three times a layer, and twice for the first, whose input needs no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from gpu_payloads.payload import Made, Payloads, Run
from gpu_payloads.products import BF16, tf32
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

PAYLOADS = Payloads()
PASS = 2 * 128 * 256 * 256
STEP = (3 * 6 - 1) * PASS


def _step(device: str, **options: Any) -> Made:
    with tf32("high"):
        layers: list[nn.Module] = []
        for _ in range(6):
            layers += [nn.Linear(256, 256), nn.ReLU()]
        model = nn.Sequential(*layers).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        x = torch.randn(128, 256, device=device)

        def block() -> None:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        yield block


@PAYLOADS.add(flops=STEP, counter=True, syncs=0, h2d_copies=0, d2h_copies=0, may="launch-bound")
def step_with_foreach(device: str) -> Made:
    """AdamW with foreach, the default on a device."""
    yield from _step(device, foreach=True)


@PAYLOADS.add(flops=STEP, counter=True, syncs=0, h2d_copies=0, d2h_copies=0, may="launch-bound")
def step_with_fused(device: str) -> Made:
    """AdamW in fused kernels."""
    yield from _step(device, fused=True)


@PAYLOADS.add(
    flops=STEP, counter=True, syncs=0, h2d_copies=0, d2h_copies=0, may="launch-bound",
    rules={"single-tensor-optimizer": 1},
)  # fmt: skip
def step_in_a_loop(device: str) -> Made:
    """AdamW parameter by parameter."""
    yield from _step(device, foreach=False, fused=False)


def _zeroing(device: str, *, first: bool) -> Made:
    with tf32("high"):
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.randn(128, 256, device=device)

        def block() -> None:
            if first:
                optimizer.zero_grad(set_to_none=False)
            model(x).square().mean().backward()
            optimizer.step()
            if not first:
                optimizer.zero_grad(set_to_none=False)

        yield block


@PAYLOADS.add(flops=STEP, counter=True, syncs=0, may="launch-bound")
def gradients_filled_with_zeros(device: str) -> Made:
    """``zero_grad(set_to_none=False)`` after the last step: nothing is added to these zeros."""
    yield from _zeroing(device, first=False)


@PAYLOADS.add(flops=STEP, counter=True, syncs=0, may="launch-bound", rules={"grad-not-none": 1})
def gradients_added_to_zeros(device: str) -> Made:
    """``zero_grad(set_to_none=False)`` before the backward pass, which adds to the zeros."""
    yield from _zeroing(device, first=True)


@PAYLOADS.add(flops=STEP, counter=True, syncs=0, h2d_copies=0, d2h_copies=0, may="launch-bound")
def step_under_autocast(device: str) -> Made:
    """Forward in bf16 under autocast, backward, fused AdamW."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x = torch.randn(128, 256, device=device)

    def block() -> None:
        with torch.autocast(device, BF16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    yield block


@PAYLOADS.add(flops=8 * 2 * 64 * 64 * 32, counter=True, syncs=0, rules={"repeated-cast": 7},
              stored={"repeated-cast": 0})  # fmt: skip
def autocast_without_its_cache(device: str) -> Made:
    """One weight is cast eight times."""
    layer = nn.Linear(64, 32, bias=False).to(device)
    x = torch.randn(64, 64, device=device, dtype=BF16)

    def block() -> None:
        with torch.no_grad(), torch.autocast(device, BF16, cache_enabled=False):
            for _ in range(8):
                layer(x)

    yield block


@PAYLOADS.add(kernels=4, syncs=0, h2d_copies=4, h2d_bytes=4 * 64 * 4096, d2h_copies=0,
              rules={"sync-dataloader": 5})  # fmt: skip
def loader_in_pinned_memory(device: str) -> Made:
    """Four batches of 256 KiB without workers, copied without waiting."""
    data = TensorDataset(torch.randn(256, 1024))

    def block() -> None:
        for (batch,) in DataLoader(data, 64, pin_memory=device == "cuda"):
            batch.to(device, non_blocking=True).mul_(2)

    yield block


@PAYLOADS.add(
    h2d_copies=4, h2d_bytes=4 * 64 * 4096, d2h_copies=0,
    or_unknown="h2d_copies h2d_bytes d2h_copies", may="starved-loader",
)  # fmt: skip
def loader_with_workers(device: str) -> Made:
    """The same with two workers, and a thread that pins."""
    data = TensorDataset(torch.randn(256, 1024))

    def block() -> None:
        for (batch,) in DataLoader(data, 64, num_workers=2, pin_memory=device == "cuda"):
            batch.to(device, non_blocking=True).mul_(2)

    yield block


@PAYLOADS.add(flops=0, counter=True, syncs=0, d2h_copies=0, h2d_copies=0)
def embedding(device: str) -> Made:
    """Look-ups of 512 rows, forward and backward."""
    table = nn.Embedding(1000, 64).to(device)
    at = torch.randint(0, 1000, (512,)).to(device)

    def block() -> None:
        table(at).sum().backward()
        table.zero_grad()

    yield block


@PAYLOADS.add(kernels=3, syncs=0, d2h_copies=0, h2d_copies=0, flops=0)
def written_by_index(device: str) -> Made:
    """``index_put_``, ``scatter_add_`` and ``index_add_``, which do not read anything."""
    x = torch.zeros(1000, 16, device=device)
    rows = torch.randperm(1000)[:100].to(device)
    values = torch.ones(100, 16, device=device)
    columns = rows.unsqueeze(1).expand(100, 16)

    def block() -> None:
        x.index_put_((rows,), values)
        x.scatter_add_(0, columns, values)
        x.index_add_(0, rows, values)

    yield block


@PAYLOADS.add(syncs=0, d2h_copies=0, h2d_copies=0, flops=0)
def added_up_by_index(device: str) -> Made:
    """``index_put_`` that adds up, which sorts the indices first."""
    x = torch.zeros(1000, 16, device=device)
    rows = torch.randint(0, 1000, (100,)).to(device)
    values = torch.ones(100, 16, device=device)
    yield lambda: x.index_put_((rows,), values, accumulate=True)


@PAYLOADS.add(flops=(3 * 3 - 1) * PASS * 4, counter=True, syncs=4, d2h_copies=4, d2h_bytes=16,
              rules={"host-sync": 4}, may="launch-bound")  # fmt: skip
def losses_that_are_read(device: str) -> Made:
    """Four steps of three layers, each of which reads its loss."""
    with tf32("high"):
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(3))).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
        x, y = (torch.randn(128, 256, device=device) for _ in range(2))
        total = [0.0]

        def block() -> None:
            for _ in range(4):
                loss = functional.mse_loss(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                total[0] += loss.item()

        yield Run(block)
