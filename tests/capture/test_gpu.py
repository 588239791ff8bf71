"""On a real GPU: counts, copies, syncs and peaks of payloads whose answers are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.live import captured, captured_file
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_torchprof.capture.machine import allows_tf32
from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.facts import Facts
from pytest_torchprof.verdict.metrics import measure_all

pytestmark = pytest.mark.gpu


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


def test_totals_are_those_of_the_allocator(tmp_path: Path) -> None:
    held = torch.ones(1 << 22, device="cuda")

    def block() -> None:
        a = torch.ones(1 << 20, device="cuda")
        a.add(held[: 1 << 20])

    block()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    values = measure_all(captured(block, tmp_path))
    assert values["max_cuda_bytes"] == torch.cuda.max_memory_allocated()
    assert values["max_reserved_cuda_bytes"] == torch.cuda.max_memory_reserved()


# -------------------------------------------------------------------- device rules


def found(block: Callable[[], object], folder: Path, *rules: str) -> dict[str, int]:
    """How often these rules match the second run of the block, as a test with a warm-up has it."""
    block()
    torch.cuda.synchronize()
    facts = Facts(accelerator="GPU", allow_tf32=allows_tf32())
    trace, _ = captured_file(block, folder, facts)
    checked = check(trace, [RULES[rule] for rule in rules])
    assert (dict(checked.errors), dict(checked.unchecked)) == ({}, {})
    return checked.counts


@pytest.fixture
def tf32_off() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


needs_tf32 = pytest.mark.skipif(
    torch.version.hip is not None
    or not torch.cuda.is_available()
    or torch.cuda.get_device_capability() < (8, 0),
    reason="this device has no TF32",
)


@needs_tf32
@pytest.mark.usefixtures("tf32_off")
def test_fp32_products_are_found_while_tf32_is_off(tmp_path: Path) -> None:
    x = torch.ones(100, 100, device="cuda")
    batch = torch.ones(4, 64, 64, device="cuda")
    layer = torch.nn.Linear(100, 64, device="cuda")

    def block() -> None:
        with torch.no_grad():
            x @ x
            layer(x)
            batch @ batch
            torch.baddbmm(batch, batch, batch)

    assert found(block, tmp_path, "fp32-matmul") == {"fp32-matmul": 4}


@needs_tf32
@pytest.mark.usefixtures("tf32_off")
def test_products_in_tf32_or_another_dtype_do_not_count_as_fp32(tmp_path: Path) -> None:
    x = torch.ones(512, 512, device="cuda")
    others = [x.to(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float64)]

    def block() -> None:
        for other in others:
            other @ other
        x @ x[:, 0]
        x.cpu() @ x.cpu()

    assert found(block, tmp_path, "fp32-matmul") == {}
    torch.set_float32_matmul_precision("high")
    assert found(lambda: x @ x, tmp_path, "fp32-matmul") == {}


@pytest.mark.parametrize(
    ("shape", "expected"), [((201, 201), 1), ((3, 97, 97), 1), ((200, 200), 0), ((3, 200, 200), 0)]
)
def test_half_products_with_odd_dimensions_are_found(
    tmp_path: Path, shape: tuple[int, ...], expected: int
) -> None:
    x = torch.ones(shape, device="cuda", dtype=torch.float16)
    counts = found(lambda: x @ x, tmp_path, "unaligned-matmul")
    assert counts.get("unaligned-matmul", 0) == expected


@pytest.mark.parametrize(
    ("shape", "dtype", "forced", "expected"),
    [
        ((2, 8, 128, 64), torch.float16, True, 1),
        ((2, 8, 128, 64), torch.float32, True, 1),
        ((2, 8, 128, 64), torch.float16, False, 0),
        ((2, 8, 128, 64), torch.float64, True, 0),
    ],
)
def test_attention_in_its_math_form_is_found(
    tmp_path: Path, shape: tuple[int, ...], dtype: torch.dtype, forced: bool, expected: int
) -> None:
    query = torch.ones(shape, device="cuda", dtype=dtype)

    def block() -> None:
        forms = [SDPBackend.MATH] if forced else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
        with torch.no_grad(), sdpa_kernel(forms):
            torch.nn.functional.scaled_dot_product_attention(query, query, query)

    assert found(block, tmp_path, "math-attention").get("math-attention", 0) == expected


def test_values_read_back_and_synchronisations_are_found(tmp_path: Path) -> None:
    x = torch.ones(100, device="cuda")

    def block() -> None:
        x.sum().item()
        x.nonzero()
        x.cpu()
        torch.cuda.synchronize()
        if x.any():
            pass

    assert found(block, tmp_path, "host-sync") == {"host-sync": 5}


def test_a_call_that_does_not_wait_is_not_a_host_sync(tmp_path: Path) -> None:
    x = torch.ones(100, device="cuda")
    pinned = torch.ones(100).pin_memory()
    other = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def block() -> None:
        y = pinned.to("cuda", non_blocking=True) + x
        pinned.copy_(y, non_blocking=True)
        other.wait_stream(torch.cuda.current_stream())
        torch.cuda.current_stream().query()
        y.clone()

    assert found(block, tmp_path, "host-sync") == {}
    torch.cuda.synchronize()


def test_many_small_kernels_are_launch_bound_and_large_ones_are_not(tmp_path: Path) -> None:
    small = torch.ones(16, device="cuda")
    large = torch.ones(1 << 28, device="cuda")

    def launch(x: torch.Tensor, count: int) -> None:
        for _ in range(count):
            x.mul_(1.0)

    assert found(lambda: launch(small, 300), tmp_path, "launch-bound") == {"launch-bound": 1}
    assert found(lambda: launch(small, 20), tmp_path, "launch-bound") == {}
    assert found(lambda: launch(large, 100), tmp_path, "launch-bound") == {}


def test_a_replayed_graph_is_not_launch_bound(tmp_path: Path) -> None:
    x = torch.ones(16, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(300):
            x.mul_(1.0)
    trace = captured(graph.replay, tmp_path)
    assert check(trace, [RULES["launch-bound"]]).counts == {}
