"""The torchprof fixture: a block, a callable, stats, table and inline expectations."""

from __future__ import annotations

import re

import pytest
from support.sessions import ADD, accept, calls, run

from pytest_torchprof.baseline.inline import holds, render_inline
from pytest_torchprof.verdict.metrics import METRICS

HEAD = """
    import pytest
    import torch
    from support.sessions import note

    X, A = torch.ones(4), torch.ones(2, 2)
"""


def profiled(pytester: pytest.Pytester, body: str, *args: str) -> dict[str, object]:
    """Values of the one test with this body, which passes."""
    pytester.makepyfile(test_it=f"{HEAD}\n{body}")
    ran = run(pytester, "--torchprof", *args)
    assert {"passed": 1} == ran.outcomes, ran.out
    (test,) = ran.report["tests"]
    assert test["status"] == "new", test["reason"]
    return {name: row["value"] for name, row in test["metrics"].items()}


# -------------------------------------------------------------------- a block


def test_only_what_is_inside_the_block_is_measured(pytester: pytest.Pytester) -> None:
    values = profiled(
        pytester,
        """
    def test_it(torchprof):
        for _ in range(9): X + X
        with torchprof:
            X + X
            X + X
        for _ in range(9): X + X
        """,
    )
    assert {"ops": 2, "allocated_cpu_bytes": 32, "peak_cpu_bytes": 16} == {
        name: values[name] for name in ("ops", "allocated_cpu_bytes", "peak_cpu_bytes")
    }


def test_the_time_is_that_of_the_block(pytester: pytest.Pytester) -> None:
    values = profiled(
        pytester,
        """
    def test_it(torchprof):
        import time
        time.sleep(0.05)
        with torchprof: pass
        time.sleep(0.05)
        """,
    )
    assert 0 < values["wall_ms"] < 20  # type: ignore[operator]


def test_the_block_hands_out_the_fixture_and_stats_are_there_after_it(
    pytester: pytest.Pytester,
) -> None:
    profiled(
        pytester,
        """
    def test_it(torchprof):
        with torchprof as same:
            X + X
        assert same is torchprof
        assert torchprof.stats.ops == 1
        assert torchprof.stats.ops <= 1
        assert torchprof.stats.allocated_cpu_bytes == 16
        assert torchprof.stats.flops == 0
        """,
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("args", [(), ("--torchprof-warmup=0", "--torchprof-rounds=0")])
def test_in_every_run_but_the_profiled_one_all_comparisons_hold(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_it(torchprof):
        with torchprof: X + X
        if repr(torchprof.stats.ops) == "1":
            note("profiled")
        else:
            assert torchprof.stats.ops < 0 and torchprof.stats.ops > 10 ** 9
            note("other")
        """
    )
    assert {"passed": 1} == run(pytester, "--torchprof", *args).outcomes
    assert (1, 0 if args else 2) == (calls(pytester, "profiled"), calls(pytester, "other"))


@pytest.mark.parametrize(
    "line",
    ["assert torchprof.stats.ops <= 0", 'torchprof.assert_expected_inline("""ops   7""")'],
)
def test_numbers_without_a_region_are_an_error_when_profiling_and_nothing_when_off(
    pytester: pytest.Pytester, line: str
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_it(torchprof):
        X + X
        {line}
        """
    )
    assert {"passed": 1} == run(pytester).outcomes
    ran = run(pytester, "--torchprof")
    assert {"failed": 1} == ran.outcomes
    assert (
        "the torchprof fixture has no numbers to compare: no region of this test was measured "
        "before this line; put the work into `with torchprof:`, or call torchprof(function)"
    ) in ran.out


def test_stats_list_the_metrics_for_completion(pytester: pytest.Pytester) -> None:
    profiled(
        pytester,
        """
    def test_it(torchprof):
        assert {"flops", "kernels", "wall_ms"} <= set(dir(torchprof.stats))
        """,
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "body",
    [
        "if X is None:\n            with torchprof: X + X",
        "X is None and torchprof(lambda: X + X)",
        "for _ in ():\n            helper(torchprof)",
        "(lambda: torchprof(lambda: X + X))",
    ],
)
def test_a_region_that_is_not_reached_leaves_nothing_measured(
    pytester: pytest.Pytester, body: str
) -> None:
    pytester.makepyfile(
        test_it=f"{HEAD}\n    def test_it(torchprof):\n        X + X\n        {body}"
    )
    ran = run(pytester, "--torchprof")
    assert {"passed": 1} == ran.outcomes, ran.out
    (test,) = ran.report["tests"]
    assert "not_profiled" == test["status"]
    assert "never reached" in test["reason"]
    assert {} == {name: m for name, m in test["metrics"].items() if m["value"] is not None}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "test",
    [
        "    def test_it(torchprof): X + X",
        "    @pytest.mark.usefixtures('torchprof')\n    def test_it(): X + X",
        "    @pytest.fixture\n    def s(torchprof): return torchprof\n    def test_it(s): X + X",
    ],
)
def test_a_fixture_that_its_code_does_not_use_leaves_the_whole_test_measured(
    pytester: pytest.Pytester, test: str
) -> None:
    assert 1 == profiled(pytester, test)["ops"]


