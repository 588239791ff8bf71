"""A session as a comment: what comes first, and what is cut."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.hostile import EVERY, HOSTILE, assert_terminal
from support.stored_reports import cause, finding, metric, report, test

from pytest_torchprof.render.ci import COMMENT_BYTES, comment
from pytest_torchprof.render.report import of_document

TOTALS = "torchprof: 3 tests profiled"
REGRESSED = {"ops": metric(5, baseline=3, status="regressed")}
IMPROVED = {"ops": metric(3, baseline=5, status="improved")}


def of(*tests: dict[str, Any], most_bytes: int = COMMENT_BYTES, **parts: Any) -> str:
    text = comment(of_document(report(*tests, **parts), "r"), TOTALS, most_bytes)
    assert len(text.encode()) <= most_bytes
    assert_terminal(text)
    return text


def headings(text: str) -> list[str]:
    return re.findall(r"^\*\*(.*)\*\*$", text, re.MULTILINE)


def test_what_needs_attention_comes_first() -> None:
    text = of(
        test("t::new", status="new"),
        test("t::skipped", status="not_profiled", outcome="skipped", reason="no GPU"),
        test("t::better", status="improved", metrics=IMPROVED),
        test("t::found", findings=[finding(), finding(rule="known", accepted=True)]),
        test("t::blind", metrics={"kernels": metric(None, limit=4)}),
        test("t::worse", status="regressed", metrics=REGRESSED),
        interrupted=True,
    )
    assert [
        "Regressed, or over a limit",
        "Findings",
        "Improved",
        "Not measured",
        "Not profiled",
        "New, without a baseline",
    ] == headings(text)
    assert "| `t::worse` | `ops` | **regressed** | 3 | 5 | +66.7 % |  |" in text
    assert "| `host-sync` | `t::found` | `train.py:21` | 3 | 1.5 ms | reads back |" in text
    assert "| `t::blind` | `kernels` | no device |" in text
    assert "| `t::skipped` | skipped | no GPU |" in text
    assert "The session was interrupted" in text
    assert "known" not in text


def test_a_cause_is_a_row_in_the_place_of_its_tests() -> None:
    ops = {"ops": metric(9, baseline=3, status="regressed")}
    more = {"moved_bytes": metric(150, "B", baseline=100, status="regressed")}
    found = cause(kind="finding", message="host-sync: x", finding="host-sync", file="train.py",
                  line=21, metrics={"findings": 1})  # fmt: skip
    text = of(
        test("t::a", status="regressed", metrics=ops | more, causes=[cause()]),
        test("t::b", status="regressed", metrics=ops, causes=[cause(message="clone ×5 is new")]),
        test("t::c", status="regressed", findings=[finding()], causes=[found, cause(line=None)]),
        test("t::worse", status="regressed", metrics=REGRESSED),
        test("t::over", status="over_budget", causes=[found],
             metrics={"ops": metric(9, limit=1, status="over_budget")}),
    )  # fmt: skip
    assert ["Causes", "Regressed, or over a limit"] == headings(text)
    assert "| clone ×6 is new | `lib/model.py:59` | `t::a` and 1 more | ops +6, moved" in text
    assert "| host-sync: x | `train.py:21` | `t::c` and 1 more |" in text
    assert "| `t::worse` | `ops` | **regressed** |" in text
    assert "| `t::over` | `ops` | **over budget** |" in text
    assert "`t::b`" not in text


def test_a_session_without_anything_to_say_is_its_totals() -> None:
    assert f"<!-- torchprof -->\n### {TOTALS}\n\ncpu, torch 2.13\n" == of(test("t::fine"))


def test_an_unknown_number_is_never_0() -> None:
    bound = metric(None, at_least=7, limit=5, status="over_budget")
    text = of(test("t", status="over_budget", metrics={"ops": {**bound, "value": None}}))
    assert "| `t` | `ops` | **over budget** |  | at least 7 |  | at most 5 |" in text
    found = of(test("t", findings=[finding(cost_ms=None)]))
    assert "| 3 | – | reads back |" in found


def test_a_region_is_named_beside_its_test() -> None:
    region = {"laps": 1, "metrics": REGRESSED, "findings": []}
    assert "| `t (decode)` | `ops` |" in of(test("t", regions={"decode": region}))


def test_a_long_sentence_ends_after_a_word_and_outside_of_code() -> None:
    message = f"{'one more word ' * 20}and `torch.nn.functional.embedding(x, y)` in the loop"
    (row,) = re.findall(
        "^.* one more word .*$", of(test("t", findings=[finding(message=message)])), re.MULTILINE
    )
    assert row.endswith("one more word and … |")


@pytest.mark.parametrize("count", [0, 1, 40, 2_000])
def test_what_does_not_fit_is_counted(count: int) -> None:
    tests = [test(f"t.py::test_{n}", status="regressed", metrics=REGRESSED) for n in range(count)]
    better = [test(f"t.py::test_b{n}", status="improved", metrics=IMPROVED) for n in range(count)]
    text = of(*better, *tests, most_bytes=4_000)
    rows = len(re.findall(r"^\| `", text, re.MULTILINE))
    last = r"^… and ([\d,]+) more rows? than fit here; the report has all$"
    left = re.search(last, text, re.MULTILINE)
    assert 2 * count == rows + (int(left[1].replace(",", "")) if left else 0)
    assert (count > 1) == bool(left)
    assert headings(text)[:1] == ["Regressed, or over a limit"][:count]
    if count == 2_000:
        assert 1 == len(headings(text))


@pytest.mark.parametrize("text", [*HOSTILE, EVERY, "]]>", "x" * 10_000, "|" * 300])
def test_no_name_leaves_its_cell(text: str) -> None:
    odd = test(
        text,
        status="regressed",
        reason=text,
        metrics={f"ops[op={text}]": metric(5, text, baseline=3, status="regressed")},
        findings=[finding(rule=text, message=text, location=text)],
    )
    slip = cause(message=text, file=text)
    shown = of(odd, {**odd, "causes": [slip]}, environment={"key": text})
    for line in shown.splitlines():
        if line.startswith("| "):
            outside = re.sub(r"\\\|", "", line)
            assert outside.count("|") in (5, 7, 8), line
        bare = re.sub(r"(`+).*?[^`]\1(?!`)", "", line)
        assert "<script" not in bare
        assert "@everyone" not in bare
