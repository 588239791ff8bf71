"""What it costs that convolutions change layouts, and what to do on which device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from labelled.attention_cuda import Heads
from labelled.kineto import BRAIN
from labelled.layouts import BACK_2025, HOPPER, IGEMM, SMALL, TO_2025, TRANSPOSE, stage

from pytest_torchprof.rules.check import Checked, check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.names import operators_named
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchprof.trace.dataflow import ListedTensors, Taken

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


@dataclass
class Weights:
    """Weights of convolutions by when these start; nothing else is known."""

    weight: dict[int, int]

    def taken(self, starts: Iterable[int], names: Iterable[str]) -> list[tuple[Taken, ...]]:
        del names
        return [(0, self.weight.get(start, -1)) for start in starts]

    def made(self, starts: Iterable[int], names: Iterable[str]) -> list[frozenset[int]]:
        return [frozenset() for _ in zip(starts, names, strict=True)]

    def objects(self, starts: Iterable[int], names: Iterable[str]) -> list[int]:
        return [-1 for _ in zip(starts, names, strict=True)]

    addresses = objects

    def listed(self, starts: Iterable[int], names: Iterable[str]) -> list[ListedTensors | None]:
        return [None for _ in zip(starts, names, strict=True)]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [([1, 2, 3, 4], 1), ([1, 1, 1, 1], 0), ([1, 2, 1, 2], 0), ([1, 2, 3, 1, 2, 3], 1)],
)
def test_layers_of_one_shape_are_told_apart_by_their_weights(
    weights: list[int], expected: int
) -> None:
    b = Heads()
    with b.annotation(b.region):
        stage(b, [64] * (len(weights) + 1), TO_2025, HOPPER, BACK_2025, dtype=BRAIN)
    trace = parse_trace(b.to_bytes())
    by_shape = check(trace, [RULE])
    assert (dict(by_shape.counts), by_shape.wants_tensors) == ({}, True)
    calls = operators_named(trace, "aten::cudnn_convolution")
    numbers = dict(zip(trace.ts[calls].tolist(), weights, strict=True))
    told = check(replace(trace, tensors=Weights(numbers)), [RULE])
    assert len(told.findings()) == expected
