"""What a worker makes of options and reports, and what is reason_text of its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_torchprof.ab.controller import complaint, differences
from pytest_torchprof.ab.worker import NEUTRAL, neutralize, outcome_of, refuse
from pytest_torchprof.core.errors import AbError


def test_options_that_choose_stop_or_write_are_neutral_and_others_stay() -> None:
    options = SimpleNamespace(lf=True, maxfail=1, numprocesses=4, keyword="a", xmlpath="x.xml")
    neutralize(options)
    assert vars(options) == {
        "lf": False,
        "maxfail": 0,
        "numprocesses": None,
        "keyword": "a",
        "xmlpath": None,
    }


def test_names_of_pytest_s_own_options_are_right(pytestconfig: pytest.Config) -> None:
    known = vars(pytestconfig.option)
    others = ("cov", "benchmark", "html", "json_report", "report_log", "random", "forked")
    ours = [name for name in NEUTRAL if not name.replace("no_", "").startswith(others)]
    assert [name for name in ours if name not in known] == []


@pytest.mark.parametrize(
    ("args", "accepts", "has_us"),
    [(["--accept"], False, True), ([], True, True), (["-p", "no:torchprof"], False, False)],
)
def test_values_that_make_no_sense_are_refused(
    args: list[str], accepts: bool, has_us: bool
) -> None:
    with pytest.raises(AbError):
        refuse(args, accepts=accepts, has_us=has_us)
    refuse(["-q"], accepts=False, has_us=True)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("", None),
        ("a\nb\n", "b"),
        ("ERROR: file not found: x\n\n", "ERROR: file not found: x"),
        ("usage: x\npytest: error: no option -z\n  rootdir: /x", "pytest: error: no option -z"),
        (
            "ImportError while loading\nE   ModuleNotFoundError: No x\nlast",
            "ModuleNotFoundError: No x",
        ),
        ("E       deep\nE   first", "deep"),
        ("ERROR a\nERROR b\nlast", "ERROR b"),
    ],
)
def test_the_line_of_the_output_with_the_error(output: str, expected: str | None) -> None:
    assert complaint(output) == expected


def report(when: Any, outcome: Any, text: Any = None, **more: Any) -> pytest.TestReport:
    """Of one phase."""
    return pytest.TestReport("a", ("a", 1, "a"), {}, outcome, text, when, **more)


@pytest.mark.parametrize(
    ("reports", "outcome", "reason_text"),
    [
        ([], "passed", None),
        ([report("setup", "passed"), report("call", "passed")], "passed", None),
        ([report("call", "failed", "x\nE   ValueError: a\nE   b")], "failed", "ValueError: a"),
        ([report("setup", "failed", "last")], "failed", "last (setup)"),
        (
            [report("call", "passed"), report("teardown", "failed", "E  no")],
            "failed",
            "no (teardown)",
        ),
        ([report("setup", "skipped", ("a.py", 1, "Skipped: why"))], "skipped", "why"),
        ([report("call", "skipped", "", wasxfail="known")], "skipped", "xfailed: known"),
        ([report("call", "skipped", "", wasxfail="")], "skipped", "xfailed"),
        ([report("call", "passed", "", wasxfail="it passed")], "passed", None),
    ],
)
def test_the_outcome_of_a_test(
    reports: list[pytest.TestReport], outcome: str, reason_text: str | None
) -> None:
    found = outcome_of(reports)
    reason = found.reason and found.reason.text
    assert (found.outcome, reason) == (outcome, reason_text)


def test_metrics_differ_beyond_their_tolerance_or_where_only_one_side_has_them() -> None:
    a = {"ops": 10, "peak_cpu_bytes": 635, "instructions": 1000, "kernels": 1}
    b = {"ops": 11, "peak_cpu_bytes": 639, "instructions": 1005, "syncs": 1}
    found = {d.metric: (d.a, d.b) for d in differences(a, b)}
    assert found == {"ops": (10, 11), "kernels": (1, None), "syncs": (None, 1)}
    more = differences(a, {**b, "instructions": 1020})
    assert {d.metric for d in more} == {*found, "instructions"}
