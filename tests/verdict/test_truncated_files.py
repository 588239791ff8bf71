"""What a file that breaks off among its events says about the whole trace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.core.unknown import because
from pytest_torchprof.core.values import MissingValue, Sample, Value
from pytest_torchprof.trace.facts import FACTS_KEY, Facts, Quantity
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.metrics import METRICS, measure_all

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Say

ENDS = because("file_ends", "the file breaks off among its events").text
#: What each further event can only raise.
COUNTS = ["flops", "ops", "dispatches", "allocated_cpu_bytes", "allocated_cuda_bytes", "kernels",
          "h2d_copies", "h2d_bytes", "d2h_copies", "d2h_bytes", "syncs", "moved_bytes"]  # fmt: skip


def traced() -> TraceBuilder:
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    b.metadata("profile_memory", 1)
    with b.op("aten::mm", [[8, 8], [8, 8]]):
        b.memory(256, "cpu")
        b.memory(512)
        b.launch("gemm")
    b.memcpy("HtoD", 64)
    b.memcpy("DtoH", 64)
    b.sync("cudaDeviceSynchronize")
    return b


def cut_at(b: TraceBuilder, marker: str) -> bytes:
    """The file up to the middle of the last event of this name."""
    b.launch(marker)
    whole = b.to_bytes()
    return whole[: whole.rindex(f'"{marker}"'.encode())]


def values_of(text: bytes) -> dict[str, Value]:
    trace = parse_trace(text)
    assert trace.cut
    return measure_all(trace)


def missing(value: Value) -> MissingValue:
    assert isinstance(value, MissingValue)
    return value


def test_counts_of_a_truncated_file_are_lower_bounds() -> None:
    whole, part = measure_all(parse_trace(traced().to_bytes())), values_of(cut_at(traced(), "end"))
    for name in COUNTS:
        value = missing(part[name])
        assert (whole[name], True) == (value.at_hand, value.at_least), name
        assert value.reason.text.startswith("at least "), name
        assert value.reason.text.endswith(ENDS), name


def test_times_peaks_and_findings_of_a_truncated_file_are_not_measured() -> None:
    part = values_of(cut_at(traced(), "end"))
    usual = [m for m in METRICS.values() if not m.on_request]
    others = {metric.name for metric in usual if metric.of_region} - {*COUNTS}
    assert {"self_cpu_ms", "cuda_idle_ms", "peak_cpu_bytes", "leaked_cuda_bytes"} <= others
    for name in others:
        value = missing(part[name])
        assert (None, False) == (value.at_hand, value.at_least), name
        assert ENDS in value.reason.text, name


def test_a_count_of_0_in_a_truncated_file_is_no_lower_bound() -> None:
    b = TraceBuilder("GPU")
    b.op("aten::view", [[4]])
    b.op("aten::view", [[4]])
    part = values_of(cut_at(b, "end"))
    flops = missing(part["flops"])
    assert (None, False, ENDS) == (flops.at_hand, flops.at_least, flops.reason.text)


def test_a_lower_bound_of_a_truncated_file_has_both_reasons() -> None:
    b = traced()
    b.kernel_without_runtime("my_kernel")
    flops = missing(values_of(cut_at(b, "end"))["flops"])
    assert (1024, True) == (flops.at_hand, flops.at_least)
    text = flops.reason.text
    assert text.startswith("at least 1.02 kFLOP: my_kernel (1 call")
    assert text.endswith(f"; {ENDS}")


def test_launches_whose_kernels_a_truncated_file_lacks_are_no_failed_capture() -> None:
    b = TraceBuilder("GPU")
    with b.op("aten::mm", [[8, 8], [8, 8]]):
        pass
    kernels = missing(values_of(cut_at(b, "end"))["kernels"])
    assert kernels.at_hand is None
    assert kernels.reason.text.endswith("or the file breaks off before it")


def test_timed_rounds_of_a_truncated_live_trace_are_known() -> None:
    b = TraceBuilder("GPU")
    with b.annotation(REGION):
        b.op("aten::view", [[4]])
    rounds = Quantity.of(Sample.of([1.0, 2.0, 3.0]))
    noted = json.loads(Facts(wall_ms=rounds).stored())
    b.metadata(FACTS_KEY, noted)
    text = cut_at(b, "end")
    head = text.index(b'"traceEvents"')
    first = f'"{FACTS_KEY}": {json.dumps(noted)}, '.encode()
    assert 2.0 == values_of(text[:head] + first + text[head:])["wall_ms"]


def test_a_file_without_its_end_alone_has_all_events() -> None:
    whole = traced().to_bytes()
    trace = parse_trace(whole[: whole.rindex(b"]") + 1])
    assert not trace.cut
    assert measure_all(trace)["ops"] == 1


@pytest.mark.parametrize("command", ["summary", "memory"])
def test_commands_say_that_a_truncated_file_is_a_part(
    say: Say, tmp_path: Path, command: str
) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(cut_at(traced(), "end"))
    status, out, _ = say(command, path)
    assert 0 == status
    texts = {"summary": ENDS, "memory": "the file is truncated: peaks are those of its part"}
    assert texts[command] in out
    assert "no peak" not in out
