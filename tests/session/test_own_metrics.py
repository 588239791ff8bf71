"""Metrics of users' own: recorded in tests, defined by hooks, limited, compared, and reported."""

from __future__ import annotations

import json

import pytest
from support.sessions import accept, run

HEAD = """
    import os
    import pytest
    import torch

    X = torch.ones(4)
    NOW = os.environ.get("NOW", "100")
"""
RECORD = f"""{HEAD}
    def test_it(torchprof):
        X + X
        torchprof.record("tokens", int(NOW), unit="tokens", better="BETTER", compare="COMPARE")
"""
BOTH_WAYS = pytest.mark.parametrize("options", [(), ("--torchprof",)])


def body(pytester: pytest.Pytester, *lines: str, marks: str = "") -> None:
    text = "\n".join(f"        {line}" for line in lines)
    pytester.makepyfile(test_it=f"{HEAD}\n    {marks}\n    def test_it(torchprof):\n{text}\n")


# -------------------------------------------------------------------- recording


def test_a_recorded_metric_is_in_the_report_with_its_unit_and_what_is_better(
    pytester: pytest.Pytester,
) -> None:
    body(pytester, 'torchprof.record("rate", 12.5, unit="1/s", better="higher")', "X + X")
    found = run(pytester, "--torchprof").metric("rate", "test_it")
    shown = {name: found[name] for name in ("value", "unit", "class", "better", "status")}
    expected = {"value": 12.5, "unit": "1/s", "class": "time", "better": "higher", "status": "new"}
    assert expected == shown


def test_by_default_a_metric_is_a_plain_number_that_is_better_low_and_compared_as_a_time(
    pytester: pytest.Pytester,
) -> None:
    body(pytester, 'torchprof.record("cost", 3)')
    found = run(pytester, "--torchprof").metric("cost", "test_it")
    assert (3, "1", "lower", "time") == tuple(
        found[name] for name in ("value", "unit", "better", "class")
    )


COUNTED = f"""{HEAD}
    RUNS = []

    def test_it(torchprof):
        RUNS.append(1)  # warm-up, two rounds, the profiled run
        for k in (0, 1, 5):
            torchprof.record("slow", 10 * len(RUNS) + k, compare="COMPARE")
"""


@pytest.mark.parametrize(
    ("compare", "value", "n"),
    [
        ("time", 26, 2),  # the median of 21 and 31, each the median of its round
        ("never", 26, 2),
        ("exact", 45, None),  # the last value of the profiled run
        ("near", 45, None),
    ],
)
def test_times_come_from_timed_rounds_and_other_numbers_from_the_profiled_run(
    pytester: pytest.Pytester, compare: str, value: float, n: int | None
) -> None:
    pytester.makepyfile(test_it=COUNTED.replace("COMPARE", compare))
    found = run(pytester, "--torchprof", "--torchprof-rounds=2").metric("slow", "test_it")
    assert (value, n) == (found["value"], found.get("n"))


@pytest.mark.thorough
@pytest.mark.parametrize("counts", [("0", "0"), ("1", "0")])
def test_a_time_without_timed_rounds_is_not_measured(
    pytester: pytest.Pytester, counts: tuple[str, str]
) -> None:
    body(pytester, 'torchprof.record("slow", 1)', 'torchprof.record("n", 2, compare="exact")')
    warmup, rounds = counts
    options = f"--torchprof-warmup={warmup}", f"--torchprof-rounds={rounds}"
    ran = run(pytester, "--torchprof", *options)
    found = ran.metric("slow", "test_it")
    assert (None, "not_measured") == (found["value"], found["status"])
    assert "recorded in no timed run" in found["reason"]
    assert 2 == ran.metric("n", "test_it")["value"]


def test_a_region_has_the_metrics_that_are_recorded_in_it(pytester: pytest.Pytester) -> None:
    body(
        pytester,
        'with torchprof("outer"):',
        '    with torchprof("decode"):',
        "        X + X",
        '        torchprof.record("n", 1, compare="exact")',
        '    torchprof.record("n", 2, compare="exact")',
        'torchprof.record("n", 3, compare="exact")',
        'assert torchprof["outer"].n == 2 * torchprof["decode"].n',
    )
    ran = run(pytester, "--torchprof")
    regions = ran.tests["test_it"]["regions"]
    found = [regions[name]["metrics"]["n"]["value"] for name in ("decode", "outer")]
    assert ([1, 2], 3) == (found, ran.metric("n", "test_it")["value"])
    assert {"passed": 1} == ran.outcomes


