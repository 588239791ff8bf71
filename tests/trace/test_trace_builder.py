from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder
from support.trace_styles import STYLES, without

if TYPE_CHECKING:
    from collections.abc import Iterable

# Versions of Kineto differ; these come and go, or are of one call only.
OPTIONAL = {"Fwd thread id", "Sequence number", "Python module id", "External id", "Ev Idx"}
OPTIONAL |= {"Record function id", "Input Strides", "Concrete Inputs", "Input Dims", "Input type"}
Keys = dict[tuple[str, str], set[str]]


def build(vendor: str = "nvidia", **more: Any) -> TraceBuilder:
    """Every kind of event, inside the region and outside it."""
    b = TraceBuilder("Some GPU", (9, 4), vendor=vendor, cuda_sync_events=True, **more)
    outside = b.memory(1000)
    b.op("aten::empty")
    b.launch("outside", device_us=3)
    with b.python("test_model.py(3): test_it"), b.annotation("torchprof::call"):
        with b.module("nn.Module: Linear_0"), b.op("aten::linear", dims=[[64, 64], [64]]):
            with b.op("aten::mm", [[64, 64], [64, 64]], dur_us=10, args={"Sequence number": 1}):
                b.launch("gemm", device_us=20, grid=(132, 2, 1), driver=True)
                first = b.memory(4096)
            b.free(first)
            b.free(outside)
            b.memory(256, device="cpu")
        with b.op("aten::copy_"):
            b.memcpy("HtoD", 4096)
            b.memcpy("DtoH", 8, pageable=False, blocking=True)
            b.memcpy("DtoD", 16, device_us=0, stream=20)
            b.memset(512)
        with b.thread(99), b.op("MmBackward0", args={"Fwd thread id": 1}):
            b.launch("other", stream=20)
        b.sync("cudaStreamSynchronize")
        b.sync("cudaEventSynchronize", wait_us=7)
        b.graph_launch(["k1", "k2", "k3"], device_us=2)
        b.kernel_without_runtime("orphan")
        b.launch("lost", record_kernel=False)
        b.runtime("cudaMalloc")
        b.sync("cudaDeviceSynchronize")
    b.overhead()
    b.sync("cudaDeviceSynchronize", wait_us=2)
    return b


def load(b: TraceBuilder, *styles: Any) -> list[dict[str, Any]]:
    document = json.loads(b.to_bytes(styles))
    events = document if isinstance(document, list) else document["traceEvents"]
    assert all(isinstance(e, dict) for e in events)
    return list(events)


