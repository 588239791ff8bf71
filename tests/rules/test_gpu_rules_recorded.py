"""Traces of labelled examples, recorded on a GPU: the rules say what they said there."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from gpu_payloads.scrubbing import leftovers
from labelled.kept_traces import LARGEST_BYTES
from support.span_costs import costs_and_span

from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.read import read_trace

#: Another folder, to look at what was just recorded: TORCHPROF_GPU_RULES.
FOLDER = Path(
    os.environ.get("TORCHPROF_GPU_RULES")
    or Path(__file__).resolve().parents[1] / "data" / "gpu_rules"
)
EXPECTED: dict[str, Any] = (
    json.loads((FOLDER / "expected.json").read_text("utf-8"))
    if (FOLDER / "expected.json").exists()
    else {"traces": {}}
)
TRACES: dict[str, Any] = EXPECTED["traces"]

pytestmark = pytest.mark.skipif(
    not TRACES,
    reason="tests/data/gpu_rules has no traces: record them by tools/record_gpu_rules.py on a GPU",
)
each = pytest.mark.parametrize("name", TRACES)


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.json.gz"


@each
def test_the_rules_say_what_they_said_there(name: str) -> None:
    row = TRACES[name]
    checked = check(read_trace(path_of(name)), RULES.values())
    assert {} == dict(checked.errors)
    assert row["counts"] == dict(checked.counts)
    assert row["positive"] == (row["rule"] in checked.counts)


@pytest.mark.thorough
@each
def test_nothing_costs_more_than_the_whole_span(name: str) -> None:
    costs, span_ms = costs_and_span(read_trace(path_of(name)))
    assert sum(costs.values()) <= span_ms, costs


@pytest.mark.thorough
@each
def test_nothing_is_left_of_the_machine(name: str) -> None:
    assert [] == leftovers(gzip.decompress(path_of(name).read_bytes()).decode())


def test_all_that_was_recorded_is_there_and_small() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.glob("*.json.gz")}
    assert sizes.keys() == {f"{name}.json.gz" for name in TRACES}
    assert max(sizes.values()) <= LARGEST_BYTES
    assert sum(sizes.values()) <= 2**20