def test_a_number_made_of_regions_numbers_can_be_recorded(pytester: pytest.Pytester) -> None:
    body(
        pytester,
        'with torchprof("a"): X + X',
        'with torchprof("b"): X + X + X',
        'torchprof.record("ratio", torchprof["b"].ops / torchprof["a"].ops, compare="exact")',
    )
    ran = run(pytester, "--torchprof")
    assert 2 == ran.metric("ratio", "test_it")["value"]
    assert {"passed": 1} == run(pytester).outcomes


def test_what_a_measured_callable_records_is_of_its_calls(pytester: pytest.Pytester) -> None:
    body(
        pytester,
        "calls = []",
        "def f():",
        "    calls.append(X + X)",
        '    torchprof.record("n", len(calls), compare="exact")',
        '    torchprof.record("t", len(calls))',
        "torchprof(f, warmup=1, rounds=3)",
        "torchprof.stats.n == 5",
    )
    ran = run(pytester, "--torchprof")
    assert [5, 3] == [ran.metric(name, "test_it")["value"] for name in ("n", "t")]


def test_a_fixture_records_outside_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    @pytest.fixture
    def noted(torchprof):
        torchprof.record("n", 1, compare="exact")

    def test_it(noted): X + X
    """
    )
    found = run(pytester, "--torchprof").metric("n", "test_it")
    assert "outside the test's call phase" in found["reason"]


@pytest.mark.thorough
@pytest.mark.one_in(3)
@BOTH_WAYS
@pytest.mark.parametrize(
    ("calls", "error"),
    [
        ('record("n", float("nan"))', "n cannot be nan: it is not finite; record a finite number"),
        ('record("n", -float("inf"))', "n cannot be -inf: it is not finite"),
        ('record("n", True)', "n cannot be True: it is a truth value"),
        ('record("n", "3")', "n cannot be '3': str is not a number"),
        ('record("n", None)', "n cannot be None: NoneType is not a number"),
        ('record("n", 10**400)', "n cannot be an integer of 1329 bits: it is too large"),
        ('record("n", torch.ones(2))', "n cannot be tensor([1., 1.])"),
        ('record("n", X[0] > 0)', "n cannot be tensor(True): it is a truth value"),
        ('record("flops", 1)', "a metric of one's own cannot be named 'flops': it is taken"),
        ('record("laps", 1)', "torchprof has a meaning for this name; give it another"),
        ('record("a b", 1)', "a metric cannot be named 'a b': it is not an identifier"),
        ("record(3, 1)", "a metric cannot be named 3: it is not an identifier"),
        ('record("n", 1, unit="a b")', "n: 'a b' is not a unit: a unit is a short text without"),
        ('record("n", 1, better="more")', "n: better='more' is not one of lower, higher"),
        ('record("n", 1, compare="exactly")', "Did you mean exact?"),
        ('record("n", 1, "B"); torchprof.record("n", 1, "s")',
         "n is recorded twice with another unit: first 'B', then 's'"),
        ('record("n", 1); torchprof.record("n", 1, better="higher")', "with another better"),
        ('record("n", 1); torchprof.record("n", 1, compare="never")', "with another compare"),
    ],
)  # fmt: skip
def test_bad_calls_are_errors_with_and_without_profiling(
    pytester: pytest.Pytester, calls: str, error: str, options: tuple[str, ...]
) -> None:
    body(pytester, f"torchprof.{calls}")
    ran = run(pytester, *options)
    assert {"failed": 1} == ran.outcomes
    assert error in ran.out
    assert "SettingsError" in ran.out


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("value", "expected"),
    [("torch.tensor(2.5)", 2.5), ("torch.tensor([3])", 3), ("X.sum().numpy()", 4), ("-1", -1)],
)
def test_what_holds_one_number_is_recorded_as_that(
    pytester: pytest.Pytester, value: str, expected: float
) -> None:
    body(pytester, f'torchprof.record("n", {value}, compare="exact")')
    assert expected == run(pytester, "--torchprof").metric("n", "test_it")["value"]


@pytest.mark.thorough
def test_recording_without_profiling_loads_no_numpy(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
    import sys

    def test_it(torchprof):
        torchprof.record("n", 1)
        assert "numpy" not in sys.modules
    """
    )
    assert {"passed": 1} == run(pytester, subprocess=True).outcomes


