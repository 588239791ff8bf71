"""``torchprof.ab``: two callables in turn within a test, and what its result is worth."""

from __future__ import annotations

import re

import pytest
from support.sessions import Ran, accept, calls, run

HEAD = """
    import time
    import pytest
    import torch
    from support.sessions import note

    X = torch.ones(4)

    # To sleep takes about as long on a busy machine.
    def short(): time.sleep(0.002)
    def twice(): time.sleep(0.004)
    def long(): time.sleep(0.012)
"""


def ran(pytester: pytest.Pytester, body: str, *args: str, on: bool = True) -> Ran:
    """A session of one test with this body."""
    pytester.makepyfile(test_it=f"{HEAD}\n{body}")
    return run(pytester, *(["--torchprof"] if on else []), *args)


def status(session: Ran) -> dict[str, object]:
    (test,) = session.report["tests"]
    found: dict[str, object] = test
    return found


# -------------------------------------------------------------------- what it says


def test_a_slower_callable_fails_the_test_with_times_interval_and_pairs(
    pytester: pytest.Pytester,
) -> None:
    body = """
    def test_it(torchprof):
        torchprof.ab(short, long, min_time=0.5).assert_not_slower(by="5 %")
    """
    session = ran(pytester, body)
    assert {"failed": 1} == session.outcomes
    times = r"a [\d.]+ ms, b [\d.]+ ms: \+\d+\.\d % \(\+\d+\.\d … \+\d+\.\d %\)"
    assert re.search(rf"{times}, slower by more than 5 %\n", session.out)
    assert re.search(r"\n  a is short, b is long; 99 % confidence, \d+ pairs of turns", session.out)
    assert "Error" not in session.out
    assert "over_budget" == status(session)["status"]


@pytest.mark.thorough
def test_equal_callables_pass_and_the_result_says_so(pytester: pytest.Pytester) -> None:
    body = """
    def test_it(torchprof):
        result = torchprof.ab(short, short, min_time=0.5)
        result.assert_not_slower(by="5 %")
        assert result.verdict in ("same", "unclear")
        assert result.low <= result.ratio <= result.high
        assert 0.2 < result.ratio < 5
        assert 2 <= result.a < 60 and 2 <= result.b < 60
        if isinstance(result.pairs, int):
            note("compared")
            assert "pairs" in repr(result) and result.verdict in repr(result)
            with pytest.raises(AttributeError): result.ratio = 1
            assert result.pairs >= 8
    """
    session = ran(pytester, body)
    assert {"passed": 1} == session.outcomes, session.out
    assert 1 == calls(pytester, "compared")


@pytest.mark.thorough
@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("claim", "outcome"),
    [
        ('verdict == "slower"', "passed"),
        ('verdict != "slower"', "failed"),
        ("ratio > 1.2", "passed"),
        ("ratio < 1.2", "failed"),
        ("b > a", "passed"),
    ],
)
def test_a_comparison_of_the_result_is_checked_in_the_run_that_measures(
    claim: str, outcome: str, pytester: pytest.Pytester
) -> None:
    claim = claim.replace("> a", "> result.a")
    body = f"""
    def test_it(torchprof):
        result = torchprof.ab(short, long, min_time=0.3)
        assert result.{claim}
    """
    session = ran(pytester, body)
    assert {outcome: 1} == session.outcomes, session.out
    if outcome == "failed":
        assert re.search(
            r"where .* = <a [\d.]+ ms, b [\d.]+ ms: .*, slower, \d+ pairs>", session.out
        )


def test_a_limit_within_the_interval_does_not_fail(pytester: pytest.Pytester) -> None:
    body = """
    def test_it(torchprof):
        result = torchprof.ab(short, twice, min_time=0.3)
        result.assert_not_slower(by="900 %")
        assert result.verdict in ("slower", "unclear")
    """
    assert {"passed": 1} == ran(pytester, body).outcomes


@pytest.mark.thorough
def test_too_few_pairs_prove_nothing(pytester: pytest.Pytester) -> None:
    body = """
    def test_it(torchprof):
        result = torchprof.ab(lambda: time.sleep(0.05), lambda: time.sleep(0.2), min_time=0.1)
        result.assert_not_slower(by="5 %")
        assert result.verdict == "unclear"
        with open("said", "a") as file: print(repr(result), file=file)
    """
    session = ran(pytester, body)
    assert {"passed": 1} == session.outcomes, session.out
    said = (pytester.path / "said").read_text("utf-8")
    assert re.search(r"unclear, \d pairs? \(\d of the 8 pairs of turns that it takes", said)
    line = (
        r"torchprof.ab has no answer: \d of the 8 pairs of turns that it takes at least to be sure"
    )
    assert re.search(rf"{line}; give it a larger min_time", session.out)
    assert "strict: the test compares" in ran(pytester, body, "--torchprof-strict").out


