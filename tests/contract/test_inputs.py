"""What commands do with files that cannot be read, or hold numbers that no float can."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Say
from support.plain_traces import write, x

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")

MANY_DIGITS = "7" * 400
COMMANDS = ("summary", "steps --step-name aten::mm", "idle", "ops", "ops --merge",
            "ops --merge --jobs 1", "kernels", "lint", "memory", "collectives", "ranks",
            "diff {other}", "report -o {page}")  # fmt: skip


UNREADABLE: dict[str, Callable[[Path], Any]] = {
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "pipe": os.mkfifo,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "input/output error": lambda path: path.symlink_to("/proc/self/mem"),
    "empty": lambda path: path.touch(),
}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one trace."""
    monkeypatch.chdir(tmp_path)
    (folder := tmp_path / "job").mkdir()
    write(folder / "rank0.json", [x("cpu_op", "aten::mm", 1, 5)])
    return folder


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_cannot_be_read_in_a_folder_is_a_line_and_fails_a_check(
    say: Say, job: Path, kind: str
) -> None:
    UNREADABLE[kind](job / "b.json")
    for command in ("lint", "ops --merge", "ops --jobs 1"):
        status, _, said = say(*command.split(), job)
        assert (0, 1) == (status, said.count(f"left out: {job / 'b.json'}: ")), said
    for words in (["lint", "--fail", job], ["lint", "--fail", f"{job}/*"],
                  ["diff", "--fail-over", "5", job, job]):  # fmt: skip
        assert 1 == say(*words)[0], words


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_that_reads_a_folder_says_what_it_leaves_out(
    say: Say, job: Path, command: str
) -> None:
    (job / "rank1.json").symlink_to("nowhere")
    words = command.format(other=job / "rank0.json", page=job.parent / "page.html").split()
    status, _, said = say(*words, job)
    assert (0, 1) == (status, said.count("rank1.json: cannot be read: ")), said


@pytest.mark.parametrize("more", [[], ["--jobs", "1"]])
def test_a_named_folder_without_traces_and_a_named_loop_of_links_are_bad_usage(
    say: Say, job: Path, more: list[str]
) -> None:
    (job.parent / "empty").mkdir()
    (job.parent / "loop.json").symlink_to("loop.json")
    for name, why in (("empty", "no trace found"), ("loop.json", "cannot be read")):
        status, _, said = say("ops", *more, job / "rank0.json", job.parent / name)
        assert (2, True) == (status, f"{name}: {why}" in said), said


def test_a_folder_in_a_folder_is_not_read(say: Say, job: Path) -> None:
    (job / "inner.json").mkdir()
    (job / "link.json").symlink_to("inner.json")
    assert (0, "") == (say("lint", "--fail", job)[0], say("lint", job)[2])


# -------------------------------------------------------------------- histories


def _run(**values: Any) -> str:
    test = {"nodeid": "t.py::a", "status": "ok", "outcome": "passed", "metrics": {"flops": 2},
            "regions": {"r": {"laps": 1, "metrics": {"ops": 3}}}}  # fmt: skip
    git = dict.fromkeys(["repository", "commit", "parents", "merge_base", "branch", "dirty", "ci"])
    run = {"schema": "torchprof-run/1", **git, "started": "2026-01-01T00:00:00Z", "tests": [test]}
    run |= {"environment": {"key": "cpu"}, "versions": {}, **values}
    return json.dumps(run, separators=(",", ":"))


@pytest.mark.parametrize("number", [MANY_DIGITS, f"-{MANY_DIGITS}", "1e400", "NaN", "true"])
@pytest.mark.parametrize("place", ['"flops":', '"ops":'])
def test_a_document_with_a_number_beyond_all_floats_is_skipped_and_counted(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, number: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (history := tmp_path / "history").mkdir()
    text = _run()
    at = text.index(place) + len(place)
    (history / "a.run.json").write_text(text, "utf-8")
    (history / "b.run.json").write_text(text[:at] + number + text[at + 1 :], "utf-8")
    for more in ([], ["--html", tmp_path / "page.html"]):
        status, shown, said = say("history", history, *more)
        assert (0, True) == (status, "skipped 1 file: 1 damaged" in said), said
        assert "1 run of" in shown


def test_a_document_that_is_overwritten_in_place_is_read_again(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "a.run.json"
    for at, metrics in enumerate(({"flops": 2}, {"flops": 4})):
        test = {"nodeid": "t.py::a", "status": "ok", "outcome": "passed", "metrics": metrics}
        path.write_text(_run(tests=[test]), "utf-8")
        os.utime(path, (at, at))
        shown = say("history", tmp_path, "--test", "*", "--format", "json")[1]
        assert [list(metrics.values())] == [one["values"] for one in json.loads(shown)["series"]]


def test_what_cannot_be_read_in_a_history_is_skipped_and_counted(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (history := tmp_path / "history").mkdir()
    (history / "a.run.json").write_text(_run(), "utf-8")
    for kind in ("link to nothing", "link to itself", "pipe"):
        UNREADABLE[kind](history / f"{kind}.json")
    status, _, said = say("history", history)
    assert (0, True) == (status, "skipped 3 files: 3 that cannot be read" in said), said
    (history / "nowhere").write_text(_run(), "utf-8")  # where the first link leads
    assert "skipped 2 files" in say("history", history)[2]
