"""The highest totals of the device's allocator, in traces with known answers."""

from __future__ import annotations

import json

from support.trace_builder import TraceBuilder

from pytest_torchprof.core.unknown import because
from pytest_torchprof.core.values import MissingValue, Value
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.metrics import METRICS, measure, measure_all

MIB = 2**20


def highest(b: TraceBuilder) -> list[Value]:
    trace = parse_trace(b.to_bytes())
    return [measure(METRICS[name], trace) for name in ("max_cuda_bytes", "max_reserved_cuda_bytes")]


def test_totals_include_what_was_live_before_the_region() -> None:
    b = TraceBuilder("GPU", start_bytes={"cuda": 5 * MIB})
    before = b.memory(3 * MIB)
    with b.annotation(REGION):
        kept = b.memory(2 * MIB)
        b.free(kept)
        b.free(before)
        b.memory(MIB)
    b.memory(64 * MIB)  # after the region
    assert [10 * MIB, 10 * MIB] == highest(b)


def test_what_is_live_at_the_start_may_be_the_most() -> None:
    b = TraceBuilder("GPU", start_bytes={"cuda": 5 * MIB})
    before = b.memory(3 * MIB)
    with b.annotation(REGION):
        b.free(before)
    assert 8 * MIB == highest(b)[0]


def test_without_an_earlier_event_the_level_before_the_first_one_counts() -> None:
    b = TraceBuilder("GPU", start_bytes={"cuda": 7 * MIB})
    with b.annotation(REGION):
        address = b.memory(MIB)
    b.free(address)
    assert 8 * MIB == highest(b)[0]


def test_the_level_is_known_from_events_outside_the_region() -> None:
    b = TraceBuilder("GPU", start_bytes={"cuda": 7 * MIB})
    b.memory(MIB)
    with b.annotation(REGION):
        b.advance(5)
    assert [8 * MIB, 8 * MIB] == highest(b)


def test_of_reserved_memory_only_the_level_after_an_event_is_known() -> None:
    b = TraceBuilder("GPU", start_bytes={"cuda": 7 * MIB})
    with b.annotation(REGION):
        b.advance(5)
    b.memory(MIB)
    assert [7 * MIB, 8 * MIB] == highest(b)


def test_without_any_event_the_level_is_unknown() -> None:
    b = TraceBuilder("GPU")
    b.metadata("profile_memory", 1)
    with b.annotation(REGION), b.op("aten::mm", [[4, 5], [5, 6]]):
        b.launch("gemm")
    assert [
        MissingValue(
            because(
                "no_memory_totals",
                (
                    "no totals of device memory in this capture: torch records them with each "
                    "allocation and free, and old versions not at all"
                ),
            )
        )
    ] * 2 == highest(b)


def test_the_highest_total_is_the_start_and_the_peak_above_it() -> None:
    b = TraceBuilder("GPU", start_bytes={"cuda": 5 * MIB})
    with b.annotation(REGION):
        for size in (MIB, 3 * MIB, 2 * MIB):
            b.free(b.memory(size))
        b.memory(512)
    values = measure_all(parse_trace(b.to_bytes()))
    assert values["max_cuda_bytes"] == 5 * MIB + values["peak_cuda_bytes"]  # type: ignore[operator]


def test_totals_of_several_devices_are_added() -> None:
    b = TraceBuilder("GPU")
    with b.annotation(REGION):
        b.memory(MIB)
        b.memory(2 * MIB)
    document = b.document()
    moves = [e for e in document["traceEvents"] if e["name"] == "[memory]"]
    moves[1]["args"] |= {"Device Id": 1, "Total Allocated": 2 * MIB, "Total Reserved": 20 * MIB}
    trace = parse_trace(json.dumps(document).encode())
    assert 3 * MIB == measure(METRICS["max_cuda_bytes"], trace)
    assert 22 * MIB == measure(METRICS["max_reserved_cuda_bytes"], trace)
