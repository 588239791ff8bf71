"""Real traces of others: what we count equals a plain count over the JSON.

The traces are those of the folder in ``TORCHPROF_TRACE_CORPUS``, however many, and what its folders
hold; without it, those of ``../shared/traces``.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.real_traces import CORPUS

from pytest_torchprof.analysis.operators import OpRow, kernel_totals, op_rows
from pytest_torchprof.analysis.uncounted import uncounted_flops
from pytest_torchprof.core.errors import TraceError
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.trace.read import read_trace
from pytest_torchprof.verdict.metrics import measure_all
from pytest_torchprof.work.counting import op_flops

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

PATHS = sorted(p for p in CORPUS.rglob("*") if p.name.endswith((".json", ".json.gz")))

pytestmark = pytest.mark.skipif(
    not PATHS, reason="no real traces: neither TORCHPROF_TRACE_CORPUS nor ../shared/traces has any"
)


class Plain:
    """The count: loops over dictionaries, in exact decimals, and nothing of ours."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        document = json.loads(text, parse_float=Decimal)
        self.ops: Counter[str] = Counter()
        self.kernels: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.self_us = self.busy_us = Decimal(0)
        self.events = 0
        spans: dict[int, list[tuple[Decimal, Decimal]]] = {}
        events = document if isinstance(document, list) else document["traceEvents"]
        # On ROCm, the call knows which way a copy of pinned memory went.
        self.ways = {
            event["args"].get("correlation"): {"1": "HtoD", "2": "DtoH"}.get(str(kind))
            for event in events
            if (kind := (event.get("args") or {}).get("kind")) is not None
            and str(event.get("name")).startswith("hipMemcpy")
        }
        for event in events:
            if event.get("ph") != "X":
                continue
            category, name = (event.get("cat") or "").lower(), event.get("name") or ""
            if category in {"cpu_op", "operator"}:
                self.ops[name] += 1
            if category in {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}:
                self._device(event, category, name, spans)
        for intervals in spans.values():
            end = Decimal(0)
            for start, stop in sorted(intervals):
                self.busy_us += max(stop - max(start, end), Decimal(0))
                end = max(end, stop)

    def _device(self, event: Any, category: str, name: str, spans: Any) -> None:
        args = event.get("args") or {}
        start, lasting = Decimal(event["ts"]), Decimal(event.get("dur") or 0)
        self.events += 1
        self.self_us += lasting
        spans.setdefault(int(args.get("device", event["pid"])), []).append((start, start + lasting))
        if category == "kernel":
            self.kernels[name] += 1
        if category in {"gpu_memcpy", "memcpy"}:
            name = self.ways.get(args.get("correlation")) or name
            for way, marks in (("h2d", ("HtoD", "HostToDevice")), ("d2h", ("DtoH", "DeviceToH"))):
                if any(mark in name for mark in marks):
                    self.copies[way] += 1
                    self.bytes[way] += int(args.get("bytes", -(2**60)))


def loaded(path: Path) -> tuple[Events, Plain]:
    """Both counts of one file; a file that is none for either is skipped."""
    try:
        plain = Plain(path)
    except (ValueError, KeyError, AttributeError) as error:
        with pytest.raises(TraceError, match="not a"):
            read_trace(path)
        pytest.skip(f"no Chrome trace: {error!r:.100}")
    return read_trace(path), plain


@pytest.mark.one_in(4)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_counts_equal_a_plain_count_over_the_json(path: Path) -> None:
    trace, plain = loaded(path)
    values, rows = measure_all(trace), op_rows(trace)
    assert values["dispatches"] == plain.ops.total()
    calls = {name: row.calls for name, row in rows.items() if name in plain.ops}
    assert {n: calls[n] for n in plain.ops} == annotated(trace, plain.ops, rows)
    if not plain.events:  # then it is unknown, or truly nothing
        assert isinstance(values["kernels"], MissingValue) or values["kernels"] == 0
        return
    assert values["kernels"] == plain.kernels.total()
    by_name = {
        name: count for name, (count, _) in kernel_totals(trace).items() if name in plain.kernels
    }
    assert by_name == dict(plain.kernels)
    for way in ("h2d", "d2h"):
        assert values[f"{way}_copies"] == plain.copies[way]
        size = values[f"{way}_bytes"]
        assert size == plain.bytes[way] if plain.bytes[way] >= 0 else isinstance(size, MissingValue)
    within = 1e-6 * plain.events if finer_than_ns(plain) else 0.0
    assert values["self_cuda_ms"] == pytest.approx(float(plain.self_us) / 1000, 1e-9, within)
    assert values["cuda_busy_ms"] == pytest.approx(float(plain.busy_us) / 1000, 1e-9, within)


