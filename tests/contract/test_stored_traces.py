"""What the commands say of stored traces, and what they refuse."""

from __future__ import annotations

import gzip
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.plain_traces import write, x

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Say

H, MIB = b'{"traceEvents":[', 2**20
EVENT = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","ts":1,"dur":2,"pid":1,"tid":1}'
ENDLESS = [
    (H, b" "), (b"[", b"\r\n\t "), (H + EVENT, b" "), (H + EVENT + b",", b"\n"),
    (H + b'{"name":', b" "), (H + b'{"name":"', b"a"), (H + b'{"name":"', b'\\"'),
    (H + b'{"name":"', b"\\q"), (H + b'{"a":', b'"'), (H, b'{"a":'), (H + b'{"args":', b"["),
    (H + b'{"ts":', b"1"), (b'{"a":[', b'{"traceEvents":[]},'),
    (H + b'{\n"name": "', b'", "pid": 1, "tid": 2, '),
]  # fmt: skip


@pytest.mark.thorough
def test_text_without_an_end_takes_no_longer_than_json_takes_for_events(
    say: Say, tmp_path: Path
) -> None:
    took = [time.process_time()]
    json.loads(H + (EVENT + b",") * (40 * MIB // len(EVENT)) + EVENT + b"]}")
    for i, (begin, unit) in enumerate(ENDLESS):
        text, path = begin + unit * (40 * MIB // len(unit)), tmp_path / "a.json"
        path.write_bytes(text if i % 5 else gzip.compress(text, 1))
        took.append(time.process_time())
        say("summary", path)
        assert time.process_time() - took[-1] < 2 * (took[1] - took[0]), text[:40]


def memory(name: str, ts: int, size: int) -> dict[str, Any]:
    args = {"Bytes": size, "Addr": 64, "Device Id": -1, "Device Type": 0, "Total Allocated": 0}
    return x("cpu_instant_event", name, ts, 0, **args) | {"ph": "i", "s": "t"}


def test_ranks_whose_hosts_run_ahead_are_compared_by_when_their_devices_are_done(
    say: Say, tmp_path: Path
) -> None:
    """Of each rank, the first kernel was launched before the recording; rank 1 is late once."""
    group = {"Process Group Name": "0", "Process Group Description": "all", "Group size": 3}
    for rank, ahead in enumerate((0, 0, 300)):
        events, late = [x("kernel", "ncclDevKernel_AllReduce", 1100, 50)], 90 * (rank == 1)
        for i, (kind, name, begin, end) in enumerate([
            ("_allgather_base", "ncclDevKernel_AllGather", 1300 + late, 1500),
            ("allreduce", "ncclDevKernel_AllReduce", 1600, 1700),
        ]):  # fmt: skip
            args = {"Collective name": kind, "In msg nelems": 64, "dtype": "Float", **group}
            at = 1200 + 200 * i - ahead
            events += [
                x("cpu_op", "record_param_comms", at, 8, 5 + i, **args),
                x("cuda_runtime", "cudaLaunchKernelExC", at + 2, 3, 5 + i),
                x("kernel", name, begin, end - begin, 5 + i, **args),
            ]
        known = [{"pg_name": "0", "pg_desc": "all", "ranks": [0, 1, 2]}]
        info = {"backend": "nccl", "rank": rank, "world_size": 3, "pg_config": known}
        write(tmp_path / f"rank{rank}.json", events, distributedInfo=info)
    rows = json.loads(say("ranks", tmp_path, "--format", "json")[1])["rows"]
    assert {row["rank"]: row["wait_ms"] for row in rows} == {0: 0.09, 1: 0.0, 2: 0.09}
    rows = json.loads(say("collectives", tmp_path, "--format", "json")[1])["rows"]
    assert {row["wait_ms"] for row in rows if row["operation"] == "all_gather"} == {0.09}


def test_collectives_that_repeat_are_compared_with_those_that_end_with_them(
    say: Say, tmp_path: Path
) -> None:
    """One more was launched before the recording on rank 1; rank 0 is late once."""
    ends = [100, 330, 610, 800, 1150, 1300]
    for rank in (0, 1):
        late = {610: 30 * (rank == 0)}
        events = [
            x(
                "kernel",
                "ncclDevKernel_AllReduce",
                end - 50 + late.get(end, 0),
                50 - late.get(end, 0),
            )
            for end in ends[1 - rank :]
        ]
        info = {"backend": "nccl", "rank": rank, "world_size": 2}
        write(tmp_path / f"rank{rank}.json", events, distributedInfo=info)
    rows = json.loads(say("ranks", tmp_path, "--format", "json")[1])["rows"]
    assert {row["rank"]: row["wait_ms"] for row in rows} == {0: 0.0, 1: 0.03}


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
            x("cpu_op", "aten::mm", 200_000, 90), x("cuda_runtime", "cudaLaunch", 200_010, 40, 1),
            x("kernel", "gemm", 200_030, 80, 1), x("kernel", "replayed", 300_000, 70 + slower, 2),
        ])  # fmt: skip
    words, page = ("diff", tmp_path / "a.json", tmp_path / "b.json"), tmp_path / "page.html"
    found = json.loads(say(*words, "--by", by, "--format", "json", "--html", page)[1])
    for total in found["growth"]:
        for side, value in (("a", total["before"]), ("b", total["now"])):
            own = [row[f"{total['metric']}_{side}"] or 0 for row in found["rows"]]
            assert sum(own) == pytest.approx(value)
    assert found["rows"][0]["change"] == "slower"
    assert "enumerate(DataLoader)#_It" in page.read_text()


def test_bound_says_what_compiled_code_on_a_device_leaves_out(say: Say, tmp_path: Path) -> None:
    """As a share of the device's time: the product counts, the loops do not."""
    args = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    events = [x("cpu_op", "Torch-Compiled Region: 0/0", 0, 400, 1)]
    for i, (name, dur, more) in enumerate([("aten::mm", 300, args), ("triton_poi_0", 100, {})], 2):
        events += [
            x("cpu_op", name, 100 * i, 50, i, **more),
            x("cuda_runtime", "cuLaunchKernel", 100 * i + 9, 9, i),
            x("kernel", name, 100 * i + 300, dur, i),
        ]
    path = write(tmp_path / "a.json", events, record_shapes=1)
    left = "left out: torch.compile's code (1 call, 25 % of the time) was compiled to loops"
    assert left in say("bound", path)[1]
