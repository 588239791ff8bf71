"""The augmented trace: all that was there, as it was, and more."""

from __future__ import annotations

import gzip
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.numbered import by_index
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.kernels import KernelWork
from pytest_torchprof.core.errors import TraceError
from pytest_torchprof.render.export import Augmented, write_augmented
from pytest_torchprof.trace.names import REGION, Kind
from pytest_torchprof.trace.read import read_trace
from pytest_torchprof.verdict.metrics import measure_all

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

KEYS = (
    *("flops", "bytes", "achieved TFLOP/s", "achieved GB/s"),
    *("compute_pct", "bandwidth_pct"),
)


def nothing(trace: Events) -> KernelWork:
    known = by_index(trace)
    none, nan = np.full(len(known.event), -1), np.full(len(known.event), math.nan)
    return KernelWork(known.event, none, none, none, nan, nan)


def events(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    document = json.loads(data)
    return document if isinstance(document, list) else document["traceEvents"]


def build(vendor: str = "nvidia") -> TraceBuilder:
    b = TraceBuilder("GPU", vendor=vendor)
    with b.annotation(REGION):
        with b.op("aten::mm", [[4, 5], [5, 6]]):
            b.launch('gemm "quoted" }, {', device_us=20)
        b.memcpy("HtoD", 4096)
        b.graph_launch(["same", "same", "other"])
        b.kernel_without_runtime("lost")
    return b


STYLES = [(), "compact", "bare_list", "schema_2021", "string_numbers", "string_ids", "ts_string"]
STYLES += ["ts_ns", "stray", "ts_int"]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
@pytest.mark.parametrize("style", STYLES, ids=str)
def test_events_stay_as_they_are_and_kernels_get_more_arguments(
    style: Any, vendor: str, tmp_path: Path
) -> None:
    source, target = build(vendor).save(tmp_path / "in.json", style), tmp_path / "out.json"
    found = write_augmented(source, target, by_index)
    before, after = events(source), events(target)
    more, kept = after[len(before) :], after[: len(before)]
    assert {e["ph"] for e in more} == {"C"}
    assert found == Augmented(6, len(more))
    device = {"kernel", "gpu_memcpy", "memcpy"}
    for old, new in zip(before, kept, strict=True):
        if old.get("cat", "").lower() not in device:
            assert new == old
        else:
            assert new | {"args": None} == old | {"args": None}
            assert {k: v for k, v in new["args"].items() if k in old["args"]} == old["args"]
            assert set(new["args"]) - set(old["args"]) <= set(KEYS)
            assert set(KEYS) <= set(new["args"])
    one, other = read_trace(source), read_trace(target)
    assert measure_all(one) == measure_all(other)
    assert one.metadata == other.metadata


def test_each_event_gets_its_own_numbers(tmp_path: Path) -> None:
    source, target = build().save(tmp_path / "in.json"), tmp_path / "out.json"
    write_augmented(source, target, by_index)
    found = [e for e in events(target) if e.get("cat") in {"kernel", "gpu_memcpy"}]
    found.sort(key=lambda e: float(e["ts"]))
    assert [e["args"]["flops"] for e in found] == [*range(1000, 1006)]
    assert [e["args"]["compute_pct"] for e in found] == [i / 8 for i in range(6)]
    first = found[0]["args"]
    assert first["achieved TFLOP/s"] == pytest.approx(1000 / 20e-6 / 1e12)
    last = found[-1]
    assert last["args"]["achieved GB/s"] == pytest.approx(5 / last["dur"] / 1e3, rel=1e-3)
    assert found[1]["args"]["bytes"] == 4096  # said by the trace itself


def test_the_text_is_not_changed(tmp_path: Path) -> None:
    for style in ("compact", "bare_list", ()):
        source, target = build().save(tmp_path / "in.json", style), tmp_path / "out.json"
        write_augmented(source, target, by_index)
        text = target.read_text()
        text = re.sub(r',\n  \{"ph": "C", "name": "achieved [^\n]*?\}\}', "", text)
        number = r"-?[0-9.e+-]+"
        text = re.sub(rf', "flops": {number}(, "(bytes|achieved .B/s|achieved TFLOP/s|'
                      rf'compute_pct|bandwidth_pct)": {number})+', "", text)  # fmt: skip
        assert text == source.read_text()


def test_nothing_known_is_nothing_added(tmp_path: Path) -> None:
    source, target = build().save(tmp_path / "in.json"), tmp_path / "out.json"
    assert write_augmented(source, target, nothing) == Augmented(0, 0)
    assert target.read_bytes() == source.read_bytes()


def test_unknown_values_are_left_out(tmp_path: Path) -> None:
    def some(trace: Events) -> KernelWork:
        known = by_index(trace)
        known.flops[:] = known.done[:] = -1
        known.compute_pct[:] = math.nan
        known.bandwidth_pct[0] = math.inf
        return known

    source, target = build().save(tmp_path / "in.json"), tmp_path / "out.json"
    write_augmented(source, target, some)
    found = [e for e in events(target) if e.get("cat") == "kernel"]
    assert {"bytes", "achieved GB/s"} == set(KEYS) & set(found[0]["args"])
    assert "flops" not in found[-1]["args"]
    assert {e["name"] for e in events(target) if e["ph"] == "C"} == {"achieved GB/s"}


def test_an_event_of_no_duration_has_no_rate(tmp_path: Path) -> None:
    source, target = build().save(tmp_path / "in.json", "no_dur"), tmp_path / "out.json"
    found = write_augmented(source, target, by_index)
    assert (found.events, found.counters) == (6, 0)
    (kernel, *_) = (e for e in events(target) if e.get("cat") == "kernel")
    assert set(KEYS) & set(kernel["args"]) == {"flops", "bytes", "compute_pct", "bandwidth_pct"}


def test_events_without_arguments_are_left_alone(tmp_path: Path) -> None:
    source, target = build().save(tmp_path / "in.json", "no_args"), tmp_path / "out.json"
    assert write_augmented(source, target, by_index) == Augmented(0, 0)


def test_empty_and_foreign_arguments(tmp_path: Path) -> None:
    source, target = tmp_path / "in.json", tmp_path / "out.json"
    head = '{"ph":"X","cat":"kernel","name":"k","ts":%d,"dur":2,"pid":0,"tid":7,"args":%s}'
    args = ["{}", "{ }", "null", "[]", '"}"', '{"a":{"b":"}"}}']
    source.write_text("[" + ",".join(head % (i, a) for i, a in enumerate(args)) + "]")
    assert write_augmented(source, target, by_index).events == 3
    found = [e["args"] for e in events(target) if e["ph"] == "X"]
    assert [a["flops"] for a in found if isinstance(a, dict)] == [1000, 1001, 1005]
    assert found[2:5] == [None, [], "}"]
    assert found[5]["a"] == {"b": "}"}


def test_twice_is_as_once(tmp_path: Path) -> None:
    source, once = build().save(tmp_path / "in.json"), tmp_path / "once.json"
    twice = tmp_path / "twice.json"
    write_augmented(source, once, by_index)
    assert write_augmented(once, twice, by_index).events == 0
    known = [e for e in events(twice) if e["ph"] != "C"]
    assert known == [e for e in events(once) if e["ph"] != "C"]


def test_counters_are_the_sum_over_what_runs(tmp_path: Path) -> None:
    b = TraceBuilder("GPU", device_index=1)
    b.launch("long", device_us=40, stream=7, host_us=1)
    b.launch("short", device_us=10, stream=8, host_us=1)
    source, target = b.save(tmp_path / "in.json"), tmp_path / "out.json"

    def work(trace: Events) -> KernelWork:
        event = np.flatnonzero(trace.is_kind(Kind.KERNEL))
        nan = np.full(2, math.nan)
        flops = np.array([40_000_000, -1])
        return KernelWork(event, flops, flops, np.array([4000, 2000]), nan, nan)

    write_augmented(source, target, work)
    samples = [e for e in events(target) if e["ph"] == "C"]
    assert {e["pid"] for e in samples} == {1}
    (long, short) = (e for e in events(target) if e.get("cat") == "kernel")
    rates = [(e["ts"], e["args"]["GB/s"]) for e in samples if e["name"] == "achieved GB/s"]
    assert rates == [
        (long["ts"], 0.1),
        (short["ts"], pytest.approx(0.3)),
        (pytest.approx(short["ts"] + 10), 0.1),
        (pytest.approx(long["ts"] + 40), 0),
    ]
    rates = [(e["ts"], e["args"]["TFLOP/s"]) for e in samples if e["name"] != "achieved GB/s"]
    assert rates == [(long["ts"], 1.0), (pytest.approx(long["ts"] + 40), 0)]


# -------------------------------------------------------------------------------- files


@pytest.mark.one_in(6)
@pytest.mark.parametrize("style", [(), "compact", "bare_list"], ids=str)
@pytest.mark.parametrize("share", [0.98, 0.8, 0.6, 0.5])
def test_a_truncated_trace_is_closed_after_its_last_whole_event(
    share: float, style: Any, tmp_path: Path
) -> None:
    whole = build().to_bytes(style)
    source, target = tmp_path / "in.json.gz", tmp_path / "out.json"
    source.write_bytes(gzip.compress(whole[: int(len(whole) * share)]))
    found = write_augmented(source, target, by_index)
    (warning,) = found.warnings
    assert "ends at byte" in warning
    document = json.loads(whole)
    expected = document if isinstance(document, list) else document["traceEvents"]
    kept = [e for e in events(target) if e["ph"] != "C"]
    assert 0 < len(kept) <= len(expected)
    for old, new in zip(expected, kept, strict=False):
        assert {k: new["args"][k] for k in old.get("args", ())} == old.get("args", {})
    trace, salvaged = read_trace(target), read_trace(source)
    assert trace.ts.tolist() == salvaged.ts.tolist()
    # What it lacks, the closed one does not lack for breaking off.
    assert measure_all(trace) == measure_all(replace(salvaged, cut=False))


def test_compressed_input_that_breaks_off(tmp_path: Path) -> None:
    source, target = tmp_path / "in.json.gz", tmp_path / "out.json.gz"
    packed = gzip.compress(build().to_bytes())
    source.write_bytes(packed[: len(packed) * 2 // 3])
    assert write_augmented(source, target, by_index).warnings
    assert read_trace(target).ts.tolist() == read_trace(source).ts.tolist()


def test_the_targets_name_says_whether_it_is_compressed(tmp_path: Path) -> None:
    source = build().save(tmp_path / "in.json.gz")
    plain, packed = tmp_path / "a" / "out.json", tmp_path / "out.json.gz"
    write_augmented(source, plain, by_index)
    write_augmented(plain, packed, nothing)
    assert plain.read_bytes()[:1] == b"{"
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()


@pytest.mark.parametrize("how", ["same", "link", "hard link"])
def test_a_trace_is_never_overwritten_with_itself(how: str, tmp_path: Path) -> None:
    source, target = build().save(tmp_path / "in.json"), tmp_path / "out.json"
    if how == "same":
        target = tmp_path / "." / "in.json"
    elif how == "link":
        target.symlink_to(source)
    else:
        target.hardlink_to(source)
    before = source.read_bytes()
    with pytest.raises(TraceError, match="another name"):
        write_augmented(source, target, by_index)
    assert source.read_bytes() == before


@pytest.mark.parametrize(
    "text", [b"", b"nothing", b"{}", b"[1]", b"[", b'{"traceEvents": 1}', b'{"traceEvents": [']
)
def test_a_file_that_is_not_a_trace_is_an_error_and_nothing_is_written(
    text: bytes, tmp_path: Path
) -> None:
    source, target = tmp_path / "in.json", tmp_path / "out.json"
    source.write_bytes(text)
    with pytest.raises(TraceError, match=r"in\.json"):
        write_augmented(source, target, by_index)
    with pytest.raises(TraceError, match="missing"):
        write_augmented(tmp_path / "missing.json", target, by_index)
    assert [path.name for path in tmp_path.iterdir()] == ["in.json"]


def test_a_target_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    source = build().save(tmp_path / "in.json")
    with pytest.raises(TraceError, match="cannot be written"):
        write_augmented(source, tmp_path, by_index)
    with pytest.raises(TraceError, match="cannot be written"):
        write_augmented(source, source / "out.json", by_index)


STORED = sorted(CORPUS.glob("*.json.gz"))


@pytest.mark.thorough
@pytest.mark.one_in(4)
@pytest.mark.skipif(not STORED, reason="the folder of real traces is not here")
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name.partition(".")[0])
def test_real_traces_keep_all_they_hold(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    found = write_augmented(path, target, by_index)
    before, after = events(path), events(target)
    assert len(after) == len(before) + found.counters
    device = [e for e in before if e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}]
    assert found.events == len(device)
    for old, new in zip(before, after, strict=False):
        if old.get("cat") not in {"kernel", "gpu_memcpy", "gpu_memset"}:
            assert new == old
        else:
            assert new | {"args": None} == old | {"args": None}
            assert {k: new["args"][k] for k in old["args"]} == old["args"]
    numbered = [e for e in after if e.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}]
    numbered.sort(key=lambda e: (e["ts"], -e["dur"]))
    assert [e["args"]["flops"] for e in numbered] == [1000 + i for i in range(len(numbered))]
    for sample in after[len(before) :]:
        assert sample.keys() == {"ph", "name", "pid", "tid", "ts", "args"}
    assert measure_all(read_trace(target)) == measure_all(read_trace(path))
