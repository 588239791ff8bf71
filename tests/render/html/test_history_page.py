"""The page of a history: every number is that of the rows, and names are text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from support.hostile import EVERY, HOSTILE
from support.html_pages import Element, assert_quiet, data_of_page, read_page

from pytest_torchprof.history.git import order_of
from pytest_torchprof.history.question import Answer, Change, SeriesAnswer
from pytest_torchprof.history.series import RunInfo, Series
from pytest_torchprof.render.html import history_page as module
from pytest_torchprof.render.html.history_page import history_page

COMMITS = [f"{number:040x}" for number in range(300)]


def series(**values: Any) -> Series:
    known: dict[str, Any] = {
        "repository": "r",
        "test": "t.py::test_a",
        "region": None,
        "metric": "ops",
        "environment": "cpu, torch 2.13",
        "source": "",
        "machine": "",
        "unit": "1",
        "klass": "exact",
        "better": "lower",
    }
    return Series(**{**known, **values})


def history(*answers: SeriesAnswer, runs: int = 10, **values: Any) -> tuple[Answer, Any]:
    """A history along one line, with the rows that the answers' changes make."""
    made = [
        RunInfo(n, str(n), "r", COMMITS[n], None, None, "main", dirty=False,
                   started=f"2026-01-01T00:{n // 60:02}:{n % 60:02}Z")
        for n in range(runs)
    ]  # fmt: skip
    chain = [(c, COMMITS[max(n - 1, 0) : n]) for n, c in enumerate(COMMITS[:runs])]
    order = order_of(made, chain)
    rows = [row(one.series, change) for one in answers for change in one.changes]
    found = Answer("/h", order, list(range(runs)), [*answers], len(answers), {}, ["a note"], {})
    return found._replace(**values), rows


def row(one: Series, change: Change) -> Mapping[str, Any]:
    return {
        "test": one.test,
        "region": one.region,
        "metric": one.metric,
        "environment": one.environment,
        "machine": one.machine or None,
        "commit": COMMITS[change.at],
        "date": "2026-01-01T00:00:00Z",
        "value": change.value,
        "before": change.before,
        "kind": change.kind,
        "cause": f"m.py:5: {one.test} is new",
        "unit": one.unit,
        "dirty": False,
    }


def stepped(**values: Any) -> SeriesAnswer:
    numbers: dict[int, float] = {at: 5 if at < 4 else 2**60 + 1 for at in range(10)}
    return SeriesAnswer(series(**values), numbers, [Change(4, 3, 5, 2**60 + 1, "step")])


def timed(runs: int) -> SeriesAnswer:
    numbers = {at: 10.0 + at % 3 + (5 if at >= 6 else 0) for at in range(runs)}
    one = series(metric="wall_ms", klass="time", unit="ms", machine="runner")
    return SeriesAnswer(one, numbers, [Change(6, 5, 11.0, 16.0, "drift")])


def read(made: tuple[Answer, Any]) -> Element:
    page = read_page(history_page(*made))
    assert_quiet(page)
    return page


def test_every_change_is_a_row_with_its_numbers() -> None:
    made = history(stepped(), timed(10))
    page = read(made)
    rows = page.one("section", id="changes").one("tbody").every("tr")
    assert [["5", str(2**60 + 1)], ["11.0", "16.0"]] == [
        [cell.attributes["data-value"] for cell in one.every("td", class_="number")[:2]]
        for one in rows
    ]
    assert made[1] == data_of_page(page)["rows"]
    assert "2 changes in 10 runs" == page.one("h1").text
    assert "a note" in page.text
    assert COMMITS[4][:10] in rows[0].text


def test_a_row_leads_to_its_curve() -> None:
    page = read(history(stepped(), timed(10)))
    links = [a.attributes["href"] for a in page.one("tbody").every("a")]
    assert {"#series-1", "#series-2"} == set(links)
    assert all(page.every("div", id=(link or "")[1:]) for link in links)


def test_a_curve_of_exact_values_is_a_line_with_a_mark_at_each_step() -> None:
    (drawing,) = read(history(stepped())).every("svg")
    assert "img" == drawing.attributes["role"]
    assert "ops over 10 runs" in (drawing.attributes["aria-label"] or "")
    (title,) = drawing.every("title")
    assert title.text.startswith(f"{COMMITS[4][:10]}, 2026-01-01: 5 → ")
    lines = [path.attributes["d"] or "" for path in drawing.every("path")]
    assert 1 == sum("H" in line and line.count("V") == 1 and line[:2] != "M0" for line in lines)


@pytest.mark.thorough
@pytest.mark.parametrize(("runs", "dots"), [(10, 10), (240, 240), (300, 240)])
def test_a_curve_of_times_has_a_dot_a_run_up_to_a_number(runs: int, dots: int) -> None:
    (drawing,) = read(history(timed(runs), runs=runs)).every("svg")
    assert dots + 1 == len(drawing.every("circle"))  # and that of the change
    assert dots + 1 == len(drawing.every("title"))


def test_a_series_of_one_value_has_a_curve() -> None:
    (drawing,) = read(history(SeriesAnswer(series(), {3: 0}, []))).every("svg")
    assert "from 0 to 0" in (drawing.attributes["aria-label"] or "")


def test_without_changes_the_page_says_so() -> None:
    page = read(history())
    assert "No change in 10 runs" == page.one("h1").text
    assert "Nothing changed." in page.text


def test_what_is_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_CHANGES", 1)
    monkeypatch.setattr(module, "_MOST_CURVES", 1)
    page = read(history(stepped(), timed(10)))
    assert "1 older changes are left out" in page.text
    assert "1 series are left out" in page.text
    assert 1 == len(page.every("svg"))


@pytest.mark.parametrize("text", [*HOSTILE, EVERY, "]]>", "x" * 10_000])
def test_hostile_names_are_text(text: str) -> None:
    one = stepped(test=text, region=text, metric=text, environment=text)
    page = read(history(one, address=text, notes=[text]))
    assert not page.every("b")
    assert 1 == len(page.every("svg"))
