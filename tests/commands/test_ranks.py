"""`torchprof collectives` and `torchprof ranks`: what ranks exchange, and who waits for whom."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.ranked import Call, rank_trace
from support.trace_builder import TraceBuilder

import pytest_torchprof

if TYPE_CHECKING:
    from support.command_line import Say

RECORDED = Path(__file__).resolve().parents[1] / "data" / "gloo"
COLLECTIVES = (
    "operation group size dtype calls bytes total_ms algbw_gb_per_s busbw_gb_per_s wait_ms"
)
RANKS = "rank span_ms compute_ms comm_ms exposed_comm_ms idle_ms wait_ms peak_bytes"


def job(folder: Path, *names: str) -> Path:
    """Three ranks of four, of which the last is late; each in a file of this name."""
    folder.mkdir()
    late = [Call(400, 500), Call(900, 1000)]
    early = [Call(100, 500), Call(600, 1000)]
    for rank, calls in enumerate((early, early, late)):
        name = names[rank] if names else f"rank{rank}.json"
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        rank_trace(rank, calls, ranks=4).save(path)
    return folder


def answer(say: Say, *arguments: Any) -> dict[str, Any]:
    status, out, _ = say(*arguments, "--format", "json")
    assert 0 == status
    document: dict[str, Any] = json.loads(out)
    assert f"torchprof-{arguments[0]}/1" == document["schema"]
    return document


def test_ranks_has_the_fields_that_are_promised_and_the_worst_rank_first(
    say: Say, tmp_path: Path
) -> None:
    document = answer(say, "ranks", job(tmp_path / "job"))
    assert {tuple(RANKS.split())} == {tuple(row) for row in document["rows"]}
    assert [2, 0, 1] == [row["rank"] for row in document["rows"]]
    assert [0.0, 0.6, 0.6] == [row["wait_ms"] for row in document["rows"]]
    waits = [{"rank": rank, "for_rank": 2, "wait_ms": 0.6} for rank in (0, 1)]
    assert waits == document["waits"]
    assert {"0": 0.0, "1": 0.0, "2": 1.2} == document["waited_for_ms"]
    assert [3] == document["missing_ranks"]
    assert {"metadata"} == {*document["rank_from"].values()}


def test_ranks_says_who_is_late_what_is_missing_and_what_is_unequal(
    say: Say, tmp_path: Path
) -> None:
    _, out, _ = say("ranks", job(tmp_path / "job"))
    for line in (
        "ranks are from the metadata",
        "no trace of 1 of 4 ranks: 3",
        "the others wait 1.2 ms for rank 2, the last at 2 of 2 collectives",
        "rank 0 waits 600 us for rank 2",
        "wait: 2 collectives of several ranks compared, on one clock; their ends are within 0 ms",
        "comm_bytes: the same on all ranks, within 0.5 %",
    ):
        assert line in out, line


def test_ranks_that_do_not_match_are_said(say: Say, tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    rank_trace(3, [Call(100, 500, 7), Call(600, 1000)], ranks=4).save(folder / "rank3.json")
    _, out, _ = say("ranks", folder)
    assert (
        "rank 3 is not compared with the others of the group default_pg: its collective 1 is "
        "all_reduce of 28 B (float32), theirs is all_reduce of 4 KiB (float32)"
    ) in out
    assert None is next(
        row["wait_ms"] for row in answer(say, "ranks", folder)["rows"] if row["rank"] == 3
    )


@pytest.mark.parametrize(
    ("names", "source"),
    [
        (("rank0.json", "rank1.json"), "the names of the files"),
        (("a.json", "b.json"), "the order of the files"),
    ],
)
def test_a_rank_that_the_metadata_lacks_is_from_elsewhere(
    say: Say, tmp_path: Path, names: tuple[str, str], source: str
) -> None:
    for rank, name in enumerate(names):
        b = rank_trace(rank, [Call(100, 200)])
        del b.extra["distributedInfo"]
        b.save(tmp_path / name)
    _, out, _ = say("ranks", tmp_path)
    assert f"ranks are from {source}" in out


def test_two_files_of_one_rank_and_foreign_files_are_said(say: Say, tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    (folder / "config.json").write_text("{}")
    rank_trace(1, [Call(100, 500)], ranks=4).save(folder / "again.json")
    status, out, err = say("ranks", folder)
    assert 0 == status
    assert "config.json" in err
    assert "both claim rank 1" in err
    assert "waits" not in out
    document = answer(say, "ranks", folder)
    assert {"trace"} < {*document["rows"][0]}
    assert None is document["collectives_compared"]


def test_a_single_rank_has_no_wait_and_says_why(say: Say, tmp_path: Path) -> None:
    rank_trace(0, [Call(100, 500)]).save(tmp_path / "rank0.json")
    (row,) = answer(say, "ranks", tmp_path)["rows"]
    assert (0.4, None) == (row["comm_ms"], row["wait_ms"])
    assert "wait is unknown: it takes the traces of several ranks" in say("ranks", tmp_path)[1]


def test_collectives_has_the_fields_that_are_promised_and_adds_up(say: Say, tmp_path: Path) -> None:
    document = answer(say, "collectives", job(tmp_path / "job"))
    assert {tuple(f"rank {COLLECTIVES}".split())} == {tuple(row) for row in document["rows"]}
    first = document["rows"][0]
    assert ("all_reduce", "default_pg", 4096, "float32", 2, 8192) == tuple(
        first[field] for field in COLLECTIVES.split()[:6]
    )
    assert (0.8, 0.6) == (first["total_ms"], first["wait_ms"])
    assert 8192 / 0.8e6 == pytest.approx(first["algbw_gb_per_s"])
    assert 1.5 * first["algbw_gb_per_s"] == pytest.approx(first["busbw_gb_per_s"])
    assert {"calls": 6, "bytes": 3 * 8192, "total_ms": 1.8} == pytest.approx(document["total"])


def test_collectives_of_one_rank_do_not_know_the_wait(say: Say, tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    (row,) = answer(say, "collectives", folder, "--rank", "0")["rows"]
    assert tuple(COLLECTIVES.split()) == tuple(row)
    assert None is row["wait_ms"]


def test_collectives_of_unknown_size_have_no_total(say: Say, tmp_path: Path) -> None:
    b = rank_trace(0, [Call(100, 500)])
    b.op("c10d::broadcast_")
    b.save(tmp_path / "rank0.json")
    document = answer(say, "collectives", tmp_path)
    assert (None, None) == (document["total"]["bytes"], document["total"]["total_ms"])
    notes = " ".join(document["notes"])
    assert "the size of 1 of 2 calls that communicate is unknown, such as c10d::broadcast_" in notes
    assert "the trace does not say when all of 1 calls were done" in notes


def test_a_trace_without_communication_says_so(say: Say, tmp_path: Path) -> None:
    b = TraceBuilder()
    b.op("aten::mm", [[4, 4], [4, 4]])
    b.save(tmp_path / "x.json")
    status, out, _ = say("collectives", tmp_path / "x.json")
    assert (0, True) == (status, "nothing communicates with other ranks in this trace" in out)


@pytest.mark.parametrize("command", ["collectives", "ranks"])
def test_every_format_has_the_same_rows(say: Say, command: str) -> None:
    printed = {
        name: say(command, RECORDED / "fsdp2", "--format", name)
        for name in ("table", "json", "csv", "markdown")
    }
    assert {0} == {status for status, *_ in printed.values()}
    rows = json.loads(printed["json"][1])["rows"]
    assert len(rows) == len(list(csv.DictReader(io.StringIO(printed["csv"][1]))))
    assert all(row["rank"] in (0, 1) for row in rows)
    assert "rank" in printed["markdown"][1]


@pytest.mark.parametrize("command", ["collectives", "ranks"])
@pytest.mark.parametrize("kind", ["ddp", "pipeline"])
def test_what_was_found_in_each_trace_is_compared_as_the_traces_are(
    say: Say, command: str, kind: str
) -> None:
    """Notes, waits, and shifts of clocks included."""
    words = (command, RECORDED / kind, "--format", "json")
    assert say(*words) == say(*words, "--jobs", "1")


@pytest.mark.thorough
@pytest.mark.parametrize("words", [["ranks"], ["collectives"], ["collectives", "--merge"]])
def test_workers_print_what_one_process_prints(say: Say, words: list[str], tmp_path: Path) -> None:
    """To the last digit, files that are none included."""
    folder = job(tmp_path / "job")
    (folder / "rank3.json").write_text("{")
    words = [*words, str(folder), "--format", "json"]
    one = say(*words, "--jobs", "1")
    assert one == say(*words, "--jobs", "3")
    assert 0 == one[0]
    assert ["rank3.json"] == [Path(row["trace"]).name for row in json.loads(one[1])["unread"]]


def test_merged_collectives_are_of_all_ranks(say: Say, tmp_path: Path) -> None:
    """Calls, bytes, and times add up; each rank of a call has the same wait."""
    (row,) = answer(say, "collectives", job(tmp_path / "job"), "--merge")["rows"]
    assert (6, 3 * 8192, 1.8, 0.6, 3) == tuple(
        row[field] for field in ("calls", "bytes", "total_ms", "wait_ms", "traces")
    )
    assert (0.2, 0.8, 0) == tuple(row[field] for field in ("min_ms", "max_ms", "max_rank"))
    assert 3 * 8192 / 1.8e6 == pytest.approx(row["algbw_gb_per_s"])


@pytest.mark.parametrize("command", ["collectives", "ranks"])
def test_parquet_has_the_rows_of_json(say: Say, command: str, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    folder, target = job(tmp_path / "job"), tmp_path / "out.parquet"
    assert (0, "", "") == say(command, folder, "--format", "parquet", "-o", target)
    rows = answer(say, command, folder)["rows"]
    found = parquet.read_table(target)
    assert [{**row, "reason": None} for row in rows] == [
        {field: value for field, value in row.items() if field != "trace"}
        for row in found.to_pylist()
    ]
    whole = {"size": "int64", "calls": "int64", "peak_bytes": "int64", "wait_ms": "double"}
    assert {name: kind for name, kind in whole.items() if name in found.column_names} == {
        field.name: str(field.type) for field in found.schema if field.name in whole
    }


def test_the_python_api_has_the_same() -> None:
    traces = pytest_torchprof.load_ranks(RECORDED / "ddp")
    table = pytest_torchprof.compare_ranks(traces)
    assert {0, 1} == {row.rank for row in table.rows}
    assert 33408 == sum(row.bytes or 0 for row in traces[0].collectives())