def test_a_block_in_another_fixtures_hands_is_measured(pytester: pytest.Pytester) -> None:
    values = profiled(
        pytester,
        """
    @pytest.fixture
    def step(torchprof):
        def measured():
            with torchprof: return X + X
        return measured

    def test_it(step):
        X + X
        step()
        """,
    )
    assert 1 == values["ops"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "second",
    ["with torchprof: X + X", "torchprof(lambda: X + X)"],
)
@pytest.mark.parametrize(
    "first",
    ["with torchprof: X + X", "torchprof(lambda: X + X)"],
)
def test_a_second_region_is_refused_with_a_message(
    pytester: pytest.Pytester, first: str, second: str
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_it(torchprof):
        {first}
        {second}
        """
    )
    ran = run(pytester, "--torchprof")
    assert ({"passed": 1}, {"test_it": "not_profiled"}) == (ran.outcomes, ran.statuses)
    expected = "the test measures more than one region through the fixture"
    assert expected == ran.tests["test_it"]["reason"]
    assert f"not profiled: {expected} (test_it.py::test_it)" in ran.out


@pytest.mark.thorough
@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "body",
    [
        "with torchprof: X + X; assert torchprof.stats.flops == 5",
        "with torchprof: X + X; torchprof.assert_expected_inline('flops 5')",
        "with torchprof: X + X; torchprof.table()",
        "torchprof(lambda: torchprof.stats.flops == 5)",
        "torchprof.__enter__(); X + X; assert torchprof.stats.flops == 5",
    ],
)
@pytest.mark.parametrize("accepting", ["--torchprof", "--accept"])
def test_a_question_within_the_region_is_an_error(
    pytester: pytest.Pytester, body: str, accepting: str
) -> None:
    pytester.makepyfile(test_it=f"{HEAD}\n    def test_it(torchprof):\n        {body}")
    ran = run(pytester, accepting)
    assert {"failed": 1} == ran.outcomes
    assert "this line is within the measured region; move it behind the `with` block" in ran.out
    assert {"passed": 1} == run(pytester).outcomes


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("setup", "profiled"),
    [
        ("with torchprof: X + X\n        yield", False),
        ("torchprof(lambda: X + X)\n        yield", False),
        ("yield\n        with torchprof: X + X", False),
        ("with torchprof: yield", True),
        ("yield", True),
    ],
)
@pytest.mark.parametrize("args", [(), ("--torchprof-warmup=0", "--torchprof-rounds=0")])
def test_a_region_within_a_fixture_is_refused_unless_the_test_runs_in_it(
    pytester: pytest.Pytester, setup: str, profiled: bool, args: tuple[str, ...]
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    @pytest.fixture
    def around(torchprof):
        {setup}

    @pytest.mark.max_ops(0)
    def test_it(around):
        X + X
        """
    )
    ran = run(pytester, "--torchprof", *args)
    if setup.startswith("yield\n") and args:
        return  # the only run is judged before its teardown
    assert ("failed" if profiled else "passed") == ran.tests["test_it"]["outcome"], ran.out
    assert profiled is ("a fixture measured a region" not in ran.out)
    assert profiled is ("budget max_ops not checked" not in ran.out)


