"""Which findings are listed, and which fail a test: those of the library under test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.sessions import accept, baseline_file, read_baseline, replaced_rules, run

from pytest_torchprof.core.values import Finding
from pytest_torchprof.rules.rule import Matches, Rule
from pytest_torchprof.trace.names import selected_operators
from pytest_torchprof.verdict.findings import is_listed

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

CODE = "repeated-cast"
#: A match costs so many ns: unknown, all of the test's time, or next to nothing.
UNKNOWN, DEAR, TRIFLE = -1, 10**9, 0


def rule(cost_ns: int) -> Rule:
    """A rule that matches each multiplication."""

    def find(trace: Events) -> Matches:
        rows = selected_operators(trace, "aten::mul")
        return Matches(rows, "it multiplies", cost_ns=np.full(len(rows), cost_ns))

    return Rule(CODE, find, "add", "aten::mul$")


@pytest.fixture(autouse=True)
def rules() -> Iterator[dict[str, Rule]]:
    """One rule, of unknown cost."""
    with replaced_rules() as known:
        known[CODE] = rule(UNKNOWN)
        yield known


def write(pytester: pytest.Pytester, *, test: int = 0, lib: int = 0, marker: str = "") -> None:
    """A test whose own file multiplies so often, and so does the module that it calls."""
    pytester.makepyfile(
        lib="def work(x, n):\n    for _ in range(n):\n        x * x\n",
        test_it=f"""
        import pytest, torch
        from lib import work

        {marker}
        def test_it():
            x = torch.ones(4)
            work(x, {lib})
            for _ in range({test}):
                x * x
        """,
    )
    pytester.syspathinsert()


MORE = "in tests' own files or under 1 ms: -v"


def test_a_finding_in_the_tests_own_file_is_no_finding_about_the_library(
    pytester: pytest.Pytester,
) -> None:
    write(pytester, test=3, lib=2)
    said = pytester.runpytest("--torchprof", "--torchprof-html=r.html")
    said.stdout.fnmatch_lines([f"test_it.py::test_it *{CODE} ×2", f"1 more finding {MORE}"])
    page = re.sub("(?s)<script.*?</script>", "", (pytester.path / "r.html").read_text("utf-8"))
    assert ("lib.py:3" in page, "test_it.py:9" in page) == (True, False)
    ran = run(pytester, "--torchprof", "-v")
    assert f"{CODE} ×2, {CODE} ×3 (advice)\n" in ran.out
    assert MORE not in ran.out
    listed = {f["location"]: (f["listed"], f["gated"]) for f in ran.tests["test_it"]["findings"]}
    assert listed == {"lib.py:3": (True, True), "test_it.py:9": (False, False)}


def test_a_library_that_is_tested_as_installed_is_not_taken_for_the_test(
    pytester: pytest.Pytester,
) -> None:
    """Its lines are nobody's, so it is placed where the test calls it."""
    write(pytester, lib=2)
    installed = pytester.mkdir("venv") / "site-packages"
    installed.mkdir()
    pytester.mkdir("src")
    source = (pytester.path / "lib.py").rename(pytester.path / "src" / "lib.py")
    (installed / "lib.py").write_text(source.read_text("utf-8"), "utf-8")
    pytester.syspathinsert(installed)
    ran = run(pytester, "--torchprof")
    (found,) = ran.tests["test_it"]["findings"]
    assert (found["location"], found["listed"], found["gated"]) == ("test_it.py:7", True, True)


