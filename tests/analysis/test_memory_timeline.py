"""Live memory over time: the parts add up, the peak is the peak, totals are the allocator's."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.memory import (
    Category,
    DeviceMemory,
    MemoryPoint,
    device_memory,
    live_at_start,
    memory_peaks,
    memory_timeline,
)
from pytest_torchprof.core.values import StepRange
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace, read_trace
from pytest_torchprof.trace.steps import at_steps

PARTS = [f"{category.name.lower()}_bytes" for category in Category]
ENGINE = "autograd::engine::evaluate_function: "


def parts_of(point: MemoryPoint | DeviceMemory) -> list[int]:
    """The bytes by category, which add up."""
    parts = [getattr(point, name) for name in PARTS]
    assert sum(parts) == point.live_bytes
    return parts


# -------------------------------------------------------------------- random sequences

#: What surrounds an allocation or a free.
AROUND = (
    None,
    ("op", "aten::linear"),
    ("op", f"{ENGINE}AddmmBackward0"),
    ("op", "torch::autograd::AccumulateGrad"),
    ("annotation", "Optimizer.step#SGD.step"),
    ("annotation", "Optimizer.zero_grad#SGD.zero_grad"),
    ("module", "nn.Module: Linear_0"),
)
MOVES = st.lists(
    st.tuples(
        st.sampled_from(AROUND),
        st.sampled_from(["cpu", "cuda"]),
        st.integers(-3, 40),  # the free of a block by number, or else an allocation of so much
        st.booleans(),
    ),
    max_size=40,
)


def built(moves: Any, start: int) -> TraceBuilder:
    b, live = TraceBuilder("GPU", start_bytes={"cuda": start}), list[int]()
    for around, where, what, shapes in moves:
        scope = None
        if around is not None:
            kind, name = around
            more = [[[abs(what)]], ["float"]] if shapes and kind == "op" else []
            scope = getattr(b, kind)(name, *more)
            scope.__enter__()
        if what > 0:
            live.append(b.memory(4 * what, where))
        elif what == 0:
            b.memory(-4, "cuda")
        elif len(live) >= -what:
            b.free(live.pop(what))
        if scope is not None:
            scope.__exit__()
    return b


@pytest.mark.thorough
@given(MOVES, st.integers(200, 10**6))
def test_parts_of_random_sequences_add_up_to_the_level(moves: Any, start: int) -> None:
    trace = parse_trace(built(moves, start).to_bytes())
    totals = [e for e in json.loads(built(moves, start).to_bytes())["traceEvents"]
              if e["name"] == "[memory]"]  # fmt: skip
    points = memory_timeline(trace)
    cuda = [point for point in points if point.device == "cuda:0"]
    known = [e["args"]["Total Allocated"] for e in totals if e["args"]["Device Type"]]
    assert known == [point.live_bytes for point in cuda]
    host = [e["args"]["Total Allocated"] for e in totals if not e["args"]["Device Type"]]
    assert host == [point.live_bytes for point in points if point.device == "cpu"]
    for point in points:
        assert min(parts_of(point)) >= 0
    starts = live_at_start(trace)
    peaks = {peak.device: peak.peak_bytes for peak in memory_peaks(trace)}
    for device in device_memory(trace):
        parts_of(device)
        assert device.live_bytes == peaks[device.device] + (starts[device.device] or 0)


@pytest.mark.thorough
@given(MOVES, st.integers(1, 12))
def test_fewer_moments_are_the_highest_of_their_shares(moves: Any, count: int) -> None:
    trace = parse_trace(built(moves, 1000).to_bytes())
    every, some = memory_timeline(trace), memory_timeline(trace, count)
    assert set(some) <= set(every)
    for device in {point.device for point in every}:
        mine = [point for point in some if point.device == device]
        whole = [point for point in every if point.device == device]
        assert len(mine) <= count
        assert [p.at_ms for p in mine] == sorted(p.at_ms for p in mine)
        assert max(p.live_bytes for p in mine) == max(p.live_bytes for p in whole)
        assert whole == mine or len(whole) > count


# -------------------------------------------------------------------- the allocator's totals


def totals(b: TraceBuilder, **change: Any) -> tuple[int | None, ...]:
    def changed(document: dict[str, Any]) -> dict[str, Any]:
        rows = [e["args"] for e in document["traceEvents"] if e["name"] == "[memory]"]
        for key, values in change.items():
            name = key.replace("_", " ").title()
            for args, value in zip(rows, values, strict=True):
                args.pop(name) if value is None else args.update({name: value})
        return document

    (device,) = device_memory(parse_trace(b.to_bytes(changed)))
    return (
        device.max_allocated_bytes,
        device.max_reserved_bytes,
        device.fragmentation_bytes,
        device.max_fragmentation_bytes,
    )


def three() -> TraceBuilder:
    b = TraceBuilder("GPU", start_bytes={"cuda": 1000})
    b.free(b.memory(500))
    b.memory(400)
    return b


@pytest.mark.parametrize(
    ("reserved", "expected"),
    [
        ((2000, 2000, 2000), (1500, 2000, 500, 1000)),
        ((2000, 1800, 1600), (1500, 2000, 500, 800)),
        ((2000, None, 2000), (1500, None, None, None)),
        ((0, 0, 0), (1500, None, None, None)),
        ((1200, 1200, 1200), (1500, 1200, None, None)),
    ],
)
def test_peaks_and_fragmentation_are_the_allocators(
    reserved: tuple[int | None, ...], expected: tuple[int | None, ...]
) -> None:
    assert expected == totals(three(), total_reserved=reserved)


def test_a_trace_without_totals_has_none() -> None:
    assert (None, 2000, None, None) == totals(
        three(), total_allocated=(None,) * 3, total_reserved=(2000,) * 3
    )
    assert (None,) * 4 == totals(three(), total_allocated=(None,) * 3, total_reserved=(None,) * 3)


def test_the_host_has_no_totals() -> None:
    b = TraceBuilder()
    b.memory(100, "cpu")
    assert (None,) * 4 == totals(b)


def test_the_level_before_the_first_change_counts() -> None:
    b = TraceBuilder("GPU", start_bytes={"cuda": 1000})
    b.memory(-400)
    b.memory(100)
    assert (1000, 2**21, 2**21 - 700, 2**21 - 600) == totals(b)


def test_of_a_live_capture_counts_the_region() -> None:
    b = TraceBuilder("GPU", start_bytes={"cuda": 1000})
    gone = b.memory(10_000)
    b.free(gone)
    with b.annotation(REGION):
        b.memory(500)
    b.memory(10_000)
    assert 1500 == totals(b)[0]
    (point,) = memory_timeline(parse_trace(b.to_bytes()))
    assert (point.live_bytes, point.before_bytes) == (1500, 1000)


def test_of_a_step_has_no_moment_outside_of_it() -> None:
    b = TraceBuilder("GPU", start_bytes={"cuda": 0})
    kept = []
    for number in range(3):
        with b.annotation(f"ProfilerStep#{number}"):
            for _ in range(2):
                with b.op("aten::mul", [[8]]):
                    kept.append(b.memory(512))
    for block in kept:
        with b.op("aten::drop"):
            b.free(block)
    trace = at_steps(parse_trace(b.to_bytes()), StepRange.parse("1"))
    inside = trace.ts[trace.selection]
    points = memory_timeline(trace)
    first = int(trace.ts[0])
    assert 2 == len(points)
    assert all(inside.min() <= first + point.at_ms * 1e6 <= inside.max() + 1e4 for point in points)


def test_a_negative_number_of_moments_is_an_error() -> None:
    b = TraceBuilder("GPU")
    b.memory(100)
    with pytest.raises(ValueError, match="a timeline of -1 moments"):
        memory_timeline(parse_trace(b.to_bytes()), -1)


# -------------------------------------------------------------------- stored traces


STORED = sorted(CORPUS.glob("*.json.gz"))


@pytest.mark.thorough
@pytest.mark.skipif(not STORED, reason="the folder of real traces is not here")
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name.partition(".")[0])
def test_the_level_of_a_real_trace_is_its_allocators(path: Path) -> None:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    rows = [e["args"] | {"ts": e["ts"]} for e in events if e["name"] == "[memory]"]
    mine = sorted((row for row in rows if row["Device Type"]), key=lambda row: row["ts"])
    trace = read_trace(path)
    points = memory_timeline(trace)
    assert [row["Total Allocated"] for row in mine] == [
        point.live_bytes for point in points if point.device == "cuda:0"
    ]
    for point in points:
        assert min(parts_of(point)) >= 0
    for device in device_memory(trace):
        if device.device == "cuda:0":
            assert device.max_allocated_bytes == max(row["Total Allocated"] for row in mine)
            assert device.max_reserved_bytes == max(row["Total Reserved"] for row in mine)
            assert device.max_fragmentation_bytes == max(
                row["Total Reserved"] - row["Total Allocated"] for row in mine
            )
