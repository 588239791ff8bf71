"""Retold from accelerate: the peak of each epoch has an upper bound."""

import pytest
import torch
from torch import nn

EPOCHS, STEPS = 3, 4


def train_epoch(model, optimizer, batches):
    total = torch.zeros(())
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total


@pytest.mark.max_peak_cpu_bytes("512 KiB", region="epoch")
def test_peak_memory_of_each_epoch(torchprof):
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    batches = [torch.rand(128, 64) for _ in range(STEPS)]
    for _ in range(EPOCHS):
        with torchprof("epoch"):
            train_epoch(model, optimizer, batches)
    first, *later = torchprof["epoch"].laps
    for lap in later:
        assert lap.peak_cpu_bytes <= first.peak_cpu_bytes
        assert lap.flops == first.flops