def test_an_exception_inside_the_block_is_the_tests_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_raises(torchprof):
        with torchprof:
            raise ValueError("my own")

    def test_raises_in_a_call(torchprof):
        torchprof(lambda: int("x"))

    def test_catches(torchprof):
        with pytest.raises(ValueError):
            with torchprof:
                raise ValueError("expected")

    def test_catches_a_call(torchprof):
        with pytest.raises(ValueError):
            torchprof(lambda: int("x"))

    def test_after(torchprof):
        with torchprof: X + X
        assert torchprof.stats.ops == 1
        """
    )
    ran = run(pytester, "--torchprof")
    assert {"failed": 2, "passed": 3} == ran.outcomes
    assert "ValueError: my own" in ran.out
    assert "new" == ran.statuses["test_after"]
    assert {"not_profiled"} == {ran.statuses[name] for name in ran.tests if name != "test_after"}
    assert {
        "test_raises": "failed",
        "test_raises_in_a_call": "failed",
        "test_catches": "the measured block raised ValueError",
        "test_catches_a_call": "the measured block raised ValueError",
        "test_after": None,
    } == {name: test["reason"] for name, test in ran.tests.items()}


# -------------------------------------------------------------------- a callable


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("arguments", "args", "expected"),
    [
        ("", (), 1 + 1 + 1),
        (", rounds=50, warmup=5", (), 5 + 50 + 1),
        (", rounds=0, warmup=0", (), 1),
        (", rounds=3", ("--torchprof-warmup=4",), 4 + 3 + 1),
        (", warmup=3", ("--torchprof-rounds=4",), 3 + 4 + 1),
        ("", ("--torchprof-rounds=4",), 1 + 4 + 1),
    ],
)
def test_a_callable_is_called_so_often_within_one_run_of_the_test(
    pytester: pytest.Pytester, arguments: str, args: tuple[str, ...], expected: int
) -> None:
    values = profiled(
        pytester,
        f"""
    def test_it(torchprof):
        note("tests")
        X + X
        def step():
            note("steps")
            return X + X
        result = torchprof(step{arguments})
        assert result.tolist() == [2, 2, 2, 2]
        """,
        *args,
    )
    assert (1, expected, 1) == (calls(pytester, "tests"), calls(pytester, "steps"), values["ops"])


def test_a_callable_returns_its_last_result(pytester: pytest.Pytester) -> None:
    profiled(
        pytester,
        """
    def test_it(torchprof):
        results = iter(range(100))
        assert torchprof(lambda: next(results), rounds=3, warmup=2) == 5
        """,
    )


def test_a_callables_stats_and_table_are_there_after_it(pytester: pytest.Pytester) -> None:
    profiled(
        pytester,
        """
    def test_it(torchprof):
        torchprof(lambda: torch.mm(A, A), rounds=3)
        assert torchprof.stats.flops == 16
        assert 0 < torchprof.stats.wall_ms < 1000
        assert "aten::mm" in torchprof.table()
        """,
    )


@pytest.mark.one_in(4)
@pytest.mark.parametrize("argument", ["rounds=-1", "warmup=-1", "rounds=1.5", "warmup='2'"])
def test_an_invalid_count_is_an_error(pytester: pytest.Pytester, argument: str) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_it(torchprof): torchprof(lambda: X + X, {argument})
        """
    )
    name, _, value = argument.partition("=")
    for args in ((), ("--torchprof",)):
        ran = run(pytester, *args)
        assert {"failed": 1} == ran.outcomes
        assert f"ValueError: {name} must be a whole number of 0 or more, not {value}" in ran.out


