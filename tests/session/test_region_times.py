"""Times of named regions: of timed runs, in sums and laps, in limits, and never compared."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.sessions import accept, read_baseline, read_detail, run

HEAD = """
    import os
    import time
    from pathlib import Path

    import pytest
    import torch

    X = torch.ones(4)

    def nap(ms):
        X + X
        time.sleep(ms / 1000)
"""
BODY = """
        with torchprof("encode"):
            nap(4)
        for step in range(3):
            with torchprof("decode"):
                nap(20 if step == 2 else 2)
"""


def region(pytester: pytest.Pytester, *args: str, body: str = BODY) -> dict[str, Any]:
    """The region ``decode`` in the report of a test with this body."""
    pytester.makepyfile(test_it=f"{HEAD}\n    def test_it(torchprof):{body}")
    ran = run(pytester, "--torchprof", *args)
    assert {"passed": 1} == ran.outcomes
    (test,) = ran.report["tests"]
    found: dict[str, Any] = test["regions"]["decode"]["metrics"]
    return found


def test_the_time_of_a_region_is_the_sum_of_its_laps_without_the_profiler(
    pytester: pytest.Pytester,
) -> None:
    metrics = region(pytester, "--torchprof-rounds=3")
    # Asleep, it has next to no CPU time: a bound that no busy machine can break.
    assert metrics["wall_ms"]["value"] >= 24
    assert metrics["cpu_ms"]["value"] < metrics["wall_ms"]["value"]
    assert "measured for whole tests only" == metrics["instructions"]["reason"]


def test_each_lap_has_its_own_time_and_relations_compare_it(pytester: pytest.Pytester) -> None:
    region(
        pytester,
        body=f"""{BODY}
        first, second, third = torchprof["decode"].laps
        assert 2 <= first.wall_ms
        assert 20 <= third.wall_ms < torchprof["decode"].wall_ms
        assert torchprof["encode"].wall_ms + torchprof["decode"].wall_ms >= 28
""",
    )


def test_a_relation_of_times_that_does_not_hold_fails_with_both(pytester: pytest.Pytester) -> None:
    # The sum has that lap in it, so this cannot hold, even on a busy machine.
    more = "assert torchprof['decode'].wall_ms < 0.5 * torchprof['decode'].laps[2].wall_ms"
    pytester.makepyfile(test_it=f"{HEAD}\n    def test_it(torchprof):{BODY}        {more}")
    ran = run(pytester, "--torchprof")
    assert {"failed": 1} == ran.outcomes
    assert re.search(
        r"[\d.]+ ms \(decode\.wall_ms\) < [\d.]+ ms \(0\.5 \* decode\[2\]\.wall_ms\)", ran.out
    )


def test_the_times_of_nested_regions_include_each_other(pytester: pytest.Pytester) -> None:
    region(
        pytester,
        body="""
        with torchprof("whole"):
            nap(2)
            with torchprof("decode"):
                nap(5)
        assert 5 <= torchprof["decode"].wall_ms <= torchprof["whole"].wall_ms - 2
""",
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("marker", "outcome", "said"),
    [
        ("max_wall_ms(10_000, region='decode')", "passed", ""),
        ("max_wall_ms(20, region='decode')", "failed", "wall_ms[region=decode]"),
        ("max_wall_ms(25, region='*code')", "failed", "wall_ms[region=*code]"),
        ("min_wall_ms(20, region='decode')", "passed", ""),
        ("max_wall_ms(10_000, region='decoed')", "passed", "similar names that did: decode"),
    ],
)
def test_a_limit_on_the_time_of_a_region(
    pytester: pytest.Pytester, marker: str, outcome: str, said: str
) -> None:
    pytester.makepyfile(
        test_it=f"{HEAD}\n    @pytest.mark.{marker}\n    def test_it(torchprof):{BODY}"
    )
    ran = run(pytester, "--torchprof")
    assert said in ran.out
    assert {outcome: 1} == ran.outcomes


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("max_instructions(5, region='decode')", "no argument 'region'. Known are: on."),
        ("max_wall_ms(5, op='aten::add')", "no argument 'op'. Known are: region, on."),
    ],
)
def test_no_other_time_has_limits_in_parts(
    pytester: pytest.Pytester, marker: str, said: str
) -> None:
    pytester.makepyfile(test_it=f"import pytest\n\n@pytest.mark.{marker}\ndef test_it(): pass")
    ran = run(pytester, "--torchprof")
    assert (4, True) == (ran.ret, said in ran.result.stderr.str())


@pytest.mark.thorough
@pytest.mark.one_in(2)
@pytest.mark.parametrize("gate", [(), ("--torchprof-time=gate",)])
def test_baselines_do_not_have_it(pytester: pytest.Pytester, gate: tuple[str, ...]) -> None:
    body = """
        with torchprof("decode"):
            nap(90 if 'SLOW' in os.environ else 30)
        nap(30 if 'SLOW' in os.environ else 90)
