"""CUDA graphs, and compiled code.

By hand: what is captured into a graph does not run; what is replayed runs without operators. A
graph is one launch, and each of its nodes a kernel in the trace.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from gpu_payloads.payload import Made, Payloads
from gpu_payloads.products import BF16, tf32
from torch import nn

PAYLOADS = Payloads()
#: These take seconds each, so they come last.
COMPILED = Payloads()
PASS = 2 * 128 * 256 * 256


@PAYLOADS.add(anywhere=False, kernels=30, syncs=0, h2d_copies=0, d2h_copies=0)
def replayed_graph(device: str) -> Made:
    """Three replays of a graph of ten kernels, made before the block."""
    x = torch.ones(1024, device=device)
    x.mul_(1.0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            x.mul_(1.0)

    def block() -> None:
        for _ in range(3):
            graph.replay()

    yield block
    torch.cuda.synchronize()


@PAYLOADS.add(anywhere=False, syncs=0, unknown="flops", h2d_copies=0, d2h_copies=0)
def replayed_graph_of_products(device: str) -> Made:
    """A graph of four products, made before the block: no operator says how many FLOPs."""
    x, y = (torch.randn(512, 512, device=device, dtype=BF16) for _ in range(2))
    x @ y
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            x @ y

    yield graph.replay
    torch.cuda.synchronize()


@PAYLOADS.add(anywhere=False, kernels=2 + 8, h2d_copies=0, d2h_copies=0, may="host-sync")
def graph_captured_in_the_block(device: str) -> Made:
    """Four kernels are captured, which does not run them, and replayed twice.

    Before, two more fill the seed and the offset of the generator of random numbers.
    Source: aten/src/ATen/cuda/CUDAGeneratorImpl.cpp, ``capture_prologue``.
    """
    x = torch.ones(1024, device=device)

    def block() -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(4):
                x.mul_(1.0)
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()

    yield block


def _compiled(device: str, function: Callable[[torch.Tensor], torch.Tensor], mode: str) -> Made:
    torch._dynamo.reset()
    compiled = torch.compile(function, mode=mode)
    x = torch.randn(128, 256, device=device, dtype=BF16)

    def block() -> None:
        with torch.no_grad():
            compiled(x)

    yield block


def _layers(device: str) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(256, 256), nn.GELU()]
    return nn.Sequential(*layers).to(device, BF16)


@COMPILED.add(
    flops=3 * PASS, or_unknown="flops", syncs=0, graph_breaks=0, recompiles=0, graphs=1,
    compiles=True, h2d_copies=0, d2h_copies=0, warmups=3,
)  # fmt: skip
def compiled(device: str) -> Made:
    """Three layers and their activations, compiled by inductor."""
    yield from _compiled(device, _layers(device), "default")


@COMPILED.add(
    flops=3 * PASS, or_unknown="flops", graph_breaks=0, recompiles=0, graphs=1,
    compiles=True, h2d_copies=0, d2h_copies=0, warmups=5, anywhere=False,
)  # fmt: skip
def compiled_with_less_overhead(device: str) -> Made:
    """The same with ``mode="reduce-overhead"``, which replays a CUDA graph."""
    yield from _compiled(device, _layers(device), "reduce-overhead")


@COMPILED.add(
    flops=2 * PASS, or_unknown="flops", syncs=1, d2h_copies=1, d2h_bytes=4, graph_breaks=1,
    recompiles=0, graphs=2, compiles=True, warmups=3, rules={"graph-break": 1, "host-sync": 1},
)  # fmt: skip
def compiled_with_a_break(device: str) -> Made:
    """Two layers with ``item`` between them."""
    first, second = (nn.Linear(256, 256).to(device, BF16) for _ in range(2))

    def function(x: torch.Tensor) -> torch.Tensor:
        y = first(x)
        scale = y.float().sum().item()
        return torch.as_tensor(second(y) * (2.0 if scale > 0 else 3.0))

    yield from _compiled(device, function, "default")


@COMPILED.add(
    flops=(3 * 3 - 1) * PASS, or_unknown="flops", syncs=0, graph_breaks=0, recompiles=0,
    compiles=True, h2d_copies=0, d2h_copies=0, warmups=3, may="launch-bound",
)  # fmt: skip
def compiled_training(device: str) -> Made:
    """A training step of three compiled layers with a fused optimizer."""
    with tf32("high"):
        torch._dynamo.reset()
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(3))).to(device)
        step = torch.compile(model)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        x = torch.randn(128, 256, device=device)

        def block() -> None:
            step(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        yield block
