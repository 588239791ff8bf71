"""`torchprof history`: steps and drifts over runs, comparison with the merge base, gc."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Say, say
from support.histories import Repository, git, run, save
from support.hostile import EVERY, HOSTILE, assert_terminal, in_utf8
from support.html_pages import assert_quiet, data_of_page, read_page

from pytest_torchprof.history.runs import RunCause, RunTest

__all__ = ["say"]  # a fixture

History = Path


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository, in which the command is run."""
    made = Repository(tmp_path / "repo")
    monkeypatch.chdir(made.folder)
    return made


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """The folder of a history."""
    return tmp_path / "history"


Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(say: Say, history: Path) -> Ask:
    """The command's JSON."""

    def asked(*words: str) -> dict[str, Any]:
        first = [*words] if words[:1] and words[0] in {"compare", "gc"} else [str(history), *words]
        status, out, err = say("history", *first, "--format", "json")
        assert 0 == status, err
        found: dict[str, Any] = json.loads(out)
        return found

    return asked


def test_a_step_has_the_commit_that_made_it(
    ask: Ask, repository: Repository, history: Path
) -> None:
    commits = [repository.commit() for _ in range(4)]
    for commit, ops in zip(commits, (5, 5, 7, 7), strict=True):
        save(history, run(commit, {"ops": ops, "flops": 1}))
    found = ask()
    (row,) = found["rows"]
    assert {
        "test": "t.py::test_a",
        "region": None,
        "metric": "ops",
        "environment": "cpu, torch 2.13",
        "commit": commits[2],
        "value": 7,
        "before": 5,
        "change": 0.4,
        "kind": "step",
        "since": commits[1],
    }.items() <= row.items()
    assert ("torchprof-history/1", 4, []) == (found["schema"], found["runs"], found["notes"])


def test_clocks_do_not_matter(ask: Ask, repository: Repository, history: Path) -> None:
    first, second, third = (repository.commit() for _ in range(3))
    save(history, run(third, {"ops": 7}), run(first, {"ops": 5}), run(second, {"ops": 5}))
    assert [third] == [row["commit"] for row in ask()["rows"]]


def test_a_step_on_a_branch_is_said_once(ask: Ask, repository: Repository, history: Path) -> None:
    first = repository.commit()
    repository.switch("feature")
    second = repository.commit(b="1")
    repository.switch("main")
    third = repository.commit(c="1")
    merged = repository.merge("feature")
    save(
        history,
        run(first, {"ops": 5}),
        run(second, {"ops": 7}, branch="feature"),
        run(third, {"ops": 5}),
        run(merged, {"ops": 7}),
    )
    assert [second] == [row["commit"] for row in ask()["rows"]]
    assert [merged] == [row["commit"] for row in ask("--branch", "main")["rows"]]
    assert [second] == [row["commit"] for row in ask("--branch", "feature")["rows"]]


def test_a_drift_of_times_is_found(ask: Ask, repository: Repository, history: Path) -> None:
    commits = [repository.commit() for _ in range(30)]
    for number, commit in enumerate(commits):
        wall = 10 + number % 4 / 10 + (2 if number >= 15 else 0)
        save(history, run(commit, {"wall_ms": wall}))
    (row,) = ask()["rows"]
    assert (commits[15], "drift", "wall_ms", "runner-1") == (
        row["commit"], row["kind"], row["metric"], row["machine"],
    )  # fmt: skip
    assert 1.9 < row["value"] - row["before"] < 2.1


def test_drifts_of_all_tests_at_once_may_be_the_machine(
    ask: Ask, repository: Repository, history: Path
) -> None:
    for number in range(30):
        wall = 10 + number % 4 / 10 + (2 if number >= 15 else 0)
        times = {f"t.py::test_{n}": wall + n for n in range(3)} | {"t.py::test_3": 5 + number % 3}
        tests = [RunTest(name, "ok", None, None, {"wall_ms": wall}) for name, wall in times.items()]
        save(history, run(repository.commit(), {}, tests=tests))
    found = ask()
    assert 3 == len(found["rows"])
    (note,) = found["notes"]
    assert note.startswith(f"3 of 4 tests drift to more at about {found['rows'][0]['commit'][:10]}")
    assert "the machine may have changed" in note
    assert [] == ask("--test", "*test_1")["notes"]