def test_budgets_and_baselines_are_about_the_region(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    @pytest.mark.max_ops(1)
    def test_block(torchprof):
        X + X
        with torchprof: X + X

    @pytest.mark.max_ops(1)
    def test_callable(torchprof):
        X + X
        torchprof(lambda: X + X, rounds=2)

    @pytest.mark.max_ops(0)
    def test_over(torchprof):
        torchprof(lambda: X + X)
        """
    )
    ran = run(pytester, "--torchprof")
    expected = {"test_block": "new", "test_callable": "new", "test_over": "over_budget"}
    assert expected == ran.statuses


# -------------------------------------------------------------------- the table


def test_the_table_lists_operators_of_the_region(pytester: pytest.Pytester) -> None:
    profiled(
        pytester,
        """
    def test_it(torchprof):
        X * X
        with torchprof:
            X + X
            X + X
            X - X
        table = torchprof.table(sort_by="calls", limit=1)
        if not table:
            return  # not the profiled run
        note("profiled")
        assert "aten::add" in table
        assert "aten::sub" not in table
        assert "aten::mul" not in torchprof.table()
        assert "aten::sub" in torchprof.table()
        """,
    )
    assert 1 == calls(pytester, "profiled")


PRINTS = """
    @pytest.mark.torchprof({runs})
    def test_{name}(torchprof):
        with torchprof:
            X + X
        print("{name} is before")
        assert "aten::add" in (torchprof.table() or "aten::add")
        print("{name} sees:\\n" + torchprof.table(sort_by="calls"))
        print("{name} is after")
        assert torchprof.stats.ops {holds}
"""
PRINTING = {
    "passes": ("", ">= 0"),
    "fails": ("", "<= 0"),
    "is_run_once": ("warmup=0, rounds=0", ">= 0"),
    "is_run_often": ("rounds=5", ">= 0"),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "capture",
    [
        "fd",
        pytest.param("sys", marks=pytest.mark.thorough),
        pytest.param("tee-sys", marks=pytest.mark.thorough),
        pytest.param("no", marks=pytest.mark.thorough),
    ],
)
def test_a_printed_table_is_seen_once_and_so_is_all_other_output(
    pytester: pytest.Pytester, capture: str
) -> None:
    source = HEAD.replace("from support.sessions import note", "import pytest")
    for name, (runs, what) in PRINTING.items():
        source += PRINTS.format(name=name, runs=runs, holds=what)
    pytester.makepyfile(test_it=source)
    options = ("--torchprof", f"--capture={capture}", "-rP")
    ran = run(pytester, *options, subprocess=capture == "tee-sys")
    assert {"passed": 3, "failed": 1} == ran.outcomes
    live, _, rest = ran.out.partition("= FAILURES =")
    captured = "".join(re.findall(r"(?ms)Captured stdout call -*$(.*?)^[_=]{3}", rest))
    shown = {"fd": [captured], "sys": [captured], "no": [live], "tee-sys": [live, captured]}
    for text in shown[capture]:
        before, *parts = re.split(r"(?m)([a-z_]+) is before$", text)
        assert sorted(PRINTING) == sorted(parts[::2]), text
        assert "aten::add " not in before
        for name, own in zip(parts[::2], parts[1::2], strict=True):
            words = (f"^{name} sees:$", f"^{name} is after$", "^aten::add ")
            assert [1, 1, 1] == [len(re.findall(f"(?m){word}", own)) for word in words], own


def test_a_table_that_the_test_keeps_to_itself_is_not_printed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    from pathlib import Path

    def test_file(torchprof):
        with torchprof: X + X
        print("is said")
        Path("table").write_text(torchprof.table())

    def test_capsys(torchprof, capsys):
        with torchprof: X + X
        print(torchprof.table())
        assert "aten::add" in (capsys.readouterr().out.strip() or "aten::add")

    @pytest.mark.torchprof(enabled=False)
    def test_not_profiled(torchprof):
        print(torchprof.table())
        """
    )
    ran = run(pytester, "--torchprof", "-s")
    assert {"passed": 3} == ran.outcomes
    assert "aten::add" in (pytester.path / "table").read_text("utf-8")
    assert ("aten::add" in ran.out, ran.out.count("is said")) == (False, 1)


def test_an_unknown_column_of_the_table_is_an_error_with_the_near_matches(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it="def test_it(torchprof): torchprof.table(sort_by='self_cpu')")
    ran = run(pytester, "--torchprof")
    assert {"failed": 1} == ran.outcomes
    assert "there is no column 'self_cpu'. Did you mean self_cpu_ms" in ran.out
    assert {"passed": 1} == run(pytester).outcomes  # off, it does nothing


@pytest.mark.thorough
@pytest.mark.parametrize(
    "what",
    [
        "torchprof.table()",
        "torchprof['part'].ops < 2 * torchprof['part'].peak_cpu_bytes",
        "torchprof['part'].assert_expected_inline('')",
    ],
)
def test_it_loads_nothing_heavy_while_profiling_is_off(
    pytester: pytest.Pytester, what: str
) -> None:
    pytester.makepyfile(
        test_it=f"""
        import sys

        def test_it(torchprof):
            before = set(sys.modules)
            with torchprof("part"): pass
            {what}
            assert not {{"numpy", "tabulate"}} & (set(sys.modules) - before)
        """
    )
    assert {"passed": 1} == run(pytester, subprocess=True).outcomes


# -------------------------------------------------------------------- inline expectations