@pytest.mark.parametrize(
    ("before", "now", "marker", "status"),
    [
        ({"test": 1, "lib": 1}, {"test": 1, "lib": 1}, "", "ok"),
        ({"test": 0, "lib": 1}, {"test": 5, "lib": 1}, "", "ok"),
        ({"test": 1, "lib": 1}, {"test": 5, "lib": 1}, "", "ok"),
        ({"test": 5, "lib": 1}, {"test": 1, "lib": 1}, "", "ok"),
        ({"test": 1, "lib": 1}, {"test": 1, "lib": 2}, "", "regressed"),
        ({"test": 3, "lib": 1}, {"test": 2, "lib": 3}, "", "regressed"),
        ({"test": 0, "lib": 2}, {"test": 0, "lib": 1}, "", "improved"),
        ({"test": 1, "lib": 0}, {"test": 1, "lib": 0}, "no_antipatterns", "over_budget"),
        ({"test": 1, "lib": 0}, {"test": 1, "lib": 0}, f"no_antipatterns('{CODE}')", "over_budget"),
        ({"test": 1, "lib": 0}, {"test": 1, "lib": 0}, "no_antipatterns('host-sync')", "ok"),
        ({"test": 1, "lib": 0}, {"test": 1, "lib": 0}, "max_findings(0)", "over_budget"),
        ({"test": 1, "lib": 0}, {"test": 1, "lib": 0}, "max_findings(1)", "ok"),
    ],
)
@pytest.mark.parametrize("cost", [UNKNOWN, DEAR, TRIFLE])
def test_only_findings_of_the_library_are_compared_whatever_they_cost(
    pytester: pytest.Pytester,
    rules: dict[str, Rule],
    cost: int,
    before: dict[str, int],
    now: dict[str, int],
    marker: str,
    status: str,
) -> None:
    rules[CODE] = rule(cost)
    rules["host-sync"] = Rule("host-sync", lambda _: [], "", "aten::")
    decorator = f"@pytest.mark.{marker}" if marker else ""
    write(pytester, **before, marker="@pytest.mark.max_findings(9)" if marker else "")
    accept(pytester)
    write(pytester, **now, marker=decorator)
    ran = run(pytester, "--torchprof", "--torchprof-time=off")
    test = ran.tests["test_it"]
    others = {"regressed", "improved"} & {
        m["status"] for name, m in test["metrics"].items() if not name.startswith("findings")
    }
    found = [m["status"] for name, m in test["metrics"].items() if name.startswith("findings")]
    assert status in found
    assert ("regressed" in found) is (status == "regressed")
    assert others or test["status"] == status
    if status == "regressed":  # also one that costs next to nothing is told
        assert f"{CODE}: it multiplies" in ran.out
        assert [f["listed"] for f in test["findings"] if f["location"] == "lib.py:3"] == [True]
    if status == "over_budget":
        assert [f["listed"] for f in test["findings"]] == [True]
        assert f"{CODE} ×1" in ran.out or f"{CODE} 1 → 1" in ran.out


def test_a_baseline_keeps_how_many_are_in_tests_so_that_no_run_has_to_locate_them(
    pytester: pytest.Pytester,
) -> None:
    write(pytester, test=3, lib=2)
    accept(pytester)
    (entry,) = read_baseline(pytester)["tests"]["test_it"].values()
    assert ({CODE: 2}, {CODE: 3}) == (entry["findings"], entry["findings_in_tests"])
    stored = baseline_file(pytester).read_bytes()
    assert "in 3 runs" in run(pytester, "--torchprof").out
    accept(pytester)
    assert stored == baseline_file(pytester).read_bytes()


@pytest.mark.parametrize(
    ("cost_ms", "time_ms", "in_test", "listed"),
    [
        (None, 5.0, False, True),
        (None, None, False, True),
        (0.001, None, False, True),
        (0.0499, 5.0, False, False),
        (0.05, 5.0, False, True),
        (0.999, 1000.0, False, False),
        (1.0, 1000.0, False, True),
        (900.0, 1000.0, True, False),
        (None, None, True, False),
    ],
)
def test_what_saves_less_than_a_hundredth_and_a_millisecond_is_not_listed(
    cost_ms: float | None, time_ms: float | None, in_test: bool, listed: bool
) -> None:
    found = Finding(CODE, 1, "", cost_ms=cost_ms)
    assert listed is is_listed(found, time_ms, in_test=in_test)


@pytest.mark.parametrize(
    ("file", "patterns", "listed"),
    [
        ("helpers_test.py", "", False),
        ("conftest.py", "", False),
        ("helpers.py", "", True),
        ("helpers.py", "check_*.py test_it.py helpers.py", False),
        ("tests/helpers.py", "test_it.py tests/*.py", False),
        ("src/helpers.py", "test_it.py tests/*.py", True),
    ],
)
def test_a_test_file_is_what_pytest_collects_as_one(
    pytester: pytest.Pytester, file: str, patterns: str, listed: bool
) -> None:
    path = pytester.path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("def work(x):\n    x * x\n", "utf-8")
    pytester.makepyfile(
        test_it=f"""
        import importlib.util, torch

        def test_it():
            spec = importlib.util.spec_from_file_location("helped", {str(path)!r})
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            module.work(torch.ones(4))
        """
    )
    if patterns:
        pytester.makeini(f"[pytest]\npython_files = {patterns}")
    (found,) = run(pytester, "--torchprof", "test_it.py").tests["test_it"]["findings"]
    assert (f"{file}:2", listed) == (found["location"], found["listed"])
