"""What attention written by hand costs: the traffic of its scores, which a fused kernel saves."""

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
#: 8 x 1024 x 1024 scores of 2 bytes, 16 MiB, take 5,005 ns at an H100's 3.352 TB/s; a product of
#: 64 numbers is 1.074 GFLOP, 2,170 ns at half of 989.4 TFLOP/s.
SHAPE, HEADS = [1, 8, 1024, 1024], [1, 8, 1024, 64]
MOVED_NS, LEAST_NS = 5_005, 2_170


def attention(b: Heads, product_us: float = 50) -> list[int]:
    """Forward; the sequence numbers of both products, the scaling and the softmax."""
    first = b.matmul(HEADS, [1, 8, 64, 1024], BRAIN, BF16, product_us)
    scaled = b.over("mul", SHAPE, BRAIN, us=20)
    softmax = b.softmax(SHAPE, BRAIN, us=30)
    return [first, scaled, softmax, b.matmul(SHAPE, HEADS, BRAIN, BF16, product_us)]


def saved_ns(b: TraceBuilder) -> list[int]:
    """Of each match, and of its backward pass."""
    (found,) = check(parse_trace(b.to_bytes()), [RULE]).matches.values()
    assert found.cost_ns is not None
    return [int(ns) for ns in found.cost_ns]


def test_it_costs_its_operators_over_the_scores_and_two_times_their_traffic() -> None:
    b = Heads()
    attention(b)
    assert saved_ns(b) == [20_000 + 30_000 + 2 * MOVED_NS]


def test_products_near_half_the_peak_save_only_what_is_above_it() -> None:
    b = Heads()
    attention(b, product_us=3)
    assert saved_ns(b) == [20_000 + 30_000 + 2 * (3_000 - LEAST_NS)]


def test_products_that_are_faster_than_half_the_peak_save_nothing() -> None:
    b = Heads()
    attention(b, product_us=2)
    assert saved_ns(b) == [20_000 + 30_000]


def test_its_backward_pass_costs_too_less_the_product_that_a_fused_one_repeats() -> None:
    b = Heads()
    first, scaled, softmax, last = attention(b)
    with b.thread(5001):
        b.backward("BmmBackward0", last, (BF16, 50), (BF16, 50))
        b.backward("SoftmaxBackward0", softmax, (BF16, 40))
        b.backward("MulBackward0", scaled, (BF16, 20))
        b.backward("BmmBackward0", first, (BF16, 50), (BF16, 50))
    forward = 20_000 + 30_000 + 2 * MOVED_NS
    moved_twice = 10_010
    assert saved_ns(b) == [forward, 40_000 + 20_000 + 2 * moved_twice - LEAST_NS]


def test_a_backward_pass_is_part_of_the_same_finding() -> None:
    b = Heads()
    first, _, softmax, last = attention(b)
    with b.thread(5001):
        b.backward("BmmBackward0", last, (BF16, 50), (BF16, 50))
        b.backward("SoftmaxBackward0", softmax, (BF16, 40))
        b.backward("BmmBackward0", first, (BF16, 50), (BF16, 50))
    (finding,) = check(parse_trace(b.to_bytes()), [RULE]).findings()
    assert (finding.count, finding.location) == (1, "aten::softmax")
    assert finding.cost_ms == pytest.approx(0.1177, abs=1e-3)


def test_on_a_chip_without_known_peaks_products_save_nothing() -> None:
    b = Heads(capability=(7, 0))  # with another size of memory than a V100 has
    b.matmul(HEADS, [1, 8, 64, 1024], "float", "volta_sgemm_128x64_nn")
    b.over("mul", SHAPE, "float", us=20)
    b.softmax(SHAPE, "float", us=30)
    b.matmul(SHAPE, HEADS, "float", "volta_sgemm_128x64_nn")
    assert saved_ns(b) == [50_000]


def on_cpu(heads: int, queries: int, keys: int, b: TraceBuilder | None = None) -> TraceBuilder:
    """Attention over numbers of 64 whose operators over the scores take 100 us."""
    b = b or TraceBuilder()
    scores = [heads, queries, keys]
    b.op("aten::bmm", [[heads, queries, 64], [heads, 64, keys]], ["float"] * 2, dur_us=200)
    b.op("aten::mul", [scores, []], ["float", "Scalar"], dur_us=40)
    with b.op("aten::softmax", [scores, [], []], ["float", "Scalar", ""], ["", "-1", ""]):
        b.op("aten::_softmax", [scores, [], []], ["float", "Scalar", ""], ["", "-1", ""], dur_us=59)
    b.op("aten::bmm", [scores, [heads, keys, 64]], ["float"] * 2, dur_us=200)
    return b


@pytest.mark.parametrize(
    ("heads", "queries", "keys", "share"),
    [
        (32, 256, 64, 0.25),  # 2 MiB of scores
        (128, 48, 48, 0.1875),
        (32, 64, 256, 1),
        (32, 128, 128, 0.5),
        (8, 128, 512, 1),
        (64, 256, 64, 1),  # 4 MiB
        (512, 48, 48, 0.5625),
        (64, 128, 128, 1),
        (16, 256, 256, 1.25),
    ],
)
def test_on_a_cpu_it_saves_more_of_longer_rows_and_of_large_scores(
    heads: int, queries: int, keys: int, share: float
) -> None:
    (saved,) = saved_ns(on_cpu(heads, queries, keys))
    assert saved == pytest.approx(share * 100_000, rel=0.03)


def test_on_a_cpu_the_time_is_unknown_that_is_saved_of_short_rows() -> None:
    assert saved_ns(on_cpu(32, 512, 47)) == [-1]


def test_beside_longer_rows_it_is_known() -> None:
    few, many = saved_ns(on_cpu(32, 512, 512, on_cpu(32, 512, 47)))
    assert 0 < few < many / 4


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
