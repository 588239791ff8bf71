"""On a real GPU: counts, copies, syncs and peaks of payloads whose answers are known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from live import captured

from pytest_torchprof.metrics import measure_all

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU: torch sees no CUDA or ROCm device"
)


def test_three_additions_are_three_kernels_without_a_sync(tmp_path: Path) -> None:
    x = torch.ones(1024, device="cuda")

    def block() -> None:
        for _ in range(3):
            x.add_(1)

    values = measure_all(captured(block, tmp_path))
    assert {n: values[n] for n in ("kernels", "syncs", "h2d_copies", "d2h_copies")} == {
        "kernels": 3,
        "syncs": 0,
        "h2d_copies": 0,
        "d2h_copies": 0,
    }


def test_item_is_one_copy_back_and_one_sync(tmp_path: Path) -> None:
    x = torch.ones(1, device="cuda")
    values = measure_all(captured(x.item, tmp_path))
    assert (values["d2h_copies"], values["d2h_bytes"], values["syncs"]) == (1, 4, 1)


def test_peak_and_leak_are_those_of_the_allocator(tmp_path: Path) -> None:
    kept: list[torch.Tensor] = []

    def block() -> None:
        a = torch.ones(1 << 20, device="cuda")
        kept.append(torch.ones(1 << 18, device="cuda"))
        del a

    block()
    kept.clear()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    values = measure_all(captured(block, tmp_path))
    assert values["peak_cuda_bytes"] == torch.cuda.max_memory_allocated() - before
    assert values["leaked_cuda_bytes"] == 1 << 20
