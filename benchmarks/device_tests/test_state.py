"""Work whose counts may depend on what a process keeps: libraries, handles, free blocks, plans.

The measured values of these tests are compared between processes, in any order of tests, by
``python -m benchmarks.device_processes``. What each may depend on is in its docstring.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

MIB = 2**20
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def train_step(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step, whatever the model."""
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("size", [1.25, 2.5, 4.75, 7.0, 10.9, 11.5, 13.2])
def test_large_blocks(torchprof: Any, device: torch.device, size: float) -> None:
    """Of a free block of more than 1 MiB, up to 1 MiB more is given than asked for.

    So bytes depend on free blocks that other tests have left. What was asked for is recorded, too.
    """
    before = requested_bytes()
    elements = int(size * MIB) // 4
    kept = [torch.ones(elements + 4096 * i, device=device) for i in range(4)]
    del kept[1]
    kept.append(torch.ones(elements - 100_000, device=device))
    sum(one.sum() for one in kept)
    torchprof.record("requested_bytes", requested_bytes() - before, unit="B", compare="exact")


def requested_bytes() -> int:
    """All that the allocator of the device was ever asked for."""
    if not torch.cuda.is_available():
        return 0
    return int(torch.cuda.memory_stats()["requested_bytes.all.allocated"])


def test_small_blocks(device: torch.device) -> None:
    """Blocks of up to 1 MiB are as large as what is asked for, in steps of 512 B."""
    kept = [torch.ones(100 * (i + 1), device=device) for i in range(40)]
    del kept[::2]
    torch.stack([one.sum() for one in kept]).sum()


@pytest.mark.parametrize("search", [False, True], ids=["heuristic", "timed"])
def test_convolutions(device: torch.device, search: bool) -> None:
    """Plans are chosen by heuristics, or with ``search`` by timing them in the first run."""
    layers = [nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in ((8, 32), (32, 64), (64, 64))]
    model = nn.Sequential(*layers).to(device, torch.bfloat16)
    x = torch.randn(8, 8, 32, 32).to(device, torch.bfloat16, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.backends.cudnn.flags(enabled=True, benchmark=search):
        train_step(model, x, optimizer)


def test_products_of_many_shapes(device: torch.device) -> None:
    """Kernels are chosen by shape, and some split a sum, which takes a second kernel."""
    for dtype in (torch.float32, torch.bfloat16):
        for m, n, k in ((64, 64, 4096), (512, 512, 512), (17, 1000, 33), (1, 256, 256)):
            a = torch.ones(m, k, device=device, dtype=dtype)
            b = torch.ones(k, n, device=device, dtype=dtype)
            torch.addmm(torch.ones(n, device=device, dtype=dtype), a, b)
            torch.bmm(a.expand(4, m, k), b.expand(4, k, n))


@needs_cuda
def test_product_on_a_side_stream(device: torch.device) -> None:
    """Each stream has a workspace, which the first product on it allocates and keeps."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    a = torch.ones(256, 256, device=device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        a @ a
    torch.cuda.current_stream().wait_stream(stream)


def test_values_that_the_host_reads(device: torch.device) -> None:
    """Copies and waits: each read is one of both."""
    x = torch.arange(1000, device=device, dtype=torch.float32)
    total = 0.0
    for part in torch.split(x, 250):
        total += part.sum().item()
    assert total == 499_500
    assert x[x > 500].numel() == 499
    assert len(torch.unique(x)) == 1000
    assert x.cpu().sum() == total


def test_training_in_mixed_precision(device: torch.device) -> None:
    """Casts of weights are cached within a step."""
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).to(device)
    x = torch.randn(64, 256, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()


@needs_cuda
def test_training_with_a_scaler(device: torch.device) -> None:
    """The scaler reads in each step whether all gradients are finite."""
    model = nn.Linear(256, 256, device=device)
    x = torch.randn(64, 256, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    scaler = torch.amp.GradScaler(device.type)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def test_optimizer_of_many_parameters(device: torch.device) -> None:
    """An optimizer's kernels depend on how many tensors fit into one."""
    parameters = [nn.Parameter(torch.ones(37 * (i + 1), device=device)) for i in range(70)]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adam(parameters, lr=1e-3, foreach=True),
        torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, foreach=True),
    ]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
    for optimizer in optimizers:
        optimizer.step()


@pytest.mark.parametrize(
    "backend",
    [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    ids=["flash", "efficient", "math"],
)
def test_attention(device: torch.device, backend: SDPBackend) -> None:
    """Backward passes add up in an order that varies, but start the same kernels."""
    q, k, v = (
        torch.randn(2, 4, 128, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    chosen = sdpa_kernel(backend) if device.type == "cuda" else nullcontext()
    with chosen:
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()  # type: ignore[no-untyped-call]


def test_scattered_sums(device: torch.device) -> None:
    """Sorting and counting kernels, whose number depends on sizes."""
    index = torch.randint(500, (20_000,), device=device)
    table = nn.Embedding(500, 32, device=device)
    table(index).sum().backward()
    torch.zeros(500, device=device).index_add_(0, index, torch.ones(20_000, device=device))
    torch.zeros(500, 2, device=device).index_put_((index,), torch.ones(2, device=device), True)
    index.sort()
    torch.topk(index.float(), 50)


def test_libraries_that_are_loaded_late(device: torch.device) -> None:
    """cuFFT, cuSOLVER, and the recurrent layers of cuDNN keep plans, handles and workspaces."""
    torch.fft.rfft(torch.ones(16, 1024, device=device))
    matrix = torch.eye(64, device=device) * 3 + 1
    torch.linalg.cholesky(matrix)
    torch.linalg.solve(matrix, torch.ones(64, device=device))
    rnn = nn.LSTM(32, 64, num_layers=2, dropout=0.1, device=device)
    rnn(torch.ones(20, 4, 32, device=device))[0].sum().backward()


def test_memory_that_stays(device: torch.device) -> None:
    """What a step leaves, such as gradients and an optimizer's state, after frees of the rest."""
    model = nn.Linear(300, 700, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    train_step(model, torch.ones(16, 300, device=device), optimizer)
    KEPT[:] = [model, optimizer]


#: What the last run of the test above has left.
KEPT: list[object] = []


@needs_cuda
def test_graph_of_kernels(device: torch.device) -> None:
    """A captured graph has a pool of memory of its own, and its replay runs all its kernels."""
    x = torch.ones(1000, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2 + 1).relu()
    for _ in range(3):
        graph.replay()
    y.sum()


def test_batches_from_pinned_memory(device: torch.device) -> None:
    """Pinned blocks of the host are kept and used again once the device is done with them."""
    data = torch.utils.data.TensorDataset(torch.ones(256, 512))
    pinned = torch.cuda.is_available()
    loader = torch.utils.data.DataLoader(data, batch_size=64, pin_memory=pinned)
    for (batch,) in loader:
        batch.to(device, non_blocking=True).sum()