"""
    region(pytester, body=body)
    accept(pytester, *gate)
    (entry,) = read_baseline(pytester)["tests"]["test_it"].values()
    assert "times" in entry
    assert {"laps", "metrics", "zero"} == entry["regions"]["decode"].keys()
    assert not [name for name in entry["regions"]["decode"]["metrics"] if name.endswith("_ms")]
    assert {"operators"} == read_detail(pytester, "test_it")["regions"]["decode"].keys()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOW", "1")
        ran = run(pytester, "--torchprof", *gate)
    (test,) = ran.report["tests"]
    status = test["regions"]["decode"]["metrics"]["wall_ms"]["status"]
    assert ({"passed": 1}, "ok", "ok") == (ran.outcomes, test["status"], status)


def test_without_rounds_it_is_not_measured(pytester: pytest.Pytester) -> None:
    metrics = region(pytester, "--torchprof-rounds=0")
    assert metrics["wall_ms"]["value"] is None
    assert "timed" in metrics["wall_ms"]["reason"]


@pytest.mark.thorough
def test_the_first_thousand_laps_are_timed_one_by_one(pytester: pytest.Pytester) -> None:
    metrics = region(
        pytester,
        body="""
        for _ in range(1001):
            with torchprof("decode"):
                X + X
        laps = torchprof["decode"].laps
        print("last", laps[999].wall_ms, laps[1000].wall_ms) if laps else None
""",
    )
    assert metrics["wall_ms"]["value"] > 0


def test_a_region_that_raised_in_an_earlier_run_alone_is_measured(
    pytester: pytest.Pytester,
) -> None:
    metrics = region(
        pytester,
        body="""
        from support.sessions import calls, note
        note("calls")
        from contextlib import suppress
        with suppress(ValueError), torchprof("decode"):
            nap(1)
            if len(Path("calls").read_text().splitlines()) == 1:
                raise ValueError
""",
    )
    assert 1 == metrics["ops"]["value"]
    assert metrics["wall_ms"]["value"] >= 1


# -------------------------------------------------------------------- unknown is never a number


def reasons(pytester: pytest.Pytester, marker: str, body: str, *args: str) -> tuple[str, str]:
    """The outcome of a test with this marker, and the status of its limit with the reason."""
    pytester.makepyfile(
        test_it=f"{HEAD}\n    @pytest.mark.{marker}\n    def test_it(torchprof):{body}"
    )
    ran = run(pytester, "--torchprof", *args)
    (test,) = ran.report["tests"]
    ((_, limit),) = [(k, v) for k, v in test["metrics"].items() if "[" in k]
    return next(iter(ran.outcomes)), f"{limit['status']}: {limit.get('reason')}"


OPEN = """
        def stream():
            with torchprof("decode"):
                nap(20)
                yield
        kept.append(stream())
        next(kept[-1])
"""


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("marker", "body", "outcome", "said"),
    [
        ("max_wall_ms(1, region='decode')", OPEN, "passed", "still open when the run ended"),
        (
            "max_wall_ms(1, region='decode')",
            """
        with pytest.raises(KeyError), torchprof("decode"):
            nap(20)
            raise KeyError
""",
            "passed",
            "region decode was left with KeyError",
        ),
        (
            "max_ops(1, region='decode')",
            """
        with pytest.raises(KeyError), torchprof("decode"):
            nap(1)
            raise KeyError
""",
            "passed",
            "region decode was left with KeyError",
        ),
        (
            "max_wall_ms(1, region='decode')",
            """
        runs.append(0)
        for _ in range(len(runs)):
            with torchprof("decode"):
                nap(20)
""",
            "passed",
            "not entered equally often in each run",
        ),
        (
            "max_wall_ms(1, region='decode')",
            """
        runs.append(0)
        if len(runs) != 2:
            with torchprof("decode"):
                nap(20)
""",
            "passed",
            "not entered equally often in each run",
        ),
        (
            "max_wall_ms(1, region='*')",
            """
        with torchprof("outer"), torchprof("inner"):
            nap(20)
""",
            "passed",
            "regions inner, outer overlap",
        ),
        (
            "max_wall_ms(1, region='label')",
            """
        with torch.profiler.record_function("label"):
            nap(20)
""",
            "passed",
            "record_function label",
        ),
        ("min_wall_ms(5, region='typo')", BODY, "failed", "over_budget: "),
        ("max_wall_ms(0, region='typo')", BODY, "passed", "did not run"),
        ("max_wall_ms(5, region='typo')", BODY, "passed", "did not run"),
    ],
)
def test_a_limit_is_not_checked_if_the_time_is_unknown(
    pytester: pytest.Pytester, marker: str, body: str, outcome: str, said: str
) -> None:
    pytester.makeconftest("import builtins\nbuiltins.kept, builtins.runs = [], []")
    found, reason = reasons(pytester, marker, body)
    assert outcome == found, reason
    assert said in reason