@pytest.mark.parametrize(
    ("expected", "outcome"),
    [
        ("ops 1", "passed"),
        ("\n  ops\t1\n\n flops     3,998   FLOP", "passed"),  # no matter how it is aligned
        ("flops 3998 FLOP", "passed"),
        ("flops 3,997 FLOP", "failed"),
        ("flops 4 kFLOP", "passed"),  # as it is printed everywhere
        ("flops 4.0 kFLOP", "passed"),
        ("flops 4.00 kFLOP", "passed"),
        ("flops 4.000 kFLOP", "failed"),
        ("flops 3.998 kFLOP", "passed"),
        ("ops 2", "failed"),
        ("ops 1\nopps 1", "failed"),
        ("", "failed"),
    ],
)
def test_an_inline_expectation_is_compared_to_the_digits_that_it_has(
    expected: str, outcome: str
) -> None:
    values = {**dict.fromkeys(METRICS, 0), "ops": 1, "flops": 3998}
    assert holds(expected, values) is (outcome == "passed")


def test_an_inline_expectation_is_written_as_exact_as_it_was() -> None:
    values = {"flops": 3998, "allocated_cpu_bytes": 2**29, "leaked_cpu_bytes": -5000, "ops": 7}
    before = "flops 3,997 FLOP\nallocated_cpu_bytes 512.0 MiB\nleaked_cpu_bytes 0 B\nops 3"
    text = render_inline(values, [*values], before)
    assert (
        "flops                 3,998 FLOP\n"
        "allocated_cpu_bytes   512.0 MiB\n"
        "leaked_cpu_bytes      -4.88 KiB\n"
        "ops                   7\n"
    ) == text
    assert "flops   4 kFLOP\n" == render_inline({"flops": 3998}, ["flops"], "flops")
    assert holds(text, values)


def test_an_inline_expectation_that_is_aligned_otherwise_holds(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_it(torchprof):
        with torchprof: X + X
        torchprof.assert_expected_inline("ops 1")
        """
    )
    before = (pytester.path / "test_it.py").read_bytes()
    assert 0 == run(pytester, "--accept").ret
    assert before == (pytester.path / "test_it.py").read_bytes()


INLINE = """
import torch

A = torch.ones(8, 8)

def test_it(torchprof):
    with torchprof:
        {block}
    torchprof.assert_expected_inline('''{expected}''')
"""


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("block", "expected", "message"),
    [
        ("A @ A", "ops   1\nkernels   4\n", None),
        ("A @ A", "kernels   4\n", None),
        ("A @ A; A @ A", "ops   1\nkernels   4\n", "ops 1 → 2"),
        ("A @ A; torch.fft.fft(A)", "flops   1.02 kFLOP\n", None),
        ("A @ A; A @ A; torch.fft.fft(A)", "flops   1.02 kFLOP\n", "at least 2.05 kFLOP"),
    ],
)
def test_a_line_that_is_not_measured_does_not_keep_the_others_from_being_compared(
    block: str, expected: str, message: str | None, pytester: pytest.Pytester
) -> None:
    text = INLINE.format(block=block, expected=expected)
    path = pytester.makepyfile(test_it=text)
    ran = run(pytester, "--torchprof")
    assert {"failed" if message else "passed": 1} == ran.outcomes
    if message:
        assert message in ran.out
    else:
        assert "in the test's own comparisons not checked: " in ran.out
    # Accepting rewrites what was measured; a line that a lower bound exceeds cannot be kept.
    assert 0 == run(pytester, "--accept").ret
    assert {"passed": 1} == run(pytester, "--torchprof").outcomes
    assert ("kernels   4" in expected) is ("kernels   4" in path.read_text("utf-8"))


def test_an_empty_inline_expectation_is_filled_with_what_was_measured(
    pytester: pytest.Pytester,
) -> None:
    block = "A @ A; torch.fft.fft(A)"
    path = pytester.makepyfile(test_it=INLINE.format(block=block, expected=""))
    assert 0 == run(pytester, "--accept").ret
    written = path.read_text("utf-8")
    assert "\\\nops     2\n" in written
    assert "flops" not in written


def test_a_comparison_of_a_number_that_is_not_measured_is_reported(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_it(torchprof):
        torchprof(lambda: X + X)
        assert torchprof.stats.kernels <= 4
        """
    )
    ran = run(pytester, "--torchprof")
    why = "kernels in the test's own comparisons not checked: no accelerator in this capture"
    assert f"{why} (test_it.py::test_it)" in ran.out


