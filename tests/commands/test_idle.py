"""`torchprof idle`, and the breakdown that `torchprof summary` begins with."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof import Trace

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Say

SGEMM = "ampere_sgemm_128x64_tn"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    fetch = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    for _ in range(3):
        b.annotation(fetch, 4000)
        with b.op("aten::mm"):
            b.launch(SGEMM, 900)
        with b.op("c10d::allreduce_"):
            b.launch("ncclDevKernel_AllReduce_Sum_f32", 1000, stream=9)
    return b.save(tmp_path / "loop.json.gz")


def test_the_first_table_of_a_summary_says_where_the_time_goes(say: Say, trace: Path) -> None:
    status, out, err = say("summary", trace)
    assert (0, "") == (status, err)
    table = out.splitlines()[2:8]
    assert ["category", "time", "share", "total", "calls"] == table[0].split()
    assert ["idle", "gemm", "communication,"] == [line.split()[0] for line in table[2:5]]
    assert "exposed" in table[4]
    assert "from the device's first event to its last" in out
    assert "idle: data loading 9" in out
    assert out.index("idle: ") < out.index("wall_ms")


@pytest.mark.parametrize("large_us", [9000, 2000])
def test_a_gap_that_is_most_of_the_idle_time_is_named(
    say: Say, tmp_path: Path, large_us: int
) -> None:
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for free_us in (2000, large_us, 2000):
        with b.op("aten::mm"):
            b.launch(SGEMM, 100)
        with b.op("aten::empty"):
            b.runtime("cudaMalloc", free_us)
    with b.op("aten::mm"):
        b.launch(SGEMM, 100)
    _, out, _ = say("summary", b.save(tmp_path / "trace.json"))
    line = next(line for line in out.splitlines() if line.startswith("idle: "))
    assert ("8.9 ms in one gap: cudaMalloc;" in line) == (large_us == 9000), line
    assert ("in one gap" in line) == (large_us == 9000), line


def test_json_has_breakdown_and_causes_that_add_up(say: Say, trace: Path) -> None:
    document = json.loads(say("summary", trace, "--format", "json")[1])
    parts = {row["category"]: row for row in document["breakdown"]}
    assert 1 == pytest.approx(sum(row["share"] for row in parts.values()))
    assert 3 == parts["communication"]["calls"]
    assert 3.0 == parts["communication"]["total_ms"]
    assert parts["communication"]["time_ms"] < 0.5
    causes = document["idle"]
    assert "data loading" == causes[0]["cause"]
    assert parts["idle"]["time_ms"] == pytest.approx(sum(row["time_ms"] for row in causes))
    assert {"device", "cause", "time_ms", "share", "gaps", "longest_ms"} == set(causes[0])


def test_idle_lists_causes_with_places_in_every_format(say: Say, trace: Path) -> None:
    rows = json.loads(say("idle", trace, "--format", "json")[1])["rows"]
    assert "data loading" == rows[0]["cause"]
    assert 2 == rows[0]["gaps"]
    assert rows[0]["what"].startswith("enumerate(DataLoader)#_SingleProcess")
    found = list(csv.DictReader(io.StringIO(say("idle", trace, "--format", "csv")[1])))
    assert [row["cause"] for row in rows] == [row["cause"] for row in found]
    assert "| data loading  " in say("idle", trace, "--format", "markdown")[1]
    assert "total" in say("idle", trace)[1]
    by_cause = json.loads(say("idle", trace, "--by", "cause", "--format", "json")[1])["rows"]
    assert {None} == {row["what"] for row in by_cause}


def test_ranks_have_a_column(say: Say, tmp_path: Path) -> None:
    for rank in range(2):
        b = TraceBuilder("NVIDIA H100 80GB HBM3", device_index=rank)
        b.metadata("distributedInfo", {"backend": "nccl", "rank": rank, "world_size": 2})
        for _ in range(2):
            with b.op("aten::mm"):
                b.launch(SGEMM, 100)
            b.advance(250 + rank)
        b.save(tmp_path / f"rank{rank}.json")
    document = json.loads(say("summary", tmp_path, "--format", "json")[1])
    assert {0, 1} == {row["rank"] for row in document["breakdown"]}
    assert {0, 1} == {row["rank"] for row in document["idle"]}
    assert "idle: " in say("summary", tmp_path)[1]
    rows = json.loads(say("idle", tmp_path, "--format", "json")[1])["rows"]
    assert {0, 1} == {row["rank"] for row in rows}
    assert 0 == say("idle", tmp_path)[0]


def test_one_step_has_its_own_idle_time(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for number in range(3):
        with b.annotation(f"ProfilerStep#{number}"):
            for _ in range(2):
                with b.op("aten::mm"):
                    b.launch(SGEMM, 1)
                b.advance(100 * (number + 1))
    path = b.save(tmp_path / "steps.json")
    (row,) = json.loads(say("idle", path, "--by", "cause", "--step", "1", "--format", "json")[1])[
        "rows"
    ][:1]
    assert "Python between operators" == row["cause"]
    # The pause before its first kernel is its own, too.
    assert row["time_ms"] == pytest.approx(0.3, abs=0.02)
    assert 2 == say("idle", path, "--step", "7")[0]


def test_steps_do_not_show_lower_bounds_as_numbers(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for number in range(6):
        with b.annotation(f"ProfilerStep#{number}"), b.op("aten::mm"):
            b.launch(SGEMM, 10, record_kernel=bool(number % 2))
    path = b.save(tmp_path / "lost.json")
    rows = json.loads(say("steps", path, "--format", "json")[1])["rows"]
    fields = ("kernels", "self_cuda_ms", "cuda_busy_ms", "cuda_idle_ms")
    assert {None} == {row[field] for row in rows for field in fields}
    assert {1} == {row["ops"] for row in rows}


@pytest.mark.parametrize("lost", [False, True])
def test_without_device_time_the_reason_is_given(say: Say, tmp_path: Path, lost: bool) -> None:
    b = TraceBuilder("NVIDIA H100 80GB HBM3" if lost else None)
    for number in range(6):
        with b.op("aten::mm", dur_us=50):
            if lost:
                b.launch(SGEMM, 10, record_kernel=bool(number % 2))
    path = b.save(tmp_path / "part.json")
    status, out, err = say("idle", path)
    assert (0, "") == (status, err)
    assert "idle time is not measured: " in out
    document = json.loads(say("summary", path, "--format", "json")[1])
    assert [] == document["idle"]
    shares = [row["share"] for row in document["breakdown"]]
    assert ([None, None] if lost else [1.0]) == shares


def test_a_wrong_grouping_is_an_error(say: Say, trace: Path) -> None:
    status, _, err = say("idle", trace, "--by", "line")
    assert 2 == status
    assert "place" in err
    with pytest.raises(ValueError, match="by must be one of place, cause, not 'line'"):
        Trace.load(trace).idle("line")  # type: ignore[arg-type]
