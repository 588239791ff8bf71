"""The metric table: on built traces with known answers, and on traces that others recorded."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.device_time import device_time
from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.core.values import MissingValue, Normalised, Sample, Value
from pytest_torchprof.trace.facts import FACTS_KEY, Facts
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace, read_trace
from pytest_torchprof.verdict.metrics import METRICS, ON_REQUEST, measure, measure_all
from pytest_torchprof.verdict.profile import normalised_of, samples_of
from pytest_torchprof.work.counting import op_flops

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

FROM_EVENTS = [
    "self_cpu_ms",
    "self_cuda_ms",
    "cuda_busy_ms",
    "cuda_idle_ms",
    "flops",
    "ops",
    "dispatches",
    "peak_cpu_bytes",
    "peak_cuda_bytes",
    "allocated_cpu_bytes",
    "allocated_cuda_bytes",
    "leaked_cpu_bytes",
    "leaked_cuda_bytes",
    "kernels",
    "h2d_copies",
    "d2h_copies",
    "h2d_bytes",
    "d2h_bytes",
    "syncs",
    "moved_bytes",
    "collectives",
    "comm_bytes",
    "comm_ms",
    "exposed_comm_ms",
    "host_reads",
]
#: From the allocator's totals, which a capture without device memory lacks.
WHAT = ("peak", "allocated", "leaked")
TOTALS = ["max_cuda_bytes", "max_reserved_cuda_bytes"]
#: Of a device's work, for tests that ask for them.
ESTIMATES = ["launches", "bound_ms", "estimated_cuda_bytes"]
#: From torch's own records of the first run.
COMPILED = [
    "graph_breaks",
    "recompiles",
    "graphs",
    "cudagraphs",
    "cudagraph_skips",
    "compile_cache_hits",
    "compile_cache_misses",
    "compile_ms",
]
FROM_FACTS = ["wall_ms", "cpu_ms", "instructions", *COMPILED]
#: What a file may hold where a sample or a number is due.
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.dictionaries(
        st.sampled_from(["n", "median", "low", "high", "minimum", "wall_ms", "cpu_ms"]), inner
    ),
    max_leaves=8,
)
DEVICE = [n for n, m in METRICS.items() if m.needs & {"device", "device_memory", "calls"}]


def whole(b: TraceBuilder) -> Events:
    return parse_trace(b.to_bytes())


def reasons(values: dict[str, Value]) -> dict[str, str]:
    return {k: v.reason.text for k, v in values.items() if isinstance(v, MissingValue)}


def test_the_table_holds_every_metric_once() -> None:
    assert sorted([*FROM_EVENTS, *TOTALS, *ESTIMATES, *FROM_FACTS, "findings"]) == sorted(METRICS)
    assert all(name == metric.name and metric.help for name, metric in METRICS.items())
    assert {m.klass for m in METRICS.values() if m.unit == "ms" and not m.on_request} == {"time"}
    assert {m.name for m in METRICS.values() if m.tolerance} == {
        *("instructions", "bound_ms", "estimated_cuda_bytes", *TOTALS),
        *(memory := [f"{what}_{where}_bytes" for what in WHAT for where in ("cpu", "cuda")]),
    }
    assert {m.name: m.margin for m in METRICS.values() if m.margin} == dict.fromkeys(memory, 512)
    assert {m.name for m in METRICS.values() if m.on_request} == {*ESTIMATES}
    assert {m.name for m in METRICS.values() if m.depends_on_order} == {*COMPILED}
    assert {m.name for m in METRICS.values() if not m.compared} == {
        *("compile_cache_hits", "compile_cache_misses"),
        *TOTALS,
    }
    assert {m.name for m in METRICS.values() if not m.scopable} == {*FROM_FACTS, "findings"}


# -------------------------------------------------------------------------------- built traces


def step(vendor: str, **more: Any) -> TraceBuilder:
    """A training step with all that metrics count, and as much again outside the region."""
    b = TraceBuilder("Some GPU", vendor=vendor, cuda_sync_events=True, **more)

    def body() -> None:
        with b.op("aten::linear"), b.op("aten::addmm", [[6], [4, 5], [5, 6], [], []]):
            b.launch("gemm", device_us=20)
            kept = b.memory(4096)
        with b.op("aten::bmm", [[2, 4, 5], [2, 5, 6]], dur_us=3):
            scratch = b.memory(1 << 20)
            b.launch("bgemm", driver=True, stream=20)
            b.free(scratch)
        with b.op("aten::to"), b.op("aten::copy_"):
            b.memcpy("HtoD", 4096)
            b.memcpy("HtoD", 96, pageable=False)
            b.memcpy("DtoH", 8, blocking=True)
            b.memcpy("DtoD", 16, device_us=0)
            b.memset(512)
        with b.thread(99), b.op("MmBackward0"), b.op("aten::mm", [[4, 5], [5, 6]]):
            b.launch("back", stream=20, device_us=3)
            host = b.memory(64, device="cpu")
        b.free(host)
        b.memory(32, device="cpu")
        b.graph_launch(["copy_1", "copy_2", "copy_3"], device_us=2)
        b.sync("cudaEventSynchronize", wait_us=7)
        b.sync("cudaStreamSynchronize")
        b.free(kept)
        b.memory(128)
        b.sync("cudaDeviceSynchronize")

    body()
    with b.annotation(REGION):
        body()
    body()
    return b


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
@pytest.mark.parametrize("external", ["op", "correlation", "none"])
def test_every_metric_equals_what_was_built(vendor: str, external: str) -> None:
    b = step(vendor, external=external, start_bytes={"cuda": 5000})
    values = measure_all(whole(b))
    known = b.expected
    moved = values.pop("moved_bytes")  # the copy's operands are unknown
    assert isinstance(moved, MissingValue)
    assert moved.at_hand == 4 * (6 + 20 + 30 + 24) + 4 * (40 + 60 + 48) + 4 * (20 + 30 + 24)
    assert {name: values[name] for name in FROM_EVENTS if name in values and "_ms" not in name} == {
        "flops": 240 + 480 + 240,
        "ops": len(("addmm", "bmm", "copy_", "mm")),
        "dispatches": known.ops,
        "kernels": known.kernels,
        "syncs": known.syncs + known.blocking_copies,
        "h2d_copies": known.h2d_copies,
        "h2d_bytes": known.h2d_bytes,
        "d2h_copies": known.d2h_copies,
        "d2h_bytes": known.d2h_bytes,
        "collectives": 0,
        "comm_bytes": 0,
        "host_reads": 0,
        **{
            f"{metric}_{device}_bytes": getattr(known.memory[device], size)
            for device in ("cpu", "cuda")
            for metric, size in (("peak", "peak"), ("allocated", "allocated"), ("leaked", "live"))
        },
    }
    assert (known.ops, known.kernels, known.h2d_copies, known.h2d_bytes) == (7, 6, 2, 4192)
    assert values["self_cuda_ms"] == known.device_us_total / 1000
    assert values["syncs"] == 4
    assert values["max_cuda_bytes"] == 5000 + 128 + known.memory["cuda"].peak


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_the_rows_of_operators_add_up_to_the_metrics(vendor: str) -> None:
    from pytest_torchprof.analysis.operators import kernel_totals, op_rows

    trace = whole(step(vendor))
    rows, values = op_rows(trace), measure_all(trace)
    assert {name: row.kernels for name, row in rows.items() if row.kernels} == {
        "aten::addmm": 1,
        "aten::bmm": 1,
        "aten::mm": 1,
        "(no operator)": 3,
    }
    assert {name: row.flops for name, row in rows.items() if row.flops} == {
        "aten::addmm": 240,
        "aten::bmm": 480,
        "aten::mm": 240,
    }
    for attribute in ("kernels", "flops"):
        assert sum(getattr(row, attribute) for row in rows.values()) == values[attribute]
    assert sum(row.self_cuda_ns for row in rows.values()) / 1e6 == values["self_cuda_ms"]
    for place in ("cpu", "cuda"):
        for what in ("allocated", "peak", "leaked"):
            name = f"{what}_{place}_bytes"
            assert sum(getattr(row, name) for row in rows.values()) == values[name]
    found = kernel_totals(trace)
    assert found["copy_1"] == (1, 2000)
    assert found["Memset (Device)"] == (1, 2000)
    assert sum(total for _, total in found.values()) / 1e6 == values["self_cuda_ms"]
    assert all(type(n) is int for pair in found.values() for n in pair)


def test_self_cpu_time_is_what_nested_calls_leave() -> None:
    b = TraceBuilder("GPU")
    with b.annotation(REGION):
        with b.op("outer", dur_us=100), b.op("inner", dur_us=30):
            b.launch("k", host_us=7)
        b.op("next", dur_us=5)
    b.op("after", dur_us=50)
    assert measure(METRICS["self_cpu_ms"], whole(b)) == 0.105


def test_busy_is_a_union_and_idle_its_gaps() -> None:
    events = device_events((0, 0, 10), (0, 5, 10), (0, 20, 5), (0, 21, 1))
    trace = parse_trace(json.dumps(events).encode())
    assert device_time(trace).self_ns == 26_000
    assert device_time(trace).busy_ns == 20_000
    assert device_time(trace).idle_ns == 5_000


def test_busy_and_idle_are_taken_per_device() -> None:
    """Two devices that work at the same time are busy for both times."""
    events = device_events((0, 0, 10), (1, 0, 10), (0, 20, 10), (1, 30, 10))
    for args in (True, False):
        kept = [e if args else {**e, "args": {}} for e in events]
        trace = parse_trace(json.dumps(kept).encode())
        assert device_time(trace).busy_ns == 40_000
        assert device_time(trace).idle_ns == 10_000 + 20_000


def device_events(*intervals: tuple[int, int, int]) -> list[dict[str, Any]]:
    return [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": device, "tid": 7, "ts": ts, "dur": dur,
         "args": {"device": device, "correlation": i + 1}}
        for i, (device, ts, dur) in enumerate(intervals)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("cudaDeviceSynchronize", True),
        ("cudaStreamSynchronize", True),
        ("cudaStreamSynchronize_ptsz", True),
        ("cudaEventSynchronize", True),
        ("hipDeviceSynchronize", True),
        ("hipStreamSynchronize", True),
        ("hipEventSynchronize", True),
        ("cuCtxSynchronize", True),
        ("cudaMemcpy", True),
        ("cudaMemcpy2D", True),
        ("hipMemcpyWithStream", True),
        ("hipMemcpyDtoH", True),
        ("cudaMemcpyAsync", False),
        ("cudaMemcpy2DAsync", False),
        ("hipMemcpyAsync", False),
        ("hipMemcpyDtoHAsync", False),
        ("cudaStreamWaitEvent", False),
        ("cudaEventQuery", False),
        ("cudaLaunchKernel", False),
        ("cudaMalloc", False),
        ("cudaMemsetAsync", False),
    ],
)
def test_which_calls_wait_for_the_device(name: str, waits: bool) -> None:
    event = {"ph": "X", "cat": "cuda_runtime", "name": name, "ts": 1, "dur": 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}
    assert measure(METRICS["syncs"], parse_trace(json.dumps([event, kernel]).encode())) == int(
        waits
    )


# -------------------------------------------------------------------------- zeros, and no values


def test_a_region_without_operators_is_a_true_zero() -> None:
    for device in (None, "GPU"):
        b = TraceBuilder(device)
        b.metadata(FACTS_KEY, {"accelerator": device})
        b.op("before")
        with b.annotation(REGION):
            b.advance(5)
        values = measure_all(whole(b))
        measured = {k for k, v in values.items() if not isinstance(v, MissingValue)}
        wanted = set(FROM_EVENTS) - (set() if device else set(DEVICE))
        assert measured == wanted | {"findings"}
        assert {values[k] for k in wanted} == {0}


def test_facts_without_the_region_are_a_failed_capture() -> None:
    b = TraceBuilder("GPU")
    b.metadata(FACTS_KEY, {"accelerator": "GPU", "wall_ms": {"median": 3.0}})
    with b.op("aten::mm", [[4, 5], [5, 6]]):
        b.launch("k")
    values = measure_all(whole(b))
    assert set(reasons(values).values()) == {because(*Why.NO_REGION).text}
    assert len(reasons(values)) == len(METRICS) - len(ESTIMATES)


def test_facts_are_values_or_reasons() -> None:
    b = TraceBuilder()
    facts = {
        "wall_ms": {"median": 1.5},
        "cpu_ms": {"code": "no_rounds", "text": "no rounds"},
        "instructions": None,
        "graph_breaks": 0,
    }
    b.metadata(FACTS_KEY, facts)
    with b.annotation(REGION):
        pass
    values = measure_all(whole(b))
    assert {k: values[k] for k in facts} == {
        "wall_ms": 1.5,
        "cpu_ms": MissingValue(because("no_rounds", "no rounds")),
        "instructions": MissingValue(because(*Why.ONLY_LIVE)),
        "graph_breaks": 0,
    }


@pytest.mark.parametrize("rows", [None, "junk", [{"reason": "a"}, {"reason": 3}]])
def test_compilations_with_unreadable_rows_do_not_count_as_0(rows: object) -> None:
    b = TraceBuilder()
    facts = {"graph_breaks": 2, "recompiles": 2, "breaks": rows, "recompilations": rows}
    b.metadata(FACTS_KEY, facts)
    with b.annotation(REGION):
        pass
    values = measure_all(whole(b))
    unknown = MissingValue(because(*Why.ONLY_LIVE))
    assert (unknown, unknown) == (values["graph_breaks"], values["recompiles"])


def test_facts_of_several_rounds_are_samples_and_multiples() -> None:
    """The value is the median; what makes no sense in a file is no sample."""
    rounds = {"n": 3, "median": 2.0, "low": 1.5, "high": 2.5, "minimum": 1.0}
    counted = {**rounds, "median": 10.0**9 + 0.5}
    reference = {"wall_ms": 0.25, "cpu_ms": 0.5, "n": 9, "conditions": "reference 1"}
    b = TraceBuilder()
    facts = {"wall_ms": rounds, "cpu_ms": rounds, "instructions": counted, "reference": reference}
    b.metadata(FACTS_KEY, facts)
    with b.annotation(REGION):
        pass
    trace = whole(b)
    values = measure_all(trace)
    assert [values[k] for k in ("wall_ms", "cpu_ms", "instructions")] == [2.0, 2.0, 10**9]
    assert isinstance(values["instructions"], int)
    assert samples_of(trace)["wall_ms"] == Sample(3, 2.0, 1.5, 2.5, 1.0)
    expected = Normalised({"wall_ms": 4.0, "cpu_ms": 2.0}, 3, 0.25, "reference 1", kernel_ms=0.5)
    assert normalised_of(trace.facts) == expected


@pytest.mark.thorough
@given(st.dictionaries(st.sampled_from(Facts.__struct_fields__), JUNK))
def test_nothing_in_the_facts_of_a_file_causes_an_error(facts: dict[str, Any]) -> None:
    b = TraceBuilder()
    b.metadata(FACTS_KEY, facts)
    with b.annotation(REGION):
        pass
    trace = whole(b)
    assert samples_of(trace).keys() <= {"wall_ms", "cpu_ms", "instructions"}
    assert normalised_of(trace.facts) is None or "wall_ms" in samples_of(trace)
    assert measure_all(trace).keys() >= METRICS.keys() - {*ON_REQUEST}


def test_without_a_device_there_are_no_device_metrics() -> None:
    b = TraceBuilder()
    with b.annotation(REGION), b.op("aten::mm", [[4, 5], [5, 6]]):
        b.memory(64, device="cpu")
    values = measure_all(whole(b))
    assert {k for k, v in reasons(values).items() if v == because(*Why.NO_DEVICE).text} == {
        *DEVICE,
        "cudagraphs",
    }
    assert (values["ops"], values["flops"], values["peak_cpu_bytes"]) == (1, 240, 64)


def test_lost_kernel_records_leave_the_count_unknown() -> None:
    b = TraceBuilder("GPU")
    with b.annotation(REGION), b.op("aten::mm"):
        b.launch("k1")
        b.launch("k2", record_kernel=False)
        b.launch("k3", record_kernel=False)
    values = measure_all(whole(b))
    events = [name for name in DEVICE if "device" in METRICS[name].needs]
    assert {"partial capture" in reasons(values)[name] for name in events} == {True}
    assert "2 of 3 launches" in reasons(values)["kernels"]
    assert values["ops"] == 1


def test_launches_outside_the_region_may_lack_their_records() -> None:
    b = TraceBuilder("GPU")
    b.launch("before", record_kernel=False)
    with b.annotation(REGION):
        b.launch("k")
    assert measure(METRICS["kernels"], whole(b)) == 1


@pytest.mark.parametrize(("recorded", "expected"), [(False, None), (True, 1)])
def test_a_trace_of_another_tool_may_cut_a_launch_off(recorded: bool, expected: int | None) -> None:
    """Its window ends somewhere; but launches and no kernels at all are a failed capture."""
    b = TraceBuilder("GPU")
    b.launch("k1", record_kernel=recorded)
    b.launch("k2", record_kernel=False)
    value = measure(METRICS["kernels"], whole(b))
    assert (None if isinstance(value, MissingValue) else value) == expected


def test_launches_that_a_graph_captures_have_no_records() -> None:
    b = TraceBuilder("GPU")
    with b.annotation(REGION):
        b.runtime("cudaStreamBeginCapture")
        b.launch("captured", record_kernel=False)
        b.runtime("cudaStreamEndCapture")
        b.graph_launch(["captured"])
    assert measure(METRICS["kernels"], whole(b)) == 1
    with b.annotation(REGION):
        b.launch("lost", record_kernel=False)
    assert isinstance(measure(METRICS["kernels"], whole(b)), MissingValue)


@pytest.mark.parametrize("recorded_for", [1, 2])
def test_a_launch_within_a_launch_is_one(recorded_for: int) -> None:
    calls = [
        {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": {"correlation": i}}
        for i, (cat, name, ts, dur) in enumerate(
            [("cuda_runtime", "cudaLaunchKernel", 10, 9), ("cuda_driver", "cuLaunchKernel", 12, 3)],
            1,
        )
    ]
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 30, "dur": 1}
    kernel["args"] = {"correlation": recorded_for}
    region = {"ph": "X", "cat": "user_annotation", "name": REGION, "ts": 1, "dur": 99}
    trace = parse_trace(json.dumps([region, *calls, kernel]).encode())
    assert measure(METRICS["kernels"], trace) == 1


def test_operators_without_shapes_have_no_flops() -> None:
    b = TraceBuilder()
    with b.annotation(REGION):
        b.op("aten::mm")
    assert "record_shapes" in reasons(measure_all(whole(b)))["flops"]


def test_without_memory_events_there_are_no_bytes() -> None:
    b = TraceBuilder("GPU")
    with b.annotation(REGION):
        b.launch("k")
    trace = parse_trace(b.to_bytes("no_properties"))
    wanted = {
        name
        for name, metric in METRICS.items()
        if "memory" in metric.needs and not metric.on_request
    }
    found = reasons(measure_all(trace))
    assert {k for k in found if "profile_memory" in found[k]} == wanted
    b.metadata(
        FACTS_KEY,
        {
            "accelerator": "GPU",
            "no_memory": {"code": "threads", "text": "all threads were profiled"},
        },
    )
    found = reasons(measure_all(whole(b)))
    assert {k for k in found if found[k] == "all threads were profiled"} == wanted


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"op": "aten::addmm"}, (1, 1, 1, 240, 0, 4096)),
        ({"op": "aten::linear"}, (1, 2, 1, 240, 0, 4096)),
        ({"op": "aten::bmm"}, (1, 1, 1, 480, 0, 1 << 20)),
        ({"op": "aten::copy_"}, (1, 1, 0, 0, 4192, 0)),
    ],
)
def test_metrics_of_a_part(part: dict[str, str], expected: tuple[int, ...]) -> None:
    view = whole(step("nvidia")).within(**part)
    names = ("ops", "dispatches", "kernels", "flops", "h2d_bytes", "allocated_cuda_bytes")
    assert tuple(measure(METRICS[name], view) for name in names) == expected


# ------------------------------------------------------------------------- traces of real devices

REAL = [
    "a100_alexnet",
    "a100_sam_compiled",
    "h100_bert_inference",
    "h100_vit_inference",
    "mi300_vllm_graph_replay",
    "v100_dlrm_rank0",
    "v100_dlrm_rank1",
]


def real(name: str) -> Path:
    path = CORPUS / f"{name}.pt.trace.json.gz"
    if not path.exists():
        pytest.skip(f"no real traces: {path.parent} has no {path.name}")
    return path


def raw_count(path: Path) -> dict[str, Decimal | int]:
    """The same numbers, counted over the JSON as plainly as can be."""
    text = gzip.decompress(path.read_bytes())
    events = json.loads(text, parse_float=Decimal)["traceEvents"]
    device = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    copies = [e for e in device if e["cat"] == "gpu_memcpy"]
    calls = Counter(e["name"] for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver"))
    # On ROCm, the call knows which way a copy of pinned memory went.
    ways = {
        e["args"]["correlation"]: {"1": "HtoD", "2": "DtoH"}.get(e["args"].get("kind"), "")
        for e in events
        if e.get("cat") == "cuda_runtime" and "correlation" in e.get("args", {})
    }
    went = {id(e): e["name"] + ways.get(e["args"]["correlation"], "") for e in copies}
    (number,) = {e["args"]["device"] for e in device}
    assert {e["pid"] for e in device} == {number}
    busy = reached = Decimal(0)
    for e in sorted(device, key=lambda e: e["ts"]):
        end = e["ts"] + e["dur"]
        busy += max(end - max(e["ts"], reached), 0)
        reached = max(reached, end)
    span = reached - min(e["ts"] for e in device)
    waits = ("DeviceSynchronize", "StreamSynchronize", "EventSynchronize")
    return {
        "dispatches": sum(e.get("cat") == "cpu_op" for e in events),
        "kernels": sum(e["cat"] == "kernel" for e in device),
        "self_cuda_ms": sum(e["dur"] for e in device) / 1000,
        "cuda_busy_ms": busy / 1000,
        "cuda_idle_ms": (span - busy) / 1000,
        "h2d_copies": sum("HtoD" in went[id(e)] for e in copies),
        "d2h_copies": sum("DtoH" in went[id(e)] for e in copies),
        "h2d_bytes": sum(e["args"]["bytes"] for e in copies if "HtoD" in went[id(e)]),
        "d2h_bytes": sum(e["args"]["bytes"] for e in copies if "DtoH" in went[id(e)]),
        "syncs": sum(n for name, n in calls.items() if re.sub(r"^(cuda|hip)", "", name) in waits),
    }


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", REAL)
def test_real_traces_equal_a_plain_count(name: str) -> None:
    path = real(name)
    values, known = measure_all(read_trace(path)), raw_count(path)
    for metric, value in known.items():
        assert values[metric] == float(value), metric


def test_known_answers_of_the_sam_trace() -> None:
    values = measure_all(read_trace(real("a100_sam_compiled")))
    assert (values["d2h_copies"], values["kernels"]) == (132, 1414)
    assert values["syncs"] == 186 + 1  # of streams, and of the device at the profiler's end


def flops_by(trace: Events, *patterns: str) -> float:
    """GFLOP of the operators whose name holds one of these."""
    chosen = trace.names_where(lambda name: any(p in name for p in patterns))
    return float(op_flops(trace)[chosen].sum()) / 1e9


@pytest.mark.parametrize(
    ("name", "gemm", "attention", "convolution", "busy_ms"),
    [
        ("h100_bert_inference", 8.036, 0.163, 0, 0.309),
        ("h100_vit_inference", 133.927, 5.723, 0.925, 1.225),
    ],
)
def test_flops_of_real_traces_are_those_of_another_tool(
    name: str, gemm: float, attention: float, convolution: float, busy_ms: float
) -> None:
    """TraceLens's reference tables; it counts the bias adds of addmm too."""
    trace = read_trace(real(name))
    assert flops_by(trace, "mm") == pytest.approx(gemm, rel=0.01)
    assert flops_by(trace, "attention") == pytest.approx(attention, rel=0.01)
    assert flops_by(trace, "conv") == pytest.approx(convolution, rel=0.01)
    total = measure(METRICS["flops"], trace)
    assert total == pytest.approx(1e9 * (gemm + attention + convolution), rel=0.01)
    assert measure(METRICS["cuda_busy_ms"], trace) == pytest.approx(busy_ms, rel=0.01)


def test_no_shapes_in_a_real_trace() -> None:
    values = measure_all(read_trace(real("a100_alexnet")))
    assert "record_shapes" in reasons(values)["flops"]
    assert "profile_memory" in reasons(values)["peak_cuda_bytes"]


def test_every_launch_of_real_traces_has_its_kernel() -> None:
    from pytest_torchprof.analysis.missing import lost_launches

    for name in REAL:
        launches, lost = lost_launches(read_trace(real(name)))
        assert launches > 0
        assert lost == 0
