"""Retold from torchao: memory while a model is quantized, in the forward, and in the backward."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, LAYERS, BATCH = 256, 4, 4


class Int8Linear(nn.Module):
    """A linear layer that keeps int8 weights, and makes floats of them when it runs."""

    def __init__(self, linear):
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.abs().amax() / 127
        self.register_buffer("scale", scale)
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.bias = nn.Parameter(linear.bias.detach().clone())

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


def quantize(model):
    """Replace one layer after the other."""
    for name, layer in list(model.named_children()):
        setattr(model, name, Int8Linear(layer))


def test_memory_phase_by_phase(torchprof):
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    x = torch.randn(BATCH, WIDTH, requires_grad=True)
    one_layer, activations = WIDTH * WIDTH * 4, LAYERS * BATCH * WIDTH * 4
    with torchprof("quantize"):
        quantize(model)
    with torchprof("forward"):
        loss = model(x).sum()
    with torchprof("backward"):
        loss.backward()
    small = 16 * 1024
    quarter = LAYERS * one_layer // 4
    assert torchprof["quantize"].peak_cpu_bytes <= quarter + 2 * one_layer
    # Autograd keeps the weights of each layer, as floats, for the backward.
    kept = LAYERS * one_layer + activations
    assert torchprof["forward"].peak_cpu_bytes <= kept + one_layer + small
    assert torchprof["backward"].peak_cpu_bytes <= activations + small