@pytest.mark.one_in(6)
@pytest.mark.parametrize("args", [(), ("--torchprof-warmup=0", "--torchprof-rounds=0")])
@pytest.mark.parametrize("region", ["with torchprof: X + X", "torchprof(lambda: X + X)"])
@pytest.mark.parametrize(
    ("marker", "outcome", "status"),
    [
        ("", "failed", "regressed"),
        ("@pytest.mark.max_ops(0)", "failed", "over_budget"),
        ("@pytest.mark.xfail", "xfailed", "regressed"),
    ],
)
def test_an_inline_mismatch_is_a_comparison_that_failed(
    pytester: pytest.Pytester,
    marker: str,
    outcome: str,
    status: str,
    region: str,
    args: tuple[str, ...],
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    {marker}
    def test_add(torchprof):
        {region}
        torchprof.assert_expected_inline('''ops     7\\nflops   0 FLOP\\n''')
        """
    )
    ran = run(pytester, "--torchprof", "--torchprof-traces=traces", *args)
    test = ran.tests["test_add"]
    assert ({outcome: 1}, outcome, status, "the inline expectation does not match") == (
        ran.outcomes, test["outcome"], test["status"], test["reason"],
    )  # fmt: skip
    assert (1, 0) == (ran.metric("ops")["value"], ran.metric("flops")["value"])
    assert (status, "new") == (ran.metric("ops")["status"], ran.metric("flops")["status"])
    assert ran.metric("ops").get("reason") == (
        "the inline expectation is 7" if status == "regressed" else None
    )
    assert test["trace"]
    assert "Traceback" not in ran.out
    assert "During handling" not in ran.out
    assert "1 test profiled" in ran.out


@pytest.mark.parametrize("args", [("--torchprof",), ("--accept",)])
def test_a_time_in_an_inline_expectation_is_refused(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_it(torchprof):
        with torchprof: X + X
        torchprof.assert_expected_inline('''wall_ms   3 ms''')
        """
    )
    before = (pytester.path / "test_it.py").read_bytes()
    ran = run(pytester, *args)
    assert {"failed": 1} == ran.outcomes
    assert (
        "wall_ms cannot be part of an inline expectation: times differ from run to run; write "
        "@pytest.mark.max_wall_ms(…), or assert torchprof.stats.wall_ms <= …"
    ) in ran.out
    assert before == (pytester.path / "test_it.py").read_bytes()
    assert "test_it.py:9: SettingsError" in ran.out
    assert "expected_metrics" not in ran.out


def test_an_expectation_that_is_not_a_string_is_refused_at_its_line(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    def test_it(torchprof):
        with torchprof: X + X
        torchprof.assert_expected_inline(None)
        """
    )
    ran = run(pytester, "--torchprof")
    assert "an inline expectation must be a string: this one is of type NoneType; " in ran.out
    assert "_compare_inline" not in ran.out
    assert "expected_metrics" not in ran.out


# -------------------------------------------------------------------- where it does nothing


@pytest.mark.parametrize("how", ["off", "enabled=False", "marked"])
def test_where_a_test_is_not_profiled_the_fixture_does_nothing(
    pytester: pytest.Pytester, how: str
) -> None:
    marker = "@pytest.mark.torchprof(enabled=False)" if how == "enabled=False" else ""
    pytester.makepyfile(
        test_it=f"""{HEAD}
    {marker}
    def test_it(torchprof):
        note("tests")
        with torchprof: X + X
        assert torchprof(lambda: note("steps") or 7, rounds=9) == 7
        assert torchprof.stats.ops <= 0
        assert torchprof.table() == ""
        torchprof.assert_expected_inline("nonsense")
        """
    )
    if how == "marked":  # a test with the fixture counts as marked, unless it is switched off
        pytester.makeini("[pytest]\ntorchprof_select = marked")
    ran = run(pytester, *([] if how == "off" else ["--torchprof"]))
    if how == "marked":
        assert {"test_it": "not_profiled"} == ran.statuses
    else:
        assert ({"passed": 1}, {}, 1, 1) == (
            ran.outcomes, ran.statuses, calls(pytester, "tests"), calls(pytester, "steps"),
        )  # fmt: skip


def test_what_was_accepted_through_the_fixture_is_ok(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD.replace("test_add():", "test_add(torchprof):").replace(
        "X + X", "torchprof(lambda: X + X)"))  # fmt: skip
    accept(pytester)
    assert {"test_add": "ok"} == run(pytester, "--torchprof").statuses


def test_an_expectation_that_accepting_cannot_rewrite_says_so_when_it_fails(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it="""
        import torch

        EXPECTED = "ops   3\\n"

        def test_it(torchprof):
            with torchprof:
                torch.ones(4) + 1
            torchprof.assert_expected_inline(EXPECTED)
        """
    )
    out = run(pytester, "--torchprof").out
    assert "--accept cannot write the new values: the line has no triple-quoted string" in out
    assert "To accept" not in out