def raw_counts(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Count over the JSON alone: what the host did in the region, and what that caused."""
    region = next(
        e for e in events if e["name"] == "torchprof::call" and e["cat"] == "user_annotation"
    )

    def inside(e: dict[str, Any]) -> bool:
        return bool(region["ts"] <= e["ts"] < region["ts"] + region["dur"])

    host = [e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")]
    calls = {e["args"]["correlation"]: e for e in host}
    device = [
        e
        for e in events
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        and inside(calls.get(e["args"]["correlation"], e))
    ]
    host = [e for e in host if inside(e)]
    copies = {k: [e for e in device if f" {k} " in e["name"]] for k in ("HtoD", "DtoH", "DtoD")}
    kernels = [e for e in device if e["cat"] == "kernel"]
    linked = {e["args"]["correlation"] for e in kernels}
    launches = [e for e in host if "Launch" in e["name"]]
    syncs = [e for e in host if "Synchronize" in e["name"]]
    counts: dict[str, Any] = {
        "ops": sum(e.get("cat") == "cpu_op" and inside(e) for e in events),
        "kernels": len(kernels),
        "launches": len(launches),
        "graph_launches": sum("Graph" in e["name"] for e in launches),
        "lost_kernels": sum(e["args"]["correlation"] not in linked for e in launches),
        "unlinked_kernels": len(linked - set(calls)),
        "memsets": sum(e["cat"] == "gpu_memset" for e in device),
        "syncs": len(syncs),
        "sync_ns": round(sum(e["dur"] for e in syncs) * 1000),
        "device_ns": round(sum(e["dur"] for e in device) * 1000),
        "blocking_copies": sum(e["name"] in ("cudaMemcpy", "hipMemcpyWithStream") for e in host),
    }
    for kind, short in (("HtoD", "h2d"), ("DtoH", "d2h"), ("DtoD", "d2d")):
        counts[f"{short}_copies"] = len(copies[kind])
        counts[f"{short}_bytes"] = sum(e["args"]["bytes"] for e in copies[kind])
    for number, name in ((0, "cpu"), (1, "cuda")):
        moves = [e for e in events if e["name"] == "[memory]"]
        moves = [e["args"] for e in moves if e["args"]["Device Type"] == number and inside(e)]
        sizes = [e["Bytes"] for e in moves]
        running = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        counts[name] = (sum(s for s in sizes if s > 0), max([0, *running]), sum(sizes))
    return counts


LIKE_OURS = [
    f"{name}.pt.trace.json.gz"
    for name in (
        "a100_alexnet",
        "a100_sam_compiled",
        "h100_bert_inference",
        "h100_vit_inference",
        "mi300_vllm_graph_replay",
        "v100_dlrm_rank?",
    )
]


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_expected_equals_a_raw_count(vendor: str) -> None:
    b = build(vendor, start_bytes={"cuda": 5000})
    counts = raw_counts(load(b))
    for device in ("cpu", "cuda"):
        known = b.expected.memory[device]
        assert counts.pop(device) == (known.allocated, known.peak, known.live)
    known_counts = dict(vars(b.expected))
    del known_counts["memory"]
    assert counts == known_counts
    assert (b.expected.ops, b.expected.kernels, b.expected.launches) == (4, 6, 4)
    assert b.expected.memory["cuda"].peak == 4096
    assert b.expected.device_us_total == 20 + 10 + 3 * 2 + 10 + 5 + 5 + 0 + 2


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_times_nest_and_the_device_follows_the_host(vendor: str) -> None:
    events = [e for e in load(build(vendor)) if e.get("dur") is not None]
    tracks = defaultdict(list)
    for e in events:
        if e["cat"] not in ("gpu_user_annotation", "cuda_sync", "overhead", "Trace"):
            tracks[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    for spans in tracks.values():
        spans.sort(key=lambda s: (s[0], -s[1]))
        ends: list[float] = []
        for start, end in spans:
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or end <= ends[-1] + 0.001
            ends.append(end)
    calls = {e["args"]["correlation"]: e["ts"] for e in events if e["cat"].startswith("cuda_r")}
    device = [e for e in events if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    assert all(e["ts"] > calls.get(e["args"]["correlation"], 0) for e in device)


def keys_of(events: Iterable[dict[str, Any]], *, common: bool = False) -> Keys:
    found: Keys = {}
    for e in events:
        kind = (e["ph"], e.get("cat") or e["name"].partition(":")[0])
        keys = set(e) | {f"args.{k}" for k in e.get("args") or ()}
        found[kind] = (
            (found[kind] & keys if common else found[kind] | keys) if kind in found else keys
        )
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_keys_are_those_of_real_traces(vendor: str) -> None:
    # Those of today's schema; a corpus may hold hundreds, of all years.
    paths = sorted(path for glob in LIKE_OURS for path in CORPUS.glob(glob))
    if not paths:
        pytest.skip("no real traces: neither TORCHPROF_TRACE_CORPUS nor ../shared/traces has any")
    traces = [json.loads(gzip.decompress(path.read_bytes())) for path in paths]
    traces = [t for t in traces if ("roctracer_version" in t) == (vendor == "amd")]
    if not traces:
        pytest.skip(f"the real traces hold none of {vendor}")
    real = [e for t in traces for e in t["traceEvents"]]
    ours = load(build(vendor))
    known, needed, built = keys_of(real), keys_of(real, common=True), keys_of(ours)
    optional = {f"args.{k}" for k in OPTIONAL}
    if vendor == "nvidia":
        absent = set(built) ^ set(known)
        assert absent <= {("X", "overhead")}
    for kind in set(built) & set(known):
        assert built[kind] - optional <= known[kind], kind
        assert needed[kind] <= built[kind], kind
        always = keys_of(ours, common=True)[kind]
        assert needed[kind] - always <= optional, kind
    properties = {k for t in traces for p in t["deviceProperties"] for k in p}
    assert set(build(vendor).document()["deviceProperties"][0]) <= properties


def test_correlation_and_external_id() -> None:
    for external, found in (("op", True), ("correlation", False), ("none", False)):
        events = load(build(external=external))
        ops = {e["args"]["External id"] for e in events if e.get("cat") == "cpu_op"}
        gemm = next(e for e in events if e["name"] == "gemm")
        assert (gemm["args"].get("External id") in ops) is found
        ids = [e["args"].get("correlation") for e in events if e.get("cat") == "cuda_driver"]
        assert ids == [gemm["args"]["correlation"]]
    graph = [e for e in load(build("amd")) if e["name"] in ("hipGraphLaunch", "k1", "k2", "k3")]
    assert len({e["args"]["correlation"] for e in graph}) == 1
    assert not any("External id" in e["args"] for e in graph)


def test_cpu_only() -> None:
    b = TraceBuilder()
    with b.annotation("torchprof::call"), b.op("aten::add", dims=[[2, 3], []], dur_us=4):
        b.memory(64, device="cpu")
    assert b.document()["deviceProperties"] == []
    assert {e["pid"] for e in load(b) if e.get("cat") == "cpu_op"} == {b.pid}
    add = next(e for e in load(b) if e["name"] == "aten::add")
    assert add["args"]["Input Strides"] == [[3, 1], []]
    assert add["dur"] == 4
    for use in (
        lambda: b.launch("k"),
        lambda: b.memory(1),
        lambda: b.sync("cudaDeviceSynchronize"),
    ):
        with pytest.raises(ValueError, match="no device"):
            use()
    late = b.op("aten::late")
    b.advance(3)
    with pytest.raises(RuntimeError, match="where it is created"), late:
        pass


@pytest.mark.parametrize("style", sorted(STYLES))
def test_every_style_is_json_and_leaves_the_builder_alone(style: str) -> None:
    b = build()
    before = b.to_bytes()
    assert b.to_bytes(style) != before
    assert isinstance(json.loads(b.to_bytes(style)), dict)
    assert b.to_bytes() == before


def test_odd_numbers() -> None:
    b = build()
    plain = {e["name"]: e for e in load(b)}
    (gemm,) = (e for e in load(b, "ts_string", "string_numbers") if e["name"] == "gemm")
    assert float(gemm["ts"]) == plain["gemm"]["ts"]
    assert gemm["args"]["correlation"] == str(plain["gemm"]["args"]["correlation"])
    (in_ns,) = (e for e in load(b, "ts_ns") if e["name"] == "gemm")
    assert in_ns["ts"] > 2**53
    assert in_ns["dur"] == 20_000
    assert all(isinstance(e["ts"], int) for e in load(b, "ts_int"))
    assert not any("args" in e for e in load(b, "no_args"))
    assert 0 < sum("dur" in e for e in load(b, without("dur", every=2))) < len(load(b))
    assert all(isinstance(e["pid"], str) for e in load(b, "string_ids"))
    strayed = load(b, "stray")
    assert strayed[: len(load(b))] == load(b)


def test_the_schema_of_2021() -> None:
    events = load(build(), "schema_2021")
    categories = {e.get("cat") for e in events}
    assert categories == {
        "Operator",
        "Runtime",
        "Kernel",
        "Memcpy",
        "Memset",
        "async",
        "Trace",
        None,
    }
    gemm = next(e for e in events if e["name"] == "gemm")
    assert gemm["tid"] == "stream 7"
    operator = next(e for e in events if e["name"] == "aten::mm")
    assert gemm["args"]["external id"] == operator["args"]["External id"]
    call = next(e for e in events if e["name"] == "cuLaunchKernel")
    assert call["args"]["external ts"] == operator["ts"]
    flows = [e for e in events if e.get("cat") == "async"]
    assert {e["id"] for e in flows if e["ph"] == "s"} < {e["id"] for e in flows if e["ph"] == "f"}
    memory = next(e for e in events if e["name"] == "[memory]")
    assert set(memory["args"]) == {"Device Type", "Device Id", "Bytes"}


def test_files(tmp_path: Path) -> None:
    b = build()
    b.metadata("distributedInfo", {"rank": 1})
    plain, packed = b.save(tmp_path / "a.json"), b.save(tmp_path / "a.json.gz", style="compact")
    assert json.loads(plain.read_bytes())["distributedInfo"] == {"rank": 1}
    assert json.loads(gzip.decompress(packed.read_bytes())) == json.loads(plain.read_bytes())
    assert isinstance(json.loads(b.to_bytes("bare_list")), list)
    cut = b.to_bytes(["ts_string", "truncated"])
    assert b.to_bytes("ts_string").startswith(cut)
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut)
