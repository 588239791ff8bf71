"""Kernels with fewer blocks than multiprocessors: what they cost, and what is said of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.chips import Gpu

from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Finding

RULE = RULES["small-grid"]


def one(kernel: str, operator: str, blocks: int = 33, chip: str = "H100") -> Finding:
    """What is said of a kernel of 1 ms with so many blocks."""
    b = Gpu(chip)
    with b.op(operator):
        b.launch(kernel, 1_000, grid=(blocks, 1, 1))
    (finding,) = check(parse_trace(b.to_bytes()), [RULE]).findings()
    return finding


@pytest.mark.parametrize(
    ("blocks", "cost_ms"), [(33, 0.5 * (1 - 33 / 132)), (1, 0.5 * (1 - 1 / 132)), (99, 0.125)]
)
def test_half_of_what_the_idle_multiprocessors_could_do(blocks: int, cost_ms: float) -> None:
    assert one("my_kernel", "mylib::scan", blocks).cost_ms == pytest.approx(cost_ms, rel=1e-3)


def test_a_known_roofline_limits_what_is_saved() -> None:
    """On an H100, 1 GiB is read and written in 641 us, and in 916 us at 70 % of the bandwidth."""
    b = Gpu("H100")
    with b.op("aten::abs", [[256, 1024, 1024]], ["float"]):
        b.launch("abs_kernel", 1_000, grid=(4, 1, 1))
    (finding,) = check(parse_trace(b.to_bytes()), [RULE]).findings()
    assert finding.cost_ms == pytest.approx(1 - 2 * 2**30 / 3.352e9 / 0.7, rel=1e-3)


@pytest.mark.parametrize(
    ("kernel", "shown"),
    [
        ("volta_sgemm_64x64_nt", "volta_sgemm_64x64_nt"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(int)",
         "reduce_kernel"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>(float*)",
         "cunn_SoftMaxForward"),
        ("triton_per_fused_sum_3", "triton_per_fused_sum_3"),
    ],
)  # fmt: skip
def test_a_kernel_is_called_by_its_function(kernel: str, shown: str) -> None:
    message = one(kernel, "mylib::op", 8, "A100").message
    assert message == f"{shown}: 8 blocks for 108 multiprocessors"


def test_a_kernel_of_many_lengths_is_one_finding() -> None:
    b = Gpu("H100")
    for blocks in (16, 8, 24, 20):
        with b.op("aten::mm"):
            b.launch("ampere_sgemm_64x64", 500, grid=(blocks, 1, 1))
    with b.op("aten::mm"):
        b.launch("void reduce_kernel<512, float>(float*)", 500, grid=(8, 1, 1))
    with b.op("aten::mm"):
        b.launch("void reduce_kernel<128, float>(float*)", 500, grid=(8, 1, 1))
    findings = check(parse_trace(b.to_bytes()), [RULE]).findings()
    assert {one.message: one.count for one in findings} == {
        "ampere_sgemm_64x64: 8 to 24 blocks for 132 multiprocessors": 4,
        "reduce_kernel: 8 blocks for 132 multiprocessors": 2,
    }


@pytest.mark.parametrize(
    ("kernel", "operator", "words"),
    [
        ("sgemm_64x64", "aten::mm", "split the sum"),
        ("flash_fwd_kernel", "aten::_flash_attention_forward", "splits the keys"),
        ("batch_norm_backward_kernel", "aten::native_batch_norm_backward", "channels_last"),
        ("volta_scudnn_128x64", "aten::cudnn_convolution", "benchmark"),
        ("my_kernel", "mylib::scan", "one call on all tensors"),
    ],
)
def test_the_fix_depends_on_what_the_kernel_does(kernel: str, operator: str, words: str) -> None:
    assert words in one(kernel, operator).fix


@pytest.mark.parametrize(
    ("lacking", "words"),
    [("grid", "how many blocks"), ("numSms", "how many multiprocessors")],
)
def test_without_grids_or_multiprocessors_it_is_not_checked(lacking: str, words: str) -> None:
    b = Gpu("MI210")
    with b.op("aten::sum"):
        b.launch("reduce_kernel", 1_000, grid=(8, 1, 1))
    document = b.document()
    for entry in document["deviceProperties"]:
        entry["name"] = "a device of the future"
        entry.pop(lacking, None)
    for event in document["traceEvents"]:
        event.get("args", {}).pop(lacking, None)
    b.document = lambda: document  # type: ignore[method-assign]
    checked = check(parse_trace(b.to_bytes()), [RULE])
    assert words in checked.unchecked[RULE.code].text