# -------------------------------------------------------------------- limits


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("marks", "status", "shown"),
    [
        ('max_metric("n", 100)', "new", ""),
        ('max_metric("n", 99)', "over_budget", "n 100 1/s is over the budget of 99 1/s"),
        ('min_metric("n", 100)', "new", ""),
        ('min_metric("n", 101)', "over_budget", "n 100 1/s is below the minimum of 101 1/s"),
        ('max_metric("n", "99 1/s")', "over_budget", "n 100 1/s is over the budget of 99 1/s"),
        ('max_metric("n", 99, on="cpu")', "over_budget", ""),
        ('max_metric("n", 99, on="H100")', "not in force", ""),
        ('max_metric("n", "99 ms")', "not_measured", "the limit is in ms, and the metric in 1/s"),
        ('max_metric("n", 49, region="dec*")', "over_budget", "n[region=dec*]"),
        ('max_metric("n", 50, region="dec*")', "ok", ""),
        ('min_metric("m", 5, region="decode")', "not_measured", "no metric m: the test does not"),
        ('min_metric("whole", 5, region="decode")', "not_measured",
         "whole is not recorded in the region decode"),
        ('max_metric("n", 5, region="decod")', "not_measured", "similar names that did: decode"),
        ('max_metric("m", 5)', "not_measured", "no metric m"),
        ('max_metric("only", 5)', "not_measured", "only is recorded in regions only"),
        ('max_metric("ops", 0)', "over_budget", "ops 1 is over the budget of 0"),
    ],
)  # fmt: skip
def test_limits(pytester: pytest.Pytester, marks: str, status: str, shown: str) -> None:
    body(
        pytester,
        "X + X",
        'torchprof.record("n", 100, "1/s", compare="exact")',
        'torchprof.record("whole", 9)',
        'with torchprof("decode"):',
        '    torchprof.record("n", 50, "1/s", compare="exact")',
        '    torchprof.record("only", 50, compare="exact")',
        marks=f"@pytest.mark.{marks}",
    )
    ran = run(pytester, "--torchprof", "--torchprof-strict" if status == "not_measured" else "-q")
    metrics = ran.tests["test_it"]["metrics"]
    found = [one for one in metrics.values() if one["limit"] is not None or "least" in one]
    expected = [] if status == "not in force" else [status]
    assert expected == [one["status"] for one in found], found
    fails = status in ("over_budget", "not_measured")
    assert {"failed" if fails else "passed": 1} == ran.outcomes
    assert shown in ran.out.replace("\n", " ") or shown in str(found)


@pytest.mark.parametrize(
    ("marks", "error"),
    [
        ("max_metric(5)", 'max_metric takes a name and a limit: max_metric("tokens_per_s", 100)'),
        ('max_metric("n", 1, op="aten::add")', "max_metric of n has no argument 'op'"),
        ('max_metric("n", 1, on="H1000")', "max_metric of n:"),
        ('max_metric("n", "fast")', 'max_metric of n: "fast" is not a limit'),
        ('max_metric("flops", "1 B")', "max_flops:"),
        ('max_metrics("n", 1)', "Did you mean max_metric or"),
    ],
)
def test_wrong_limits_are_errors_of_collection(
    pytester: pytest.Pytester, marks: str, error: str
) -> None:
    body(pytester, "pass", marks=f"@pytest.mark.{marks}")
    assert error in run(pytester, "--torchprof").usage_error()


