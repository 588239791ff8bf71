"""What the rules about devices find in real traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder

from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.read import parse_trace, read_trace

if TYPE_CHECKING:
    from pytest_torchprof.rules.check import Checked

DEVICE_RULES = ("fp32-matmul", "unaligned-matmul", "math-attention", "host-sync", "launch-bound")


def checked(name: str, *codes: str) -> Checked:
    path = CORPUS / f"{name}.pt.trace.json.gz"
    if not path.exists():
        pytest.skip(f"no {path.name} in {CORPUS}")
    found = check(read_trace(path), [RULES[code] for code in codes or DEVICE_RULES])
    assert dict(found.errors) == {}
    return found


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a100_alexnet", {"fp32-matmul": 6, "host-sync": 2}),
        ("a100_sam_compiled", {"unaligned-matmul": 59, "host-sync": 132}),
        ("h100_bert_inference", {"unaligned-matmul": 1, "host-sync": 1, "launch-bound": 1}),
        ("h100_vit_inference", {"launch-bound": 1}),
        ("mi300_vllm_graph_replay", {}),
        ("v100_dlrm_rank0", {"host-sync": 2}),
        ("v100_dlrm_rank1", {"host-sync": 2}),
    ],
)
def test_real_traces(name: str, expected: dict[str, int]) -> None:
    assert checked(name).counts == expected


#: What takes time that a form of the code, or of the capture, would save.
TIMED_RULES = ("warmup-in-capture", "unfused-elementwise", "small-grid")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a100_sam_compiled", {"unfused-elementwise": 36}),
        ("a100_alexnet", {"warmup-in-capture": 5}),
        ("h100_bert_inference", {}),
        ("h100_vit_inference", {}),
        ("mi300_vllm_graph_replay", {}),
        ("v100_dlrm_rank0", {}),
        ("v100_dlrm_rank1", {}),
    ],
)
def test_timed_rules_on_real_traces(name: str, expected: dict[str, int]) -> None:
    assert checked(name, *TIMED_RULES).counts == expected


def test_all_copies_back_are_named_with_their_operator_and_what_waits() -> None:
    counts: dict[str, int] = {}
    for finding in checked("a100_sam_compiled").findings():
        if finding.rule == "host-sync":
            assert "cudaStreamSynchronize" in finding.message
            operator = finding.message.partition(" ")[0]
            counts[operator] = counts.get(operator, 0) + finding.count
    assert counts == {"aten::nonzero": 81, "aten::copy_": 35, "aten::_local_scalar_dense": 16}


def test_an_odd_vocabulary_costs_and_a_number_of_tokens_does_not() -> None:
    findings = [
        f for f in checked("h100_bert_inference").findings() if f.rule == "unaligned-matmul"
    ]
    assert [(f.count, "N=30522" in f.message, (f.cost_ms or 0) > 0) for f in findings] == [
        (1, True, True)
    ]


def said_of_an_unknown_device(name: str, kernel: str, style: str) -> dict[str, str]:
    b = TraceBuilder("Tesla T4", (7, 5))
    heads = [[2, 8, 128, 64]] * 3
    with b.op("aten::scaled_dot_product_attention", heads), b.op(name, heads):
        b.launch(kernel)
    with b.op("aten::mm", [[128, 128], [128, 128]]):
        b.launch(kernel)
    found = check(parse_trace(b.to_bytes(style)), RULES.values())
    return {
        code: found.partly[code].text if code in found.partly else ""
        for code in ("math-attention", "fp32-matmul")
    }


def test_attention_and_products_on_an_unknown_device_are_not_checked() -> None:
    math, fused = (
        f"aten::_scaled_dot_product_{form}" for form in ("attention_math", "flash_attention")
    )
    shown = said_of_an_unknown_device(math, "volta_sgemm_128x64_nn", "no_properties")
    assert all("does not say which device" in why for why in shown.values())
    shown = said_of_an_unknown_device(fused, "a_kernel", "no_properties")
    assert set(shown.values()) == {""}
    shown = said_of_an_unknown_device(math, "volta_sgemm_128x64_nn", "stray")
    assert set(shown.values()) == {""}
