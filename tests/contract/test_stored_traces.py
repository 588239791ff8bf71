"""What the commands say of stored traces, and what they refuse."""

from __future__ import annotations

import gzip
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Say

HEAD, MIB = b'{"traceEvents":[', 2**20
EVENT = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","ts":1,"dur":2,"pid":1,"tid":1}'


@pytest.fixture(scope="module")
def json_s() -> float:
    """CPU time that json takes for 40 MiB of events."""
    text = HEAD + (EVENT + b",") * (40 * MIB // len(EVENT)) + EVENT + b"]}"
    since = time.process_time()
    json.loads(text)
    return time.process_time() - since


@pytest.mark.parametrize(
    ("name", "begin", "unit"),
    [
        ("a.json.gz", HEAD, b" "), ("a.json", b"[", b"\r\n\t "), ("a.json", HEAD + EVENT, b" "),
        ("a.json", HEAD + EVENT + b",", b"\n"), ("a.json", HEAD + b'{"name":', b" "),
        ("a.json.gz", HEAD + b'{"name":"', b"a"), ("a.json", HEAD + b'{"name":"', b'\\"'),
        ("a.json", HEAD + b'{"name":"', b"\\q"), ("a.json", HEAD + b'{"a":', b'"'),
        ("a.json", HEAD, b'{"a":'), ("a.json", HEAD + b'{"args":', b"["),
        ("a.json", HEAD + b'{"ts":', b"1"), ("a.json", b'{"a":[', b'{"traceEvents":[]},'),
        ("a.json", HEAD + b'{\n"name": "', b'", "pid": 1, "tid": 2, '),
    ],
)  # fmt: skip
def test_text_without_an_end_takes_no_longer_than_json_takes_for_events(
    name: str, begin: bytes, unit: bytes, json_s: float, say: Say, tmp_path: Path
) -> None:
    text = begin + unit * (40 * MIB // len(unit))
    path = tmp_path / name
    path.write_bytes(gzip.compress(text, 1) if name.endswith("gz") else text)
    since = time.process_time()
    say("summary", path)
    assert time.process_time() - since < 2 * json_s


def x(cat: str, name: str, ts: int, dur: int, **args: Any) -> dict[str, Any]:
    where = {"pid": 0, "tid": 7} if cat == "kernel" else {"pid": 1, "tid": 1}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args, **where}


def write(path: Path, events: list[dict[str, Any]], **metadata: Any) -> Path:
    """A trace of an H100."""
    top = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
    path.write_text(json.dumps({**top, **metadata, "traceEvents": events}))
    return path


def test_ranks_whose_hosts_run_ahead_are_compared_by_when_their_devices_are_done(
    say: Say, tmp_path: Path
) -> None:
    """Of each rank, the first kernel was launched before the recording; rank 1 is late once."""
    reduce, gather = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_AllGather_RING_LL"
    for rank, ahead in enumerate((0, 0, 300)):
        late, group = 90 * (rank == 1), {"Process Group Name": "0", "Group size": 3}
        group |= {"Process Group Description": "all", "Process Group Ranks": "[0, 1, 2]"}
        events = [x("kernel", reduce, 1100, 50, device=0, stream=7, correlation=1)]
        for i, (kind, name, begin, end) in enumerate(
            [("_allgather_base", gather, 1300 + late, 1500), ("allreduce", reduce, 1600, 1700)]
        ):
            args = {"Collective name": kind, "In msg nelems": 64, "dtype": "Float", **group}
            ids, at = {"External id": 10 + i, "correlation": 10 + i}, 1200 + 200 * i - ahead
            events += [
                x("cpu_op", "record_param_comms", at, 8, **args, **ids),
                x("cuda_runtime", "cudaLaunchKernelExC", at + 2, 3, **ids),
                x("kernel", name, begin, end - begin, device=0, stream=7, **args, **ids),
            ]
        info: dict[str, Any] = {"backend": "nccl", "rank": rank, "world_size": 3}
        info["pg_config"] = [{"pg_name": "0", "pg_desc": "all", "ranks": [0, 1, 2]}]
        write(tmp_path / f"rank{rank}.json", events, distributedInfo=info)
    status, out, _ = say("ranks", tmp_path, "--format", "json")
    waits = {row["rank"]: row["wait_ms"] for row in json.loads(out)["rows"]}
    assert (status, waits) == (0, {0: 0.09, 1: 0.0, 2: 0.09})
    assert "not compared" not in say("ranks", tmp_path)[1]
    out = say("collectives", tmp_path, "--format", "json")[1]
    rows = [row for row in json.loads(out)["rows"] if row["operation"] == "all_gather"]
    assert sorted(row["wait_ms"] for row in rows) == [0.09] * 3


def memory(name: str, ts: int, size: int) -> dict[str, Any]:
    args = {"Bytes": size, "Addr": 64, "Device Id": -1, "Device Type": 0, "Total Allocated": 0}
    return x("cpu_instant_event", name, ts, 0, **args) | {"ph": "i", "s": "t"}


def test_a_trace_whose_only_allocation_failed_was_recorded_with_memory(
    say: Say, tmp_path: Path
) -> None:
    events = [x("cpu_op", "aten::empty", 1, 9), memory("[OutOfMemory]", 2, 2**62)]
    path = write(tmp_path / "a.json", events, profile_memory=1)
    metrics = json.loads(say("summary", path, "--format", "json")[1])["metrics"]
    assert [metrics[f"{m}_cpu_bytes"]["value"] for m in ("peak", "allocated", "leaked")] == [0] * 3
    assert "nothing was allocated" in say("memory", path)[1]


@pytest.mark.parametrize("by", ["name", "shape", "stack", "module"])
@pytest.mark.parametrize("around", ["torchprof::call", "loop"])
def test_bytes_freed_under_any_annotation_are_in_the_total(
    by: str, around: str, say: Say, tmp_path: Path
) -> None:
    """One is that of the plugin around a test, in a trace that --torchprof-traces kept."""
    events = [
        x("user_annotation", around, 0, 100), x("cpu_op", "aten::empty", 10, 9),
        memory("[memory]", 12, 4096), memory("[memory]", 50, -4096),
    ]  # fmt: skip
    path = write(tmp_path / "a.json", events, profile_memory=1)
    rows = json.loads(say("ops", path, "--by", by, "--format", "json")[1])["rows"]
    assert {row["name"]: row["self_cpu_bytes"] for row in rows}["aten::empty"] == 4096
    assert sum(row["self_cpu_bytes"] for row in rows) == 0


@pytest.mark.parametrize("by", ["op", "kernel"])
def test_the_rows_of_diff_add_up_to_its_totals(by: str, say: Say, tmp_path: Path) -> None:
    """Time in annotations and runtime calls too, and that of kernels that no operator launched."""
    for name, slower in (("a.json", 0), ("b.json", 160_000)):
        write(tmp_path / name, [
            x("user_annotation", "enumerate(DataLoader)#_It.__next__", 0, 50 + slower),
            x("cpu_op", "aten::mm", 200_000, 90), x("cuda_runtime", "cudaLaunch", 200_010, 40,
                                                    correlation=1),
            x("kernel", "gemm", 200_030, 80, device=0, stream=7, correlation=1),
            x("kernel", "replayed", 300_000, 70 + slower, device=0, stream=7, correlation=2),
        ])  # fmt: skip
    words = ("diff", tmp_path / "a.json", tmp_path / "b.json", "--by", by)
    page = tmp_path / "page.html"
    found = json.loads(say(*words, "--format", "json", "--html", page)[1])
    for total in found["growth"]:
        for side, value in (("a", total["before"]), ("b", total["now"])):
            own = [row[f"{total['metric']}_{side}"] or 0 for row in found["rows"]]
            assert sum(own) == pytest.approx(value)
    assert found["rows"][0]["change"] == "slower"
    assert "enumerate(DataLoader)#_It" in page.read_text()


def test_bound_says_what_compiled_code_on_a_device_leaves_out(say: Say, tmp_path: Path) -> None:
    """As a share of the device's time: the product counts, the loops do not."""
    args = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    events = [x("cpu_op", "Torch-Compiled Region: 0/0", 0, 400, **{"External id": 1})]
    for i, (name, dur, more) in enumerate([("aten::mm", 300, args), ("triton_poi_0", 100, {})], 2):
        ids = {"External id": i, "correlation": i}
        events += [
            x("cpu_op", name, 100 * i, 50, **ids, **more),
            x("cuda_runtime", "cuLaunchKernel", 100 * i + 9, 9, **ids),
            x("kernel", name, 100 * i + 300, dur, device=0, stream=7, **ids),
        ]
    path = write(tmp_path / "a.json", events, record_shapes=1)
    left = "left out: torch.compile's code (1 call, 25 % of the time) was compiled to loops"
    assert left in say("bound", path)[1]
