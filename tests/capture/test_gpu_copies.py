"""On a real GPU: rules about copies and casts, on payloads whose answers are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from support.live import captured

from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.gpu

BF16, SIZE = torch.bfloat16, (100, 100)
LARGE = (1024, 1024)


def counted(code: str, block: Callable[[], Any], folder: Path) -> int:
    """How often the rule matches the second run of the block."""
    block()
    torch.cuda.synchronize()
    found = check(captured(block, folder, tensors=True), [RULES[code]])
    assert not found.errors
    assert not found.unchecked
    return found.counts.get(code, 0)


MOVED: list[tuple[int, Callable[[], Any]]] = [
    (0, lambda: torch.ones(SIZE, device="cuda")),
    (1, lambda: torch.ones(SIZE).to("cuda")),
    (1, lambda: torch.zeros(SIZE).to("cuda")),
    (1, lambda: torch.empty(SIZE).fill_(5).to("cuda")),
    (1, lambda: torch.ones(SIZE).cuda()),
    (1, lambda: torch.zeros(SIZE).cuda()),
    (1, lambda: torch.empty(SIZE).fill_(5).cuda()),
    (1, lambda: torch.rand(SIZE).cuda()),
    (1, lambda: torch.randn(SIZE).cuda()),
    (1, lambda: torch.full(SIZE, 10).cuda()),
    (1, lambda: torch.arange(512).unsqueeze(0).cuda()),
    (0, lambda: torch.rand(SIZE).to(dtype=torch.float16)),
    (0, lambda: torch.rand(SIZE).half()),
    (0, lambda: torch.rand(SIZE, device="cuda").half()),
    (0, lambda: torch.ones(SIZE).to("cpu", copy=True)),
    (0, lambda: torch.ones(SIZE).to("meta")),
    (0, lambda: torch.tensor([1.0, 2.0, 3.0]).cuda()),
    (0, lambda: torch.rand(SIZE).mul(2).cuda()),
]


@pytest.mark.parametrize(("expected", "block"), MOVED)
def test_extra_cuda_copy(expected: int, block: Callable[[], Any], tmp_path: Path) -> None:
    assert counted("extra-cuda-copy", block, tmp_path) == expected


@pytest.mark.parametrize(("pinned", "shape", "expected"), [
    (False, LARGE, 1), (True, LARGE, 0), (False, (64, 64), 0), (False, (128, 128), 0),
    (False, (128, 129), 1),
])  # fmt: skip
def test_pageable_copy_to_the_device(
    pinned: bool, shape: tuple[int, int], expected: int, tmp_path: Path
) -> None:
    x = torch.randn(shape, pin_memory=pinned)
    block = lambda: x.cuda(non_blocking=pinned)  # noqa: E731
    assert counted("pageable-copy", block, tmp_path) == expected


@pytest.mark.parametrize(("pinned", "expected"), [(False, 1), (True, 0)])
def test_pageable_copy_to_the_host(pinned: bool, expected: int, tmp_path: Path) -> None:
    x = torch.randn(LARGE, device="cuda")
    out = torch.empty(LARGE, pin_memory=pinned)
    assert counted("pageable-copy", lambda: out.copy_(x), tmp_path) == expected


def _round(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.cpu().numpy().clip(0, 1)).cuda()


TRIPS: list[tuple[int, Callable[[torch.Tensor], Any]]] = [
    (1, lambda x: x.cpu().cuda()),
    (1, _round),
    (3, lambda x: x.cpu().cuda().mul(2).cpu().cuda().mul(2).cpu().cuda()),
    (0, lambda x: x.cpu()),
    (0, lambda x: x.clamp(0, 1)),
    (0, lambda x: (x.cpu(), torch.from_numpy(x[:512].cpu().numpy()))),
    (0, lambda x: [x[:4, :4].cpu().cuda() for _ in range(3)]),
]


@pytest.mark.parametrize(("expected", "body"), TRIPS)
def test_copy_round_trip(
    expected: int, body: Callable[[torch.Tensor], Any], tmp_path: Path
) -> None:
    x = torch.randn(LARGE, device="cuda")
    assert counted("copy-round-trip", lambda: body(x), tmp_path) == expected


def test_alternating_uploads_and_downloads_are_not_round_trips(tmp_path: Path) -> None:
    images = [torch.randn(LARGE) for _ in range(3)]
    block = lambda: [(image.cuda() * 2).cpu() for image in images]  # noqa: E731
    assert counted("copy-round-trip", block, tmp_path) == 0


def test_a_weight_cast_in_a_loop(tmp_path: Path) -> None:
    weight, x = torch.randn(256, 128, device="cuda"), torch.randn(64, 128, device="cuda").to(BF16)

    def block() -> None:
        with torch.no_grad():
            for _ in range(10):
                F.linear(x, weight.to(BF16))

    assert counted("repeated-cast", block, tmp_path) == 9


def test_equal_layers_trained_under_autocast(tmp_path: Path) -> None:
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).cuda()
    x = torch.randn(4, 16, 64, device="cuda")

    def block() -> None:
        with torch.autocast("cuda", BF16):
            loss = model(x).float().mean()
        loss.backward()
        model.zero_grad()

    assert counted("repeated-cast", block, tmp_path) == 0
    assert counted("contiguous-copy", block, tmp_path) == 0


def test_equal_layers_evaluated_under_autocast(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(12))).cuda()
    x = torch.randn(4, 64, device="cuda")

    def block() -> None:
        with torch.inference_mode(), torch.autocast("cuda", BF16):
            model(x)

    assert counted("repeated-cast", block, tmp_path) == 0


def test_autocast_with_its_cache_off(tmp_path: Path) -> None:
    layer, x = torch.nn.Linear(64, 32, bias=False).cuda(), torch.randn(4, 64, device="cuda")

    def block() -> None:
        with torch.no_grad(), torch.autocast("cuda", BF16, cache_enabled=False):
            for _ in range(8):
                layer(x)

    assert counted("repeated-cast", block, tmp_path) == 7


def test_a_weight_made_contiguous_in_a_loop(tmp_path: Path) -> None:
    weight, x = torch.randn(256, 128, device="cuda"), torch.randn(64, 256, device="cuda")

    def block() -> None:
        for _ in range(10):
            F.linear(x, weight.t().contiguous())

    assert counted("contiguous-copy", block, tmp_path) == 9