def test_series_of_a_question_have_all_their_values(
    ask: Ask, repository: Repository, history: Path
) -> None:
    commits = [repository.commit() for _ in range(3)]
    for ops, commit in enumerate(commits):
        save(history, run(commit, {"ops": ops, "flops": 1}))
    found = ask("--metric", "ops", "--test", "*test_a")
    (series,) = found["series"]
    assert [0, 1, 2] == series["values"]
    assert commits == series["commits"]
    assert (3, 2, "1") == (series["runs"], series["last"], series["unit"])
    assert [2, 1] == [row["value"] for row in found["rows"]]  # the newest first
    assert [2] == [row["value"] for row in ask("--limit", "1")["rows"]]
    assert "series" not in ask()


def test_the_table_has_words_and_a_sparkline(
    say: Say, repository: Repository, history: Path
) -> None:
    for number in range(4):
        save(history, run(repository.commit(), {"peak_cpu_bytes": 2**20 * (1 + number // 2)}))
    status, out, err = say("history", history, "--metric", "peak_cpu_bytes")
    assert (0, "") == (status, err)
    assert_terminal(out)
    assert f"{history}: 4 runs of 4 commits; 1 of 1 series changed" in out
    assert "▁▁██" in out
    assert "2 MiB" in out
    assert "+100.0 %" in out
    assert "step" in out
    status, out, _ = say("history", history, "--format", "markdown")
    assert (0, True) == (status, "| test" in out)


def test_csv_has_the_fields_of_the_documents(
    say: Say, repository: Repository, history: Path
) -> None:
    for ops in (1, 2):
        save(history, run(repository.commit(), {"ops": ops}))
    _, out, _ = say("history", history, "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(out))
    fields = "test region metric environment commit date value before change kind"
    assert fields.split() == list(row)
    assert ("2", "1", "1.0", "step") == tuple(row[f] for f in ("value", "before", "change", "kind"))


def test_nothing_changed_is_said(say: Say, repository: Repository, history: Path) -> None:
    save(history, run(repository.commit(), {"ops": 1}))
    assert "no change" in say("history", history)[1]


def test_the_causes_of_a_commit_come_first(
    say: Say, ask: Ask, repository: Repository, history: Path
) -> None:
    def tests(ops: int, *causes: RunCause) -> list[RunTest]:
        metrics: dict[str, int | float] = {"ops": ops, "moved_bytes": 8 * ops, "flops": ops}
        return [
            RunTest(f"t.py::test_{name}", "ok", metrics=metrics, causes=[*causes]) for name in "ab"
        ]

    clone = RunCause("new_operators", "m.py:5: clone is new", {"ops": 1, "moved_bytes": 8})
    again = RunCause("runs_more_often", "m.py:9: f runs twice", {"flops": 1})
    first, second = repository.commit(), repository.commit()
    save(history, run(first, {}, tests=tests(3)), run(second, {}, tests=tests(4, clone, again)))
    rows = ask()["rows"]
    assert [("flops", "m.py:9: f runs twice"), ("ops", "m.py:5: clone is new")] == sorted(
        {(row["metric"], row["cause"]) for row in rows if row["metric"] != "moved_bytes"}
    )
    _, out, _ = say("history", history)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert f"{second[:10]} m.py:5: clone is new 2 ops, moved_bytes" in lines
    assert f"{second[:10]} m.py:9: f runs twice 2 flops" in lines


# -------------------------------------------------------------------- what is not known


def test_skipped_files_are_one_line(say: Say, repository: Repository, history: Path) -> None:
    save(history, run(repository.commit(), {"ops": 1}))
    (history / "foreign.json").write_text("{}")
    (history / "cut.run.json").write_text('{"schema":"torchprof-run/1","tests":[')
    (history / "newer.run.json").write_text('{"schema":"torchprof-run/2"}')
    status, _, err = say("history", history)
    assert 0 == status
    assert 1 == err.count("\n")
    assert "skipped 3 files: 1 damaged or cut off, 1 of another kind, 1 of a newer" in err


def test_a_shallow_clone_is_said(
    say: Say, repository: Repository, history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = [repository.commit(a=str(n)) for n in range(5)]
    for ops, commit in enumerate(commits[:1] + commits[2:]):
        save(history, run(commit, {"ops": ops}))
    folder = repository.folder.parent / "shallow"
    git(folder.parent, "clone", "-q", "--depth=2", f"file://{repository.folder}", str(folder))
    git(folder, "remote", "set-url", "origin", "/srv/repo")
    monkeypatch.chdir(folder)
    status, out, _ = say("history", history)
    assert 0 == status
    assert "the order of 2 commits is by time" in out
    assert "shallow" in out


def test_without_a_repository_documents_know_the_order(
    ask: Ask, tmp_path: Path, history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    a, b, c = (letter * 40 for letter in "abc")
    save(history, run(c, {"ops": 7}, parents=[b]), run(b, {"ops": 5}, parents=[a]))
    save(history, run(a, {"ops": 5}, parents=[]))
    found = ask()
    assert [c] == [row["commit"] for row in found["rows"]]
    assert [] == found["notes"]


def test_runs_without_a_commit_are_said(ask: Ask, repository: Repository, history: Path) -> None:
    repository.commit()
    save(history, run(None, {"ops": 1}), run(None, {"ops": 2}))
    found = ask()
    assert [None] == [row["commit"] for row in found["rows"]]
    assert ["2 runs without a commit: ordered by time"] == found["notes"]


def test_runs_of_other_repositories_are_left_out(
    ask: Ask, repository: Repository, history: Path
) -> None:
    commit = repository.commit()
    save(history, run(commit, {"ops": 1}), run("a" * 40, {"ops": 2}, repository="other"))
    found = ask()
    assert (1, ["left out: 1 run of other repositories"]) == (found["runs"], found["notes"])


def test_the_history_is_that_of_the_configuration(
    say: Say, repository: Repository, history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(repository.folder / "runs", run(repository.commit(), {"ops": 1}))
    config = repository.folder / "pyproject.toml"
    config.write_text('[tool.pytest.ini_options]\ntorchprof_history = "runs"\n')
    inner = repository.folder / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    status, out, err = say("history")
    assert 0 == status, err
    assert "1 run of 1 commit" in out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pytest.ini", "[pytest]\ntorchprof_history = runs\n"),
        ("tox.ini", "[pytest]\ntorchprof_history=runs\n"),
        ("setup.cfg", "[tool:pytest]\ntorchprof_history = runs\n"),
        ("pytest.toml", '[pytest]\ntorchprof_history = "runs"\n'),
        ("pyproject.toml", '[tool.pytest]\ntorchprof_history = "runs"\n'),
    ],
)
def test_any_configuration_of_pytest_may_name_it(tmp_path: Path, name: str, text: str) -> None:
    from pytest_torchprof.history.stores import configured_history

    (tmp_path / name).write_text(text)
    assert str(tmp_path / "runs") == configured_history(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pytest.ini", "torchprof_history = runs"),
        ("pyproject.toml", "torchprof_history = = 1"),
        ("pyproject.toml", "[tool]\npytest = 'torchprof_history'"),
        ("setup.cfg", "[pytest]\ntorchprof_history = runs\n"),
    ],
)
def test_a_configuration_that_is_not_right_names_none(tmp_path: Path, name: str, text: str) -> None:
    from pytest_torchprof.history.stores import configured_history

    (tmp_path / name).write_text(text)
    assert configured_history(tmp_path) is None


# -------------------------------------------------------------------- bad usage


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no history is named"),
        (["nowhere"], "has no runs"),
        (["a", "b"], "too many names"),
        (["compare"], "no branch is named"),
        (["history", "--yes"], "--yes belongs to"),
        (["history", "--branch", "nope"], "no run is of branch nope"),
        (["history", "--test", "nope"], "is called nope"),
        (["compare", "nope", "history"], "no branch nope"),
        (["nowhere://x"], "cannot be opened"),
        (["gc", "--branch", "main", "history"], "--branch does not belong to torchprof history gc"),
        (["gc", "history", "--test", "t"], "--test does not belong to torchprof history gc"),
        (["gc", "history", "--metric=m", "--yes"], "--metric does not belong to"),
        (["compare", "main", "--html=f", "history"], "--html does not belong to"),
        (["history", "--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_bad_usage_is_one_line(
    say: Say, repository: Repository, words: list[str], message: str
) -> None:
    save(repository.folder / "history", run(repository.commit(), {"ops": 1}))
    status, out, err = say("history", *words)
    assert (2, "") == (status, out)
    assert message in err
    assert 1 == err.count("\n")


@pytest.mark.one_in(6)
@pytest.mark.parametrize("text", [*HOSTILE, EVERY])
def test_hostile_names_stay_names(
    say: Say, repository: Repository, history: Path, text: str
) -> None:
    text = in_utf8(text)
    for ops in (1, 2):
        test = RunTest(text or "t", "ok", None, None, {"ops": ops, text or "m": ops})
        save(history, run(repository.commit(), {}, tests=[test], branch=text))
    for style in ("table", "markdown", "csv", "json"):
        status, out, err = say("history", history, "--format", style)
        assert 0 == status, err
        assert_terminal(out)
        assert_terminal(err)


# -------------------------------------------------------------------- against the merge base


@pytest.fixture
def branched(repository: Repository, history: Path) -> dict[str, str]:
    """A branch that needs more, and a main branch that has since changed in another way."""
    commits = {"first": repository.commit()}
    save(history, run(commits["first"], {"ops": 5, "flops": 1, "kernels": 3}))
    repository.switch("feature")
    commits["feature"] = repository.commit(b="1")
    save(history, run(commits["feature"], {"ops": 7, "flops": 1, "syncs": 1}, branch="feature"))
    repository.switch("main")
    commits["main"] = repository.commit(c="1")
    save(history, run(commits["main"], {"ops": 5, "flops": 9, "kernels": 3}))
    return commits


def test_a_branch_is_compared_with_where_it_left(
    ask: Ask, repository: Repository, history: Path, branched: dict[str, str]
) -> None:
    repository.switch("feature")
    found = ask("compare", "main", str(history))
    (row,) = found["rows"]
    assert ("ops", 5, 7, branched["feature"]) == (
        row["metric"], row["before"], row["value"], row["commit"],
    )  # fmt: skip
    assert (branched["first"], branched["feature"]) == (found["merge_base"], found["commit"])
    assert 2 == found["compared"]
    assert ["1 series are new since the merge base"] == found["notes"]


def test_another_branch_can_be_compared(ask: Ask, history: Path, branched: dict[str, str]) -> None:
    found = ask("compare", "main", str(history), "--branch", "feature")
    assert [branched["feature"]] == [row["commit"] for row in found["rows"]]


def test_a_branch_that_is_only_newer_is_compared_with_what_is_checked_out(
    ask: Ask, repository: Repository, history: Path
) -> None:
    first = repository.commit()
    repository.switch("feature")
    second = repository.commit(b="1")
    repository.switch("main")
    save(history, run(first, {"ops": 5}), run(second, {"ops": 6}, branch="feature"))
    found = ask("compare", "feature", str(history))
    assert (second, first) == (found["commit"], found["merge_base"])
    assert [6] == [row["value"] for row in found["rows"]]


def test_the_whole_change_is_one_row(ask: Ask, repository: Repository, history: Path) -> None:
    save(history, run(repository.commit(), {"ops": 5, "flops": 5}))
    repository.switch("feature")
    for ops in (6, 7, 8):
        metrics = {"ops": ops, "flops": 13 - ops}
        save(history, run(repository.commit(b=str(ops)), metrics, branch="feature"))
    found = ask("compare", "main", str(history))
    assert [("ops", 5, 8)] == [(r["metric"], r["before"], r["value"]) for r in found["rows"]]


def test_times_need_runs_on_both_sides(ask: Ask, repository: Repository, history: Path) -> None:
    def measured(count: int, level: float) -> None:
        for number in range(count):
            save(history, run(repository.commit(), {"wall_ms": level + number % 3 / 10}))

    measured(20, 10)
    repository.switch("feature")
    measured(2, 12)
    found = ask("compare", "main", str(history))
    assert ([], ["1 series of times have too few runs for an answer"]) == (
        found["rows"], found["notes"],
    )  # fmt: skip
    measured(10, 12)
    (row,) = ask("compare", "main", str(history))["rows"]
    assert ("drift", True) == (row["kind"], 1.8 < row["value"] - row["before"] < 2.2)


def test_the_table_of_a_comparison_names_both_commits(
    say: Say, history: Path, branched: dict[str, str]
) -> None:
    _, out, _ = say("history", "compare", "main", history, "--branch", "feature")
    assert f"{branched['feature'][:10]} against {branched['first'][:10]}, the merge base" in out


def test_nothing_to_compare_is_said(say: Say, repository: Repository, history: Path) -> None:
    save(history, run(repository.commit(), {"ops": 1}))
    repository.switch("feature")
    repository.commit(b="1")
    status, _, err = say("history", "compare", "main", history)
    assert (2, True) == (status, "no run since the merge base" in err)


# -------------------------------------------------------------------- gc


def test_names_may_follow_options(say: Say, repository: Repository, history: Path) -> None:
    save(history, run(repository.commit(), {"ops": 1}))
    for words in (["gc", "--yes"], ["--metric", "ops"]):
        status, _, err = say("history", *words, history)
        assert (0, "") == (status, err), words
    assert "unrecognized" not in say("history", "compare", "main", "--metric", "ops", history)[2]


def test_where_commits_between_have_no_run_none_is_blamed(
    say: Say, repository: Repository, history: Path
) -> None:
    first, unmeasured, third, last = (repository.commit() for _ in range(4))
    for commit, parent, ops in ((first, None, 5), (third, unmeasured, 7), (last, third, 8)):
        save(history, run(commit, {"ops": ops}, parents=[parent] if parent else []))
    out = say("history", history)[1]
    assert f"{first[:10]}..{third[:10]}" in out
    assert f" {last[:10]} " in out
    assert "A..B: commits between have no run; one of them or B changed it" in out
    assert unmeasured[:10] not in out


def test_gc_lists_and_with_yes_removes_what_nothing_leads_to(
    say: Say, ask: Ask, repository: Repository, history: Path
) -> None:
    kept = repository.commit()
    repository.switch("gone")
    gone = repository.commit(b="1")
    repository.switch("main")
    git(repository.folder, "branch", "-D", "gone")
    keep = save(
        history,
        run(kept, {"ops": 1}),
        run(None, {"ops": 1}),
        run("b" * 40, {"ops": 1}, repository="other"),
    )
    drop = save(history, run(gone, {"ops": 1}), run("a" * 40, {"ops": 1}))
    (history / "notes.json").write_text("{}")
    rows = ask("gc", str(history))["rows"]
    assert drop == [row["file"] for row in rows]
    assert ["nothing leads to it", "not in this clone"] == [row["reason"] for row in rows]
    assert 6 == len(list(history.iterdir()))
    status, out, _ = say("history", "gc", history)
    assert (0, True, True) == (status, "to remove: 2 of 5 runs" in out, "--yes removes" in out)
    status, out, _ = say("history", "gc", history, "--yes")
    assert (0, True) == (status, "removed: 2 of 5 runs" in out)
    assert {*keep, "notes.json"} == {path.name for path in history.iterdir()}
    assert [] == ask("gc", str(history))["rows"]


def test_gc_removes_nothing_from_a_shallow_clone(
    say: Say, repository: Repository, history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = repository.commit(a="1"), repository.commit(a="2")
    save(history, run(first, {"ops": 1}))
    folder = repository.folder.parent / "shallow"
    git(folder.parent, "clone", "-q", "--depth=1", f"file://{repository.folder}", str(folder))
    monkeypatch.chdir(folder)
    status, _, err = say("history", "gc", history, "--yes")
    assert (2, True) == (status, "shallow" in err)
    assert 1 == len(list(history.iterdir()))


def test_gc_needs_a_repository(
    say: Say, tmp_path: Path, history: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    save(history, run("a" * 40, {"ops": 1}))
    status, _, err = say("history", "gc", history, "--yes")
    assert (2, f"torchprof: {tmp_path}: not in a git repository\n") == (status, err)


# -------------------------------------------------------------------- the page


def test_the_page_has_the_rows_that_are_printed(
    say: Say, repository: Repository, history: Path, tmp_path: Path
) -> None:
    for ops in (1, 1, 2):
        save(history, run(repository.commit(), {"ops": ops, "flops": 3}))
    target = tmp_path / "page.html"
    status, out, err = say("history", history, "--html", target, "--format", "json")
    assert (0, "") == (status, err)
    page = read_page(target.read_text("utf-8"))
    assert_quiet(page)
    assert json.loads(out)["rows"] == data_of_page(page)["rows"]
    assert 1 == len(page.every("svg"))  # of what changed
    say("history", history, "--html", target, "--metric", "*")
    assert 2 == len(read_page(target.read_text("utf-8")).every("svg"))  # of what was asked for


def test_a_page_replaces_no_other_file(
    say: Say, repository: Repository, history: Path, tmp_path: Path
) -> None:
    save(history, run(repository.commit(), {"ops": 1}))
    (tmp_path / "notes.txt").write_text("mine")
    for name, message in (("notes.txt", "not replaced"), (".", "is a folder"),
                          ("notes.txt/a.html", "cannot be written")):  # fmt: skip
        status, out, err = say("history", history, "--html", tmp_path / name)
        assert (2, "", 1) == (status, out, err.count("\n"))
        assert message in err
    assert "mine" == (tmp_path / "notes.txt").read_text()
    status, _, err = say("history", "gc", history, "--html", tmp_path / "a.html")
    assert (2, True) == (status, "--html does not belong" in err)
