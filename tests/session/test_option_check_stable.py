"""--torchprof-check-stable: a second seed finds the metrics that vary; --accept stores ranges."""

from __future__ import annotations

import json
import random
from importlib.resources import files
from typing import Any

import pytest
from support.sessions import accept, baseline_file, calls, read_baseline, run

#: A test that draws how often it adds, one that adds once more in each run, two that do neither.
VARIES = """
    import itertools
    import random
    import torch
    from support.sessions import note

    RUNS = itertools.count()

    def add(times):
        for _ in range(times): torch.ones(2) + 1

    def test_draws(): add({least} + random.randrange(10**3))
    def test_counts(): add(next(RUNS))
    def test_is_steady():
        note("calls")
        add(3)
    def test_seeds_itself():
        random.seed(1)
        add(random.randrange(10**2))
"""


def entry(pytester: pytest.Pytester, test: str) -> dict[str, Any]:
    """The one entry of a test."""
    (found,) = read_baseline(pytester)["tests"][test].values()
    return dict(found)


def test_accepting_stores_ranges_and_names_what_varies_and_why(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=VARIES.format(least=0))
    accepted = accept(pytester)
    assert 5 == calls(pytester)  # warm-up, round, profile, another seed, lines
    low, high = entry(pytester, "test_draws")["unstable"]["ops"]
    assert low < high
    assert entry(pytester, "test_draws")["metrics"]["ops"] in (low, high)
    varying = {"allocated_cpu_bytes", "dispatches", "moved_bytes", "ops"}
    assert varying == entry(pytester, "test_draws")["unstable"].keys()
    assert [4, 8] == entry(pytester, "test_counts")["unstable"]["ops"]
    assert [16, 32] == entry(pytester, "test_counts")["unstable"]["dispatches"]
    seeds = {test: entry(pytester, test).get("seed") for test in accepted.statuses}
    assert [0, None, None, 0] == list(seeds.values())
    steady = ("test_is_steady", "test_seeds_itself")
    assert not any("unstable" in entry(pytester, test) for test in steady)
    lines = accepted.out.splitlines()
    at = next(i for i, line in enumerate(lines) if "with the values drawn" in line)
    assert "1 test varies with the values drawn; what varies is compared as a range:" == lines[at]
    assert lines[at + 1].startswith(f"  test_it.py::test_draws: ops {low:,} to {high:,}, ")
    assert "(aten::_to_copy " in lines[at + 1]
    same = lines.index(
        "1 test varies with the same seed: a race, a cache, the time, or its own generator; "
        "that only advises:"
    )
    assert lines[same + 1].startswith("  test_it.py::test_counts: ops 4 to 8, ")

    varies = {test: found.get("unstable", {}) for test, found in accepted.tests.items()}
    assert [low, high] == varies["test_draws"]["metrics"]["ops"]
    assert [True, False] == [varies[test]["drawn"] for test in ("test_draws", "test_counts")]
    assert [2, 4] == varies["test_counts"]["operators"]["aten::ones"]  # lines ran in between
    assert not any(varies[test] for test in steady)

    again = run(pytester, "--torchprof")
    assert {"ok"} == set(again.statuses.values()), again.out
    assert "1 test varies" not in again.out
    assert [low, high] == again.metric("ops", "test_draws")["baseline_range"]
    assert "baseline_range" not in again.metric("ops", "test_is_steady")


@pytest.mark.thorough
def test_a_regression_beyond_the_range_is_found(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=VARIES.format(least=0))
    accept(pytester)
    pytester.makepyfile(test_it=VARIES.format(least=2000))
    random.seed()
    ran = run(pytester, "--torchprof")
    assert ("regressed", "ok") == tuple(
        ran.statuses[test] for test in ("test_draws", "test_is_steady")
    )
    low, high = entry(pytester, "test_draws")["unstable"]["ops"]
    reason = f"accepted from {low:,} to {high:,}, as it varies"
    assert reason == ran.metric("ops", "test_draws")["reason"]
    assert reason in ran.out
    pytester.makepyfile(test_it=VARIES.format(least=0))
    assert {"ok"} == set(run(pytester, "--torchprof").statuses.values())


OWN_GENERATOR = """
    import itertools
    import torch

    RUNS = itertools.count({first}, {step})  # as a generator of the module's own
    def test_it():
        for _ in range(next(RUNS)): torch.ones(2) + 1
"""


