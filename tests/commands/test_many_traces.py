"""Table commands on many traces: globs, workers, files that are none."""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.command_line import document
from support.fleets import save_ranks

from pytest_torchprof.cli import COMMANDS

if TYPE_CHECKING:
    from support.command_line import Say

    from pytest_torchprof.commands.arguments import Command

#: Commands that print a table of many traces.
TABLES = (
    "summary",
    "steps",
    "idle",
    "ops",
    "kernels",
    "lint",
    "memory",
    "collectives",
    "ranks",
)
#: Those that can add them up; `test_ranks` has those of jobs.
MERGING = ("summary", "idle", "ops", "kernels", "lint", "memory")
FORMATS = ("table", "json", "csv", "markdown")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_table_command_takes_the_options_of_many_traces() -> None:
    taking = {command.name for command in COMMANDS if {"--jobs", "--dask"} <= _options_of(command)}
    assert set(TABLES) == taking


def _options_of(command: Command) -> set[str]:
    parser = argparse.ArgumentParser()
    for add in command.arguments:
        add(parser)
    return {*re.findall(r"--[a-z-]+", parser.format_usage())}


def test_a_glob_is_a_folder(say: Say) -> None:
    save_ranks(Path("job"), 3)
    folder, glob = (document(say, "ops", words) for words in ("job", "job/rank*.json.gz"))
    assert folder == glob
    assert glob == document(say, "ops", "job/*", "--no-cache")  # accepted from older scripts


@pytest.mark.thorough
@pytest.mark.parametrize("command", MERGING)
def test_merged_rows_are_sums_over_the_traces(say: Say, command: str) -> None:
    save_ranks(Path("job"), 2)
    merged = document(say, command, "job", "--merge")
    each = document(say, command, "job")
    if command == "memory":
        sizes = {row["device"]: (row["bytes"], row["traces"]) for row in merged["rows"]}
        assert {"cpu": (4096, 2), "cuda": (2**20, 2)} == sizes
        return
    if command == "lint":
        counts = {row["rule"]: row["count"] for row in merged["findings"]}
        assert sum(counts.values()) == sum(row["count"] for row in each["findings"])
        return
    if command == "summary":
        ops = {row["metric"]: row for row in merged["rows"]}["ops"]
        assert (4, 2, 2, 2, 0) == tuple(
            ops[f] for f in ("value", "traces", "min_value", "max_value", "max_rank")
        )
        assert merged["metrics"] == each["metrics"]
        return
    field = {"ops": "self_cuda_ms", "kernels": "total_ms", "idle": "time_ms"}[command]
    assert merged["total"][field] == pytest.approx(each["total"][field])
    assert sum(row["share"] for row in merged["rows"]) == pytest.approx(1)


def test_a_merged_row_tells_the_trace_with_the_most(say: Say) -> None:
    save_ranks(Path("job"), 3)
    rows = {row["name"]: row for row in document(say, "ops", "job", "--merge")["rows"]}
    mm = rows["aten::mm"]
    assert (3, 3, 2) == (mm["calls"], mm["traces"], mm["max_rank"])
    assert (0.06, 0.01, 0.03) == tuple(mm[f] for f in ("self_cuda_ms", "min_ms", "max_ms"))
    (gemm, *_) = document(say, "kernels", "job", "--merge")["rows"]
    assert (3, 20, "aten::mm") == (gemm["calls"], gemm["mean_us"], gemm["operator"])
    _, out, _ = say("kernels", "job", "--merge", "--by", "op")
    assert "merged: the rows of 3 traces" in out


@pytest.mark.thorough
def test_a_file_that_is_named_and_no_trace_is_a_row_and_the_status_says_it(say: Say) -> None:
    paths = save_ranks(Path("job"), 2)
    Path("bad.json").write_text("no")
    words = ("ops", *paths, "bad.json", "gone.json", "--format", "json")
    assert (2, "") == say(*words)[:2]  # as ever: the command ends at the first
    status, out, err = say(*words, "--jobs", "1")
    found = json.loads(out)
    assert (2, ["bad.json", "gone.json"]) == (status, [row["trace"] for row in found["unread"]])
    assert "No such file" in found["unread"][1]["reason"]
    assert ["left out", "left out", "not read"] == [
        line.removeprefix("torchprof: warning: ").partition(":")[0] for line in err.splitlines()
    ]
    assert {0, 1} == {row["rank"] for row in found["rows"]}
    _, table, _ = say(*words[:-2], "--jobs", "1")
    assert "not read: gone.json: cannot be read: No such file" in table


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ops", "no*.json"), "no*.json: no file matches"),
        (("ops", "nonsense://x.json"), "nonsense://x.json: cannot be opened"),
        (("ops", "bad.json", "--jobs", "1"), "bad.json: not a Chrome trace"),
        (("ops", "bad*.json"), "none of 2; the first: bad2.json: not a Chrome trace"),
        (("ops", "job", "--jobs", "-1"), "'-1' is not a whole number of 0 or more"),
        (("ops", "job", "--jobs", "1", "--dask", "tcp://x"), "--jobs and --dask"),
        (("ops", "job", "-o", "x"), "-o x: --format table is printed"),
        (("ops", "job", "--format", "parquet"), "add -o FILE"),
        (("memory", "job", "--merge", "--timeline"), "--merge and --timeline"),
        (("ops", "job", "--rank", "5", "--jobs", "1"), "there is no rank 5: the ranks are 0, 1"),
        (("steps", "job", "--merge"), "unrecognized arguments: --merge"),
    ],
)
def test_what_cannot_be_done_is_one_line(say: Say, words: tuple[str, ...], message: str) -> None:
    save_ranks(Path("job"), 2)
    for name in ("bad.json", "bad2.json"):
        Path(name).write_text("no")
    status, out, err = say(*words)
    assert (2, "", 1) == (status, out, err.count("\n")), err
    assert message in err


def test_a_rank_is_chosen_of_a_glob(say: Say) -> None:
    save_ranks(Path("job"), 3)
    assert ["job/rank1.json.gz"] == document(say, "ops", "job/*", "--rank", "1")["traces"]


def test_traces_in_an_archive_are_read_by_their_url(say: Say) -> None:
    with zipfile.ZipFile("job.zip", "w") as archive:
        for path in save_ranks(Path("job"), 2):
            archive.write(path, path.name)
    found = document(say, "kernels", "zip://*::job.zip")
    assert [f"zip://rank{n}.json.gz::job.zip" for n in (0, 1)] == found["traces"]
    assert document(say, "kernels", "job")["rows"] == found["rows"]


@pytest.mark.thorough
def test_notes_on_many_traces_are_few(say: Say) -> None:
    save_ranks(Path("job"), 12)
    for command in TABLES[2:7]:
        _, out, _ = say(command, "job", "--limit", "3")
        assert out.count("\n") < 130, command
    _, out, _ = say("memory", "job")
    assert "… and such notes on 4 more ranks" in out


@pytest.mark.thorough
@pytest.mark.parametrize("command", MERGING)
def test_workers_print_what_one_process_prints(say: Say, command: str) -> None:
    """To the last digit; what is printed is made of the same parts in every format."""
    save_ranks(Path("job"), 5)
    Path("job/rank7.json").write_text("{")
    words = (command, "job", "--format", "json")
    assert say(*words, "--jobs", "1") == say(*words, "--jobs", "3")