@pytest.mark.thorough
def test_long_calls_have_the_pairs_that_it_takes(pytester: pytest.Pytester) -> None:
    """Within the time given, there are 4: what is ten times slower once passed."""
    body = """
    def test_it(torchprof):
        result = torchprof.ab(lambda: time.sleep(0.01), lambda: time.sleep(0.1), min_time=0.2)
        result.assert_not_slower(by="5 %")
    """
    session = ran(pytester, body)
    assert {"failed": 1} == session.outcomes, session.out
    assert "slower by more than 5 %" in session.out


# -------------------------------------------------------------------- in which run


def test_without_the_option_each_is_called_once_and_everything_holds(
    pytester: pytest.Pytester,
) -> None:
    body = """
    def test_it(torchprof):
        result = torchprof.ab(lambda: note("a"), lambda: note("b"), min_time=60)
        assert result.verdict != "slower" and result.verdict == "slower"
        assert result.ratio < 0 and result.low > 9 and result.high == 3 and result.pairs > 10**9
        assert result.a > result.b and 2 * result.a < result.b
        result.assert_not_slower(by="5 %")
        assert repr(result).startswith("<not measured: callables are compared in one run")
    """
    session = ran(pytester, body, on=False)
    assert {"passed": 1} == session.outcomes, session.out
    assert (1, 1) == (calls(pytester, "a"), calls(pytester, "b"))


@pytest.mark.thorough
def test_it_is_measured_in_one_unprofiled_run_and_called_once_in_each_other(
    pytester: pytest.Pytester,
) -> None:
    body = """
    def test_it(torchprof):
        seen = []
        result = torchprof.ab(lambda: seen.append(X + X), lambda: (X + X, X - X), min_time=0.2)
        kind, profiled = type(result.ratio).__name__, torch.autograd._profiler_enabled()
        with open("runs", "a") as file:
            print(len(seen), profiled, kind, file=file)
    """
    session = ran(pytester, body, "--torchprof-rounds=2")
    assert {"passed": 1} == session.outcomes, session.out
    runs = [line.split() for line in (pytester.path / "runs").read_text("utf-8").splitlines()]
    once, timed = ["1", "False", "Unchecked"], runs[3]
    assert [once] * 3 == runs[:3]  # the warm-up, and two rounds
    assert int(timed[0]) > 1000
    assert ["False", "float"] == timed[1:]
    assert ["1", "True", "Unchecked"] == runs[4]
    assert 3 == session.metric("ops", "test_it")["value"]
    assert session.metric("wall_ms", "test_it")["value"] < 100


@pytest.mark.thorough
def test_a_block_or_a_callable_of_the_test_is_measured_as_ever(pytester: pytest.Pytester) -> None:
    body = """
    def test_block(torchprof):
        result = torchprof.ab(short, long, min_time=0.3)
        with torchprof: X + X
        assert torchprof.stats.ops == 1
        assert result.verdict == "slower"

    def test_callable(torchprof):
        torchprof(lambda: (note("called"), X + X), rounds=2, warmup=1)
        assert torchprof.stats.ops == 1
        print(torchprof.table())
        result = torchprof.ab(short, long, min_time=0.3)
        assert result.verdict == "slower"
        if isinstance(result.ratio, float): note("compared")
    """
    session = ran(pytester, body, "-rP")
    assert {"passed": 2} == session.outcomes, session.out
    assert [1, 1] == [session.metric("ops", t)["value"] for t in ("test_block", "test_callable")]
    assert 1 == calls(pytester, "compared")
    assert 5 == calls(pytester, "called")  # warm-up, rounds, profile; and once where it compares
    assert 1 == session.out.count("aten::add")


@pytest.mark.thorough
def test_several_comparisons_share_the_run(pytester: pytest.Pytester) -> None:
    body = """
    def test_it(torchprof):
        first = torchprof.ab(short, long, min_time=0.2)
        second = torchprof.ab(long, short, min_time=0.2)
        assert first.ratio > 1 > second.ratio
        if isinstance(second.ratio, float): note("compared")
    """
    assert {"passed": 1} == ran(pytester, body).outcomes
    assert 1 == calls(pytester, "compared")


