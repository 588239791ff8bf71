"""`torchprof report`: a stored report as a page."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.command_line import Say, say
from support.html_pages import assert_quiet, data_of_page, read_page
from support.stored_reports import finding, metric, report, save, test
from support.trace_builder import TraceBuilder

from pytest_torchprof.cli import main

__all__ = ["say"]  # a fixture

REPORT = report(
    test(
        "t.py::test_a",
        status="regressed",
        outcome="failed",
        metrics={"ops": metric(5, baseline=3, status="regressed")},
        findings=[finding()],
    ),
    test("t.py::test_b"),
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a report and a file that a finding is in."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "r.json", REPORT)
    (tmp_path / "train.py").write_text("\n".join(f"line_{n}" for n in range(1, 30)), "utf-8")
    return tmp_path


def test_a_report_becomes_a_page(say: Say, here: Path) -> None:
    assert (0, "", "") == say("report", "r.json", "-o", "out/page.html")
    page = read_page((here / "out" / "page.html").read_text("utf-8"))
    assert_quiet(page)
    assert "1 of 2 tests regressed" == page.one("h1").text
    assert REPORT == data_of_page(page)
    assert "line_21" in page.one("span", class_="hit").text


def test_several_reports_are_in_one_page(say: Say, here: Path) -> None:
    save(here / "s.json", report(test("t.py::test_a"), interrupted=True))
    status, out, err = say("report", "r.json", "s.json", "--output", "page.html")
    assert (0, "") == (status, out)
    assert "torchprof: warning: s.json: the session was interrupted; tests may be missing\n" == err
    page = read_page((here / "page.html").read_text("utf-8"))
    assert "2 files" == page.one("h1").text
    bar, first, second = page.every("nav")
    assert ["r.json", "s.json"] == [one.text for one in bar.every("a")]
    assert ["Summary", "Tests", "Findings"] == [one.text for one in first.every("a")]
    assert ["Summary", "Tests"] == [one.text for one in second.every("a")]
    linked = [str(one.attributes["href"]) for one in (*first.every("a"), *second.every("a"))]
    assert linked == [f"#{one.attributes['id']}" for one in page.every("section")]
    assert "Summary of r.json" == page.every("h2")[0].text
    assert {"r.json", "s.json"} == set(data_of_page(page)["files"])
    anchors = [one.attributes["id"] for one in page.every("details", class_="test")]
    assert 3 == len(set(anchors))


def test_assets_may_be_in_a_folder(say: Say, here: Path) -> None:
    made = say("report", "r.json", "-o", "out/page.html", "--assets", "out/my look")
    assert (0, "", "") == made
    page = read_page((here / "out" / "page.html").read_text("utf-8"))
    assert "my%20look/torchprof.css" == page.one("link").attributes["href"]
    assert ["torchprof.css", "torchprof.js"] == sorted(names(here / "out" / "my look"))


def test_a_minus_is_standard_output(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["report", "r.json", "-o", "-"])
    out, err = capfd.readouterr()
    assert ("1 of 2 tests regressed", "") == (read_page(out).one("h1").text, err)
    assert 0 == main(["report", "r.json", "-o", "./-"])
    assert {"r.json", "train.py", "-"} == set(names(here))


def test_a_page_on_standard_output_links_to_no_folder(say: Say, here: Path) -> None:
    assert "--assets does not go with -o -" in refused(say, "r.json", "-o-", "--assets", "look")
    assert not (here / "look").exists()


@pytest.mark.parametrize("name", ["torchprof.css", "torchprof.js"])
def test_assets_replace_assets_and_no_other_file(say: Say, here: Path, name: str) -> None:
    arguments = ("r.json", "-o", "page.html", "--assets", "look")
    for _ in range(2):
        assert (0, "", "") == say("report", *arguments)
    (here / "look" / name).write_text("mine", "utf-8")
    (here / "page.html").unlink()
    assert f"{name} is not replaced: it exists and is not of a page" in refused(say, *arguments)
    assert "mine" == (here / "look" / name).read_text("utf-8")
    assert not (here / "page.html").exists()


def test_a_page_replaces_a_page_and_no_other_file(say: Say, here: Path) -> None:
    for _ in range(2):
        assert (0, "", "") == say("report", "r.json", "-o", "page.html")
    (here / "mine.html").write_text("mine", "utf-8")
    assert "mine.html is not replaced: it exists and is not a page of torchprof" in refused(
        say, "r.json", "-o", "mine.html"
    )
    assert "mine" == (here / "mine.html").read_text("utf-8")


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def refused(say: Say, *arguments: str) -> str:
    """The one line of the error."""
    status, out, err = say("report", *arguments)
    assert (2, "", 1) == (status, out, err.count("\n"))
    return err


def test_what_is_read_is_never_overwritten(say: Say, here: Path) -> None:
    assert "r.json: this is one of the files to read" in refused(say, "r.json", "-o", "r.json")
    assert (here / "r.json").read_text("utf-8").startswith('{"schema"')


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "r2.json: cannot be read: No such file or directory"),
        ("", "r2.json: not a report: it is not JSON"),
        ("[1]", "r2.json: not a report: it has no schema torchprof-report/1"),
        ('{"schema": "torchprof-report/9"}', "newer than torchprof-report/1; update torchprof"),
        ('{"schema": "torchprof-report/1", "tests": 3}', "it is not as torchprof-report/1 says"),
        ('{"schema": "torchprof-baseline/1"}', "its schema is 'torchprof-baseline/1'"),
    ],
)
def test_what_is_no_report_is_one_line(
    say: Say, here: Path, content: str | None, says: str
) -> None:
    if content is not None:
        (here / "r2.json").write_text(content, "utf-8")
    assert says in refused(say, "r2.json", "-o", "page.html")
    assert not (here / "page.html").exists()


def test_a_trace_is_told_apart_by_its_content(say: Say, here: Path) -> None:
    builder = TraceBuilder()
    with builder.op("aten::add", [[4], [4]]):
        pass
    builder.save(here / "r2.json")
    assert (0, "", "") == say("report", "r.json", "r2.json", "-o", "page.html")
    text = (here / "page.html").read_text("utf-8")
    assert "r2.json: Operators" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-o", "folder"], "folder: is a folder; name a file in it"),
        (["-o", "r.json/page.html"], "r.json/page.html: cannot be written: Not a directory"),
        (["-o", "p.html", "--assets", "train.py"], "train.py cannot be a folder"),
        (["-o", "p.html", "--assets", "train.py/x"], "cannot be a folder: train.py exists"),
        (["-o", "/dev/full"], "/dev/full: cannot be written: No space left on device"),
    ],
)  # fmt: skip
def test_a_target_that_cannot_be_written_is_one_line(
    say: Say, here: Path, arguments: list[str], says: str
) -> None:
    if "/dev/full" in arguments and not os.path.exists("/dev/full"):  # noqa: PTH110
        pytest.skip("no full device here")
    (here / "folder").mkdir()
    assert says in refused(say, "r.json", *arguments)


def test_a_page_that_cannot_be_replaced_stays(
    say: Say, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("report", "r.json", "-o", "page.html")
    before = (here / "page.html").read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert "page.html: cannot be written: No space left on device" in refused(
        say, "r.json", "-o", "page.html"
    )
    assert before == (here / "page.html").read_bytes()
    assert ["page.html", "r.json", "train.py"] == sorted(names(here))
