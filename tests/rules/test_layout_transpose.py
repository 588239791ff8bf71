"""What it costs that convolutions change layouts, and what to do on which device."""

from __future__ import annotations

from labelled.attention_cuda import Heads
from labelled.kineto import BRAIN
from labelled.layouts import BACK_2025, HOPPER, IGEMM, SMALL, TO_2025, TRANSPOSE, stage

from pytest_torchprof.rules.check import Checked, check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.read import parse_trace

RULE = RULES["layout-transpose"]
WIDTHS = [64, 64, 64, 64, 128]


def checked(b: Heads) -> Checked:
    return check(parse_trace(b.to_bytes()), [RULE])


def test_it_costs_the_kernels_that_change_layouts_less_those_of_one_layer() -> None:
    b = Heads()
    stage(b, WIDTHS, TO_2025, HOPPER, BACK_2025, us=30, dtype=BRAIN)
    (found,) = checked(b).matches.values()
    assert found.cost_ns is not None
    assert found.cost_ns.tolist() == [3 * (30 + 4 + 30) * 1000]


def test_a_second_pass_is_no_second_finding() -> None:
    b = Heads()
    for _ in range(2):
        stage(b, WIDTHS, TO_2025, HOPPER, BACK_2025, dtype=BRAIN)
    (finding,) = checked(b).findings()
    assert (finding.count, finding.message) == (
        8,
        "convolutions convert their tensors between NCHW and NHWC on device 0",
    )
    assert "MIOPEN" not in finding.fix


def test_on_amd_the_environment_must_allow_the_layout() -> None:
    b = Heads(capability=(9, 4), amd="AMD Instinct MI300X")
    stage(b, WIDTHS, TRANSPOSE, IGEMM, SMALL, name="miopen_convolution", dtype=BRAIN)
    (finding,) = checked(b).findings()
    assert "PYTORCH_MIOPEN_SUGGEST_NHWC=1" in finding.fix


def test_convolutions_in_graphs_are_not_checked_if_their_transposes_matter() -> None:
    graph = Heads()
    graph.op("aten::empty")
    graph.graph_launch([TO_2025, HOPPER, BACK_2025], 30)
    assert [why.text for why in checked(graph).gaps.values()] == [
        "2 kernels ran from graphs, without their operators"
    ]
    graph.over("add", [32, 64, 56, 56], BRAIN, us=20_000)
    assert checked(graph).gaps == {}
