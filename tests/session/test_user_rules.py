"""Rules of users: from conftest files, plugins and entry points."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from support.sessions import ADD, run
from support.trace_builder import TraceBuilder

from pytest_torchprof import Matches, Rule, Threshold, rule
from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import BUILT_IN, RULES, gather
from pytest_torchprof.trace.read import parse_trace

PAGE = Path(__file__).parents[2] / "docs" / "writing-rules.md"

#: A module with two rules: one finds additions, one raises.
MODULE = """
    import numpy as np
    from pytest_torchprof import Matches, rule

    @rule("additions", fix="do not add", triggers="aten::add$")
    def additions(trace):
        "Adds."
        return np.flatnonzero(trace.named("aten::add") & trace.selection)

    @rule("broken", fix="mend it")
    def broken(trace):
        "Raises."
        raise KeyError("of mine")
"""
CONFTEST = """
    def pytest_torchprof_rules(config):
        import my_rules
        return {answer}
"""

#: A test that must have no findings, and calls tanh.
TANH = """
    import pytest
    import torch

    @pytest.mark.no_antipatterns
    def test_{name}():
        torch.ones(4).tanh()
"""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    sys.modules.pop("my_rules", None)


def made(code: str = "mine", **options: str) -> Rule:
    @rule(code, fix="do it better", **options)  # type: ignore[arg-type]
    def find(trace: object) -> list[int]:
        """Finds nothing."""
        return []

    return find


def trace_of(*names: str) -> TraceBuilder:
    builder = TraceBuilder()
    for name in names:
        builder.op(name, [[4]], ["float"])
    return builder


# -------------------------------------------------------------------- gathering


def test_rules_of_a_hook_come_after_the_built_in_ones() -> None:
    book = gather([("conftest.py", [made("b"), made("a")]), ("other", None)], [])
    assert [*RULES, "b", "a"] == list(book.rules)
    assert ("conftest.py", BUILT_IN) == (book.sources["a"], book.sources[next(iter(RULES))])


def test_a_rule_may_stand_alone_in_a_list_or_in_a_module() -> None:
    module = ModuleType("my_rules")
    vars(module).update(one=made("one"), known=next(iter(RULES.values())))
    vars(module)["same"] = vars(module)["one"]
    book = gather([("a", made("alone")), ("b", iter((made("listed"),))), ("c", module)], [])
    assert {"alone", "listed", "one"} == book.rules.keys() - RULES.keys()


@pytest.mark.parametrize(
    ("hooked", "message"),
    [
        ([("conftest.py", [made("sync-dataloader")])], [BUILT_IN, "conftest.py"]),
        ([("a.py", made()), ("b.py", made())], ["a.py", "b.py", "'mine'"]),
        ([("a.py", [made(), made()])], ["a.py has a rule with this code"]),
    ],
)
def test_a_code_that_is_taken_is_an_error_that_names_both(
    hooked: list[tuple[str, object]], message: list[str]
) -> None:
    with pytest.raises(SettingsError, match="give it another code") as error:
        gather(hooked, [])
    assert all(word in str(error.value) for word in message)


@pytest.mark.parametrize("answer", [42, "mine", [made(), len], {"mine": made()}, made])
def test_something_that_is_not_a_rule_is_an_error(answer: object) -> None:
    with pytest.raises(SettingsError, match=r"of conftest\.py is not an anti-pattern rule"):
        gather([("conftest.py", answer)], [])


def test_an_entry_point_that_cannot_be_loaded_is_reported_and_breaks_nothing() -> None:
    points = [EntryPoint("mine", "no_such_module:rules", "torchprof.rules")]
    book = gather([("conftest.py", made())], points)
    assert "mine" in book.rules
    (error,) = book.errors
    assert error.startswith("the entry point mine = no_such_module:rules cannot be loaded: Module")


@pytest.mark.parametrize(
    ("answer", "found", "wanted"),
    [
        (None, "None", "Matches, or the indices of events"),
        (3, "a value of type int", "Matches, or the indices of events"),
        ("zero", "a value of type str", "Matches, or the indices of events"),
        (["zero"], "a list that is not a column of whole numbers", "Matches, or the indices"),
        ([0.5], "a list that is not a column of whole numbers", "Matches, or the indices"),
        ([[0], [0, 1]], "a list that is not a column of whole numbers", "Matches, or the indices"),
        ([99], "the event 99", "events from 0 to 1, or -1"),
        ([-7], "the event -7", "events from 0 to 1, or -1"),
        (np.array([True, False]), "a mask", "the indices of events: np.flatnonzero(mask)"),
        ([True, False], "a mask", "the indices of events: np.flatnonzero(mask)"),
        (Matches(np.array([0.5]), ""), "Matches with events of 1 dimensions and type float64", "o"),
        (Matches(None, ""), "Matches with events of 0 dimensions and type object", "one column"),  # type: ignore[arg-type]
        (Matches(np.array([0, 1]), ["one"]), "2 events, but 1 values of message", "one value for"),
        (Matches(np.array([0]), "", count=np.array([1, 2])), "1 events, but 2 values of count", ""),
        (Matches(np.array([0]), "", count=4), "a value of type int as count", "one value for each"),  # type: ignore[arg-type]
        (Matches(np.array([[0]]), ""), "Matches with events of 2 dimensions", ""),
        (Matches(np.array([0]), [None]), "None as a message", "each message as text"),  # type: ignore[list-item]
        (Matches(np.array([0]), None), "None as message", ""),  # type: ignore[arg-type]
        (Matches(np.array([0]), "", location=[5]), "a value of type int as a location", "each loc"),  # type: ignore[list-item]
        (
            Matches(np.array([0]), "", cost_ns=np.array(["a"])),
            "cost_ns of type <U1",
            "cost_ns as a",
        ),
        (Matches(np.array([0]), "", count=np.array([1.5])), "count of type float64", "count as a "),
        (Matches(np.array([0]), "", parts=[None]), "Matches that cannot be read (", "columns with"),  # type: ignore[list-item]
    ],
)
def test_a_wrong_answer_of_a_rule_is_an_error_with_the_place_of_the_rule(
    answer: object, found: str, wanted: str
) -> None:
    def find(_: object) -> object:
        return answer

    odd = Rule("odd", find, "")  # type: ignore[arg-type]
    checked = check(parse_trace(trace_of("aten::add", "aten::mul").to_bytes()), [odd])
    (error,) = checked.errors.values()
    assert error.startswith(f"it returned {found}")
    assert f", but must return {wanted}" in error
    assert error.endswith(f" ({__file__}:{find.__code__.co_firstlineno})")
    assert () == checked.findings()


def test_an_iterator_that_raises_is_an_error_with_the_line_that_raised() -> None:
    def find(_: object) -> Iterator[int]:
        yield 1 // 0

    checked = check(parse_trace(trace_of("aten::add").to_bytes()), [Rule("odd", find, "")])
    line = find.__code__.co_firstlineno + 1
    where = f"({__file__}:{line})"
    assert {
        "odd": f"ZeroDivisionError: integer division or modulo by zero {where}"
    } == checked.errors


@pytest.mark.parametrize("of", ["ready", "blind"])
def test_a_condition_that_returns_no_words_is_an_error_with_its_place(of: str) -> None:
    def condition(_: object) -> bool:
        return True

    odd = Rule("odd", lambda _: [], "", **{of: condition})  # type: ignore[arg-type]
    checked = check(parse_trace(trace_of("aten::add").to_bytes()), [odd])
    place = f"{__file__}:{condition.__code__.co_firstlineno}"
    message = (
        f"it returned a value of type bool, but must return a reason in words, or None ({place})"
    )
    assert {"odd": message} == checked.errors


def test_thresholds_of_users_rules_can_be_set() -> None:
    @rule("many", fix="fewer", least=Threshold(3, "1", "one or two are fine"))
    def many(trace: object, *, least: float) -> list[int]:
        """Many."""
        return list(range(2)) if least <= 2 else []

    trace = parse_trace(trace_of("aten::add", "aten::mul").to_bytes())
    assert [{}, {"many": 2}] == [
        check(trace, [many], thresholds={"many": values}).counts for values in ({}, {"least": 2})
    ]


# -------------------------------------------------------------------- in pytest


def session(pytester: pytest.Pytester, answer: str = "[my_rules.additions]") -> None:
    """A test, rules in a module, and a conftest that hands them over."""
    pytester.makepyfile(my_rules=MODULE, test_it=ADD)
    pytester.makeconftest(CONFTEST.format(answer=answer))
    pytester.syspathinsert()


def test_an_option_and_a_marker_know_the_rules_of_a_conftest(pytester: pytest.Pytester) -> None:
    session(pytester)
    marked = ADD.replace("def test", '@pytest.mark.no_antipatterns("additions")\n    def test')
    pytester.makepyfile(test_marked="    import pytest\n" + marked)
    assert 0 == run(pytester, "--torchprof", "--torchprof-ignore=additions", "test_it.py").ret
    collected = run(pytester, "--torchprof", "--collect-only", "test_marked.py")
    assert 0 == collected.ret, collected.out
    error = run(pytester, "--torchprof", "--torchprof-ignore=additons").usage_error()
    assert "there is no anti-pattern rule 'additons'. Did you mean additions?" in error


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            "[my_rules.additions, 42]",
            "42 of conftest.py is not an anti-pattern rule: its type is int; make one with ",
        ),
        (
            "[my_rules.additions, my_rules.additions]",
            "the anti-pattern rule 'additions' of conftest.py: conftest.py has a rule with ",
        ),
        ("1 / 0", "pytest_torchprof_rules in conftest.py raised: ZeroDivisionError"),
    ],
)
def test_rules_that_make_no_sense_are_a_usage_error(
    pytester: pytest.Pytester, answer: str, message: str
) -> None:
    session(pytester, answer)
    assert message in run(pytester, "--torchprof").usage_error()


def test_a_duplicate_below_names_both_files(pytester: pytest.Pytester) -> None:
    session(pytester)
    folder = pytester.mkpydir("below")
    (folder / "conftest.py").write_text((pytester.path / "conftest.py").read_text("utf-8"))
    marked = ADD.replace("def test", '@pytest.mark.no_antipatterns("additions")\n    def test')
    text = "\n".join(line.strip("\n") for line in marked.splitlines())
    (folder / "test_below.py").write_text(f"import pytest\n{_dedented(text)}")
    error = run(pytester, "--torchprof").usage_error()
    assert "'additions' of below/conftest.py: conftest.py has a rule with this code" in error


def _dedented(text: str) -> str:
    return re.sub(r"(?m)^    ", "", text)


def test_the_hook_is_not_called_when_profiling_is_off(pytester: pytest.Pytester) -> None:
    session(pytester, "1 / 0")
    assert 0 == run(pytester).ret


@pytest.mark.thorough
def test_an_optional_hook_works_without_the_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_it(): pass")
    pytester.makeconftest(
        """
        import pytest

        @pytest.hookimpl(optionalhook=True)
        def pytest_torchprof_rules(config): return 1 / 0
        """
    )
    result = pytester.runpytest_subprocess("-pno:torchprof", "-pno:xdist")
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("triggers", ["aten::add$", "aten::of_another_test$"])
def test_a_rule_whose_ready_function_raises_breaks_no_test(
    pytester: pytest.Pytester, triggers: str
) -> None:
    session(pytester, "[unready]")
    (pytester.path / "conftest.py").write_text(
        f"""