def annotated(trace: Events, plain: Counter[str], rows: dict[str, OpRow]) -> dict[str, int]:
    """The plain count, where annotations of an operator's name are of its row as well."""
    from pytest_torchprof.trace.names import Kind

    found = trace.name[trace.is_kind(Kind.ANNOTATION)].tolist()
    more = Counter(trace.names[i] for i in found)
    assert rows.keys() >= plain.keys()
    return {name: count + more[name] for name, count in plain.items()}


def finer_than_ns(plain: Plain) -> bool:
    """Whether times have more decimals than Kineto writes: a trace that was made up."""
    exponent = plain.self_us.as_tuple().exponent
    return isinstance(exponent, int) and exponent < -3


@pytest.mark.one_in(4)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_half_a_file_is_half_a_trace(path: Path, tmp_path: Path) -> None:
    whole = loaded(path)[0]
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    half = tmp_path / "half.json"
    half.write_bytes(text[: len(text) // 2])
    try:
        trace = read_trace(half)
    except TraceError as error:
        assert "ends at byte" in str(error)  # noqa: PT017 - nothing of PyTorch's in this half
        return
    assert "ends at byte" in trace.warnings[0]
    assert len(trace) <= len(whole)
    assert set(trace.names) <= set(whole.names)


#: GEMM, attention and convolution GFLOP, and device busy and span in ms, by TraceLens's tables.
KNOWN = {
    "h100_bert_inference": (8.036, 0.163, 0.0, 0.309, 3.908),
    "h100_vit_inference": (133.927, 5.723, 0.925, 1.225, 7.560),
}


@pytest.mark.parametrize("name", KNOWN)
def test_flops_and_device_time_are_those_of_another_tool(name: str) -> None:
    paths = [p for p in PATHS if p.name.startswith(name)]
    if not paths:
        pytest.skip(f"the folder has no {name}")
    trace = read_trace(paths[0])
    gemm = attention = convolution = 0
    for operator, row in op_rows(trace).items():
        if "attention" in operator:
            attention += row.flops or 0
        elif "conv" in operator:
            convolution += row.flops or 0
        else:
            gemm += row.flops or 0
    values = measure_all(trace)
    busy, idle = values["cuda_busy_ms"], values["cuda_idle_ms"]
    assert isinstance(busy, float)
    assert isinstance(idle, float)
    found = (gemm / 1e9, attention / 1e9, convolution / 1e9)
    assert found == pytest.approx(KNOWN[name][:3], rel=0.01)
    assert (busy, busy + idle) == pytest.approx(KNOWN[name][3:], rel=0.01)


#: FLOPs of a whole trace, and what is not in them: so many different operators and kernels, and the
#: one of them that took longest.
SUMS = {
    "a100_sam_compiled": (9_327_035_908_096, 1, "customflash::custom_flash_aligned"),
    "h100_bert_inference": (8_192_059_392, 0, ""),
    "h100_vit_inference": (140_509_200_384, 0, ""),
    "mi300_vllm_graph_replay": (37_064_540_160, 8, "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1"),
    "v100_dlrm_rank0": (60_487_168, 0, ""),  # look-ups in tables are no products
}


@pytest.mark.parametrize("name", SUMS)
def test_flops_are_a_sum_or_a_lower_bound_with_names(name: str) -> None:
    paths = [p for p in PATHS if p.name.startswith(name)]
    if not paths:
        pytest.skip(f"the folder has no {name}")
    trace = read_trace(paths[0])
    gap = uncounted_flops(trace)
    parts = gap.parts if gap else ()
    found = (int(op_flops(trace).sum()), len(parts), parts[0].name if parts else "")
    assert found == SUMS[name]
