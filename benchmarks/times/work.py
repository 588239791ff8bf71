"""The timed work: real torch code on one thread, 50 µs to 20 ms per call on a common machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Body = Callable[[], object]


def small_ops() -> Body:
    """About 50 µs: operators so small that calling them is most of the work."""
    import torch

    x = torch.ones(16)

    def body() -> Tensor:
        y = x
        for _ in range(25):
            y = y + 1
        return y

    return body


def matmul() -> Body:
    """About 0.12 ms: one product of matrices that fit the cache."""
    import torch

    x = torch.ones(192, 192)
    return lambda: x @ x


def python() -> Body:
    """About 0.3 ms: a Python loop."""

    def body() -> int:
        total = 0
        for i in range(14_000):
            total += i & 7
        return total

    return body


def mlp() -> Body:
    """About 0.5 ms: training steps of a small perceptron."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(32, 64)

    def body() -> None:
        for _ in range(5):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    return body


def memory() -> Body:
    """About 1 ms: a pass over more memory than the inner caches hold, into new memory."""
    import torch

    x = torch.ones(2**22)
    return lambda: (x * 2).add_(x)


def convolution() -> Body:
    """About 2.5 ms: forward and backward through two convolutions."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
    batch = torch.randn(8, 3, 56, 56)
    return lambda: model(batch).mean().backward()


def attention() -> Body:
    """About 5 ms: a transformer's layers."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    batch = torch.randn(4, 64, 64)
    return lambda: model(batch).mean().backward()


def sort() -> Body:
    """About 20 ms: sorting, whose branches cannot be predicted."""
    import torch

    torch.manual_seed(0)
    x = torch.rand(2**18)
    return x.sort


WORK: dict[str, Callable[[], Body]] = {
    "small ops": small_ops,
    "matmul": matmul,
    "python": python,
    "mlp": mlp,
    "memory": memory,
    "convolution": convolution,
    "attention": attention,
    "sort": sort,
}


def reference() -> Body:
    """The kernel that measures a machine's speed: some Python, some small operators."""
    import torch

    x = torch.ones(96, 96)

    def body() -> None:
        for _ in range(4):
            y = x @ x
            y.add_(1).tanh_()
        total = 0
        for i in range(2000):
            total += i & 7

    return body
