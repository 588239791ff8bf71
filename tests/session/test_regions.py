"""Named regions: what they measure, their laps, comparisons, baselines, report, and table."""

from __future__ import annotations

import json
import re

import pytest
from support.sessions import accept, run

HEAD = """
    import os
    import threading

    import pytest
    import torch

    MORE = "MORE" in os.environ
    L, X = torch.nn.Linear(8, 8), torch.ones(4, 8)
"""
TEST = f"""{HEAD}
    def test_it(torchprof):
        with torch.no_grad():
            with torchprof("encode"):
                L(X)
                with torchprof("norm"):
                    X + X
            for step in range(3):
                with torchprof("decode"):
                    L(X)
                    if MORE and step == 2:
                        X.clone()
                X - X
        CHECK
"""


def checked(pytester: pytest.Pytester, check: str) -> None:
    pytester.makepyfile(test_it=TEST.replace("CHECK", check))


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "check",
    [
        "assert torchprof['encode'].flops == 512",
        "assert torchprof['decode'].flops == 3 * torchprof['encode'].flops",
        "assert torchprof['norm'].ops == 1",
        "assert [lap.flops for lap in torchprof['decode'].laps] == [512] * 3",
        "assert torchprof['decode'].laps[0].peak_cpu_bytes == 128",
        "assert torchprof['decode'].peak_cpu_bytes == 128",  # the largest lap
        "assert torchprof['decode'].allocated_cpu_bytes == 3 * 128",
        "assert torchprof['decode'].peak_cpu_bytes <= 1.0 * torchprof['encode'].peak_cpu_bytes",
        "assert torchprof['encode'].findings == 0",
    ],
)
@pytest.mark.parametrize("options", [(), ("--torchprof",)])
def test_numbers_of_regions(
    pytester: pytest.Pytester, check: str, options: tuple[str, ...]
) -> None:
    # Without profiling there is no number to format, and every comparison holds.
    checked(pytester, check if options or 'f"' not in check else "pass")
    assert {"passed": 1} == run(pytester, *options).outcomes


@pytest.mark.thorough
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("check", "shown"),
    [
        ("assert torchprof['decode'].flops == 2 * torchprof['encode'].flops",
         "assert 1.54 kFLOP (decode.flops) == 1.02 kFLOP (2 * encode.flops)"),
        ("assert torchprof['decode'].flops == torchprof['encode'].flops",
         "more      aten::addmm  512 FLOP → 1.54 kFLOP"),
        ("assert torchprof['decode'].peak_cpu_bytes < 64", "128 B (decode.peak_cpu_bytes) < 64 B"),
        ("assert torchprof['decode'].laps[1].ops < 1", "(decode[1].ops) < 1"),
        ("assert torchprof['decode'].flops <= 1000",
         "most flops by operator, decode:\nE             aten::addmm  1.54 kFLOP"),
        ("assert 100 > torchprof['norm'].allocated_cpu_bytes",
         "most allocated_cpu_bytes by operator, norm:\nE             aten::add  128 B"),
        ("assert torchprof['encode'].flops < torchprof['decode'].laps[0].flops",
         "most flops by operator, encode:\nE             aten::addmm  512 FLOP"),
        ("assert 2 * torchprof['decode'].laps[0].ops < torchprof['decode'].laps[1].ops",
         "most ops by operator, decode[0]:\nE             aten::addmm  1"),
        ("assert torchprof['decode'].laps[1].ops > torchprof['encode'].ops",
         "ops by operator, encode → decode[1]:\nE             vanished  aten::add  1 → 0"),
        ("assert 9 * torchprof['decode'].flops < torchprof['encode'].flops",  # little of it differs
         "most flops by operator, decode:\nE             aten::addmm  1.54 kFLOP"),
        ("assert torchprof['norm'].moved_bytes == 8",
         "most moved_bytes by operator, norm:\nE             aten::add  384 B"),
        ("assert torchprof['decode'].moved_bytes == 2 * torchprof['encode'].moved_bytes",
         "more      aten::addmm  544 B → 1.59 KiB"),
    ],
)  # fmt: skip
def test_a_comparison_that_fails_shows_both_numbers_with_units(
    pytester: pytest.Pytester, check: str, shown: str
) -> None:
    checked(pytester, check)
    ran = run(pytester, "--torchprof")
    assert ({"failed": 1}, True) == (ran.outcomes, shown in ran.out), ran.out