@pytest.mark.thorough
def test_where_the_profiled_run_is_the_only_one_it_is_not_checked(
    pytester: pytest.Pytester,
) -> None:
    body = """
    def test_it(torchprof):
        torchprof.ab(short, long).assert_not_slower(by="5 %")
    """
    only = ("--torchprof-warmup=0", "--torchprof-rounds=0")
    session = ran(pytester, body, *only)
    assert {"passed": 1} == session.outcomes
    assert "the profiled run is the only one: give the test a warm-up run" in session.out
    strict = ran(pytester, body, *only, "--torchprof-strict")
    assert {"failed": 1} == strict.outcomes
    assert "strict: the test compares numbers that were not measured: torchprof.ab" in strict.out


@pytest.mark.thorough
def test_strict_mode_is_content_with_a_comparison_that_was_made(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_it(torchprof):
        result = torchprof.ab(short, short, min_time=0.2)
        result.assert_not_slower(by="50 %")
        X + X
    """
    )
    accept(pytester)
    session = run(pytester, "--torchprof", "--torchprof-strict")
    assert {"passed": 1} == session.outcomes, session.out


def test_a_comparison_that_only_other_runs_reach_is_not_checked(pytester: pytest.Pytester) -> None:
    body = """
    RUNS = []

    def test_it(torchprof):
        RUNS.append(1)
        if len(RUNS) != 3:
            torchprof.ab(short, long, min_time=0.2).assert_not_slower(by="5 %")
    """
    session = ran(pytester, body)
    assert {"passed": 1} == session.outcomes
    assert "called in other runs, but not in the run that compares" in session.out


def test_in_a_fixture_it_measures_nothing_and_the_test_says_so(pytester: pytest.Pytester) -> None:
    body = """
    @pytest.fixture
    def compared(torchprof): return torchprof.ab(short, long, min_time=0.2)

    def test_it(compared): compared.assert_not_slower(by="5 %")
    """
    session = ran(pytester, body)
    assert {"passed": 1} == session.outcomes
    assert "not_profiled" == status(session)["status"]
    assert "a fixture measured a region" in str(status(session)["reason"])


# -------------------------------------------------------------------- how it measures


@pytest.mark.thorough
def test_fresh_arguments_are_made_for_every_call(pytester: pytest.Pytester) -> None:
    body = """
    def grow(items, by=1):
        assert not items  # else a call before had the same
        items.append(by)
        time.sleep(0.01)

    def setup():
        time.sleep(0.04)
        return ([],)

    def test_it(torchprof):
        result = torchprof.ab(grow, grow, setup=setup, kwargs={"by": 2}, min_time=0.1)
        assert result.a < 40 and result.b < 40
        if isinstance(result.a, float): note("compared")
    """
    session = ran(pytester, body)
    assert {"passed": 1} == session.outcomes, session.out
    assert 1 == calls(pytester, "compared")


@pytest.mark.thorough
def test_min_time_limits_the_seconds(pytester: pytest.Pytester) -> None:
    body = """
    import itertools
    AB = itertools.cycle([0.002, 0.004, 0.0015])

    def uneven(): time.sleep(next(AB))

    def test_it(torchprof):
        began = time.perf_counter()
        torchprof.ab(uneven, uneven, min_time=0.25, threshold=0.0001)
        assert time.perf_counter() - began < 2
    """
    session = ran(pytester, body)
    assert {"passed": 1} == session.outcomes, session.out
    assert "new" == status(session)["status"]


@pytest.mark.thorough
def test_what_a_test_replaces_does_not_disturb_the_measurement(pytester: pytest.Pytester) -> None:
    body = """
    import gc

    def test_it(torchprof, monkeypatch):
        def fake(*a, **k): raise AssertionError("a mock was called")
        for name in ("time", "perf_counter_ns", "process_time_ns"):
            monkeypatch.setattr(time, name, fake)
        monkeypatch.setattr(gc, "collect", fake)
        result = torchprof.ab(short, long, args=(), min_time=0.3)
        monkeypatch.undo()
        assert result.verdict == "slower"
        if isinstance(result.ratio, float): note("compared")
    """
    session = ran(pytester, body)
    assert {"passed": 1} == session.outcomes, session.out
    assert "new" == status(session)["status"], status(session)["reason"]
    assert 1 == calls(pytester, "compared")


# -------------------------------------------------------------------- bad input


@pytest.mark.one_in(5)
@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("ab(1, long)", "torchprof.ab: a must be callable: it is of type int; pass a function"),
        ("ab(short, None)", "torchprof.ab: b must be callable: it is None; pass a function"),
        (
            "ab(short, long, args=X)",
            "torchprof.ab: args must be a tuple: it is of type Tensor; write",
        ),
        (
            "ab(short, long, kwargs=[1])",
            "torchprof.ab: kwargs must be a dict: it is of type list; ",
        ),
        ("ab(short, long, setup=3)", "torchprof.ab: setup must be callable: it is of type int; "),
        (
            "ab(short, long, args=(1,), setup=tuple)",
            "torchprof.ab: there are args and setup: setup",
        ),
        ("ab(id, id, setup=lambda: X)", "torchprof.ab: setup must return a tuple of arguments: it"),
        (
            "ab(short, long, min_time=0)",
            "torchprof.ab: min_time must be a number of seconds above 0",
        ),
        (
            "ab(short, long, timeout='1')",
            "torchprof.ab: timeout must be a number of seconds above 0",
        ),
        ("ab(short, long, threshold=2)", "threshold=2 is not a share: that would be 200 %; write"),
        (
            "ab(short, long).assert_not_slower(by='much')",
            'by="much" is not a share: it is not a number with %; write by="5 %" or by=0.05',
        ),
        ("ab(short, long).assert_not_slower(by=None)", "by=None is not a share: NoneType is not"),
    ],
)
def test_bad_arguments_are_refused_in_one_line_in_every_run(
    call: str, message: str, on: bool, pytester: pytest.Pytester
) -> None:
    session = ran(pytester, f"\n    def test_it(torchprof):\n        torchprof.{call}\n", on=on)
    assert {"failed": 1} == session.outcomes
    shown = [line for line in session.out.splitlines() if line.startswith("E  ")]
    assert 1 == len(shown), session.out
    assert message in shown[0]
    assert re.search(r">\s+torchprof\.ab\(", session.out)
    places = re.findall(r"^(\S+):\d+: ", session.out, re.MULTILINE)
    assert ["test_it.py"] == places


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("call", [1, 7])
def test_what_a_callable_raises_is_the_tests_own_error(
    call: int, on: bool, pytester: pytest.Pytester
) -> None:
    """At once, or in the run that compares: this is its fourth call of `b` there."""
    if call > 1 and not on:
        pytest.skip("it is called once")
    body = f"""
    CALLS = []

    def broken():
        CALLS.append(1)
        if len(CALLS) >= {call}:
            raise KeyError("no such thing")

    def test_it(torchprof):
        torchprof.ab(short, broken, min_time=0.2)
    """
    session = ran(pytester, body, on=on)
    assert {"failed": 1} == session.outcomes
    assert re.search(r"E +KeyError: 'no such thing'", session.out)
    assert re.search(r">\s+torchprof\.ab\(short, broken", session.out)
    assert re.search(r">\s+raise KeyError", session.out)
    files = set(re.findall(r"^(\S+\.py):\d+:", session.out, re.MULTILINE))
    assert {"test_it.py"} == files


@pytest.mark.thorough
@pytest.mark.one_in(4)
@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("call", [1, 4])
def test_a_callable_that_does_not_return_is_ended_and_named(
    call: int, on: bool, pytester: pytest.Pytester
) -> None:
    if call > 1 and not on:
        pytest.skip("it is called once")
    body = f"""
    CALLS = []

    def blocked():
        CALLS.append(1)
        if len(CALLS) >= {call}:
            try: time.sleep(30)
            except Exception: time.sleep(30)

    def test_it(torchprof):
        torchprof.ab(short, blocked, min_time=0.2, timeout=0.3)
    """
    session = ran(pytester, body, on=on)
    assert {"failed": 1} == session.outcomes
    line = "torchprof.ab: b (blocked) did not return within 0.3 s; timeout= allows it more"
    assert line in session.out.splitlines()
    assert session.result.duration < 15


def test_a_skip_in_a_callable_is_the_tests_own(pytester: pytest.Pytester) -> None:
    body = """
    def test_it(torchprof):
        torchprof.ab(short, lambda: pytest.skip("not here"), min_time=0.2)
    """
    assert {"skipped": 1} == ran(pytester, body).outcomes
