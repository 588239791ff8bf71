"""Retold from vLLM: how many graphs are compiled and captured, and whether caches are hit."""

import shutil

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._inductor.utils import fresh_cache


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


@pytest.mark.min_graphs(1)
@pytest.mark.max_graphs(1)
@pytest.mark.max_graph_breaks(0)
def test_one_graph_for_the_model():
    model = torch.compile(nn.Sequential(*[Block() for _ in range(3)]), backend="aot_eager")
    with torch.inference_mode():
        model(torch.ones(2, 16))
        model(torch.ones(2, 16))


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
@pytest.mark.max_compile_cache_misses(2)  # the first start: AOTAutograd's cache, and Inductor's
@pytest.mark.min_compile_cache_hits(1)
@pytest.mark.torchprof(warmup=0, rounds=0)
def test_a_warm_start_compiles_nothing():
    product = nn.Linear(16, 16).requires_grad_(False)

    def start():
        torch.compiler.reset()
        with torch.inference_mode():
            torch.compile(product, backend="inductor")(torch.ones(2, 16))

    with fresh_cache():
        start()
        start()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need CUDA")
@pytest.mark.min_cudagraphs(2)
@pytest.mark.max_cudagraphs(2)
@pytest.mark.max_cudagraph_skips(0)
def test_a_cuda_graph_for_each_batch_size():
    model = torch.compile(Block().cuda(), mode="reduce-overhead", dynamic=False)
    with torch.inference_mode():
        for size in (1, 2):
            for _ in range(3):
                model(torch.ones(size, 16, device="cuda"))
