"""The least time of operators on a chip, and what the caching allocator makes of memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.live import captured
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.estimates import (
    KERNEL_NS,
    LIMITS,
    block_bytes,
    bound,
    bound_rows,
    estimated_peak,
)
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.values import bound_ms
from pytest_torchprof.work.devices import Device

#: 1 TFLOP/s and 1 GB/s.
CHIP = Device("Slow", {"fp32": 1e12, "tf32": 2e12, "bf16": 4e12}, 1e9)
BF16 = ["c10::BFloat16"] * 2


@pytest.mark.parametrize(("dtype", "lacks"), [("float", ()), ("double", ("fp64",))])
def test_a_chip_without_a_peak_of_a_dtype_is_no_faster_in_it(
    dtype: str, lacks: tuple[str, ...]
) -> None:
    b = TraceBuilder()
    with b.op("aten::mm", [[1000, 1000], [1000, 1000]], [dtype] * 2):
        pass
    trace = parse_trace(b.to_bytes())
    assert lacks == bound(trace, CHIP).unrated
    value = bound_ms(trace, CHIP)
    if lacks:
        assert isinstance(value, MissingValue)
        assert "no peak of Slow is known for fp64" == value.reason.text
    else:
        assert value == bound(trace, CHIP).total_ms


def test_an_operator_takes_the_greatest_of_three() -> None:
    b = TraceBuilder()
    for shape, types in (
        ([[1000, 1000], [1000, 1000]], BF16),
        ([[10**6], [10**6]], ["float"] * 2),
        ([[1], [1]], ["float"] * 2),
    ):
        with b.op("aten::mm" if types == BF16 else "aten::add", shape, types):
            pass
    found = bound(parse_trace(b.to_bytes()), CHIP)
    # 6 MB take longer than 2 GFLOP at 4 TFLOP/s.
    assert [6e6, 12e6, KERNEL_NS] == found.ns.tolist()
    assert ["memory", "memory", "launch"] == [LIMITS[i] for i in found.limit]
    assert (6e6 + 12e6 + KERNEL_NS) / 1e6 == found.total_ms


@pytest.mark.parametrize(("tf32", "rate"), [(None, 2e12), (True, 2e12), (False, 1e12)])
def test_products_of_fp32_take_tf32_unless_it_is_off(tf32: bool | None, rate: float) -> None:
    b = TraceBuilder()
    if tf32 is not None:
        b.metadata("torchprof", {"allow_tf32": tf32})
    with b.annotation("torchprof::call"), b.op("aten::mm", [[4000, 4000]] * 2, ["float"] * 2):
        pass
    found = bound(parse_trace(b.to_bytes()), CHIP)
    (index,) = found.work.flops.nonzero()[1]
    peak = CHIP.peaks["tf32" if tf32 is not False else "fp32"]
    assert rate == peak
    assert 2 * 4000**3 == found.work.flops[0, index]


def test_rows_say_what_is_unknown() -> None:
    b = TraceBuilder()
    with b.op("aten::convolution", [[1, 3, 8, 8], [4, 3, 3, 3], []], ["float"] * 2):
        pass
    (row,) = bound_rows(parse_trace(b.to_bytes()), CHIP)
    assert ("aten::convolution", 1, None, None) == (row.operator, row.calls, row.flops, row.bytes)
    assert KERNEL_NS / 1e6 == row.bound_ms
    assert ("launch", 1.0) == (row.limit, row.share)


@pytest.mark.thorough
@given(st.permutations(range(6)))
def test_the_total_is_the_same_in_any_order(order: list[int]) -> None:
    b = TraceBuilder()
    for i in order:
        with b.op("aten::add", [[10 ** (i + 1) + i], [1]], ["float"] * 2):
            pass
    total = bound(parse_trace(b.to_bytes()), CHIP).total_ms
    assert total == bound(parse_trace(_sorted().to_bytes()), CHIP).total_ms


def _sorted() -> TraceBuilder:
    b = TraceBuilder()
    for i in range(6):
        with b.op("aten::add", [[10 ** (i + 1) + i], [1]], ["float"] * 2):
            pass
    return b


# -------------------------------------------------------------------- memory


@pytest.mark.thorough
@given(st.lists(st.integers(0, 2**36), min_size=1, max_size=20))
def test_blocks_are_no_smaller_and_hardly_larger(sizes: list[int]) -> None:
    found = block_bytes(np.array(sizes, np.int64))
    for size, block in zip(sizes, found.tolist(), strict=True):
        assert size <= block
        assert block % 512 == 0
        assert block - size < 2**20 + 512


def test_the_peak_counts_blocks(tmp_path: Path) -> None:
    x = torch.randn(100)
    trace = captured(lambda: x + x, tmp_path)
    assert 512 == estimated_peak(trace)


def test_scratch_of_an_operator_is_not_of_the_device() -> None:
    """What a convolution on the CPU frees before it returns; its result, and what a composite of
    several operators frees, count.
    """
    b = TraceBuilder()
    with b.op("aten::convolution", [[1, 4, 8, 8]]), b.op("aten::mkldnn_convolution"):
        scratch = b.memory(4096, "cpu")
        result = b.memory(1024, "cpu")
        b.free(scratch)
    with b.op("aten::linear", [[8, 8]]):
        with b.op("aten::mul", [[8, 8]]):
            between = b.memory(2048, "cpu")
        b.free(between)
    b.free(result)
    assert 1024 + 2048 == estimated_peak(parse_trace(b.to_bytes()))


@pytest.mark.thorough
def test_the_peak_does_not_depend_on_threads(tmp_path: Path) -> None:
    """Libraries of the CPU give each of their threads memory of its own."""
    layer = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16))
    x = torch.randn(4, 3, 32, 32, requires_grad=True)

    def step() -> None:
        layer(x).sum().backward()

    before, peaks = torch.get_num_threads(), set[int]()
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            step()
            layer.zero_grad()
            x.grad = None
            peaks.add(estimated_peak(captured(step, tmp_path)))
    finally:
        torch.set_num_threads(before)
    assert len(peaks) == 1
