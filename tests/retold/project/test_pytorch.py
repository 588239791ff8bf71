"""Retold from PyTorch's test_perf.py: how many bytes must be moved."""

import torch
from torch.nn import functional as F


def softmax(x):
    return x.softmax(-1)


def test_bytes_of_a_softmax_and_a_product(torchprof):
    x, w = torch.rand(64, 256), torch.rand(256, 128)
    with torchprof("softmax"):
        y = softmax(x)
    with torchprof("product"):
        z = y @ w
    with torchprof("chain"):
        F.relu(softmax(x) @ w)
    assert torchprof["softmax"].moved_bytes == 2 * x.nbytes
    assert torchprof["product"].moved_bytes == y.nbytes + w.nbytes + z.nbytes
    expected = torchprof["softmax"].moved_bytes + torchprof["product"].moved_bytes + 2 * z.nbytes
    assert torchprof["chain"].moved_bytes == expected
