"""What the rules about devices find in real traces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_torchprof.rules import RULES, check
from pytest_torchprof.trace.read import read

if TYPE_CHECKING:
    from pytest_torchprof.rules.check import Checked

CORPUS = Path(
    os.environ.get("TORCHPROF_TRACE_CORPUS")
    or Path(__file__).parents[1].joinpath("..", "shared", "traces")
)
DEVICE_RULES = ("fp32-matmul", "unaligned-matmul", "math-attention", "host-sync", "launch-bound")


def checked(name: str) -> Checked:
    path = CORPUS / f"{name}.pt.trace.json.gz"
    if not path.exists():
        pytest.skip(f"no {path.name} in {CORPUS}")
    found = check(read(path), [RULES[code] for code in DEVICE_RULES])
    assert dict(found.errors) == {}
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a100_alexnet", {"fp32-matmul": 6, "host-sync": 2}),
        ("a100_sam_compiled", {"unaligned-matmul": 60, "host-sync": 132}),
        ("h100_bert_inference", {"unaligned-matmul": 1, "host-sync": 1, "launch-bound": 1}),
        ("h100_vit_inference", {"launch-bound": 1}),
        ("mi300_vllm_graph_replay", {}),
        ("v100_dlrm_rank0", {"host-sync": 2}),
        ("v100_dlrm_rank1", {"host-sync": 2}),
    ],
)
def test_real_traces(name: str, expected: dict[str, int]) -> None:
    assert checked(name).counts == expected


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
    assert [(f.count, "N=30522" in f.message, f.cost_ms > 0) for f in findings] == [(1, True, True)]
