"""Payloads to profile, and the bare profiler around them. Imports torch inside functions only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.profiler import profile

Body = Callable[[], object]


def session() -> profile:
    """A profiler with the flags of our measuring run."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    return profile(activities=activities, record_shapes=True, profile_memory=True)


def mlp(device: str = "cpu") -> Body:
    """A training step of a small perceptron: about 100 operators."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    return _training(model.to(device), torch.randn(32, 64, device=device))


def gpt(device: str = "cpu") -> Body:
    """A training step of a small transformer: about 2,000 operators."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.TransformerEncoder(layer, 6))
    return _training(model.to(device), torch.randn(4, 32, 64, device=device))


def loop(device: str = "cpu", count: int = 100_000) -> Body:
    """As many operators in a Python loop, none of which allocates."""
    import torch

    x = torch.ones(4, device=device)

    def body() -> None:
        for _ in range(count):
            x.neg_()

    return body


PAYLOADS: dict[str, Callable[[], Body]] = {
    "MLP step": mlp,
    "transformer step": gpt,
    "100k-operator loop": loop,
}


def _training(model: object, batch: object) -> Body:
    import torch
    from torch import nn

    assert isinstance(model, nn.Module)
    optimizer = torch.optim.AdamW(model.parameters())

    def body() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    body()
    return body
