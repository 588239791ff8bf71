"""Traces recorded on a GPU: every answer that is known without our reader is what it says."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gpu_payloads import reading
from gpu_payloads.scrubbing import leftovers
from support.span_costs import costs_and_span

from pytest_torchprof.analysis.kernels import kernel_rows
from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.read import read_trace
from pytest_torchprof.work.bytes import TRAFFIC
from pytest_torchprof.work.kernels import is_main

if TYPE_CHECKING:
    from support.command_line import Say

    from pytest_torchprof.trace.events import Events

#: Another folder, to look at what was just recorded: TORCHPROF_GPU_TRACES.
FOLDER = Path(
    os.environ.get("TORCHPROF_GPU_TRACES") or Path(__file__).resolve().parents[1] / "data" / "gpu"
)
EXPECTED: dict[str, Any] = (
    json.loads((FOLDER / "expected.json").read_text("utf-8"))
    if (FOLDER / "expected.json").exists()
    else {"traces": {}}
)
TRACES: dict[str, Any] = EXPECTED["traces"]

pytestmark = pytest.mark.skipif(
    not TRACES, reason="tests/data/gpu has no traces: record them by `make record-gpu` on a GPU"
)
#: Files of so many bytes are read in a twentieth of a second; larger ones take longer.
QUICK_BYTES = 2_700
#: … but for one of each kind.
ALSO_QUICK = ("flash_attention", "step_with_fused", "compiled_training")
each = pytest.mark.parametrize("name", TRACES)


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.json.gz"


def some_quick() -> list[Any]:
    """All names, of which most are for the thorough run only."""
    return [
        name
        if name in ALSO_QUICK or path_of(name).stat().st_size <= QUICK_BYTES
        else pytest.param(name, marks=pytest.mark.thorough)
        for name in TRACES
    ]


#: Of a trace, what each command prints; those that need two files, a report, or a browser are not.
COMMANDS = (
    ("summary",),
    ("steps",),
    ("idle",),
    ("ops",),
    ("ops", "--by", "shape"),
    ("ops", "--by", "module"),
    ("kernels",),
    ("kernels", "--by", "op"),
    ("kernels", "--by", "op,kernel,shape"),
    ("lint",),
    ("memory",),
    ("memory", "--timeline"),
    ("bound", "--device", "H100 SXM"),
    ("collectives",),
)


def trace_of(name: str) -> Events:
    return read_trace(path_of(name))


@pytest.mark.parametrize("name", some_quick())
def test_the_reader_and_the_rules_say_what_others_know(name: str) -> None:
    trace, row = trace_of(name), TRACES[name]
    answers = row["answers"]
    assert [] == reading.differences(answers, reading.read(trace, answers))
    checked = check(trace, RULES.values())
    assert {} == dict(checked.errors)
    assert [] == reading.rule_differences(row["stored_rules"], row["may_match"], checked.counts)


@pytest.mark.thorough
@each
def test_nothing_costs_more_than_the_whole_span(name: str) -> None:
    costs, span_ms = costs_and_span(trace_of(name))
    assert sum(costs.values()) <= span_ms, costs


@pytest.mark.thorough
@each
def test_no_kernel_is_faster_than_the_chip(name: str) -> None:
    """From its cache it may read faster than from memory, but not compute faster."""
    rows = kernel_rows(trace_of(name), by="op,kernel,shape")
    over = [row for row in rows if row.compute_pct is not None and row.compute_pct > 100]
    assert [] == over
    if "self_cuda_ms@timed" in TRACES[name]["answers"]:  # more data than the cache holds
        assert [] == [row for row in rows if (row.bandwidth_pct or 0) > 100]


@pytest.mark.thorough
@each
def test_work_is_that_of_the_kernels_that_did_it(name: str) -> None:
    """FLOPs of products only, and no kernel on lists of tensors without bytes."""
    rows = kernel_rows(trace_of(name), by="op,kernel,shape")
    assert [] == [row for row in rows if row.flops and not is_main(row.kernel)]
    lists = [row for row in rows if row.operator in TRAFFIC and "multi_tensor" in row.kernel]
    assert [] == [row for row in lists if row.bytes is None]


@pytest.mark.thorough
@each
def test_nothing_is_left_of_the_machine(name: str) -> None:
    assert [] == leftovers(gzip.decompress(path_of(name).read_bytes()).decode())


@pytest.mark.thorough
@each
def test_every_command_reads_it(name: str, say: Say, tmp_path: Path) -> None:
    path = path_of(name)
    for command, *options in COMMANDS:
        for form in ("table", "json"):
            status, out, err = say(command, path, *options, "--format", form)
            if command == "steps" and status == 2:  # most have none
                assert (1, "") == (err.count("\n"), out)
                continue
            assert (0, "") == (status, err)
            assert out
    for command, *where in (
        ("augment", tmp_path / "augmented.json"),
        ("stacks", tmp_path / "stacks.txt"),
        ("report", "-o", tmp_path / "page.html"),
    ):
        assert 0 == say(command, path, *where)[0]
    assert 0 == say("diff", path, path)[0]


def test_all_that_was_recorded_is_there_and_small() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.glob("*.json.gz")}
    assert sizes.keys() == {f"{name}.json.gz" for name in TRACES}
    assert max(sizes.values()) <= 150 * 1024
    assert sum(sizes.values()) <= 3 * 2**20
    assert {} == EXPECTED["failed"]


@pytest.mark.thorough
@pytest.mark.skipif(
    EXPECTED.get("machine", {}).get("device") == "cpu", reason="not recorded on a GPU"
)
def test_answers_by_hand_are_those_of_the_payloads() -> None:
    """After a change there: ``tools/record_gpu_traces.py --restate tests/data/gpu``."""
    from gpu_payloads import catalog, recording

    for name, row in TRACES.items():
        stated = recording.answers_of(catalog.PAYLOADS[name])
        by_hand = {
            metric: {key: value for key, value in answer.items() if key != "agrees"}
            for metric, answer in row["answers"].items()
            if answer["source"] == "by hand"
        }
        assert stated["answers"] == by_hand
        assert stated["stored_rules"] == row["stored_rules"]
        assert stated["may_match"] == row["may_match"]
