"""--torchprof-html: the session's report as a page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.html_pages import assert_quiet, assert_same_numbers, data_of_page, read_page
from support.sessions import ADD, doctor, run

FAILS = """
    import pytest
    import torch

    X = torch.ones(4)

    def test_regressed(): X + X + X

    @pytest.mark.max_ops(0)
    def test_over(): X + X

    @pytest.mark.no_antipatterns
    def test_rows():
        x = torch.ones(32, 8)
        torch.stack([x[i] * 2 for i in range(32)])

    def test_ok(): X + X

    def test_fails(): assert X is None
"""


@pytest.fixture
def failing(pytester: pytest.Pytester) -> pytest.Pytester:
    """One test that regressed, two over a limit, one that is fine, one that fails by itself."""
    pytester.makepyfile(test_it=FAILS)
    run(pytester, "--accept")
    doctor(pytester, "test_regressed", ops=1)
    return pytester


def shown(folder: Path) -> dict[str, Any]:
    """The name of each test in the page: whether it is open, and its text."""
    page = read_page((folder / "page.html").read_text("utf-8"))
    assert_quiet(page)
    return {
        one.one("span", class_="name").text.partition("::")[2]: ("open" in one.attributes, one)
        for one in page.every("details", class_="test")
    }


def test_the_page_has_what_the_report_has(failing: pytest.Pytester) -> None:
    ran = run(failing, "--torchprof", "--torchprof-html=new/page.html")
    text = (failing.path / "new" / "page.html").read_text("utf-8")
    assert ran.report == data_of_page(read_page(text))
    tests = shown(failing.path / "new")
    for name, (_, view) in tests.items():
        assert_same_numbers(view.one("div", class_="body"), ran.tests[name]["metrics"])
    assert {"test_over", "test_rows", "test_regressed", "test_fails"} == {
        name for name, (is_open, _) in tests.items() if is_open
    }
    assert "test_ok" == list(tests)[-1]
    _, rows = tests["test_rows"]
    assert "torch.stack([x[i] * 2" in rows.one("article").one("span", class_="hit").text
    _, regressed = tests["test_regressed"]
    (cells,) = [row for row in regressed.every("tr") if row.text.startswith("ops")]
    assert ["2", "1"] == [
        cell.attributes["data-value"]
        for cell in cells.every("td")
        if "data-value" in cell.attributes
    ]
    assert (
        "ops 1 → 2 (+100.0 %): regressed against the baseline"
        in regressed.one("details", class_="message").text
    )
    assert "def test_regressed(): X + X + X" in regressed.one("details", class_="source").text


def test_each_round_is_in_the_report_and_in_the_page(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    ran = run(pytester, "--torchprof", "--torchprof-rounds=4", "--torchprof-html=page.html")
    wall = ran.metric("wall_ms")
    assert 4 == len(wall["rounds"])
    assert min(wall["rounds"]) == wall["min"]
    _, test = shown(pytester.path)["test_add"]
    assert test.every("path", class_="round")


def test_a_page_replaces_an_older_one_and_no_other_file(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    path = pytester.path / "page.html"
    for _ in range(2):
        run(pytester, "--torchprof", "--torchprof-html=page.html")
    assert 1 == path.read_text("utf-8").count("<!doctype html>")
    path.write_text("<p>Mine\n", "utf-8")
    error = run(pytester, "--torchprof", "--torchprof-html=page.html").usage_error()
    assert "--torchprof-html: " in error
    assert "page.html is not replaced: it exists and is not a page of torchprof" in error
    assert "<p>Mine\n" == path.read_text("utf-8")


def test_a_page_that_cannot_be_written_fails_the_session(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    ran = run(pytester, "--torchprof", "--torchprof-html=test_it.py/page.html")
    assert 1 == ran.ret
    (line,) = [line for line in ran.out.splitlines() if line.startswith("ERROR: ")]
    assert "cannot be written: Not a directory; name another with --torchprof-html" in line


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")  # noqa: PTH110
def test_a_full_disk_is_one_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    ran = run(pytester, "--torchprof", "--torchprof-html=/dev/full")
    assert 1 == ran.ret
    assert "page /dev/full cannot be written: No space left on device" in ran.out


def test_it_does_nothing_without_profiling_which_is_said(pytester: pytest.Pytester) -> None:
    error = run(pytester, "--torchprof-html=page.html").usage_error()
    assert "--torchprof-html does nothing without --torchprof" in error


@pytest.mark.thorough
def test_an_interrupted_session_has_a_page(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD + "\n    def test_stop():\n        raise KeyboardInterrupt\n")
    run(pytester, "--torchprof", "--torchprof-html=page.html")
    text = (pytester.path / "page.html").read_text("utf-8")
    assert "The session was interrupted: tests are missing." in text
    assert "test_add" in shown(pytester.path)


def test_a_session_without_tests_has_a_page(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="")
    run(pytester, "--torchprof", "--torchprof-html=page.html")
    assert {} == shown(pytester.path)


@pytest.mark.thorough
def test_under_xdist_the_controller_writes_it(failing: pytest.Pytester) -> None:
    options = ("--torchprof", "-n1", "--torchprof-html=page.html")
    ran = run(failing, *options, needs=["xdist"])
    page = read_page((failing.path / "page.html").read_text("utf-8"))
    assert ran.report == data_of_page(page)
    assert 5 == len(shown(failing.path))


@pytest.mark.thorough
def test_without_it_no_template_is_loaded(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    pytester.makeconftest(
        """
        import atexit, sys

        def told():
            loaded = "pytest_torchprof.render.html" in sys.modules
            print(f"html loaded: {loaded}", file=sys.__stderr__)

        atexit.register(told)
        """
    )
    assert "html loaded: False" in run(pytester, "--torchprof", subprocess=True).err
    ran = run(pytester, "--torchprof", "--torchprof-html=page.html", subprocess=True)
    assert "html loaded: True" in ran.err


def test_a_folder_and_the_file_of_another_option_are_refused_before_anything_runs(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it="def test_it(): open('ran', 'w').close()")
    (pytester.path / "there").mkdir()
    error = run(pytester, "--torchprof", "--torchprof-html=there").usage_error()
    assert "there is a folder; name a file in it" in error
    options = ("--torchprof-html=same", "--torchprof-markdown=./same")
    error = run(pytester, "--torchprof", *options).usage_error()
    assert error.endswith("same is the file of --torchprof-html, too")
    assert not (pytester.path / "ran").exists()
