"""The page of a report: verdicts first, each number as in the report, hostile names as text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from support.hostile import HOSTILE, LEGIT
from support.html_pages import Element, assert_quiet, assert_same_numbers, data_of_page, read_page
from support.stored_reports import cause, finding, metric, report, test

from pytest_torchprof.render import escape
from pytest_torchprof.render.html import report_page as module
from pytest_torchprof.render.html.page import Sources
from pytest_torchprof.render.html.report_page import headline, report_page
from pytest_torchprof.render.report import of_document

ROUNDS = {"class": "time", "n": 5, "low": 1.25, "high": 1.75, "min": 1.2, "spread": 0.17}
METRICS = {
    "wall_ms": metric(1.5, "ms", **ROUNDS, baseline=1.0625, limit=2, status="advisory"),
    "cpu_ms": metric(0.1 + 0.2, "ms", n=1, low=2, high=2),
    "peak_cpu_bytes": metric(0, "B", baseline=0),
    "kernels": metric(None),
    "syncs": metric(None, limit=0),
    "flops": metric(None, "FLOP", at_least=2**63),
    "allocated_cpu_bytes": metric(9, "B", at_least=9, status="over_budget", limit=5),
    "ops": metric(312, baseline=260, status="regressed"),
    "ops[op=aten::mm]": metric(4, limit=9, least=2, baseline=4),
    "images_per_s": metric(10.5, "1/s", better="higher", baseline=10.5, status="ok"),
    "graphs": metric(1, status="new"),
}
FAILING = test(
    "t.py::test_a",
    outcome="failed",
    status="over_budget",
    metrics=METRICS,
    findings=[finding(), finding(rule="repeated-cast", accepted=True, cost_ms=None, bytes=4096)],
    unchecked={"fp32-matmul": "no accelerator in this capture"},
    regions={"decode": {"laps": 2, "metrics": {"ops": metric(8, baseline=7)}, "findings": []}},
    trace="traces/t.py.test_a.pt.trace.json.gz",
)
REPORT = report(
    test("t.py::test_ok", metrics={"ops": metric(3, baseline=3)}),
    FAILING,
    test("t.py::test_skip", outcome="skipped", status="not_profiled", reason="skip", metrics={}),
    test("t.py::test_broken", outcome="failed", status="not_profiled", reason="why", metrics={}),
)


def made(document: dict[str, Any], root: Path = Path("nowhere")) -> Element:
    """The page of the report, read, with nothing in it that acts."""
    made = read_page(report_page(of_document(document, "r.json"), Sources(root)))
    assert_quiet(made)
    return made


def views_in(page: Element) -> dict[str, Element]:
    return {
        one.attributes.get("data-name") or one.every("span", class_="name")[0].text: one
        for one in page.every("details", class_="test")
    }


# -------------------------------------------------------------------- what comes first


def test_the_verdict_is_the_title_and_failures_are_first_and_open() -> None:
    page = made(REPORT)
    assert "1 of 4 tests over budget; 1 failed otherwise" == page.one("h1").text
    tests = views_in(page)
    assert ["t.py::test_a", "t.py::test_broken", "t.py::test_skip", "t.py::test_ok"] == list(tests)
    assert [True, True, False, False] == ["open" in one.attributes for one in tests.values()]
    assert ["summary", "tests", "findings"] == [
        one.attributes["id"] for one in page.every("section")
    ]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], "No test was profiled"),
        (["not_profiled"], "No test was profiled"),
        (["ok"], "No regression in 1 test"),
        (["ok", "improved", "new", "not_profiled"], "No regression in 3 tests"),
        (["ok", "regressed"], "1 of 2 tests regressed"),
        (["regressed", "over_budget"], "2 of 2 tests over budget or regressed"),
    ],
)
def test_the_verdict_in_a_sentence(statuses: list[str], expected: str) -> None:
    tests = (test(f"t.py::test_{n}", status=status) for n, status in enumerate(statuses))
    assert expected == headline(of_document(report(*tests), "r.json"))


def test_the_verdict_hides_no_other_failure() -> None:
    tests = [
        test("t.py::a", status="ok"),
        test("t.py::b", status="not_profiled", outcome="failed"),
        test("t.py::c", status="not_profiled", outcome="error"),
        test("t.py::d", status="not_profiled", outcome="skipped"),
    ]
    whole = headline(of_document(report(*tests), "r.json"))
    assert "No regression in 1 test; 1 failed otherwise; 1 with an error" == whole
    broken_off = headline(of_document(report(tests[0], interrupted=True), "r.json"))
    assert "No regression in 1 test; the session was interrupted" == broken_off


def test_totals_count_tests_and_limits_that_were_not_checked() -> None:
    (totals,) = made(REPORT).every("ul", class_="totals")
    assert {
        "over_budget": "1", "failed": "1", "not_profiled": "1", "ok": "1", "unchecked": "1",
    } == {str(one.attributes["class"]): one.one("b").attributes["data-value"]
          for one in totals.every("li")}  # fmt: skip


def test_the_environment_has_what_is_known() -> None:
    sides = {"a": {"label": "A: main", "root": "/src"}, "other": [1, None]}
    facts = made(report(environment={"key": "cpu", "host": None, "threads": 2, **sides}))
    assert ["environment cpu", "threads 2", "a A: main", "other [1, null]"] == [
        f"{one.one('dt').text} {one.one('dd').text}" for one in facts.one("dl").every("div")
    ]


def test_why_it_failed_is_the_text_of_the_failure() -> None:
    text = "torchprof: ops 3 → 5\n  <b>aten::add</b>  1 → 2"
    view = made(report(test("t.py::test_a", status="regressed", message=text)))
    assert text == view.one("details", class_="message").one("pre").text


def test_causes_come_first_in_the_summary_and_in_their_tests(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "model.py").write_text("\n" * 58 + "x = y.clone()\n", "utf-8")
    many = [
        test(f"t.py::test_{n}", status="regressed", causes=[cause(metrics={"ops": more})],
             metrics={"ops": metric(n + more, baseline=n, status="regressed")})
        for n, more in ((3, 6), (40, 8))
    ]  # fmt: skip
    page = made(report(*many, test("t.py::test_ok")), tmp_path)
    (row,) = page.one("table", class_="causes").one("tbody").every("tr")
    assert ["clone ×6 is new", "lib/model.py:59", "ops +6 to +8", "2 tests"] == [
        cell.text for cell in row.every("td")
    ]
    first = views_in(page)["t.py::test_3"]
    assert f"#{first.attributes['id']}" == row.one("a").attributes["href"]
    shown = first.one("article", class_="cause")
    assert ["clone ×6 is new · ops +6", "lib/model.py:59 in Block.forward", "gone: view ×6"] == [
        one.text for one in shown.every("p")
    ]
    assert "x = y.clone()" in shown.one("span", class_="hit").text
    assert [] == views_in(page)["t.py::test_ok"].every("article", class_="cause")


def test_an_interrupted_session_and_its_errors_are_said() -> None:
    page = made(report(interrupted=True, errors=["rule mine raised <b>"]))
    assert ["The session was interrupted: tests are missing.", "rule mine raised <b>"] == [
        one.text for one in page.every("p", class_="note")
    ]


# -------------------------------------------------------------------- numbers


def test_every_number_is_that_of_the_report() -> None:
    body = views_in(made(REPORT))["t.py::test_a"].one("div", class_="body")
    region = body.one("div", class_="region")
    body.children.remove(region)
    assert_same_numbers(body, METRICS)
    assert_same_numbers(region, FAILING["regions"]["decode"]["metrics"])
    assert "Region decode, 2 laps" == region.every("h3")[0].text
    assert REPORT == data_of_page(made(REPORT))


def test_unknown_is_said_and_never_zero() -> None:
    body = views_in(made(REPORT))["t.py::test_a"]
    (syncs,) = [row for row in body.every("tr") if "syncs" in row.text]
    assert "–" == syncs.every("td")[0].text
    assert "data-value" not in syncs.every("td")[0].attributes
    (flops,) = [row for row in body.every("tr") if "flops" in row.text]
    assert flops.every("td")[0].text.startswith("at least 9,22")
    assert "kernels: no device" in [one.text for one in body.every("li")]


def dots(picture: Element, kind: str) -> int:
    """How many rounds are drawn: each is a line without length, whose ends are round."""
    return str(picture.one("path", class_=kind).attributes["d"]).count("h0")


def test_budgets_are_bars_and_rounds_are_dots() -> None:
    metrics = {
        "ops": metric(3, limit=4),
        "kernels": metric(8, limit=4, status="over_budget"),
        "syncs": metric(None, limit=0),
        "wall_ms": metric(1.5, "ms", **ROUNDS, baseline=1.0, rounds=[1.2, 1.25, 1.5, 1.75, 2.0]),
    }
    page = made(report(test("t.py::test_a", metrics=metrics, status="over_budget")))
    bars = page.every("svg", class_="budget")
    widths = [float(str(bar.one("rect", class_="fill").attributes["width"])) for bar in bars]
    assert [160.0, 0.0, 96.0] == widths  # over budget first
    assert ["8, limit: at most 4", "not measured, limit: at most 0", "3, limit: at most 4"] == [
        bar.one("title").text for bar in bars
    ]
    (rounds,) = page.every("svg", class_="rounds")
    assert 5 == dots(rounds, "round")
    before, now = (rounds.one("circle", class_=name) for name in ("before", "now"))
    assert float(str(before.attributes["cx"])) == 5.0  # the least of all
    assert 5 < float(str(now.attributes["cx"])) < 155


def test_nothing_within_a_limit_of_nothing_has_no_bar() -> None:
    metrics = {"syncs": metric(0, limit=0), "ops": metric(1, limit=0, status="over_budget")}
    page = made(report(test("t.py::test_a", metrics=metrics, status="over_budget")))
    assert "1, limit: at most 0" == page.one("svg", class_="budget").one("title").text


@pytest.mark.parametrize("value", [0, -1.5, 1e300, 1e-300, 2**80])
def test_pictures_stay_within_their_width(value: float) -> None:
    for more in ({"limit": 1}, {"limit": 0}, {"least": 1e300}, {**ROUNDS, "baseline": -value}):
        page = made(report(test("t.py::test_a", metrics={"ops": metric(value, **more)})))
        for shape in (*page.every("rect"), *page.every("circle")):
            for name in ("x", "width", "cx"):
                number = float(shape.attributes.get(name) or 0)
                assert math.isfinite(number)
                assert 0 <= number <= 160


# -------------------------------------------------------------------- findings and places


def test_a_finding_shows_its_lines_and_its_fix(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("\n".join(f"<line {n}>" for n in range(1, 40)), "utf-8")
    page = made(REPORT, tmp_path)
    first, second = page.every("article", class_="finding")
    code = first.one("pre")
    assert "<line 21>\n" in code.one("span", class_="hit").text
    assert ["19", "20", "21", "22", "23"] == [one.text for one in code.every("i")]
    assert "Instead: keep it" == first.one("p", class_="fix").text
    assert ("3", "1.5") == (first.attributes["data-count"], first.attributes["data-cost-ms"])
    assert second.has("class", "accepted")
    assert "4096" == second.attributes["data-bytes"]
    (row,) = page.one("table", class_="findings").one("tbody").every("tr")
    assert "host-sync" == row.one("th").text
    assert ["3", "1.5"] == [
        cell.attributes["data-value"] for cell in row.every("td") if "data-value" in cell.attributes
    ]
    link = row.one("a").attributes["href"]
    assert f"#{views_in(page)['t.py::test_a'].attributes['id']}" == link


def test_equal_findings_of_several_tests_are_one_row() -> None:
    tests = [test(f"t.py::test_{n}", findings=[finding(cost_ms=0.5)]) for n in range(3)]
    tests.append(test("t.py::test_3", findings=[finding(cost_ms=None, rule="other")]))
    rows = made(report(*tests)).one("table", class_="findings").one("tbody").every("tr")
    assert [("host-sync", "3 tests", "1.5"), ("other", "1 test", None)] == [
        (row.one("th").text, row.one("a").text, row.every("td")[3].attributes.get("data-value"))
        for row in rows
    ]


def test_what_no_test_has_is_said_once() -> None:
    gap = {"kernels": metric(None), "ops": metric(1)}
    tests = [test(f"t.py::test_{n}", metrics=gap, unchecked={"r": "why"}) for n in range(2)]
    page = made(report(*tests))
    common = page.every("details", class_="common")
    assert ["kernels: no device", "r: why"] == [one.one("li").text for one in common]
    assert not [
        one for view in views_in(page).values() for one in view.every("ul", class_="missing")
    ]


def test_anchors_are_the_same_in_each_report_and_distinct() -> None:
    one, two = (
        [view.attributes["id"] for view in made(report(*tests)).every("details", class_="test")]
        for tests in ([test("a"), test("b")], [test("c"), test("b"), test("b")])
    )
    assert one[1] == two[1]
    assert len({*one, *two}) == 4


# -------------------------------------------------------------------- hostile and large


@pytest.mark.parametrize("text", [*HOSTILE, "]]>", "</script><!--", "x" * 10_000, LEGIT, ""])
def test_hostile_names_are_text(text: str) -> None:
    hostile = test(
        text,
        status="regressed",
        reason=text,
        metrics={text: metric(1, text, baseline=2, reason=text, status="regressed")},
        findings=[
            finding(rule=text, message=text, location=text, fix=text, path=text, module=text,
                    modules=2, reason=text, accepted=accepted)
            for accepted in (True, False)
        ],
        unchecked={text: text},
        trace=text,
        regions={text: {"laps": 1, "metrics": {text: metric(None, text, reason=text)},
                        "findings": [finding(rule=text)]}},
    )  # fmt: skip
    environment = {"key": text, "host": text, text: [text, {text: None}]}
    document = report(hostile, errors=[text], environment=environment)
    page = made(document)
    assert "<script" not in report_page(of_document(document, "r"), Sources(Path())).replace(
        '<script type="application/json"', ""
    ).replace('<script>"use strict";', "")
    assert escape.json_text(document) == escape.json_text(data_of_page(page))
    if text == LEGIT:
        assert LEGIT in views_in(page)


def test_statuses_of_newer_versions_are_shown() -> None:
    one = test("t.py::test_a", status="<new>", metrics={"ops": metric(1, status="<x>", limit=1)})
    page = made(report(one))
    assert "<new>" == page.every("span", class_="status")[0].text
    assert "<new>" in page.every("ul", class_="totals")[0].text


def large(count: int) -> dict[str, Any]:
    metrics = {f"metric_{n}": metric(n * 1000, "B", baseline=n * 1000) for n in range(33)}
    rounds = [1 + at / 17 for at in range(20)]
    for name in ("wall_ms", "cpu_ms"):
        metrics[name] = metric(1.5, "ms", **ROUNDS, baseline=1.25, status="advisory", rounds=rounds)
    return report(
        *(test(f"tests/test_a.py::test_{n}[parameters]", metrics=metrics) for n in range(count)),
        FAILING,
    )


@pytest.mark.thorough
def test_a_thousand_tests_are_below_five_megabytes_and_have_all_numbers() -> None:
    document = large(1000)
    text = report_page(of_document(document, "r.json"), Sources(Path("nowhere")))
    assert len(text.encode()) < 5_000_000
    page = read_page(text)
    data = data_of_page(page)
    assert "all of a test but its outcome and its status" == data["left_out"]
    assert {"nodeid", "outcome", "status"} == set(data["tests"][7])
    views = views_in(page)
    assert_same_numbers(
        views["tests/test_a.py::test_7[parameters]"], document["tests"][7]["metrics"]
    )
    assert 1 == sum("open" in one.attributes for one in views.values())


def test_of_very_many_tests_those_that_did_not_change_have_no_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_DETAILED", 2)
    monkeypatch.setattr(module, "_MOST_DATA_CHARACTERS", 100)
    page = made(large(4))
    details = [bool(view.every("h3")) for view in views_in(page).values()]
    assert [True, True, False, False, False] == details
    assert 5 == len(data_of_page(page)["tests"])


def test_rounds_of_another_revision_are_dots_beside_those_of_this_one() -> None:
    times = {"wall_ms": metric(1.5, "ms", **ROUNDS, baseline=1.0, rounds=[1, 2, 1.5, 1.25, 1.75])}
    side = {"unit": "ms", "median": 1.0, "rounds": [1.0, 1.1, None]}
    one = test("t.py::test_a", metrics=times, ab={"verdict": "slower", "a": side, "b": None})
    (rounds,) = made(report(one)).every("svg", class_="rounds")
    assert (5, 2) == tuple(dots(rounds, name) for name in ("round", "earlier"))


def test_the_change_is_that_of_the_pairs_where_two_revisions_ran_in_turn() -> None:
    times = {"wall_ms": metric(1.5, "ms", **ROUNDS, baseline=1.0, status="regressed")}
    ab = {"verdict": "slower", "ratio": 1.102, "low": 1.092, "high": 1.112, "a": None, "b": None}
    page = made(report(test("t.py::test_a", metrics=times, ab=ab, status="regressed")))
    (row,) = page.every("tr", class_="regressed")
    assert "+10.2 %" == row.every("td")[2].text
    assert "wall_ms +10.2 %" == page.one("span", class_="headline").text
