"""Errors that no test is to blame for: its outcome stays, and the run fails at its end."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest
import torch.autograd.profiler as room
from msgspec.structs import replace
from support.sessions import Ran, accept, baseline_file, replaced_rules, run

from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.session.runs import Overdue, Run

RULES_BEFORE = dict(RULES)

TESTS = """
    def test_one(): pass
    def test_two(): pass
"""


def _broken(*_: Any, **__: Any) -> Any:
    raise KeyError("of ours")


#: Whose an error is, the module says in which it is raised.
broken = FunctionType(_broken.__code__, {"__name__": "pytest_torchprof", "KeyError": KeyError})


def with_fault(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, place: str) -> Ran:
    """A session with this function of ours broken: its tests pass, and it fails."""
    pytester.makepyfile(test_it=TESTS)
    monkeypatch.setattr(place, broken)
    ran = run(pytester, "--torchprof")
    monkeypatch.undo()
    assert (pytest.ExitCode.TESTS_FAILED, {"passed": 2}) == (ran.ret, ran.outcomes)
    return ran


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "place",
    [
        "pytest_torchprof.session.runs.Capture.start",
        "pytest_torchprof.session.runs.Capture.stop",
        "pytest_torchprof.verdict.judgement.profile_of",
        "pytest_torchprof.verdict.judgement.compare",
        "pytest_torchprof.session.runs.ItemState.renew",
    ],
)
def test_an_internal_error_leaves_the_tests_and_fails_the_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    ran = with_fault(pytester, monkeypatch, place)
    assert {"test_one": "not_profiled", "test_two": "not_profiled"} == ran.statuses
    (line,) = (line for line in ran.result.outlines if line.startswith("ERROR"))
    assert line.startswith(
        "ERROR: internal error, please report it: KeyError: 'of ours', test_faults.py:"
    )
    assert line.endswith(" (in 2 tests: test_it.py::test_one, …)")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "place",
    [
        "pytest_torchprof.session.runs.FirstTeardown.show",
        "pytest_torchprof.session.measurement.Gatherer.forget",
        "pytest_torchprof.session.verdicts.Judge.forget",
    ],
)
def test_an_internal_error_around_a_phase_leaves_the_tests_too(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    ran = with_fault(pytester, monkeypatch, place)
    (line,) = (line for line in ran.result.outlines if line.startswith("ERROR"))
    assert line.startswith("ERROR: internal error, please report it: KeyError: 'of ours'")


def test_an_interrupt_before_a_run_begins_leaves_nothing_in_torch(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it=TESTS)
    before = vars(room)["_prepare_profiler"]
    begin = Run.begin

    def overdue(ran: Run) -> None:
        if not ran.first:
            raise Overdue("timed run", 1.0)
        begin(ran)

    monkeypatch.setattr(Run, "begin", overdue)
    ran = run(pytester, "--torchprof")
    assert (0, {"passed": 2}) == (ran.ret, ran.outcomes)
    assert {"not_profiled"} == set(ran.statuses.values())
    assert vars(room)["_prepare_profiler"] is before


@pytest.mark.thorough
def test_an_internal_error_in_a_worker_fails_the_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    pytester.makeconftest(
        """
        import pytest_torchprof.session.runs
        room = {"__name__": "pytest_torchprof"}
        exec("def broken(*_, **__): raise KeyError('of ours')", room)
        def pytest_collection_finish():
            pytest_torchprof.session.runs.Capture.start = room["broken"]
        """
    )
    ran = run(pytester, "--torchprof", "-n1", needs=["xdist"])
    assert (1, {"passed": 2}) == (ran.ret, ran.outcomes)
    assert "ERROR: internal error, please report it: KeyError: 'of ours'" in ran.out


def test_an_error_while_locating_lines_fails_only_the_session(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it=TESTS)
    monkeypatch.setattr("pytest_torchprof.session.verdicts.Judge._wants_lines", broken)
    ran = run(pytester, "--torchprof")
    assert (1, {"new"}) == (ran.ret, set(ran.statuses.values()))
    assert " (in 2 tests: test_it.py::test_one, …)" in ran.out


def test_a_refusal_is_not_an_internal_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import torch
        def test_own():
            with torch.profiler.profile(): pass
        """
    )
    ran = run(pytester, "--torchprof")
    assert (0, {"test_own": "not_profiled"}) == (ran.ret, ran.statuses)


def test_a_test_that_an_internal_error_hit_is_not_accepted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it=TESTS)
    accept(pytester)
    before = baseline_file(pytester).read_bytes()
    monkeypatch.setattr("pytest_torchprof.verdict.judgement.compare", broken)
    assert 1 == run(pytester, "--accept").ret
    assert before == baseline_file(pytester).read_bytes()


def test_a_built_in_rule_that_raises_is_a_fault_and_a_users_is_not(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it="import torch\ndef test_add(): torch.ones(1) + 1")
    with replaced_rules() as known:
        for code in ("sync-dataloader", "odd"):
            known[code] = replace(
                RULES_BEFORE["sync-dataloader"], code=code, find=broken, triggers=None
            )
            ran = run(pytester, "--torchprof")
            ours = code != "odd"
            assert (int(ours), {"passed": 1}) == (ran.ret, ran.outcomes)
            message = f"{code}: the rule failed: KeyError: 'of ours'"
            assert (f"ERROR: internal error, please report it: {message}" in ran.out) is ours
            assert message in ran.out
            known.clear()