def test_what_varies_with_one_seed_only_advises(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=OWN_GENERATOR.format(first=5, step=1))
    accept(pytester)
    assert "ops" in entry(pytester, "test_it")["unstable"]
    pytester.makepyfile(test_it=OWN_GENERATOR.format(first=50, step=1))
    ran = run(pytester, "--torchprof")
    assert {"passed": 1} == ran.outcomes
    ops = ran.metric("ops", "test_it")
    assert ("advisory", "ok") == (ops["status"], ran.statuses["test_it"])
    assert ops["reason"].startswith("accepted from ")
    strict = run(pytester, "--torchprof", "--torchprof-strict")
    assert {"failed": 1} == strict.outcomes
    assert "regressed" == strict.statuses["test_it"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("args", "runs", "named"),
    [
        (("--accept", "--no-torchprof-check-stable"), 4, False),
        (("--torchprof",), 3, False),
        (("--torchprof", "--torchprof-check-stable"), 4, True),
        (("--accept", "--torchprof-warmup=0", "--torchprof-rounds=0"), 1, False),
        (("--accept", "--torchprof-warmup=0"), 4, True),
    ],
)
@pytest.mark.one_in(2)
def test_the_option_decides_whether_there_is_one_more_run(
    pytester: pytest.Pytester, args: tuple[str, ...], runs: int, *, named: bool
) -> None:
    pytester.makepyfile(test_it=VARIES.format(least=0))
    ran = run(pytester, *args)
    assert runs == calls(pytester)
    assert named == ("1 test varies with the values drawn" in ran.out)
    assert baseline_file(pytester).exists() == ("--accept" in args)


@pytest.mark.thorough
def test_ranges_stay_when_nothing_checks_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=VARIES.format(least=0))
    accept(pytester)
    before = baseline_file(pytester).read_text("utf-8")
    accept(pytester, "--no-torchprof-check-stable")
    assert before == baseline_file(pytester).read_text("utf-8")


@pytest.mark.thorough
def test_without_a_seed_all_that_varies_does_so_with_the_same_values(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=VARIES.format(least=0))
    out = accept(pytester, "--torchprof-seed=keep").out
    assert "with the values drawn" not in out
    assert "1 test varies with the same seed" in out


@pytest.mark.thorough
def test_a_failure_with_another_seed_changes_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import torch
        from support.sessions import note

        def test_it():
            torch.rand(1) + 1
            note("calls")
            from pathlib import Path
            assert len(Path("calls").read_text().splitlines()) < 4
        """
    )
    ran = accept(pytester)
    assert ({"passed": 1}, {"test_it": "new"}) == (ran.outcomes, ran.statuses)
    assert 4 == calls(pytester)
    assert "unstable" not in entry(pytester, "test_it")


@pytest.mark.thorough
def test_regions_own_metrics_and_findings_have_ranges(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import random
        import torch

        def test_it(torchprof):
            many = 20 + random.randrange(10**2)
            x = torch.ones(many, 4)
            with torchprof("part"):
                for i in range(many):
                    if i % 20 == 0: torch.ones(2) + 1  # ends the loop that the rule sees
                    x[i] * 2
                torchprof.record("items", many, compare="exact")
            torchprof.record("rows", many, compare="exact")
            torchprof.record("fixed", 3, compare="exact")
        """
    )
    accept(pytester)
    found = entry(pytester, "test_it")
    assert {"rows", "ops", "findings[rule=for-loop-indexing]"} <= found["unstable"].keys()
    assert {"items", "ops"} <= found["regions"]["part"]["unstable"].keys()
    assert "fixed" not in found["unstable"]
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = files("pytest_torchprof") / "schemas" / "torchprof-baseline-2.json"
    validator = jsonschema.Draft202012Validator(json.loads(schema.read_text("utf-8")))
    data = read_baseline(pytester)
    validator.validate(data)
    data["tests"]["test_it"]["cpu, torch"] = {"unstable": {"ops": [1]}}
    assert not validator.is_valid(data)
    assert found["unstable"]["rows"] == found["regions"]["part"]["unstable"]["items"]
    assert {"test_it": "ok"} == run(pytester, "--torchprof").statuses


@pytest.mark.thorough
def test_an_inline_expectation_is_written_once(pytester: pytest.Pytester) -> None:
    file = pytester.makepyfile(
        test_it='''
        import random
        import torch

        def test_it(torchprof):
            with torchprof:
                for _ in range(random.randrange(10**3)): torch.ones(2) + 1
            torchprof.assert_expected_inline("""""")
        '''
    )
    accept(pytester)
    text = file.read_text("utf-8")
    assert 1 == text.count("\nops ")
    assert {"test_it": "ok"} == run(pytester, "--torchprof").statuses
    assert text == file.read_text("utf-8")


@pytest.mark.thorough
def test_workers_send_what_varies(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    pytester.makepyfile(test_it=VARIES.format(least=0))
    ran = accept(pytester, "-n2", needs=["xdist"])
    assert "1 test varies with the values drawn" in ran.out
    assert "unstable" in entry(pytester, "test_draws")


@pytest.mark.thorough
def test_threads_are_compared_with_threads(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import random, threading, torch

        def add(times):
            for _ in range(times): torch.ones(2) + 1

        def test_draws():
            thread = threading.Thread(target=add, args=(random.randrange(10**2),))
            thread.start()
            thread.join()

        def test_is_steady():
            thread = threading.Thread(target=add, args=(5,))
            thread.start()
            thread.join()
        """
    )
    accept(pytester)
    if "unstable" in entry(pytester, "test_is_steady"):
        raise AssertionError(entry(pytester, "test_is_steady")["unstable"])
    if entry(pytester, "test_is_steady")["metrics"]["ops"]:  # this torch sees threads
        assert "ops" in entry(pytester, "test_draws")["unstable"]
    assert {"ok"} == set(run(pytester, "--torchprof").statuses.values())