def test_the_tests_own_metrics_are_those_of_the_whole_call_phase(
    pytester: pytest.Pytester,
) -> None:
    checked(pytester, "pass")
    ran = run(pytester, "--torchprof")
    regions = ran.tests["test_it"]["regions"]
    assert {"encode": 1, "norm": 1, "decode": 3} == {n: r["laps"] for n, r in regions.items()}
    ops = {name: region["metrics"]["ops"]["value"] for name, region in regions.items()}
    whole = ran.metric("ops", "test_it")["value"]
    assert whole == ops["encode"] + ops["decode"] + 3  # three subtractions
    assert ops["norm"] == 1


def test_regions_have_rows_in_the_table(pytester: pytest.Pytester) -> None:
    checked(pytester, "pass")
    lines = run(pytester, "--torchprof").out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("test_it.py::test_it "))
    assert ["encode", "norm", "decode"] == [line.split()[0] for line in lines[at + 1 : at + 4]]
    assert all(line.startswith("  ") for line in lines[at + 1 : at + 4])


def test_a_region_regresses_like_a_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked(pytester, "pass")
    accept(pytester)
    stored = json.loads((pytester.path / "__torchprof__/test_it.json").read_text())
    (entry,) = stored["tests"]["test_it"].values()
    assert {"encode": 1, "norm": 1, "decode": 3} == {
        name: region["laps"] for name, region in entry["regions"].items()
    }
    assert {"passed": 1} == run(pytester, "--torchprof", "--torchprof-strict").outcomes
    monkeypatch.setenv("MORE", "1")
    ran = run(pytester, "--torchprof")
    assert ({"failed": 1}, "regressed") == (ran.outcomes, ran.statuses["test_it"])
    metrics = {name: r["metrics"]["ops"] for name, r in ran.tests["test_it"]["regions"].items()}
    assert {"encode": "ok", "norm": "ok", "decode": "regressed"} == {
        name: row["status"] for name, row in metrics.items()
    }
    assert re.search(r"^test_it.py:\d+ \(test_it\): clone is new — ops \+1", ran.out, re.MULTILINE)
    assert "decode: ops 3 → 4  (+33.3 %)" in ran.out
    accepted = run(pytester, "--accept")
    assert "decode: ops" in accepted.out
    assert {"passed": 1} == run(pytester, "--torchprof").outcomes


def test_a_region_that_is_gone_leaves_the_baseline(pytester: pytest.Pytester) -> None:
    checked(pytester, "pass")
    accept(pytester)
    pytester.makepyfile(test_it=f"{HEAD}\n    def test_it(): L(X)\n")
    accept(pytester)
    assert "regions" not in (pytester.path / "__torchprof__/test_it.json").read_text()


def test_limits_on_a_region(pytester: pytest.Pytester) -> None:
    for limit, outcome in ((3, "passed"), (2, "failed")):
        body = TEST.replace("CHECK", "pass").replace(
            "def test_it", f'@pytest.mark.max_ops({limit}, op="aten::sub")\n    '
            '@pytest.mark.max_flops("1.536 kFLOP", region="decode")\n    def test_it'
        )  # fmt: skip
        pytester.makepyfile(test_it=body)
        ran = run(pytester, "--torchprof")
        assert {outcome: 1} == ran.outcomes
        assert 1536 == ran.metric("flops[region=decode]", "test_it")["value"]


@pytest.mark.thorough
def test_an_inline_expectation_of_a_region(pytester: pytest.Pytester) -> None:
    checked(pytester, 'torchprof["norm"].assert_expected_inline("""""")')
    accept(pytester)
    assert "ops     1\n" in (pytester.path / "test_it.py").read_text()
    assert {"passed": 1} == run(pytester, "--torchprof").outcomes
    checked(pytester, 'torchprof["norm"].assert_expected_inline("""ops 2\\n""")')
    ran = run(pytester, "--torchprof")
    assert ({"failed": 1}, True) == (ran.outcomes, "ops 2 → 1" in ran.out)
    row = ran.tests["test_it"]["regions"]["norm"]["metrics"]["ops"]
    assert ("regressed", 1) == (row["status"], row["value"])


def test_a_table_of_a_region(pytester: pytest.Pytester) -> None:
    checked(pytester, 'print(torchprof["norm"].table())')
    out = run(pytester, "--torchprof", "-s").out
    table = out[out.index("aten::add") - 400 : out.index("aten::add") + 400]
    assert "aten::addmm" not in table


# -------------------------------------------------------------------- other ways to measure


