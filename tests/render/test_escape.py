"""Nothing escapes: whatever a name or a message holds, no output does anything with it.

Hostile text goes into every string that an output is made of, and every output is looked at.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.command_line import Say, say
from support.handmade_rows import Fake, decided, undecided
from support.hostile import (
    EVERY,
    HOSTILE,
    LEGIT,
    assert_csv,
    assert_json,
    assert_markdown,
    assert_terminal,
    hostile_trace,
)
from support.reasons import words
from support.trace_builder import TraceBuilder

from pytest_torchprof.api import Trace
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.core.values import Baseline, Budget, Finding, Profile, Record, Verdict
from pytest_torchprof.render import escape, summary, table
from pytest_torchprof.render.failure import failure_message, inline_mismatch
from pytest_torchprof.verdict.judgement import Failure
from pytest_torchprof.verdict.paired import Difference

__all__ = ["say"]  # a fixture

# -------------------------------------------------------------------- the functions


@example("-INFINITY")
@example("-1_000")
@given(st.text() | st.sampled_from([*HOSTILE, EVERY, LEGIT]))
def test_any_text_is_harmless_in_every_output(text: str) -> None:
    for safe in (escape.line(text), escape.block(text)):
        assert_terminal(safe)
    assert "\n" not in escape.line(text)
    assert escape.line(text) == escape.line(escape.line(text)) == escape.block(escape.line(text))
    for mark in (escape.escape_markdown, escape.code):
        assert_markdown(f"- {mark(text)}")
        assert_markdown(f"| {escape.table_cell(mark(text))} | 1 |\n| 2 | 3 |")
    assert_csv(f"a,b\n{_csv_row(escape.csv_value(text), 1)}")
    spelled = text.encode(errors="backslashreplace").decode()
    assert {spelled: [spelled]} == assert_json(escape.json_text({text: [text]}))


def _csv_row(*values: Any) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(values)
    return out.getvalue()


@pytest.mark.parametrize(
    "shown", [escape.line, escape.block, escape.csv_value, lambda t: escape.code(t)[1:-1]]
)
def test_text_that_users_write_is_kept(shown: Callable[[str], str]) -> None:
    assert LEGIT == shown(LEGIT)


@pytest.mark.parametrize("number", [-1, -1.5, "-1.5", "+3e4", 0, None])
def test_negative_numbers_stay_numbers_in_csv(number: object) -> None:
    assert number == escape.csv_value(number)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20))
def test_a_command_to_paste_gives_the_shell_these_words(text: str) -> None:
    assert_terminal(escape.command([text]))
    if escape.line(text) == text:
        import shlex

        assert [text] == shlex.split(escape.command([text]))


# -------------------------------------------------------------------- commands on traces


@pytest.mark.one_in(3)
@pytest.mark.parametrize("text", [EVERY, HOSTILE[0], HOSTILE[4], HOSTILE[-1]])
def test_typed_text_is_escaped_when_printed(say: Say, tmp_path: Path, text: str) -> None:
    text = text.replace("\0", "")
    trace = TraceBuilder().save(tmp_path / "t.json")
    for typed in (
        [text], ["ops", text], ["ops", trace, "--sort", f"x{text}"], ["ops", trace, f"--{text}"],
        ["lint", trace, "--ignore", text], ["rules", text], ["ops", trace, "--by", text],
        ["lint", trace, f"--thresholds=x.{text}=1"], ["kernels", trace, "--device-peaks", text],
        ["stacks", trace, f"{tmp_path}/{text}/x"], ["ab", f"x{text}", text, "--", text],
        ["ab", "--a", f"/nowhere{text}", "--", "x"],
    ):  # fmt: skip
        _, out, err = say(*typed)
        assert_terminal(out + err)
        assert all(line.startswith("torchprof") for line in err.splitlines()), err


# -------------------------------------------------------------------- torchprof ab


@pytest.mark.one_in(4)
@pytest.mark.parametrize("text", [EVERY, *HOSTILE])
def test_ab_is_fit_for_a_terminal_and_for_a_comment(
    say: Say, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    differs = [Difference("ops", 1, 2), Difference(f"ops[op={text}]", 1, 2)]
    slower = decided(text, "slower", 1.2, spread=0.4, reason=text, differences=differs)
    slower = dataclasses.replace(slower, unprofiled=words(text))
    rows = [slower, undecided(text, "failed", text, "B"), undecided("x", "error", text, "B")]
    fake = Fake(rows, notes=(text,), message=(text,))
    fake.install(monkeypatch)
    for form, check in (("table", assert_terminal), ("csv", assert_csv), ("json", assert_json)):
        check(say("ab", "main", "--format", form)[1])
    assert_markdown(say("ab", "main", "--format", "markdown")[1], strong=True)


# -------------------------------------------------------------------- what tests print


def poisoned(value: Any, text: str) -> Any:
    """A copy in which every text but the words of our own is hostile."""
    own = {"ok", "new", "regressed", "over_budget", "not_measured", "not_profiled", "improved"}
    if isinstance(value, str):
        return value if value in own else text
    if isinstance(value, Mapping):
        return {text if key == "?" else key: poisoned(inner, text) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(poisoned(inner, text) for inner in value)
    if isinstance(value, Reason):
        return words(text)
    if isinstance(value, Frozen) or dataclasses.is_dataclass(value):
        kind: Any = type(value)
        names = value.__struct_fields__ if isinstance(value, Frozen) else vars(value)
        fields = {name: poisoned(getattr(value, name), text) for name in names}
        if isinstance(value, Verdict):
            fields["metric"] = value.metric
            fields["scope"] = Budget(value.metric, 0, op=text)
        return kind(**fields)
    return value


@pytest.mark.parametrize("text", [EVERY, *HOSTILE])
def test_a_failure_is_as_many_lines_whatever_is_in_the_names(text: str) -> None:
    finding = Finding("?", 2, "?", "?", "?", False, 1.0, 4, "?", "?", "?")
    verdicts = [
        Verdict("ops", 5, "regressed", 4),
        Verdict("flops", 5, "over_budget", 4, limit=3, reason=words("?")),
    ]
    profile = Profile({"ops": 5}, {"?": {"calls": 5}, "b": {"calls": 1}}, {"?": 3}, (finding,))
    baseline = Baseline({"ops": 4, "findings": 0}, {"c": {"calls": 4}}, {"?": 1}, {"?": 1}, {})

    def message(of: str) -> str:
        v, p, b = (poisoned(part, of) for part in (verdicts, profile, baseline))
        where = lambda _: [(f"{of}:3", of, 2), (f"{of}:4", None, 1)]  # noqa: E731
        return failure_message(
            [Failure("metric_unchecked", of, words(of))],
            v,
            p,
            b,
            of,
            ab_command=of,
            where=where,
            lines_gap=words(of),
        )

    assert_terminal(message(text))
    assert message(text).count("\n") == message("x").count("\n")
    assert_terminal(inline_mismatch(f"ops 1\n{text}", "ops 2\n", text, text))


@pytest.mark.parametrize("text", [EVERY, *HOSTILE])
def test_a_row_of_the_summary_is_one_line_whatever_its_name(text: str) -> None:
    def lines(of: str) -> list[str]:
        verdicts = [Verdict("ops", 5, "regressed", 4, reason=words(of))]
        finding = Finding(of, 2, of, of, of)
        unchecked = {of: words(of), "r": because(*Why.RULE_RAISED, error=of)}
        metrics = {v.label: v for v in verdicts}
        record = Record(f"{of}.py::{of}", "ok", words(of), metrics, (finding,), unchecked)
        every = [record, replace(record, nodeid="b", status="not_profiled")]
        shown = summary.summary_table(every, (), None, 0, 80)
        return [
            *shown,
            *summary.unchecked_rules(every),
            *summary.raised_rules(every).values(),
        ]

    assert len(lines(text)) == len(lines("x"))
    assert all("\n" not in line for line in lines(text))
    for line in lines(text):
        assert_terminal(line)


def test_tables_of_the_fixture_and_of_notebooks_are_harmless(tmp_path: Path) -> None:
    trace = Trace.load(hostile_trace(tmp_path / "a.json", HOSTILE))
    assert_terminal(table.ops_table(trace.events, "calls", 0))
    assert_terminal(str(trace.ops()))
    html = trace.ops()._repr_html_()
    assert_terminal(html)
    assert not re.search("<(script|img|https)", html)
