"""What attention written by hand costs: its operators over the scores."""

from __future__ import annotations

import pytest
from labelled.attention_cuda import Heads
from labelled.kineto import BF16, BRAIN
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder

from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.read import parse_trace, read_trace

RULE = RULES["manual-attention"]
SHAPE, HEADS = [1, 8, 1024, 1024], [1, 8, 1024, 64]


def attention(b: Heads) -> list[int]:
    """Forward; the sequence numbers of both products, the scaling and the softmax."""
    first = b.matmul(HEADS, [1, 8, 64, 1024], BRAIN, BF16, 50)
    scaled = b.over("mul", SHAPE, BRAIN, us=20)
    softmax = b.softmax(SHAPE, BRAIN, us=30)
    return [first, scaled, softmax, b.matmul(SHAPE, HEADS, BRAIN, BF16, 50)]


def saved_ns(b: TraceBuilder) -> list[int]:
    """Of each match."""
    (found,) = check(parse_trace(b.to_bytes()), [RULE]).matches.values()
    assert found.cost_ns is not None
    return [int(ns) for ns in found.cost_ns]


def test_it_costs_its_operators_over_the_scores() -> None:
    b = Heads()
    attention(b)
    assert saved_ns(b) == [20_000 + 30_000]


def test_on_a_cpu_too() -> None:
    b, scores = TraceBuilder(), [32, 64, 256]
    b.op("aten::bmm", [[32, 64, 64], [32, 64, 256]], ["float"] * 2, dur_us=200)
    b.op("aten::mul", [scores, []], ["float", "Scalar"], dur_us=40)
    b.op("aten::softmax", [scores, [], []], ["float", "Scalar", ""], ["", "-1", ""], dur_us=60)
    b.op("aten::bmm", [scores, [32, 256, 64]], ["float"] * 2, dur_us=200)
    assert saved_ns(b) == [100_000]


def test_a_backward_pass_is_part_of_it_but_for_that_of_the_products() -> None:
    b = Heads()
    first, scaled, softmax, last = attention(b)
    with b.thread(5001):
        b.backward("BmmBackward0", last, (BF16, 50), (BF16, 50))
        b.backward("SoftmaxBackward0", softmax, (BF16, 40))
        b.backward("MulBackward0", scaled, (BF16, 40))
        b.backward("BmmBackward0", first, (BF16, 50), (BF16, 50))
    assert saved_ns(b) == [20_000 + 30_000 + 40_000 + 40_000]
    (finding,) = check(parse_trace(b.to_bytes()), [RULE]).findings()
    assert (finding.count, finding.location) == (1, "aten::softmax")
    assert finding.cost_ms == pytest.approx(0.13, abs=1e-3)


def test_unaligned_products_of_such_attention_are_not_reported_as_well() -> None:
    b = Heads()
    heads, shape = [8, 1025, 64], [8, 1025, 1025]
    b.bmm(heads, [8, 64, 1025], BRAIN, BF16)
    b.softmax(shape, BRAIN)
    b.bmm(shape, heads, BRAIN, BF16)
    found = check(parse_trace(b.to_bytes()), [RULE, RULES["unaligned-matmul"]])
    assert found.counts == {"manual-attention": 1}


@pytest.mark.parametrize("name", ["h100_vit_inference", "h100_bert_inference", "a100_sam_compiled"])
def test_models_with_fused_attention_have_no_finding(name: str) -> None:
    path = CORPUS / f"{name}.pt.trace.json.gz"
    if not path.exists():
        pytest.skip(f"no {path.name} in {CORPUS}")
    assert check(read_trace(path), [RULE]).counts == {}
