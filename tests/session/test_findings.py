"""Findings in a test's verdict: baselines, markers, options, report, message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.messages import messages
from support.sessions import (
    Ran,
    accept,
    baseline_file,
    calls,
    doctor,
    read_baseline,
    replaced_rules,
    run,
)

from pytest_torchprof.rules.rule import Matches, Rule
from pytest_torchprof.trace.names import Kind, selected_operators

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

CODES = {"mul": "repeated-cast", "sub": "contiguous-copy", "add": "copy-round-trip"}
MUL, SUB, ADD, DEVICE, RAISING = *CODES.values(), "host-sync", "launch-bound"

#: Multiplies, subtracts and adds so often.
LIB = """
    import torch

    X = torch.ones(4)

    def work(mul, sub, add):
        for _ in range(mul):
            X * X
        for _ in range(sub):
            X - X
        for _ in range(add):
            X + X
"""
#: A test of it.
WORK = """
    import pytest
    from lib import work

    {marker}
    def test_it():
        work({mul}, {sub}, {add})
"""


def counting(word: str, code: str) -> Rule:
    """A rule that matches each call of ``aten::<word>``."""

    def find(trace: Events) -> Matches:
        rows = selected_operators(trace, f"aten::{word}")
        cost = np.full(len(rows), {"mul": 200}.get(word, 100))
        return Matches(rows, f"it calls {word}", cost_ns=cost)

    return Rule(code, find, f"do not call {word}", f"aten::{word}$")


def nothing(trace: Events) -> list[int]:
    raise AssertionError(f"asked of {len(trace)} events")


@pytest.fixture(autouse=True)
def rules() -> Iterator[dict[str, Rule]]:
    """Our rules are here instead of the real ones."""
    with replaced_rules() as known:
        known.update({code: counting(word, code) for word, code in CODES.items()})
        known[DEVICE] = Rule(DEVICE, nothing, "", "aten::", frozenset({"device"}))
        yield known


def profile(
    pytester: pytest.Pytester,
    *args: str,
    marker: str = "",
    mul: int = 0,
    sub: int = 0,
    add: int = 0,
) -> tuple[dict[str, Any], Ran]:
    """The record of a test that calls operators so often, and the session."""
    write(pytester, marker, mul=mul, sub=sub, add=add)
    ran = run(pytester, *(args or ("--torchprof",)))
    return ran.tests["test_it"], ran


def write(
    pytester: pytest.Pytester, marker: str = "", *, mul: int = 0, sub: int = 0, add: int = 0
) -> None:
    test = WORK.format(marker=marker, mul=mul, sub=sub, add=add)
    pytester.makepyfile(lib=LIB, test_it=test)


def short(record: dict[str, Any]) -> dict[str, tuple[int, bool]]:
    return {f["rule"]: (f["count"], f["accepted"]) for f in record["findings"]}


# -------------------------------------------------------------------- the report


def test_a_new_test_has_its_findings_in_the_report_and_passes(pytester: pytest.Pytester) -> None:
    record, ran = profile(pytester, "--torchprof", "-v", mul=3, sub=1)
    unstated = {"page", "cost_ms", "listed"}  # the clock decides these
    assert ("passed", "new") == (record["outcome"], record["status"])
    assert [
        {
            "rule": MUL,
            "count": 3,
            "message": "it calls mul",
            "location": "lib.py:7",
            "fix": "do not call mul",
            "accepted": False,
            "bytes": None,
            "path": "aten::mul",
            "module": None,
            "modules": None,
            "reason": None,
            "gated": True,
        },
        {
            "rule": SUB,
            "count": 1,
            "message": "it calls sub",
            "location": "lib.py:9",
            "fix": "do not call sub",
            "accepted": False,
            "bytes": None,
            "path": "aten::sub",
            "module": None,
            "modules": None,
            "reason": None,
            "gated": True,
        },
    ] == [{k: v for k, v in f.items() if k not in unstated} for f in record["findings"]]
    # As much less than 0.6 and 0.1 us as the timed round was quicker than the profiled run.
    multiplied, subtracted = (found["cost_ms"] for found in record["findings"])
    assert 0 < subtracted <= 0.0001
    assert multiplied == pytest.approx(6 * subtracted)
    metric = record["metrics"]["findings"]
    assert (4, None, "new") == (metric["value"], metric["baseline"], metric["status"])
    assert f"{MUL} ×3, {SUB} ×1" in ran.out
    assert "in 4 runs" in ran.out


def test_a_test_without_findings_is_not_run_to_locate_them(pytester: pytest.Pytester) -> None:
    record, ran = profile(pytester)
    assert ([], 0) == (record["findings"], record["metrics"]["findings"]["value"])
    assert "in 3 runs" in ran.out


def test_rules_that_were_not_checked_are_listed_with_the_reason(pytester: pytest.Pytester) -> None:
    record, ran = profile(pytester)
    assert {DEVICE: "no accelerator in this capture"} == record["unchecked"]
    assert "rules not checked" not in ran.out
    out = run(pytester, "--torchprof", "-v").out
    assert 1 == out.count(f"rules not checked here: {DEVICE} (no accelerator in this capture)")


def test_a_test_that_is_not_profiled_has_no_findings(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_it(): assert False")
    record = run(pytester, "--torchprof").tests["test_it"]
    assert ([], {}) == (record["findings"], record["unchecked"])


# -------------------------------------------------------------------- baselines


def test_accepted_findings_stay_quiet(pytester: pytest.Pytester) -> None:
    record, _ = profile(pytester, "--accept", mul=3, sub=1)
    assert {MUL: (3, True), SUB: (1, True)} == short(record)
    (entry,) = read_baseline(pytester)["tests"]["test_it"].values()
    assert {MUL: 3, SUB: 1} == entry["findings"]
    assert 4 == entry["metrics"]["findings"]
    record, ran = profile(pytester, mul=3, sub=1)
    assert ("ok", {MUL: (3, True), SUB: (1, True)}) == (record["status"], short(record))
    assert "4 accepted" in ran.out
    assert "in 3 runs" in ran.out


@pytest.mark.thorough
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("now", "status", "baseline"),
    [
        ({"mul": 2, "sub": 2, "add": 1}, "regressed", 4),
        ({"sub": 2}, "improved", 4),
        # One fewer of one rule does not make up for one more of another.
        ({"mul": 1, "sub": 3}, "regressed", 4),
        ({"mul": 0, "sub": 2, "add": 1}, "regressed", 4),
    ],
)
def test_findings_are_compared_rule_by_rule(
    pytester: pytest.Pytester, now: dict[str, int], status: str, baseline: int
) -> None:
    write(pytester, mul=2, sub=2)
    accept(pytester)
    record, _ = profile(pytester, marker="", **now)
    metric = record["metrics"]["findings"]
    assert (status, baseline) == (metric["status"], metric["baseline"])
    assert sum(now.values()) == metric["value"]
    for word, count in now.items():
        grew = count > {"mul": 2, "sub": 2}.get(word, 0)
        assert count == 0 or short(record)[CODES[word]] == (count, not grew)


def test_a_rule_that_replaces_another_is_named_beside_the_total(
    pytester: pytest.Pytester,
) -> None:
    write(pytester, mul=2)
    accept(pytester)
    record, ran = profile(pytester, sub=2)
    assert f"{SUB} 0 → 2" == record["metrics"]["findings"]["reason"]
    lines = messages(ran.out)["test_it"]
    assert lines[0].startswith("lib.py:9 (work): sub ×2 is new")
    assert f"  findings 2 → 2  (not the accepted ones); {SUB} 0 → 2" in lines


@pytest.mark.thorough
def test_a_baseline_from_before_findings_is_new_for_them_and_fails_nothing(
    pytester: pytest.Pytester,
) -> None:
    write(pytester, mul=2)
    accept(pytester)
    data = read_baseline(pytester)
    (entry,) = data["tests"]["test_it"].values()
    del entry["findings"], entry["metrics"]["findings"]
    baseline_file(pytester).write_text(json.dumps(data), "utf-8")
    record, ran = profile(pytester, mul=2)
    assert (0, "ok", "new") == (ran.ret, record["status"], record["metrics"]["findings"]["status"])
    strict = run(pytester, "--torchprof", "--torchprof-strict")
    assert "strict: the baseline has no findings" in strict.out
    accept(pytester)
    assert 0 == run(pytester, "--torchprof", "--torchprof-strict").ret


def test_accepting_says_what_changed_by_rule(pytester: pytest.Pytester) -> None:
    write(pytester, mul=2)
    accept(pytester)
    write(pytester, mul=1, sub=2)
    out = accept(pytester).out
    assert f"findings[rule={SUB}] – → 2" in out
    assert f"findings[rule={MUL}] 2 → 1" in out
    assert "findings 2 → 3" in out


def test_a_rule_that_is_not_checked_now_keeps_what_was_accepted(pytester: pytest.Pytester) -> None:
    write(pytester, mul=2)
    accept(pytester)
    doctor(pytester, "test_it", "findings", **{DEVICE: 7})
    record, _ = profile(pytester, mul=2)
    metric = record["metrics"]["findings"]
    assert ("ok", 2) == (metric["status"], metric["baseline"])
    write(pytester, mul=1)
    accept(pytester)
    (entry,) = read_baseline(pytester)["tests"]["test_it"].values()
    assert {DEVICE: 7, MUL: 1} == entry["findings"]


def test_an_improvement_fails_only_under_strict(pytester: pytest.Pytester) -> None:
    write(pytester, mul=2)
    accept(pytester)
    untimed = ("--torchprof", "--torchprof-time=off")  # slower by chance is no improvement
    record, ran = profile(pytester, *untimed, mul=1)
    assert (0, "improved") == (ran.ret, record["status"])
    assert 1 == run(pytester, *untimed, "--torchprof-strict").ret


# -------------------------------------------------------------------- markers


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("marker", "counts", "failed"),
    [
        ("no_antipatterns", {}, False),
        ("no_antipatterns", {"mul": 1}, True),
        ("no_antipatterns()", {"sub": 1}, True),
        (f"no_antipatterns('{MUL}')", {"mul": 1}, True),
        (f"no_antipatterns('{MUL}')", {"sub": 1}, False),
        (f"no_antipatterns('{MUL}', '{SUB}')", {"sub": 1}, True),
        ("max_findings(2)", {"mul": 1, "sub": 1}, False),
        ("max_findings(2)", {"mul": 2, "sub": 1}, True),
    ],
)
def test_markers_limit_findings(
    pytester: pytest.Pytester, marker: str, counts: dict[str, int], failed: bool
) -> None:
    record, ran = profile(pytester, marker=f"@pytest.mark.{marker}", **counts)
    assert failed is (record["status"] == "over_budget")
    assert failed is (ran.ret == 1)


def test_a_budget_ignores_what_the_baseline_accepts(pytester: pytest.Pytester) -> None:
    write(pytester, mul=1)
    accept(pytester)
    record, ran = profile(pytester, marker="@pytest.mark.no_antipatterns", mul=1)
    assert ("over_budget", {MUL: (1, True)}) == (record["status"], short(record))
    assert f"{MUL} 1 → 1" in ran.out


def test_no_antipatterns_with_names_counts_only_those(pytester: pytest.Pytester) -> None:
    marker = f"@pytest.mark.no_antipatterns('{SUB}', '{MUL}')"
    record, _ = profile(pytester, marker=marker, mul=2, add=1)
    label = f"findings[rule={SUB},{MUL}]"
    metric = record["metrics"][label]
    assert (2, 0, "over_budget") == (metric["value"], metric["limit"], metric["status"])
    assert 3 == record["metrics"]["findings"]["value"]


@pytest.mark.thorough
@pytest.mark.parametrize("names", [DEVICE, f"{DEVICE}', '{MUL}"])
def test_a_named_rule_that_cannot_be_checked_is_reported_and_strict_fails(
    pytester: pytest.Pytester, names: str
) -> None:
    write(pytester, f"@pytest.mark.no_antipatterns('{names}')")
    accept(pytester)
    ran = run(pytester, "--torchprof")
    metrics = ran.tests["test_it"]["metrics"]
    (label,) = [name for name in metrics if name.startswith("findings[")]
    assert (None, "not_measured") == (metrics[label]["value"], metrics[label]["status"])
    assert f"{DEVICE}: no accelerator in this capture" == metrics[label]["reason"]
    assert "not checked: host-sync: no accelerator in this capture" in ran.out
    assert "1 budget not checked" in ran.out
    assert 0 == ran.ret
    assert 1 == run(pytester, "--torchprof", "--torchprof-strict").ret


def test_one_match_of_a_named_rule_is_enough_whatever_else_was_not_checked(
    pytester: pytest.Pytester,
) -> None:
    marker = f"@pytest.mark.no_antipatterns('{DEVICE}', '{MUL}')"
    assert "over_budget" == profile(pytester, marker=marker, mul=1)[0]["status"]


def test_bare_no_antipatterns_is_of_the_rules_that_were_checked(pytester: pytest.Pytester) -> None:
    write(pytester, "@pytest.mark.no_antipatterns")
    accept(pytester)
    assert 0 == run(pytester, "--torchprof", "--torchprof-strict").ret


def test_an_allowed_rule_counts_nowhere_and_shows_its_reason(pytester: pytest.Pytester) -> None:
    marker = (
        f"@pytest.mark.allow_antipatterns('{MUL}', reason='once only')\n"
        "    @pytest.mark.no_antipatterns"
    )
    record, ran = profile(pytester, "--accept", marker=marker, mul=2)
    assert 0 == ran.ret
    (finding,) = record["findings"]
    assert (2, True, "once only") == (finding["count"], finding["accepted"], finding["reason"])
    assert 0 == record["metrics"]["findings"]["value"]
    (entry,) = read_baseline(pytester)["tests"]["test_it"].values()
    assert {} == entry["findings"]
    record, ran = profile(pytester, marker=marker, mul=5, sub=0)
    assert (0, "ok") == (
        record["metrics"]["findings"]["value"],
        record["metrics"]["findings"]["status"],
    )
    record, ran = profile(pytester, marker=marker, mul=2, sub=1)
    assert (1, "over_budget") == (record["metrics"]["findings"]["value"], record["status"])


def test_markers_of_all_levels_add_up(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=f"""
        import pytest, torch
        X = torch.ones(4)
        pytestmark = [
            pytest.mark.no_antipatterns,
            pytest.mark.allow_antipatterns("{ADD}", reason="module"),
        ]

        @pytest.mark.allow_antipatterns("{SUB}", reason="class")
        class TestAll:
            @pytest.mark.allow_antipatterns("{MUL}", reason="function")
            def test_allowed(self): X * X - X + X

            @pytest.mark.no_antipatterns("{SUB}")
            def test_closest_forbids(self): X - X

            @pytest.mark.allow_antipatterns("{MUL}", reason="function")
            @pytest.mark.no_antipatterns("{MUL}")
            def test_both_here(self): X * X

            def test_not_allowed(self): X * X
        """
    )
    ran = run(pytester, "--torchprof")
    assert {
        "TestAll::test_allowed": "new",
        "TestAll::test_closest_forbids": "over_budget",
        "TestAll::test_both_here": "new",
        "TestAll::test_not_allowed": "over_budget",
    } == ran.statuses
    reasons = {f["rule"]: f["reason"] for f in ran.tests["TestAll::test_allowed"]["findings"]}
    assert {MUL: "function", SUB: "class", ADD: "module"} == reasons


def test_an_ignored_rule_does_not_run(pytester: pytest.Pytester, rules: dict[str, Rule]) -> None:
    rules[RAISING] = Rule(RAISING, nothing, "")
    record, ran = profile(pytester, "--torchprof", f"--torchprof-ignore={RAISING},{MUL}", mul=1)
    assert ([], 0) == (record["findings"], record["metrics"]["findings"]["value"])
    assert RAISING not in ran.out
    marker = f"@pytest.mark.no_antipatterns('{MUL}')"
    record, _ = profile(pytester, "--torchprof", f"--torchprof-ignore={MUL}", marker=marker)
    shown = record["metrics"][f"findings[rule={MUL}]"]["reason"]
    assert f"{MUL}: switched off by --torchprof-ignore" == shown


# -------------------------------------------------------------------- rules that raise


def test_a_rule_that_raises_is_reported_once_and_breaks_nothing(
    pytester: pytest.Pytester, rules: dict[str, Rule]
) -> None:
    rules[RAISING] = Rule(RAISING, nothing, "")
    pytester.makepyfile(
        test_it="""
        import torch
        def test_one(): torch.ones(4) * 2
        def test_two(): torch.ones(4) * 2
        """
    )
    ran = run(pytester, "--torchprof")
    assert ({"passed": 2}, 1) == (ran.outcomes, ran.ret)  # a rule of ours is a fault of ours
    assert 1 == ran.out.count("the rule failed: AssertionError: asked of")
    assert [True] == [
        text.startswith(f"{RAISING}: the rule failed:") for text in ran.report["errors"]
    ]
    for test in ran.tests.values():
        assert {MUL: (1, False)} == short(test)
        assert test["unchecked"][RAISING].startswith("the rule failed: AssertionError")


# -------------------------------------------------------------------- the message


def test_the_message_to_the_letter(pytester: pytest.Pytester) -> None:
    write(pytester, mul=2, sub=1)
    accept(pytester)
    _, ran = profile(pytester, mul=2, sub=3)
    lines = messages(ran.out)["test_it"]
    cost = "ops +2, moved_bytes +66.7 %"
    assert [
        f"lib.py:9 (work): sub is called 3 times instead of 1 — {cost}",
        "  contiguous-copy: it calls sub",
        "  fix: do not call sub",
        "  ops 3 → 5  (+66.7 %), moved_bytes 144 B → 240 B  (+66.7 %), findings 3 → 5  (+66.7 %)",
        "accept: pytest --accept test_it.py::test_it",
    ] == lines


def test_the_costliest_rule_comes_first(pytester: pytest.Pytester) -> None:
    _, ran = profile(pytester, marker="@pytest.mark.no_antipatterns", mul=2, sub=3, add=1)
    out = ran.out
    assert out.index(f"  {MUL} ×2") < out.index(f"  {SUB} ×3") < out.index(f"  {ADD} ×1")


def test_a_message_has_no_more_than_12_lines(
    pytester: pytest.Pytester, rules: dict[str, Rule]
) -> None:
    words = ("neg", "exp", "sin", "cos", "tan", "abs", "sqrt", "log", "ceil", "floor", "sign")
    for word in words:
        rules[f"rule-{word}"] = counting(word, f"rule-{word}")
    every = "; ".join(f"X.{word}()" for word in words)
    source = """
    import pytest, torch
    X = torch.ones(4)

    @pytest.mark.no_antipatterns
    @pytest.mark.max_ops(0)
    def test_it():
        {}
    """
    pytester.makepyfile(test_it=source.format("\n        ".join([every] * 5)))
    lines = messages(run(pytester, "--torchprof").out)["test_it"]
    assert len(lines) <= 12
    assert any(line.startswith("    … and 2 more places") for line in lines)
    assert any(line.startswith("  … and ") and "rule-" in line for line in lines)


def test_stats_have_the_findings_that_count(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=f"""
        import pytest, torch
        X = torch.ones(4)

        @pytest.mark.allow_antipatterns("{SUB}", reason="here")
        def test_it(torchprof):
            with torchprof:
                X * X - X
            assert torchprof.stats.findings == 1
        """
    )
    ran = run(pytester, "--torchprof")
    assert ({"passed": 1}, 1) == (ran.outcomes, ran.metric("findings", "test_it")["value"])


def test_rules_run_once_a_test(pytester: pytest.Pytester, rules: dict[str, Rule]) -> None:
    seen: list[int] = []

    def find(trace: Events) -> Matches:
        seen.extend([len(trace)] * (trace.facts.environment is not None))  # else it is to warm up
        return Matches(np.flatnonzero(trace.is_kind(Kind.OP) & trace.selection), "an operator")

    rules[MUL] = Rule(MUL, find, "")
    pytester.makepyfile(
        test_it="""
        import torch
        from support.sessions import note

        def test_it(torchprof):
            note("calls")
            with torchprof:
                torch.ones(4)
            assert torchprof.stats.findings
        """
    )
    assert {"passed": 1} == run(pytester, "--torchprof").outcomes
    assert (1, 4) == (len(seen), calls(pytester))


def test_what_is_accepted_and_over_a_budget_is_marked_in_the_table(
    pytester: pytest.Pytester,
) -> None:
    write(pytester, mul=2)
    accept(pytester)
    write(pytester, marker="@pytest.mark.no_antipatterns", mul=2)
    ran = run(pytester, "--torchprof")
    assert {"test_it": "over_budget"} == ran.statuses
    assert "2 accepted!" in ran.out
