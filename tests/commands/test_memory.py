"""`torchprof memory`: categories, totals of the allocator, leaks and the timeline."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.memory import Category
from pytest_torchprof.api import Trace

if TYPE_CHECKING:
    from support.command_line import Say

ENGINE = "autograd::engine::evaluate_function: "
PARTS = [f"{category.name.lower()}_bytes" for category in Category]
POINT = ["device", "at_ms", "live_bytes", *PARTS]
DEVICE = [
    *(field for field in POINT if field != "at_ms"),
    *("max_allocated_bytes", "max_reserved_bytes"),
    *("fragmentation_bytes", "max_fragmentation_bytes"),
]
LEAK = ["device", "operator", "bytes", "bytes_per_step", "blocks", "steps", "stack"]


def training(steps: int = 6, leak: int = 2**20) -> TraceBuilder:
    """Steps of training on a device, which keep something each."""
    b = TraceBuilder("NVIDIA H100 80GB HBM3", start_bytes={"cuda": 8 * 2**20})
    gradient = 0
    for number in range(steps):
        with b.annotation(f"ProfilerStep#{number}"):
            with b.annotation("Optimizer.zero_grad#SGD.zero_grad"):
                if gradient:
                    b.free(gradient)
            with b.op("aten::linear"):
                saved = b.memory(2**21)
            with b.python("train.py(7): step"), b.op("aten::clone"):
                b.memory(leak)
            with b.op(f"{ENGINE}AddmmBackward0"):
                gradient = b.memory(2**20)
                b.free(saved)
            with b.op(f"{ENGINE}torch::autograd::AccumulateGrad"):
                b.op("torch::autograd::AccumulateGrad", [[2**18]], ["float"])
            with b.annotation("Optimizer.step#SGD.step"), b.op("aten::add_"):
                b.free(b.memory(2**16))
    return b


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return training().save(tmp_path / "train.json")


def document(say: Say, *arguments: str | Path) -> dict[str, Any]:
    status, out, _ = say("memory", *arguments, "--format", "json")
    assert status == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_the_table_says_what_the_memory_at_the_peak_is_for(say: Say, trace: Path) -> None:
    out = say("memory", trace)[1]
    assert (
        "cuda:0 at the peak: live before 7 MiB, unknown 6 MiB, activations 2 MiB, "
        "parameters 1 MiB, gradients 1 MiB\n"
        "cuda:0 allocator: at most 17 MiB allocated, 18 MiB reserved; fragmentation 1 MiB at the "
        "peak, at most 1.94 MiB\n"
        "grows from step to step: aten::clone on cuda:0: 1 MiB a step, 5 MiB (5 blocks more) in "
        "5 steps after the first ProfilerStep*, in step() of train.py:7\n"
    ) in out


def test_json_has_devices_and_leaks_beside_the_rows(say: Say, trace: Path) -> None:
    found = document(say, trace)
    assert list(found) == [
        *("schema", "traces", "rows", "start_bytes", "devices", "leaks", "notes", "warnings")
    ]
    (device,) = found["devices"]
    assert list(device) == DEVICE
    assert (device["live_bytes"], device["max_allocated_bytes"]) == (17 * 2**20, 17 * 2**20)
    assert found["rows"][0]["peak_bytes"] == 9 * 2**20
    assert found["start_bytes"] == {"cuda:0": 8 * 2**20}
    (leak,) = found["leaks"]
    assert list(leak) == LEAK
    assert (leak["operator"], leak["bytes"], leak["blocks"]) == ("aten::clone", 5 * 2**20, 5)
    assert leak["stack"] == "train.py(7): step"


def test_the_timeline_is_in_all_formats(say: Say, trace: Path) -> None:
    series = document(say, trace, "--timeline")["timeline"]
    assert len(series) == 6 * 6 + 5
    assert {tuple(POINT)} == {tuple(point) for point in series}
    for point in series:
        assert point["live_bytes"] == sum(point[field] for field in PARTS)
    out = say("memory", trace, "--timeline", "--format", "csv")[1]
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [int(row["live_bytes"]) for row in rows] == [p["live_bytes"] for p in series]
    for style in ("table", "markdown"):
        out = say("memory", trace, "--timeline", "--limit", "4", "--format", style)[1]
        assert out.count("\ncuda:0  " if style == "table" else "| cuda:0 ") == 4
        for word in ("live", "parameters", "gradients", "optimizer", "activations", "before"):
            assert word in out
        assert "each moment is that of the highest level" in out


@pytest.mark.parametrize(("limit", "count"), [("1", 1), ("4", 4), ("0", 41), ("100", 41)])
def test_a_limit_is_the_number_of_moments(say: Say, trace: Path, limit: str, count: int) -> None:
    series = document(say, trace, "--timeline", "--limit", limit)["timeline"]
    assert len(series) == count
    assert max(point["live_bytes"] for point in series) == 17 * 2**20
    assert series == Trace.load(trace).memory_timeline(int(limit)).to_dicts()


def test_a_table_shows_thirty_moments_unless_told(say: Say, tmp_path: Path) -> None:
    trace = training(20).save(tmp_path / "long.json")
    out = say("memory", trace, "--timeline")[1]
    assert 30 >= sum(line.startswith("cuda:0  ") for line in out.splitlines()) > 20


def test_rows_are_those_without_a_timeline(say: Say, trace: Path) -> None:
    plain, timed = document(say, trace), document(say, trace, "--timeline")
    assert plain == {key: value for key, value in timed.items() if key != "timeline"}


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (0, "no steps (annotate them with record_function, or give the profiler a schedule)"),
        (1, "1 step (ProfilerStep*), at least 5 are needed"),
        (4, "4 steps (ProfilerStep*), at least 5 are needed"),
    ],
)
def test_leaks_that_were_not_looked_for_are_null_with_the_reason(
    say: Say, tmp_path: Path, steps: int, why: str
) -> None:
    b = training(steps)
    b.memory(100)
    path = b.save(tmp_path / "short.json")
    found = document(say, path)
    note = f"growth between steps: not checked: {why}"
    assert found["leaks"] is None
    assert note in found["notes"]
    assert note in say("memory", path)[1]
    assert Trace.load(path).memory_leaks() is None


def test_leaks_are_unknown_in_a_trace_without_addresses(say: Say, tmp_path: Path) -> None:
    path = training().save(tmp_path / "old.json", "schema_2021")
    found = document(say, path)
    assert found["leaks"] is None
    assert (
        "growth between steps: not checked: the trace has no addresses, so a free does not "
        "identify its block"
    ) in found["notes"]


def test_a_loop_that_keeps_nothing_has_no_leaks(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder()
    for number in range(6):
        with b.annotation(f"ProfilerStep#{number}"), b.op("aten::mul"):
            b.free(b.memory(100, "cpu"))
    path = b.save(tmp_path / "even.json")
    assert document(say, path)["leaks"] == []
    out = say("memory", path)[1]
    assert "nothing grows from step to step in 5 steps after the first ProfilerStep*" in out
    assert "cpu at the peak: temporaries 100 B" in out
    assert "allocator: at most" not in out


@pytest.mark.parametrize(
    ("frames", "shapes", "style", "hint"),
    [
        (False, False, "", "a trace with record_shapes=True may tell more"),
        (False, True, "", "a trace with with_stack=True may tell more"),
        (True, True, "", ""),
        (True, True, "schema_2021", "the trace has no addresses, so a free does not identify its"),
    ],
)
def test_what_is_mostly_unknown_says_what_would_tell_more(
    say: Say, tmp_path: Path, frames: bool, shapes: bool, style: str, hint: str
) -> None:
    b = TraceBuilder()
    if frames:
        b.python("train.py(3): step")
    with b.op("aten::mul", [[25], [25]] if shapes else None):
        b.memory(100, "cpu")
    out = say("memory", b.save(tmp_path / "mul.json", style or ()))[1]
    assert "cpu at the peak: unknown 100 B" in out
    assert bool(hint) == ("\nunknown: " in out)
    assert hint in out


def test_ranks_have_their_own(say: Say, tmp_path: Path) -> None:
    for rank, steps in enumerate((6, 2)):
        b = training(steps)
        b.metadata("distributedInfo", {"rank": rank, "world_size": 2, "backend": "nccl"})
        b.save(tmp_path / f"rank{rank}.json")
    found = document(say, tmp_path, "--timeline")
    assert [0, 1] == [device["rank"] for device in found["devices"]]
    assert {0, 1} == {point["rank"] for point in found["timeline"]}
    assert [0] == [leak["rank"] for leak in found["leaks"]]
    assert [
        "rank 1: growth between steps: not checked: 2 steps (ProfilerStep*), at least 5 are needed"
    ] == [note for note in found["notes"] if "not checked" in note]
    assert "rank 1: cuda:0 at the peak: " in say("memory", tmp_path)[1]


def test_without_memory_events_there_is_what_there_was(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder()
    b.op("aten::empty")
    path = b.save(tmp_path / "none.json")
    why = "no peak: recorded without memory events (profile_memory=True records them)"
    found = document(say, path, "--timeline")
    assert ([], [], None, [], [why]) == (
        found["rows"],
        found["devices"],
        found["leaks"],
        found["timeline"],
        [note for note in found["notes"] if "no peak" in note],
    )
    for more in ((), ("--timeline",)):
        status, out, _ = say("memory", path, *more)
        assert (0, True, False) == (status, why in out, "not checked" in out)