def test_named_regions_within_the_measured_block(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_it(torchprof):
        L(X)
        with torchprof:
            with torchprof("one"):
                X + X
            X + X
        assert torchprof["one"].ops == 1
        assert torchprof.stats.ops == 2
"""
    )
    ran = run(pytester, "--torchprof")
    assert ({"passed": 1}, 2) == (ran.outcomes, ran.metric("ops", "test_it")["value"])
    assert 1 == ran.tests["test_it"]["regions"]["one"]["metrics"]["ops"]["value"]


def test_named_regions_within_a_measured_callable(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_it(torchprof):
        def work():
            with torchprof("one"):
                X + X
            X - X
        torchprof(work)
        assert torchprof["one"].laps[-1].ops == 1
        assert torchprof["one"].ops < 1
"""
    )
    ran = run(pytester, "--torchprof")
    assert {"failed": 1} == ran.outcomes
    assert "(one.ops) < 1" in ran.out


# -------------------------------------------------------------------- unknown is never a number


@pytest.mark.thorough
def test_where_the_profiled_run_is_the_only_one_comparisons_are_not_checked(
    pytester: pytest.Pytester,
) -> None:
    checked(pytester, "assert torchprof['decode'].flops == 1")
    options = ("--torchprof", "--torchprof-warmup=0", "--torchprof-rounds=0")
    ran = run(pytester, *options)
    assert {"passed": 1} == ran.outcomes
    strict = run(pytester, *options, "--torchprof-strict")
    assert {"failed": 1} == strict.outcomes
    assert "strict: decode: flops was compared in the test, and not measured" in strict.out


def test_a_comparison_of_what_is_unknown_fails_under_strict_mode_only(
    pytester: pytest.Pytester,
) -> None:
    checked(pytester, "assert torchprof['decode'].recompiles < 2 * torchprof['encode'].kernels")
    ran = run(pytester, "--torchprof")
    assert {"passed": 1} == ran.outcomes
    strict = run(pytester, "--torchprof", "--torchprof-strict")
    assert "strict: decode: recompiles was compared in the test, and not measured" in strict.out


def test_a_region_in_another_thread_is_not_measured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_it(torchprof):
        def work():
            with torchprof("there"):
                X + X
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert torchprof["there"].ops == 5
"""
    )
    ran = run(pytester, "--torchprof")
    assert {"passed": 1} == ran.outcomes
    row = ran.tests["test_it"]["regions"]["there"]["metrics"]["ops"]
    assert (None, "region there was entered in another thread") == (row["value"], row["reason"])


def test_a_region_left_by_an_exception_is_not_measured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_it(torchprof):
        with pytest.raises(ZeroDivisionError), torchprof("half"):
            X + X
            1 / 0
        with torchprof("whole"):
            X + X
        assert torchprof["half"].ops == 5
        assert torchprof["whole"].ops == 1
"""
    )
    ran = run(pytester, "--torchprof")
    assert {"passed": 1} == ran.outcomes
    regions = ran.tests["test_it"]["regions"]
    assert (
        "region half was left with ZeroDivisionError"
        == (regions["half"]["metrics"]["ops"]["reason"])
    )
    assert 1 == regions["whole"]["metrics"]["ops"]["value"]


# -------------------------------------------------------------------- bad input


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("with torchprof('a'):\n            pass\n        torchprof['b'].ops",
         "there is no region 'b'. "),
        ("torchprof['a'].ops", "there is no region 'a'. No region was entered."),
        ("with torchprof('a'):\n            torchprof['a']",
         "the region 'a' has no numbers to compare: this line is within the region; move it"),
        ("with torchprof('a'), torchprof('a'):\n            pass",
         "the region 'a' is entered while it is open: its numbers would count this part twice; "),
        ("torchprof('')", "torchprof('') is no named region: its name is empty or has lines; "),
        ("torchprof('a', rounds=3)", "torchprof('a') is no named region: it has further arguments"),
        ("with torchprof('a'):\n            pass\n        torchprof['a'].flop",
         "there is no metric 'flop'. Did you mean flops"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("options", [(), ("--torchprof",)])
def test_misuse_is_a_clear_error_with_and_without_profiling(
    pytester: pytest.Pytester, body: str, shown: str, options: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_it=f"{HEAD}\n    def test_it(torchprof):\n        {body}\n")
    ran = run(pytester, *options)
    assert ({"failed": 1}, True) == (ran.outcomes, shown in ran.out), ran.out


def test_a_test_that_enters_none_of_its_regions_is_measured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        import torch

        @pytest.mark.max_flops(10)
        def test_it(torchprof):
            if not torch:
                with torchprof("y"): pass
                with torchprof(f"y{1}"): pass
                torchprof["y"].ops
            torch.ones(8, 8) @ torch.ones(8, 8)

        def test_part(torchprof):
            if not torch:
                with torchprof: pass
        """
    )
    ran = run(pytester, "--torchprof")
    assert {"failed": 1, "passed": 1} == ran.outcomes
    assert "flops 1.02 kFLOP is over the budget of 10 FLOP" in ran.out
    assert "never reached it (test_it.py::test_part)" in ran.out