from pytest_torchprof import rule

def ready(trace):
    raise KeyError("of mine")

@rule("unready", fix="mend it", triggers={triggers!r}, ready=ready)
def unready(trace):
    "Raises before it is asked."

def pytest_torchprof_rules(config):
    return [unready]
""",
        "utf-8",
    )
    ran = run(pytester, "--torchprof")
    (test,) = ran.report["tests"]
    assert ("passed", "new") == (test["outcome"], test["status"])
    assert "KeyError: 'of mine'" in test["unchecked"]["unready"]


@pytest.mark.thorough
def test_workers_know_the_rules_too(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    session(pytester)
    args = ("--torchprof", "-n1", "--torchprof-ignore=additions")
    ran = run(pytester, *args, needs=["xdist"])
    assert {"passed": 1} == ran.outcomes, ran.out + ran.err


def test_an_entry_point_names_a_module_with_rules(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(my_rules=MODULE, test_it=ADD)
    info = pytester.mkdir("my_rules-1.0.dist-info")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-rules\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torchprof.rules]\nmine = my_rules\n")
    pytester.syspathinsert()
    assert 0 == run(pytester, "--torchprof", "--torchprof-ignore=additions,broken").ret
    assert "the entry point mine = my_rules of my-rules" == gather().sources["additions"]


# -------------------------------------------------------------------- the page


def test_the_examples_of_the_page_run(pytester: pytest.Pytester) -> None:
    fenced = r"^(`{3,})python\n(.*?)^\1$"
    for _, example in re.findall(fenced, PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE):
        name, _, text = example.partition("\n")
        (pytester.path / name.removeprefix("# ")).write_text(text, "utf-8")
    pytester.syspathinsert()
    ran = run(pytester, "--torchprof", "--torchprof-ignore=large-softmax")
    assert {"passed": 2} == ran.outcomes, ran.out


def test_a_rule_of_a_folder_is_for_the_tests_below_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(**{
        "tests/test_top": TANH.format(name="top"),
        "tests/sub/test_below": TANH.format(name="below"),
        "tests/sub/conftest": """
            from pytest_torchprof import rule

            @rule("no-tanh", fix="none", triggers="aten::tanh$")
            def no_tanh(trace):
                return [i for i, n in enumerate(trace.name) if trace.names[n] == "aten::tanh"]

            def pytest_torchprof_rules():
                return [no_tanh]
        """,
    })  # fmt: skip
    ran = run(pytester, "--torchprof", "tests")
    assert {"test_top": "passed", "test_below": "failed"} == {
        name: test["outcome"] for name, test in ran.tests.items()
    }


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "body", ["pytest.skip('me')", "pytest.fail('it')", "trace.dur[:] = 0", "trace.selection[:] = 0"]
)
def test_a_rule_decides_no_outcome_and_changes_no_number(
    pytester: pytest.Pytester, body: str
) -> None:
    pytester.makepyfile(test_it=TANH.format(name="it").replace("@pytest.mark.no_antipatterns", ""))
    before = run(pytester, "--torchprof").tests["test_it"]
    pytester.makeconftest(
        f"""
        import pytest
        from pytest_torchprof import rule

        @rule("odd", fix="none")
        def odd(trace):
            {body}
            return []

        def pytest_torchprof_rules():
            return [odd]
        """
    )
    ran = run(pytester, "--torchprof")
    test = ran.tests["test_it"]
    assert (0, "passed") == (ran.ret, test["outcome"])
    assert before["metrics"]["ops"] == test["metrics"]["ops"]
    assert test["unchecked"]["odd"].startswith("the rule failed: ")
