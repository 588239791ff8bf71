"""What was live at the peak, device by device: built traces, random ones, torch's own figure."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.live import captured
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.memory import (
    BEFORE,
    OUTSIDE,
    UNKNOWN_OWNER,
    LiveRow,
    PeakMemory,
    memory_peaks,
    usage,
)
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace, read_trace
from pytest_torchprof.verdict.metrics import METRICS, measure

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

DEVICES = [("cpu", "cpu"), ("cuda", "cuda:0")]


def at_peak(trace: Events, device: str) -> PeakMemory:
    """The one of this device, after checking that its rows add up."""
    (found,) = (peak for peak in memory_peaks(trace) if peak.device == device)
    assert found.peak_bytes == sum(row.bytes for row in found.rows)
    assert [row.bytes for row in found.rows] == sorted((r.bytes for r in found.rows), reverse=True)
    return found


@pytest.mark.parametrize(("where", "device"), DEVICES)
def test_blocks_live_at_the_peak_belong_to_the_operators_that_allocated_them(
    where: str, device: str
) -> None:
    b = TraceBuilder("GPU")
    with b.op("aten::linear"), b.op("aten::mm"), b.op("aten::empty"):
        b.memory(100, where)
        gone = b.memory(40, where)
    b.free(gone)
    b.memory(3, where)
    with b.op("aten::mul"):
        b.memory(30, where)
        b.memory(30, where)
        top = b.now
        last = b.memory(1, where)
    b.free(last)
    trace = parse_trace(b.to_bytes())
    found = at_peak(trace, device)
    assert found.rows == [
        LiveRow("aten::mm", 100, 1),
        LiveRow("aten::mul", 61, 3),
        LiveRow(OUTSIDE, 3, 1),
    ]
    assert found.peak_bytes == 164
    assert found.at_ms == (top - trace.ts[0]) / 1e6
    assert memory_peaks(trace) == [found]


def test_the_first_of_equal_peaks_counts() -> None:
    b = TraceBuilder()
    first = b.memory(10, "cpu")
    b.free(first)
    with b.op("aten::mul"):
        b.memory(10, "cpu")
    assert at_peak(parse_trace(b.to_bytes()), "cpu") == PeakMemory(
        "cpu", 10, 0, [LiveRow(OUTSIDE, 10, 1)]
    )


def test_what_an_accelerator_frees_of_before_the_trace_lowers_the_amount() -> None:
    b = TraceBuilder("GPU", start_bytes={"cuda": 70})
    b.memory(-50, "cuda")
    b.memory(-20, "cuda")
    with b.op("aten::mul"):
        b.memory(100, "cuda")
    found = at_peak(parse_trace(b.to_bytes()), "cuda:0")
    assert found.rows == [LiveRow("aten::mul", 100, 1), LiveRow(BEFORE, -70, 2)]


def test_an_amount_that_was_never_above_its_start_has_no_time() -> None:
    b = TraceBuilder("GPU")
    b.memory(-50, "cuda")
    assert memory_peaks(parse_trace(b.to_bytes())) == [PeakMemory("cuda:0", 0, None, [])]


def test_each_device_has_its_own_peak() -> None:
    def moved(index: int) -> Any:
        def change(document: dict[str, Any]) -> dict[str, Any]:
            for event in document["traceEvents"]:
                if event["name"] == "[memory]" and event["args"]["Bytes"] in {50, -50, 60}:
                    event["args"]["Device Id"] = index
            return document

        return change

    b = TraceBuilder("GPU")
    b.memory(10, "cpu")
    b.memory(100, "cuda")
    b.free(b.memory(50, "cuda"))
    b.memory(60, "cuda")
    found = memory_peaks(parse_trace(b.to_bytes(moved(3))))
    assert [(p.device, p.peak_bytes) for p in found] == [
        ("cpu", 10),
        ("cuda:0", 100),
        ("cuda:3", 60),
    ]
    together = memory_peaks(parse_trace(b.to_bytes(moved(0))))
    assert [(p.device, p.peak_bytes) for p in together] == [("cpu", 10), ("cuda:0", 160)]


@pytest.mark.parametrize(
    ("device_type", "device_id", "name"),
    [
        (0, -1, "cpu"),
        (1, 2, "cuda:2"),
        (12, 0, "xpu:0"),
        (20, 0, "privateuseone:0"),
        (1, -1, "cuda"),
        (99, 0, "device type 99:0"),
        (-7, 0, "device type -7:0"),
    ],
)
def test_devices_have_the_names_that_torch_gives_them(
    device_type: int, device_id: int, name: str
) -> None:
    args = {"Addr": 1, "Bytes": 8, "Device Type": device_type, "Device Id": device_id}
    event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1, "args": args}
    (found,) = memory_peaks(parse_trace(json.dumps([event]).encode()))
    assert found.device == name


def test_without_addresses_the_amount_is_known_and_what_it_is_made_of_is_not() -> None:
    b = TraceBuilder("GPU")
    with b.op("aten::mul"):
        b.free(b.memory(100))
        b.memory(70)
    found = at_peak(parse_trace(b.to_bytes("schema_2021")), "cuda:0")
    assert found.rows == [LiveRow(UNKNOWN_OWNER, 100, None)]


def test_without_sizes_there_are_no_peaks() -> None:
    b = TraceBuilder("GPU")
    b.memory(100)
    assert memory_peaks(parse_trace(b.to_bytes("no_args"))) == []
    assert memory_peaks(parse_trace(b"[]")) == []


@pytest.mark.thorough
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-4, 4), st.integers(0, 1)), max_size=40))
def test_random_sequences_peak_as_the_metric_says(moves: list[tuple[int, int, int]]) -> None:
    place = {"pid": 1, "tid": 1}
    events = [
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 10 * i + 5, **place,
         "args": {"Addr": address, "Bytes": size, "Device Type": device, "Device Id": device - 1}}
        for i, (address, size, device) in enumerate(moves)
    ]  # fmt: skip
    trace = parse_trace(json.dumps(events).encode())
    found = {peak.device: peak.peak_bytes for peak in memory_peaks(trace)}
    for device, on_device in (("cpu", False), ("cuda:0", True)):
        assert found.get(device, 0) == usage(trace, on_device=on_device).peak_bytes
        if device in found:
            at_peak(trace, device)


def test_a_live_capture_peaks_as_its_metric_says(tmp_path: Path) -> None:
    def block() -> None:
        a, b = torch.ones(100), torch.zeros(100)
        c = torch.mul(a, b)
        del a
        torch.cat([c, b])

    trace = captured(block, tmp_path)
    found = at_peak(trace, "cpu")
    assert found.peak_bytes == measure(METRICS["peak_cpu_bytes"], trace) == 1600
    assert found.rows[0] == LiveRow("aten::cat", 800, 1)
    assert len(found.rows) == 3


def test_of_a_live_capture_counts_the_region() -> None:
    b = TraceBuilder("GPU")
    b.memory(1000)
    with b.annotation(REGION):
        b.memory(5)
    b.memory(1000)
    trace = parse_trace(b.to_bytes())
    assert at_peak(trace, "cuda:0").peak_bytes == usage(trace, on_device=True).peak_bytes == 5


STORED = sorted(CORPUS.glob("*.json.gz"))


@pytest.mark.one_in(4)
@pytest.mark.skipif(not STORED, reason="the folder of real traces is not here")
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name.partition(".")[0])
def test_a_real_trace_peaks_as_torch_says(path: Path) -> None:
    """``Total Allocated`` is the allocator's own sum after each event."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    rows = [e["args"] | {"ts": e["ts"]} for e in events if e["name"] == "[memory]"]
    trace = read_trace(path)
    found = {peak.device: peak.peak_bytes for peak in memory_peaks(trace)}
    device = sorted((row for row in rows if row["Device Type"] == 1), key=lambda row: row["ts"])
    assert bool(found) == bool(rows)
    if device:
        start = device[0]["Total Allocated"] - device[0]["Bytes"]
        assert found["cuda:0"] == max(row["Total Allocated"] for row in device) - start
        assert at_peak(trace, "cuda:0").peak_bytes == usage(trace, on_device=True).peak_bytes
