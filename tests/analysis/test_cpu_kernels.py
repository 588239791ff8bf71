"""Which traces depend on the CPU's instruction set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody does
from support.live import captured
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.compilations import depends_on_cpu
from pytest_torchprof.trace.read import parse_trace

X = torch.ones(1, 3, 8, 8)
LOW = X.bfloat16()


@pytest.mark.parametrize(
    ("block", "depends"),
    [
        (lambda: F.conv2d(X, torch.ones(4, 3, 3, 3)), True),
        (lambda: F.conv_transpose2d(X, torch.ones(3, 4, 3, 3)), True),
        (lambda: torch.mm(LOW[0, 0], LOW[0, 0]), True),
        (lambda: torch.mm(X[0, 0], X[0, 0]), False),
        (lambda: LOW + LOW, False),
        (lambda: F.max_pool2d(X, 2), False),
    ],
)
def test_convolutions_and_products_of_16_bits_depend_on_the_cpu(
    tmp_path: Path, block: Callable[[], object], depends: bool
) -> None:
    assert depends == depends_on_cpu(captured(block, tmp_path))


def test_with_a_device_only_what_the_libraries_of_the_cpu_run_depends_on_it() -> None:
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    with b.op("aten::convolution"):
        b.launch("conv")
    assert not depends_on_cpu(parse_trace(b.to_bytes()))
    with b.op("aten::mkldnn_convolution"):
        pass
    assert depends_on_cpu(parse_trace(b.to_bytes()))