def test_a_limit_that_cannot_be_checked_names_metrics_that_are_spelled_alike(
    pytester: pytest.Pytester,
) -> None:
    mark = '@pytest.mark.max_metric("token_per_s", 5)'
    body(pytester, 'torchprof.record("tokens_per_s", 1)', marks=mark)
    ran = run(pytester, "--torchprof")
    assert "no metric token_per_s; did you mean tokens_per_s?" in ran.out
    assert {"passed": 1} == ran.outcomes
    assert {"failed": 1} == run(pytester, "--torchprof", "--torchprof-strict").outcomes


def test_a_limit_of_the_project_is_for_tests_that_record_the_metric(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini(
        "[pytest]\ntorchprof_budgets =\n  max_metric = 5, name=n\n"
        "  max_metric = 5, name=n, region=decode"
    )
    pytester.makepyfile(
        test_it="""
    def test_other(torchprof): pass

    def test_region(torchprof):
        with torchprof("decode"): pass

    def test_it(torchprof):
        torchprof.record("n", 6, compare="exact")
    """
    )
    ran = run(pytester, "--torchprof")
    expected = {"test_other": "new", "test_region": "new", "test_it": "over_budget"}
    assert (expected, False) == (ran.statuses, "budget max" in ran.out)
    assert "torchprof_budgets in tox.ini" in ran.out


def test_a_limit_on_an_excluded_or_failing_test_is_not_checked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
    import pytest

    @pytest.mark.torchprof(enabled=False)
    @pytest.mark.min_metric("n", 5)
    def test_left_out(): pass

    @pytest.mark.min_metric("n", 5)
    def test_fails(): assert 0
    """
    )
    ran = run(pytester, "--torchprof", "--torchprof-strict")
    assert {"failed": 2} == ran.outcomes
    assert "budget min_metric of n not checked: failed" in ran.out
    for test in ("test_left_out", "test_fails"):
        assert ("", "not_measured") == tuple(map(ran.metric("n", test).get, ("unit", "status")))


# -------------------------------------------------------------------- baselines


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("compare", "better", "now", "status"),
    [
        ("exact", "lower", "101", "regressed"),
        ("exact", "higher", "101", "improved"),
        ("near", "higher", "98", "regressed"),
        ("time", "lower", "126", "advisory"),
        ("never", "lower", "9999", "ok"),
    ],
)
def test_a_metric_is_compared_as_it_says(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    compare: str,
    better: str,
    now: str,
    status: str,
) -> None:
    test = RECORD.replace("BETTER", better).replace("COMPARE", compare)
    pytester.makepyfile(test_it=test)
    accept(pytester)
    monkeypatch.setenv("NOW", now)
    ran = run(pytester, "--torchprof")
    assert status == ran.metric("tokens", "test_it")["status"]
    assert (status == "regressed") == (ran.outcomes == {"failed": 1})
    if status == "regressed":
        assert f"tokens 100 tokens → {now} tokens" in ran.out


def stored(pytester: pytest.Pytester) -> dict[str, object]:
    text = (pytester.path / "__torchprof__" / "test_it.json").read_text()
    (entry,) = json.loads(text)["tests"]["test_it"].values()
    found: dict[str, object] = entry
    return found


def test_a_baseline_keeps_numbers_apart_and_times_with_the_machine(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    body(
        pytester,
        'torchprof.record("n", int(NOW), compare="exact")',
        'torchprof.record("t", 2.5)',
        'torchprof.record("shown", 2.5, compare="never")',
        'with torchprof("decode"):',
        '    torchprof.record("n", 7, compare="exact")',
        '    torchprof.record("t", 3.5)',
    )
    accept(pytester)
    entry: dict[str, dict[str, object]] = stored(pytester)  # type: ignore[assignment]
    region: dict[str, object] = entry["regions"]["decode"]  # type: ignore[assignment]
    assert ({"n": 100}, 2.5, {"n": 7}, {"t": 3.5}) == (
        entry["own"],
        entry["times"]["t"],
        region["own"],
        region["times"],
    )
    assert "shown" not in str(entry)
    assert {"test_it": "ok"} == run(pytester, "--torchprof", "--torchprof-strict").statuses
    monkeypatch.setenv("NOW", "120")
    ran = run(pytester, "--accept")
    assert "n 100 → 120" in ran.out
    assert {"n": 120} == stored(pytester)["own"]


def test_a_region_is_compared_and_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    body(
        pytester,
        'with torchprof("decode"):',
        '    torchprof.record("n", int(NOW), "tokens", compare="exact", better="higher")',
    )
    accept(pytester)
    monkeypatch.setenv("NOW", "50")
    ran = run(pytester, "--torchprof")
    assert "decode: n 100 tokens → 50 tokens (-50.0 %)" in ran.out


def test_a_metric_that_is_added_to_a_test_can_be_accepted(pytester: pytest.Pytester) -> None:
    body(pytester, "X + X")
    accept(pytester)
    body(pytester, "X + X", 'torchprof.record("t", 2.5)')
    accept(pytester)
    assert 2.5 == stored(pytester)["times"]["t"]  # type: ignore[index]


def test_times_that_change_alone_are_not_worth_a_diff(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    body(
        pytester,
        'torchprof.record("t", int(NOW))',
        'with torchprof("decode"): torchprof.record("t", int(NOW))',
    )
    accept(pytester)
    before = stored(pytester)
    monkeypatch.setenv("NOW", "110")
    accept(pytester)
    assert before == stored(pytester)


@pytest.mark.thorough
def test_a_metric_that_is_no_longer_recorded_is_said_until_that_is_accepted(
    pytester: pytest.Pytester,
) -> None:
    body(pytester, "X + X", 'torchprof.record("n", 1, compare="exact")')
    accept(pytester)
    body(pytester, "X + X")
    ran = run(pytester, "--torchprof")
    assert "baseline n not compared: the test no longer records it" in ran.out
    assert {"failed": 1} == run(pytester, "--torchprof", "--torchprof-strict").outcomes
    assert {"passed": 1} == run(pytester, "--accept", "--torchprof-strict").outcomes
    assert "own" not in stored(pytester)
    assert {"passed": 1} == run(pytester, "--torchprof", "--torchprof-strict").outcomes


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("unit", "better", "now", "status"),
    [
        ("tokens/s", "higher", "1", "regressed"),
        ("tokens/s", "higher", "10000", "improved"),
        ("ms", "lower", "10000", "regressed"),
        ("ms", "lower", "1", "improved"),
        ("1", "lower", "10000", "advisory"),  # nothing is known about its relation to time
    ],
)
def test_a_gate_on_time_compares_times_and_rates_with_the_reference_kernels(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    unit: str,
    better: str,
    now: str,
    status: str,
) -> None:
    body(
        pytester,
        "X + X",
        f'torchprof.record("speed", int(NOW), unit="{unit}", better="{better}")',
    )
    gate = "--torchprof-time=gate", "--torchprof-rounds=3"
    accept(pytester, *gate)
    times = stored(pytester)["times"]
    has = "own" in times["normalised"]  # type: ignore[index]
    if not has and unit != "1":
        pytest.skip("no reference kernel ran")
    monkeypatch.setenv("NOW", now)
    ran = run(pytester, "--torchprof", *gate)
    found = ran.metric("speed", "test_it")
    if found["status"] == "advisory" and "busy" in found.get("reason", ""):
        pytest.skip(found["reason"])
    assert (status, unit != "1") == (found["status"], "normalised" in found)
    if unit == "tokens/s" and status == "regressed":
        assert "best rate × time of the reference kernel" in ran.out


# -------------------------------------------------------------------- functions of a trace


HOOK = """
    import pytest_torchprof

    @pytest_torchprof.metric("additions", unit="adds", better="lower")
    def additions(trace):
        "Additions that ran."
        return (trace.named("aten::add") & trace.selection).sum()

    @pytest_torchprof.metric("broken")
    def broken(trace):
        raise KeyError("of mine")

    @pytest_torchprof.metric("nothing")
    def nothing(trace):
        return None

    @pytest_torchprof.metric("endless")
    def endless(trace):
        return float("nan")

    def pytest_torchprof_metrics(config):
        return [additions, broken, nothing, endless]
"""


def test_a_hook_defines_metrics_of_tests_and_regions(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(HOOK)
    body(
        pytester,
        "X + X",
        'with torchprof("decode"): X + X',
        'assert torchprof["decode"].additions == 1',
        marks='@pytest.mark.max_metric("additions", 0, region="decode")',
    )
    ran = run(pytester, "--torchprof")
    test = ran.tests["test_it"]
    numbers = test["metrics"]["additions"]["value"], test["regions"]["decode"]["metrics"]
    assert (2, 1, "adds") == (numbers[0], *map(numbers[1]["additions"].get, ("value", "unit")))
    assert "additions[region=decode] 1 adds is over the budget of 0 adds" in ran.out


def test_a_function_that_raises_or_finds_nothing_changes_no_outcome(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(HOOK)
    body(pytester, "X + X")
    ran = run(pytester, "--torchprof")
    reasons = [ran.metric(n, "test_it")["reason"] for n in ("broken", "nothing", "endless")]
    assert [
        "the function of the metric broken raised KeyError: 'of mine'",
        "the function of the metric nothing found no value",
        "endless cannot be nan: it is not finite; record a finite number, such as seconds",
    ] == reasons
    assert {"passed": 1} == ran.outcomes


def test_a_metric_of_a_hook_is_compared(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(HOOK)
    body(pytester, "X + X")
    accept(pytester)
    assert {"additions": 1} == stored(pytester)["own"]
    body(pytester, "X + X + X")
    ran = run(pytester, "--torchprof")
    ran.result.stdout.re_match_lines([r"  .*, additions 1 adds → 2 adds  \(\+100\.0 %\)"])


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("[additions, additions]", "conftest.py has a metric of this name; give it another name"),
        ("[3]", "3 of conftest.py is not a metric of one's own: its type is int; make one with"),
        ("1 / 0", "pytest_torchprof_metrics in conftest.py raised: ZeroDivisionError"),
        ('[pytest_torchprof.metric("flops")(len)]', "cannot be named 'flops': it is taken"),
        ('[pytest_torchprof.metric("x", needs="all")(len)]', "metric x: unknown needs all"),
    ],
)
def test_wrong_answers_of_the_hook_are_usage_errors(
    pytester: pytest.Pytester, answer: str, error: str
) -> None:
    pytester.makeconftest(HOOK.replace("[additions, broken, nothing, endless]", answer))
    body(pytester, "pass")
    assert error in run(pytester, "--torchprof").usage_error()


@BOTH_WAYS
def test_a_test_cannot_record_a_metric_that_a_hook_defines(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    pytester.makeconftest(HOOK)
    body(pytester, 'torchprof.record("additions", 1)')
    ran = run(pytester, *options)
    assert "a metric of one's own cannot be named 'additions': it is taken" in ran.out


# -------------------------------------------------------------------- elsewhere


def test_the_table_and_stats_have_them(pytester: pytest.Pytester) -> None:
    body(
        pytester,
        "with torchprof: X + X",
        'torchprof.record("tokens", 12, compare="exact")',
        "assert torchprof.stats.tokens == 12",
        "with pytest.raises(AttributeError, match='Did you mean tokens'): torchprof.stats.token",
    )
    ran = run(pytester, "--torchprof", "--torchprof-columns=ops,own")
    assert {"passed": 1} == ran.outcomes
    assert ["test", "status", "ops", "tokens"] in [line.split() for line in ran.out.splitlines()]
    assert {"passed": 1} == run(pytester).outcomes


@pytest.mark.thorough
def test_workers_send_them(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    body(pytester, 'torchprof.record("n", 1, "tokens", compare="exact", better="higher")')
    needs = ("xdist",)
    ran = run(pytester, "--accept", "-n1", needs=needs)
    assert {"n": 1} == stored(pytester)["own"]
    body(pytester, 'torchprof.record("n", 0.5, "tokens", compare="exact", better="higher")')
    ran = run(pytester, "--torchprof", "-n1", needs=needs)
    assert "\nn 1 tokens → 0.5 tokens (-50.0 %): regressed against the baseline\n" in ran.out
    assert "higher" == ran.metric("n", "test_it")["better"]


def test_the_markers_are_listed(pytester: pytest.Pytester) -> None:
    out = pytester.runpytest("--markers", "-pno:asyncio").stdout.str()
    assert "@pytest.mark.max_metric(name, limit" in out
    assert "@pytest.mark.min_metric(name, limit" in out
