"""Retold from diffusers: peaks of plain, sliced, and offloaded calls, compared in one test."""

import copy

import pytest
import torch
from torch import nn


class Attention(nn.Module):
    """Self-attention with all heads at once, or with some of them at a time."""

    def __init__(self, width=64, heads=8):
        super().__init__()
        self.heads, self.slice_size = heads, heads
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        out = torch.empty_like(q)
        for part in torch.arange(self.heads).split(self.slice_size):
            at = slice(int(part[0]), int(part[-1]) + 1)
            out[:, at] = (q[:, at] @ k[:, at].mT).softmax(-1) @ v[:, at]
        return out.transpose(1, 2).flatten(2)


class Pipeline:
    """An encoder, a denoiser, and a decoder, whose weights are loaded from storage to run."""

    def __init__(self, width=64):
        self.stored = [
            nn.Sequential(nn.Linear(width, 2048), nn.Linear(2048, width)),
            nn.Sequential(nn.Linear(width, 2048), nn.Linear(2048, width), Attention(width)),
            nn.Sequential(nn.Linear(width, 2048), nn.Linear(2048, width)),
        ]
        self.offload = False

    def enable_attention_slicing(self):
        self.stored[1][-1].slice_size = 1

    def enable_offload(self):
        self.offload = True

    @torch.inference_mode()
    def __call__(self, x):
        if self.offload:
            for part in self.stored:
                loaded = copy.deepcopy(part)
                x = loaded(x)
                del loaded
            return x
        for part in [copy.deepcopy(part) for part in self.stored]:
            x = part(x)
        return x


def test_peaks_of_plain_sliced_and_offloaded_calls(torchprof):
    pipe, x = Pipeline(), torch.randn(1, 256, 64)
    with torchprof("plain"):
        image = pipe(x)
    pipe.enable_attention_slicing()
    with torchprof("sliced"):
        sliced = pipe(x)
    pipe.enable_offload()
    with torchprof("offloaded"):
        offloaded = pipe(x)
    assert torch.allclose(image, sliced, atol=1e-5)
    assert torch.allclose(image, offloaded, atol=1e-5)
    assert torchprof["sliced"].peak_cpu_bytes < 0.7 * torchprof["plain"].peak_cpu_bytes
    assert torchprof["offloaded"].peak_cpu_bytes < 0.7 * torchprof["sliced"].peak_cpu_bytes
    assert torchprof["offloaded"].flops == torchprof["plain"].flops


@pytest.mark.skipif(not torch.cuda.is_available(), reason="offloading to the host needs CUDA")
def test_peaks_on_the_device(torchprof):
    modules = [nn.Linear(2048, 2048) for _ in range(4)]
    x = torch.randn(16, 2048, device="cuda")
    with torchprof("plain"), torch.inference_mode():
        for module in [copy.deepcopy(module).cuda() for module in modules]:
            x = module(x)
    with torchprof("offloaded"), torch.inference_mode():
        for module in modules:
            x = copy.deepcopy(module).cuda()(x)
    assert torchprof["offloaded"].peak_cuda_bytes < 0.6 * torchprof["plain"].peak_cuda_bytes
