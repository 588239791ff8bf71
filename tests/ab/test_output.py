"""`torchprof ab` without its workers: arguments, what is printed of known rows, exit statuses."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.handmade_rows import (
    BRIEF,
    DIED,
    EVERY,
    FAILED,
    FAILED_A,
    FASTER,
    GONE,
    NEW,
    SAME,
    SKIPPED,
    SLOWER,
    UNCLEAR,
    Fake,
    decided,
)
from support.html_pages import data_of_page, read_page
from support.reasons import words

from pytest_torchprof.cli import main
from pytest_torchprof.core.errors import AbError, AbStoppedError, TorchprofError
from pytest_torchprof.core.values import Cause
from pytest_torchprof.render import ab
from pytest_torchprof.verdict.paired import Difference, PairedRow

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """What stands for the sides and their workers."""
    made = Fake(EVERY)
    made.install(monkeypatch)
    monkeypatch.setenv("COLUMNS", "160")
    return made


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run the command; exit status, stdout, stderr."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        try:
            status = main(["ab", *map(str, arguments)])
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        return status, *capsys.readouterr()

    return run


# -------------------------------------------------------------------- arguments


def test_arguments_after_two_dashes_go_to_pytest_unchanged(say: Say, fake: Fake) -> None:
    rest = ("tests/perf", "-k", "a or b", "-x", "--rounds=3", "--", "--format", "json")
    status, out, _ = say("main", "--rounds", "7", "--", *rest)
    assert (rest, "main", 7) == (fake.request.args, fake.request.ref, fake.options.rounds)
    assert out.startswith("A: main (3f2a91c)\nB: working tree")
    assert (1, True) == (status, fake.closed)


def test_without_dashes_and_words_pytest_gets_no_arguments(say: Say, fake: Fake) -> None:
    say("--a", "old", "--b", "new", "--python-a", "py1", "--python-b", "py2", "--min-time", "2.5s")
    asked = fake.request
    assert (None, Path("old"), Path("new")) == (asked.ref, asked.a, asked.b)
    assert ("py1", "py2", ()) == (asked.python_a, asked.python_b, asked.args)
    assert (2.5, None, 0.02) == (
        fake.options.min_time_s,
        fake.options.rounds,
        fake.options.threshold,
    )


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("main tests/perf -k foo", "torchprof ab main -- tests/perf -k foo"),
        ("main --rounds 5 -x", "torchprof ab main --rounds 5 -- -x"),
        ("-k foo main", "torchprof ab REF -- -k foo main"),
        ("main -x -- tests", "torchprof ab main -- -x"),
    ],
)
def test_pytest_arguments_without_dashes_get_a_hint_where_to_go(
    say: Say, fake: Fake, words: str, advice: str
) -> None:
    status, out, err = say(*words.split())
    assert (2, "", f"torchprof ab: arguments for pytest go after --: {advice}\n") == (
        status,
        out,
        err,
    )
    assert fake.request is None


@pytest.mark.parametrize(
    "words",
    [
        "--rounds 0",
        "--rounds x",
        "--min-time 0",
        "--min-time -1",
        "--min-time inf",
        "--min-time nan",
        "--threshold -1",
        "--threshold x",
        "--format html",
        "--limit -1",
    ],
)
def test_a_bad_option_is_one_line(say: Say, fake: Fake, words: str) -> None:
    status, out, err = say("main", *words.split())
    assert (2, "", 1) == (status, out, err.count("\n"))
    assert words.split(maxsplit=1)[0] in err
    assert fake.request is None


def test_two_dashes_are_not_special_for_other_commands(say: Say) -> None:
    with pytest.raises(SystemExit):
        main(["summary"])
    assert 2 == main(["summary", "--", "no-such-trace.json"])


def test_help_says_where_the_words_for_pytest_stand(say: Say) -> None:
    status, out, _ = say("--help")
    assert 0 == status
    assert "[REF] -- PYTEST ARGS" in out


# -------------------------------------------------------------------- what is printed


def test_the_table_has_what_needs_attention_first(say: Say, fake: Fake) -> None:
    fake.notes = ("submodule x has uncommitted changes; they are part of B",)
    fake.message = ("its worker died",)
    fake.rows = [
        replace(row, unprofiled=words("in B: it profiles itself")) if row is SAME else row
        for row in EVERY
    ]
    _, out, err = say("main")
    table, totals = out.splitlines()[3:15], out.splitlines()[-1]
    message = "\n".join(line.rstrip() for line in table)
    assert message == textwrap.dedent(
        """\
        test                                                   A             B  change                     verdict
        ------------------------------------------  ------------  ------------  -------------------------  -------
        tests/test_perf.py::test_step[float32-cpu]  3.21 ms ±4 %  3.54 ms ±4 %  +10.2 % (+9.2 … +11.2 %)   slower
        tests/test_perf.py::test_bad                           –             –  –                          failed
        tests/test_perf.py::test_fixed                         –             –  –                          failed
        tests/test_perf.py::test_crash                         –             –  –                          error
        tests/test_perf.py::test_jumpy              220 ms ±34 %  227 ms ±34 %  +3.0 % (-2.0 … +8.0 %)     unclear
        tests/test_perf.py::test_eval                 12 ms ±4 %     6 ms ±4 %  -50.0 % (-51.0 … -49.0 %)  faster
        tests/test_perf.py::test_attention                     –             –  –                          new
        tests/test_perf.py::test_old                           –             –  –                          gone
        tests/test_perf.py::test_load                4.1 us ±4 %   4.1 us ±4 %  +<0.1 % (-1.0 … +1.0 %)    same
        tests/test_perf.py::test_cuda                          –             –  –                          skipped"""  # noqa: E501
    )
    assert "tests/test_perf.py::test_cuda: skipped: needs a GPU" in out
    assert "test_step[float32-cpu]: flops 1.2 GFLOP → 1.4 GFLOP (+16.7 %)" in out
    assert "test_step[float32-cpu]: ops – → 12" in out
    assert "tests/test_perf.py::test_jumpy: ±34 % on A and ±34 % on B" in out
    assert "test_load: ±" not in out
    assert "submodule x has uncommitted changes; they are part of B\nits worker died\n" in out
    assert "exact metrics were not compared:\n  tests/test_perf.py::test_load: in B: it pro" in out
    assert "unclear: more time may decide it: --min-time 5" in out
    counts = "1 slower, 2 failed, 1 error, 1 unclear, 1 faster, 1 new, 1 gone, 1 same, 1 skipped"
    assert totals.startswith(f"{counts}; 99 % confidence over 4 tests together, changes below 2 % ")
    assert "" == err  # no bar where there is no terminal


def test_a_narrow_terminal_has_no_intervals(
    say: Say, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = say("main")
    table = out.splitlines()[3:16]
    assert "… without interval: COLUMNS=160 shows more" == table[-1]
    assert max(map(len, table)) <= 80
    assert "tests/test_perf.…step[float32-cpu]  3.21 ms ±4 %  3.54 ms ±4 %  +10.2 %  slower" in out


def test_markdown_is_fit_for_a_comment(say: Say, fake: Fake) -> None:
    _, out, _ = say("main", "--format", "markdown")
    assert out.startswith(
        "- A: main `(3f2a91c)`\n- B: working tree, uncommitted changes\n\n| test "
    )
    row = next(line for line in out.splitlines() if "test_step" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        "`tests/test_perf.py::test_step[float32-cpu]`",
        "3.21 ms ±4 %",
        "3.54 ms ±4 %",
        "+10.2 % (+9.2 … +11.2 %)",
        "**slower**",
    ]
    assert "\nexact metrics that differ:\n\n- `tests/" in out
    assert "\n\n1 slower, " in out


def test_causes_are_said_once_for_all_their_tests(say: Say, fake: Fake) -> None:
    clone = Cause("new_operators", "clone ×2 are new")
    fake.rows = [replace(SLOWER, nodeid=f"t.py::test_{name}", causes=(clone,)) for name in "abc"]
    _, out, _ = say("main")
    assert "why B needs more, by operator (pytest --torchprof names lines):\n" in out
    assert "  t.py::test_a: clone ×2 are new (and 2 other tests)\n" in out
    assert 1 == out.count("clone")


def test_json_has_every_number(say: Say, fake: Fake) -> None:
    _, out, _ = say("main", "--threshold", "3%", "--format", "json", "--", "tests")
    document = json.loads(out)
    rows = {row["name"].partition("::")[2]: row for row in document.pop("rows")}
    assert ("torchprof-ab/1", 0.99, 0.03, 4, False, []) == tuple(
        document[key]
        for key in ("schema", "confidence", "threshold", "tests", "interrupted", "notes")
    )
    assert {"label": "main (3f2a91c)", "root": "a", "args": ["tests"]}.items() <= document[
        "a"
    ].items()
    assert "working tree, uncommitted changes" == document["b"]["label"]
    step = rows["test_step[float32-cpu]"]
    assert list(ab.FIELDS) == list(step)
    exact = {"verdict": "slower", "reason": None, "pairs": 60, "calls_a": 40, "wall_ms_a": 3.21}
    assert exact == {key: step[key] for key in exact}
    close = {"ratio": 1.102, "change": 0.102, "low": 0.092, "high": 0.112, "spread_b": 0.04}
    assert close == pytest.approx({key: step[key] for key in close})
    assert {"metric": "ops", "a": None, "b": 12} in step["differences"]
    assert all(rows["test_old"][key] is None for key in ("ratio", "wall_ms_a", "confidence"))


def test_csv_is_one_row_a_test(say: Say, fake: Fake) -> None:
    _, out, _ = say("main", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(EVERY) == len(rows)
    assert ("slower", "1.102", "") == (rows[0]["verdict"], rows[0]["ratio"], rows[0]["reason"])


def test_a_limit_leaves_rows_out_and_says_so(say: Say, fake: Fake) -> None:
    _, out, _ = say("main", "--limit", "2")
    assert "… and 8 more rows: --limit 0 shows all" in out
    assert "test_eval" not in out
    assert "1 faster" in out
    _, out, _ = say("main", "--limit", "2", "--format", "json")
    document = json.loads(out)
    assert (2, 8) == (len(document["rows"]), document["left_out"])


def test_many_lines_below_the_table_are_cut(say: Say, fake: Fake) -> None:
    many = [Difference("flops", 10 + n, 20) for n in range(20)]
    fake.rows = [decided("test_x", "same", 1.0, differences=many)]
    _, out, _ = say("main")
    assert 12 == out.count(": flops ")
    assert "  … and 8 more: --limit 0 shows all" in out
    _, out, _ = say("main", "--limit", "0")
    assert 20 == out.count(": flops ")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (Difference("flops", 200, 240), "flops 200 FLOP → 240 FLOP (+20.0 %)"),
        (Difference("ops", 0, 3), "ops 0 → 3 (from 0)"),
        (Difference("kernels", 3, None), "kernels 3 → –"),
        (Difference("peak_cpu_bytes", 2**20, 2**20 + 1), "peak_cpu_bytes 1,048,576 B → 1,048,577 B (+<0.1 %)"),  # noqa: E501
        (Difference("of_a_newer_version", 3, 4), "of_a_newer_version 3 → 4 (+33.3 %)"),
    ],
)  # fmt: skip
def test_a_difference_is_in_the_unit_of_its_metric(found: Difference, message: str) -> None:
    assert message == ab.difference(found)


def test_too_few_pairs_are_reported_with_a_remedy(say: Say, fake: Fake) -> None:
    fake.rows = [BRIEF]
    _, out, _ = say("main", "--rounds", "2")
    assert "tests/test_perf.py::test_jumpy: unclear: 2 pairs of turns\n" in out
    assert "unclear: more pairs may decide it: --rounds 10\n1 unclear; 99 % confidence, " in out


def test_control_characters_of_a_test_do_not_reach_the_terminal(say: Say, fake: Fake) -> None:
    fake.rows = [decided("test_x[\x1b[31m]", "slower", 2.0, reason="a\x1b[2J\nb")]
    _, out, _ = say("main")
    assert "\x1b" not in out


# -------------------------------------------------------------------- exit status


@pytest.mark.parametrize(
    ("rows", "status", "why"),
    [
        ([SAME, FASTER, UNCLEAR, NEW, GONE, SKIPPED], 0, ""),
        ([SAME, SLOWER], 1, ""),
        ([SAME, FAILED], 1, ""),
        ([FAILED], 1, ""),
        ([DIED], 1, ""),
        ([SAME, FAILED_A], 0, ""),
        ([SAME, replace(DIED, broken="AB")], 0, ""),
        ([SAME, replace(FAILED, broken="AB")], 1, ""),
        ([FAILED_A], 2, "nothing was compared: 1 failed"),
        ([], 2, "nothing was compared: no tests were collected"),
        ([NEW, NEW], 2, "nothing was compared: every test is only in B"),
        ([GONE], 2, "nothing was compared: every test is only in A"),
        ([SKIPPED], 2, "nothing was compared: every test was skipped"),
        ([NEW, GONE], 2, "nothing was compared: 1 new, 1 gone"),
    ],
)
def test_exit_status(
    say: Say, fake: Fake, rows: Sequence[PairedRow], status: int, why: str
) -> None:
    fake.rows = rows
    got, out, err = say("main")
    assert (status, f"torchprof: {why}\n" if why else "") == (got, err)
    assert bool(rows) == bool(out)


@pytest.mark.parametrize(("rows", "status"), [([SAME, SLOWER], 1), ([SAME, DIED], 1), ([SAME], 2)])
def test_comparisons_made_before_an_early_end_are_shown_and_count(
    say: Say, fake: Fake, rows: Sequence[PairedRow], status: int
) -> None:
    fake.rows, fake.error = rows, AbStoppedError("3 tests in a row ended their worker")
    got, out, err = say("main")
    assert (status, "torchprof: 3 tests in a row ended their worker\n") == (got, err)
    assert "test_load" in out


def test_code_that_is_not_a_sides_own_makes_all_of_it_void(say: Say, fake: Fake) -> None:
    fake.rows, fake.error = [SLOWER], AbError("side B ran code from outside its tree")
    status, out, err = say("main")
    assert (2, "", "torchprof: side B ran code from outside its tree\n") == (status, out, err)


def test_an_error_of_a_side_is_one_line(say: Say, fake: Fake) -> None:
    fake.error = TorchprofError("B imports the code of A", "pkg: /a/pkg.py", "see the docs")
    status, out, err = say("main")
    assert (2, "") == (status, out)
    assert (
        "torchprof: B imports the code of A: /a/pkg.py; see the docs\n".replace(": /a", ": pkg: /a")
        == err
    )
    assert fake.closed


# -------------------------------------------------------------------- the report


def record_of(path: Path) -> dict[str, dict[str, Any]]:
    report = json.loads(path.read_text("utf-8"))
    assert "torchprof-report/1" == report["schema"]
    assert "main (3f2a91c)" == report["environment"]["a"]["label"]
    return {test["nodeid"].partition("::")[2]: test for test in report["tests"]}


@pytest.mark.parametrize("joined", [True, False])
def test_the_report_is_that_of_b_with_a_as_its_baseline(
    say: Say, fake: Fake, tmp_path: Path, joined: bool
) -> None:
    file = tmp_path / "new" / "report.json"
    option = [f"--torchprof-json={file}"] if joined else ["--torchprof-json", file]
    say("main", "--", "-x", *option, "tests")
    assert ("-x", "tests") == fake.request.args
    tests = record_of(file)
    step = tests["test_step[float32-cpu]"]
    assert ("passed", "regressed") == (step["outcome"], step["status"])
    wall = step["metrics"]["wall_ms"]
    assert ("regressed", 3.21, "time", None) == tuple(
        wall[key] for key in ("status", "baseline", "class", "limit")
    )
    assert {"value": 1_400_000_000, "baseline": 1_200_000_000, "status": "regressed"}.items() <= (
        step["metrics"]["flops"].items()
    )
    assert ("slower", 1.102, 60) == tuple(step["ab"][key] for key in ("verdict", "ratio", "pairs"))
    assert (1.092, 1.112) == pytest.approx((step["ab"]["low"], step["ab"]["high"]))
    assert {"n": 40, "median": 3.21, "unit": "ms"}.items() <= step["ab"]["a"].items()
    assert {
        "test_eval": ("passed", "improved"),
        "test_load": ("passed", "ok"),
        "test_jumpy": ("passed", "ok"),
        "test_attention": (None, "new"),
        "test_old": (None, "not_profiled"),
        "test_cuda": ("skipped", "not_profiled"),
        "test_bad": ("failed", "not_profiled"),
        "test_fixed": (None, "not_profiled"),
        "test_crash": ("error", "not_profiled"),
    } == {name: (t["outcome"], t["status"]) for name, t in tests.items() if "step" not in name}
    assert "advisory" == tests["test_jumpy"]["metrics"]["wall_ms"]["status"]


@pytest.mark.parametrize("name", ["", "."])
def test_a_report_without_a_file_is_refused_before_anything_runs(
    say: Say, fake: Fake, name: str
) -> None:
    status, _, err = say("main", "--", f"--torchprof-json={name}")
    assert (2, 1, None) == (status, err.count("\n"), fake.request)
    assert "--torchprof-json" in err


def test_a_report_that_cannot_be_written_does_not_affect_the_output(
    say: Say, fake: Fake, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    status, out, err = say("main", "--", f"--torchprof-json={tmp_path}/file/report.json")
    assert (2, 1) == (status, err.count("\n"))
    assert "1 slower" in out


def test_the_page_has_the_report(say: Say, fake: Fake, tmp_path: Path) -> None:
    file, page = tmp_path / "report.json", tmp_path / "new" / "page.html"
    status, _, err = say("main", "--html", page, "--", f"--torchprof-json={file}")
    assert (1, "") == (status, err)
    shown = read_page(page.read_text("utf-8"))
    assert json.loads(file.read_text("utf-8")) == data_of_page(shown)
    assert shown.one("h1").text.startswith("10 tests compared: ")
    assert "1 slower" in shown.one("h1").text
    first = shown.every("details", class_="test")[0]
    assert "B takes 1.102 times as long as A (1.092 … 1.112), 99 % confidence, 60 pairs" == (
        first.every("p")[0].text
    )
    assert "1.102" == first.every("p")[0].attributes["data-ratio"]


@pytest.mark.parametrize("name", [".", "mine.html"])
def test_a_page_that_replaces_something_else_is_refused_before_anything_runs(
    say: Say, fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.html").write_text("mine", "utf-8")
    status, _, err = say("main", "--html", name, "--")
    assert (2, 1, None) == (status, err.count("\n"), fake.request)
    assert name in err
    assert "mine" == (tmp_path / "mine.html").read_text("utf-8")


# -------------------------------------------------------------------- interrupted


@pytest.mark.parametrize("when", ["during", "closing"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_it_like_ctrl_c_with_what_there_is(
    say: Say, fake: Fake, tmp_path: Path, name: str, when: str
) -> None:
    number = getattr(signal, name)
    fake.rows = [SLOWER]
    setattr(fake, when, lambda: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    file = tmp_path / "report.json"
    status, out, err = say("main", "--", f"--torchprof-json={file}")
    assert (130, True, before, "") == (status, fake.closed, signal.getsignal(number), err)
    assert "interrupted; so far: 1 slower; " in out
    assert json.loads(file.read_text("utf-8"))["environment"]["interrupted"]
    assert ["test_step[float32-cpu]"] == list(record_of(file))
