"""Traces in one folder are the ranks of one job, or each is by itself and nothing is added up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.trace_builder import TraceBuilder

from pytest_torchprof.cli import main
from pytest_torchprof.trace.ranks import job_facts, not_one_job
from pytest_torchprof.trace.read import read_trace

H100 = "NVIDIA H100 80GB HBM3"


def save(path: Path, info: Any = None, *, after_s: float = 0, devices: int = 1) -> Path:
    """A trace of one product, this many seconds after the others."""
    b = TraceBuilder(H100)
    b.metadata("baseTimeNanoseconds", round(1.7e18 + after_s * 1e9))
    if info is not None:
        b.metadata("distributedInfo", info)
    if devices > 1:
        listed = [{"id": n, "name": H100, "computeMajor": 9} for n in range(devices)]
        b.metadata("deviceProperties", listed)
    with b.op("aten::mm", [[4, 4], [4, 4]], ["float"] * 2):
        b.memory(1024)
        b.launch("gemm", 1000)
    return b.save(path)


def of(rank: int, size: int | None = 2) -> dict[str, int]:
    return {"rank": rank, **({} if size is None else {"world_size": size})}


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"a": (of(0), 0), "b": (of(1), 0)}, ""),
        ({"a": (of(0), 0), "b": (of(1), 50)}, ""),  # clocks of hosts differ
        ({"a": (of(0), 0)}, ""),
        ({"rank0": (None, 0), "rank1": (None, 0)}, ""),
        ({"a": (None, 0), "b": (None, 0)}, ""),
        ({"a": (of(0), 0), "rank1": (None, 0)}, ""),
        ({"a": (of(0), 0), "b": (of(0), 0)}, "a.json and b.json both claim rank 0"),
        (
            {"a": (of(1, 8), 0), "b": (of(1, 8), 0), "c": (of(1, 8), 0)},
            "a.json, b.json and 1 more all claim rank 1",
        ),
        (
            {"a": (of(0, 8), 0), "b": (of(1, 4), 0)},
            "a.json belongs to a job of size 8, b.json to one of size 4",
        ),
        (
            {"a": (of(0, 1), 0), "rank1": (None, 0)},
            "a.json belongs to a job of size 1, but there are 2 traces",
        ),
        (
            {"a": (of(0), 0), "b": (None, 0)},
            "a.json belongs to a distributed job, b.json does not",
        ),
        ({"a": (of(0), 0), "b": (of(1), 7200)}, "b.json begins 120 min after a.json ends"),
        ({"a": (None, 0), "b": (None, 5)}, "b.json begins 5 s after a.json ends"),
        ({"b": (None, 5), "a": (None, 0)}, "b.json begins 5 s after a.json ends"),
    ],
)
def test_ranks_of_one_job_are_distinguished_from_traces_of_several(
    tmp_path: Path, files: dict[str, tuple[Any, float]], why: str
) -> None:
    paths = [save(tmp_path / f"{n}.json", info, after_s=s) for n, (info, s) in files.items()]
    assert not_one_job([job_facts(read_trace(path)) for path in paths]) == why


@pytest.mark.parametrize("command", ["ops", "kernels", "summary", "memory", "lint"])
def test_traces_of_several_jobs_have_no_total_and_are_called_by_their_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    for name in "ab":
        save(tmp_path / f"{name}.json", of(0))
    assert main([command, str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "warning: not the ranks of one job: a.json and b.json both claim rank 0;" in err
    assert "total" not in {line.partition(" ")[0] for line in out.splitlines()}
    assert "rank" not in out.replace("ranks of", "")
    assert main([command, str(tmp_path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr()[0])
    assert "total" not in document
    assert "not the ranks of one job" in document["warnings"][-1]
    if command == "summary":
        assert {"a.json", "b.json"} == document["by_trace"].keys()
        assert document["metrics"]["ops"]["value"] is None
        assert "both claim rank 0" in document["metrics"]["ops"]["reason"]
    elif command in ("ops", "kernels"):
        assert {"a.json", "b.json"} == {row["trace"] for row in document["rows"]}
    if command == "ops":
        assert sum(row["share"] for row in document["rows"]) == pytest.approx(2)


def test_files_of_the_same_name_are_named_with_their_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / name / "t.json" for name in "ab"]
    for path in paths:
        path.parent.mkdir()
        save(path, of(0))
    assert main(["summary", *map(str, paths)]) == 0
    first, second = paths
    numbered, apart = capsys.readouterr()[1].splitlines()
    claim = f"{second}: it claims rank 0 like {first}: its number is 1"
    assert f"torchprof: warning: {claim}" == numbered
    assert f"of one job: {first} and {second} both claim rank 0; each stands alone" in apart


def test_sides_of_several_jobs_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "ab":
        save(tmp_path / f"{name}.json", of(0))
    assert main(["diff", str(tmp_path), str(tmp_path)]) == 2
    assert (
        "not the ranks of one job: a.json and b.json both"
        in capsys.readouterr()[1].splitlines()[-1]
    )


# -------------------------------------------------------------------- what a number is of


def test_devices_that_are_present_but_idle_are_not_listed_as_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["kernels", str(save(tmp_path / "a.json", devices=8))])
    head = capsys.readouterr()[0].splitlines()[0]
    assert f"a.json: {H100} × 8 there, 1 used (device 0); 4 events" in head
    main(["kernels", str(save(tmp_path / "b.json"))])
    assert f"b.json: {H100}; " in capsys.readouterr()[0]
    b = TraceBuilder(H100)
    b.op("aten::add")
    main(["ops", str(b.save(tmp_path / "c.json"))])
    assert f"c.json: {H100} there, none used; 1 event\n" in capsys.readouterr()[0]


def test_a_peak_says_what_it_is_above(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    b = TraceBuilder(H100, start_bytes={"cuda": 4096})
    b.memory(100, "cpu")
    b.memory(2048)
    path = str(b.save(tmp_path / "a.json"))
    main(["memory", path])
    out = capsys.readouterr()[0]
    assert "peaks count from what was live when the trace or its measured region started\n" in out
    assert "4 KiB on cuda:0 live then, as counted by the allocator; live memory then is" in out
    main(["memory", path, "--format", "json"])
    assert {"cpu": None, "cuda:0": 4096} == json.loads(capsys.readouterr()[0])["start_bytes"]


def test_calls_of_a_table_of_operators_add_up_and_say_which_are_the_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b = TraceBuilder(H100)
    mm = [[4, 4]] * 2, ["float"] * 2
    with b.annotation("step"), b.op("aten::matmul", *mm), b.op("aten::mm", *mm):
        b.launch("gemm", 9)
    path = str(b.save(tmp_path / "a.json"))
    main(["ops", path])
    message = "calls: 2 of operators (the metric dispatches), 1 of annotations, 1 of runtime calls"
    assert message in capsys.readouterr()[0]
    main(["ops", path, "--format", "json"])
    total = json.loads(capsys.readouterr()[0])["total"]
    main(["summary", path, "--format", "json"])
    metrics = json.loads(capsys.readouterr()[0])["metrics"]
    assert total["calls"] == metrics["dispatches"]["value"] + 2
    for name in ("flops", "self_cuda_ms", "self_cpu_ms"):
        assert total[name] == pytest.approx(metrics[name]["value"])


def test_a_percent_sign_in_a_help_text_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    from pytest_torchprof.cli import COMMANDS

    for words in (["--help"], *([command.name, "--help"] for command in COMMANDS)):
        with pytest.raises(SystemExit):
            main(words)
        assert "%%" not in capsys.readouterr()[0]
