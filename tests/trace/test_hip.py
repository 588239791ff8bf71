"""Copies between pinned memory and an AMD device, which ROCm records as within the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.kernels import kernel_rows
from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.read import parse_trace, read_trace
from pytest_torchprof.verdict.metrics import measure_all

if TYPE_CHECKING:
    from support.trace_styles import Event

WITHIN = "Memcpy DtoD (Device -> Device)"
MOVE = ("aten::to", "aten::_to_copy", "aten::copy_")


def as_within(document: Event) -> Event:
    """As ROCm has it: only the call knows."""
    for event in document["traceEvents"]:
        if event.get("cat") == "gpu_memcpy":
            event["name"], event["args"]["kind"] = WITHIN, "DtoD"
    return document


def kinds(of: dict[str, Any]) -> Any:
    """Calls that say another kind."""

    def change(document: Event) -> Event:
        for event in document["traceEvents"]:
            kind = event.get("args", {}).get("kind")
            if str(event.get("name")).startswith("hipMemcpy") and kind in of:
                event["args"]["kind"] = of[kind]
        return document

    return change


def copies() -> TraceBuilder:
    b = TraceBuilder("AMD Instinct MI300X", (9, 4), vendor="amd")
    b.memcpy("HtoD", 4096, pageable=False)
    b.memcpy("HtoD", 100, pageable=False)
    b.memcpy("DtoH", 64, pageable=False)
    b.memcpy("DtoD", 7)
    return b


NUMBERS = ("h2d_copies", "h2d_bytes", "d2h_copies", "d2h_bytes")


@pytest.mark.parametrize(
    "written",
    [{}, {"1": 1, "2": 2}, {"1": "hipMemcpyHostToDevice", "2": "hipMemcpyDeviceToHost"}],
)
def test_the_call_gives_the_direction(written: dict[str, Any]) -> None:
    trace = parse_trace(copies().to_bytes([as_within, kinds(written)]))
    values = measure_all(trace)
    assert tuple(values[name] for name in NUMBERS) == (2, 4196, 1, 64)
    assert {row.kernel: row.calls for row in kernel_rows(trace)} == {
        "Memcpy HtoD (Host -> Device)": 2,
        "Memcpy DtoH (Device -> Host)": 1,
        WITHIN: 1,
    }


@pytest.mark.parametrize("unknown", ["4", 0, None, "", [], "hipMemcpyDefault"])
def test_an_uninformative_kind_leaves_the_name_unchanged(unknown: object) -> None:
    change = kinds({"1": unknown, "2": unknown})
    values = measure_all(parse_trace(copies().to_bytes([as_within, change])))
    assert tuple(values[name] for name in NUMBERS) == (0, 0, 0, 0)


def test_on_cuda_the_name_decides() -> None:
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    b.memcpy("DtoD", 7)
    assert measure_all(parse_trace(b.to_bytes()))["h2d_copies"] == 0


def test_rules_see_which_way_such_copies_went() -> None:
    b = TraceBuilder("AMD Instinct MI300X", (9, 4), vendor="amd")
    shape = [[64, 64], [64, 64]]
    other = [[32, 32], [32, 32]]  # a batch; of one size, the next could be the second copy
    b.op("aten::randn", [[], [32, 32]], ["ScalarList", "float"])
    with b.op(MOVE[0], other), b.op(MOVE[1], other), b.op(MOVE[2], other):
        b.memcpy("HtoD", 4096, pageable=False)
    with b.op(MOVE[0], shape), b.op(MOVE[1], shape), b.op(MOVE[2], shape):
        b.memcpy("DtoH", 16384, pageable=False)
        b.sync("cudaStreamSynchronize")
    with b.op(MOVE[0], shape), b.op(MOVE[1], shape), b.op(MOVE[2], shape):
        b.memcpy("HtoD", 16384, pageable=False)
    b.launch("k")
    rules = [RULES[code] for code in ("host-sync", "copy-round-trip")]
    found = check(parse_trace(b.to_bytes(as_within)), rules)
    assert found.counts == {"host-sync": 1, "copy-round-trip": 1}
    (wait,) = (one for one in found.findings() if one.rule == "host-sync")
    assert wait.bytes == 16384


def test_a_real_trace_of_an_mi300_has_eight_copies_to_the_device() -> None:
    path = CORPUS / "mi300_vllm_graph_replay.pt.trace.json.gz"
    if not path.exists():
        pytest.skip(f"no real traces: {path.parent} has no {path.name}")
    values = measure_all(read_trace(path))
    assert tuple(values[name] for name in NUMBERS) == (8, 27428, 0, 0)


def test_kernels_of_rocm_before_2024_have_their_calls_and_operators() -> None:
    b = TraceBuilder("AMD Instinct MI250X", (9, 0), vendor="amd")
    for _ in range(3):
        with b.op("aten::mm", [[64, 64], [64, 64]]):
            b.launch("Cijk_Ailk_Bljk_SB")
    new, old = parse_trace(b.to_bytes()), parse_trace(b.to_bytes("roctracer"))
    assert old.launch.tolist() == new.launch.tolist()
    assert (old.launch[old.device_rows] >= 0).all()
