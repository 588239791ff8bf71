"""--torchprof, --no-torchprof, the ini option, and --torchprof-select."""

from __future__ import annotations

import re
import textwrap

import pytest
from support.sessions import ADD, NO_OTHER_PLUGINS, calls, run

MARKED = """
    import pytest
    import torch

    def test_plain(): pass

    @pytest.mark.torchprof(rounds=0)
    def test_settings(): pass

    @pytest.mark.max_ops(1)
    def test_budget(): pass

    @pytest.mark.no_antipatterns
    def test_forbids(): pass

    @pytest.mark.allow_antipatterns("host-sync", reason="reads once")
    def test_allows(): pass

    def test_fixture(torchprof): pass

    @pytest.mark.torchprof(enabled=False)
    def test_never(torchprof): pass

    @pytest.mark.slow
    def test_of_another_marker(): pass
"""


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("ini", "args", "profiled"),
    [
        (None, (), False),
        (None, ("--torchprof",), True),
        (None, ("--no-torchprof",), False),
        (None, ("--accept",), True),
        (None, ("--accept", "--no-torchprof"), False),
        ("true", (), True),
        ("true", ("--no-torchprof",), False),
        ("false", (), False),
        ("false", ("--torchprof",), True),
        (None, ("--torchprof", "--no-torchprof"), False),
        (None, ("--no-torchprof", "--torchprof"), True),
    ],
)
def test_the_command_line_is_stronger_than_the_ini(
    pytester: pytest.Pytester, ini: str | None, args: tuple[str, ...], profiled: bool
) -> None:
    pytester.makepyfile(test_it=ADD)
    if ini is not None:
        pytester.makeini(f"[pytest]\ntorchprof = {ini}")
    ran = run(pytester, *args)
    assert ({"passed": 1}, profiled) == (ran.outcomes, "test_add" in ran.tests)
    idle = "torchprof: --accept with --no-torchprof: nothing is measured, so nothing is accepted"
    assert ("--accept" in args and not profiled) == (idle in ran.out.splitlines())


def test_off_every_marker_is_inert_and_known(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.max_ops(0)
        @pytest.mark.max_flops("5 apples")
        @pytest.mark.torchprof(nonsense=1)
        @pytest.mark.no_antipatterns("no such rule")
        @pytest.mark.allow_antipatterns
        def test_it(): pass
        """
    )
    ran = run(pytester, "--strict-markers")
    assert (0, {"passed": 1}) == (ran.ret, ran.outcomes)
    assert "torchprof:" not in ran.out


def test_off_the_fixture_does_nothing_and_every_comparison_holds(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it='''
        def test_it(torchprof):
            called = []
            with torchprof:
                pass
            with torchprof:
                pass
            assert torchprof.stats.flops <= 0
            assert torchprof.stats.kernels == 3
            assert torchprof.stats.syncs != 3
            assert torchprof.stats.wall_ms < 0 and torchprof.stats.wall_ms > 0
            assert torchprof.stats.flops / 2 + 1 >= 10 ** 9
            assert "not measured" in repr(torchprof.stats.ops)
            assert torchprof(lambda: called.append(1) or 7, rounds=50, warmup=5) == 7
            assert called == [1]
            assert torchprof.table(sort_by="self_cpu_ms", limit=10) == ""
            torchprof.assert_expected_inline("""what ever""")
        '''
    )
    assert {"passed": 1} == run(pytester).outcomes


def test_an_unknown_metric_is_an_error_even_when_off(pytester: pytest.Pytester) -> None:
    body = "with torchprof: pass\n    torchprof.stats.kernel <= 3"
    pytester.makepyfile(test_it=f"def test_it(torchprof):\n    {body}")
    for args in ((), ("--torchprof",)):
        ran = run(pytester, *args)
        assert {"failed": 1} == ran.outcomes
        assert "AttributeError: there is no metric 'kernel'. Did you mean kernels?" in ran.out


def test_off_each_test_runs_once_and_nothing_is_written(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="from support.sessions import note\ndef test_it(): note('calls')")
    run(pytester)
    assert 1 == calls(pytester)
    assert not (pytester.path / "__torchprof__").exists()
    assert not (pytester.path / "report.json").exists()


ASKING = [
    "--torchprof-strict",
    "--torchprof-check-stable",
    "--torchprof-json=o.json",
    "--torchprof-traces=t",
]


@pytest.mark.parametrize("option", [*ASKING, "--torchprof-json o.json", "--torchprof-traces t"])
def test_off_an_option_that_asks_for_something_is_a_usage_error(
    pytester: pytest.Pytester, option: str
) -> None:
    pytester.makepyfile(test_it=ADD)
    flag = option.replace("=", " ").partition(" ")[0]
    expected = f"ERROR: {flag} does nothing without --torchprof; add --torchprof"
    assert expected == run(pytester, *option.split(" ")).usage_error()


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.parametrize("option", ASKING)
def test_an_option_that_asks_for_something_may_wait_in_addopts_or_be_switched_off(
    pytester: pytest.Pytester, option: str
) -> None:
    pytester.makepyfile(test_it=ADD)
    assert {"passed": 1} == run(pytester, "--no-torchprof", option).outcomes
    assert 0 == run(pytester, "--accept", option).ret
    pytester.makeini(
        f"[pytest]\naddopts = {option}\ntorchprof_strict = true\ntorchprof_traces = traces"
    )
    assert {"passed": 1} == run(pytester).outcomes
    pytester.makeini("[pytest]\ntorchprof = true")
    assert {"passed": 1} == run(pytester, option).outcomes


def test_off_torch_is_not_imported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_it(torchprof): pass")
    pytester.makeconftest(
        """
        import sys

        def pytest_unconfigure():
            heavy = {"torch", "numpy", "msgspec", "tabulate", "expecttest"} & sys.modules.keys()
            print("loaded:", sorted(heavy))
        """
    )
    ran = run(pytester, "-s", subprocess=True)
    assert "loaded: []" in ran.out


def test_without_the_plugin_its_options_do_not_exist(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ADD)
    without = (*NO_OTHER_PLUGINS, "-pno:torchprof")
    result = pytester.runpytest_inprocess(*without, "--torchprof")
    assert pytest.ExitCode.USAGE_ERROR == result.ret
    assert {"passed": 1} == pytester.runpytest_inprocess(*without).parseoutcomes()


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("ini", "args", "expected"),
    [
        (None, (), "all"),
        (None, ("--torchprof-select=all",), "all"),
        (None, ("--torchprof-select=marked",), "marked"),
        ("marked", (), "marked"),
        ("marked", ("--torchprof-select=all",), "all"),
    ],
)
def test_select_says_which_tests_are_profiled(
    pytester: pytest.Pytester, ini: str | None, args: tuple[str, ...], expected: str
) -> None:
    pytester.makepyfile(test_it=MARKED)
    pytester.makeini("[pytest]\n" + (f"torchprof_select = {ini}" if ini else ""))
    ran = run(pytester, "--torchprof", "--torchprof-rounds=0", *args)
    marked = {"test_settings", "test_budget", "test_forbids", "test_allows", "test_fixture"}
    everything = marked | {"test_plain", "test_of_another_marker"}
    assert (everything if expected == "all" else marked) == set(ran.tests)
    assert {"passed": 8} == {"passed": ran.outcomes["passed"]}


@pytest.mark.parametrize("where", ["command line", "ini"])
def test_an_unknown_selection_is_a_usage_error(pytester: pytest.Pytester, where: str) -> None:
    pytester.makepyfile(test_it=ADD)
    given = "maked"
    if where == "ini":
        pytester.makeini(f"[pytest]\ntorchprof_select = {given}")
        ran = run(pytester, "--torchprof")
        source = "ini option torchprof_select"
    else:
        ran = run(pytester, "--torchprof", f"--torchprof-select={given}")
        source = "--torchprof-select"
    assert (
        f"ERROR: {source}: 'maked' is not one of all, marked. Did you mean marked?"
        == ran.usage_error()
    )


@pytest.mark.parametrize("name", ["torchprof", "torchprof_strict"])
def test_an_ini_switch_that_is_no_switch_is_named(pytester: pytest.Pytester, name: str) -> None:
    pytester.makepyfile(test_it="def test_it(): pass")
    more = ["--torchprof"] if name == "torchprof_strict" else []
    outcome = pytester.runpytest(*NO_OTHER_PLUGINS, *more, "-o", f"{name}=maybe")
    assert pytest.ExitCode.USAGE_ERROR == outcome.ret
    error = f"ERROR: ini option {name}: invalid truth value 'maybe'; give true or false"
    outcome.stderr.fnmatch_lines([error])


def test_the_help_shows_first_what_people_need_first(pytester: pytest.Pytester) -> None:
    out = pytester.runpytest("--help", "-pno:asyncio").stdout.str()
    first, _, more = out.partition("(torchprof):")[2].partition("torchprof, more:")
    more, ini = more.split("[pytest] configuration")
    shown = re.findall(r"^  (--[\w-]+)", first, re.MULTILINE)
    named = "torchprof torchprof-strict torchprof-select torchprof-time torchprof-json"
    named += " torchprof-html torchprof-traces accept"
    assert [f"--{name}" for name in named.split()] == shown
    ours = "\n".join(re.findall(r"^  torchprof.*(?:\n    .*)*", ini, re.MULTILINE))
    for group in (first, more, ours):
        for text in re.split(r"^  (?=\S)", group.strip("\n"), flags=re.MULTILINE):
            words = " ".join(re.sub(r"^\S+( \(\w+\):)?", "", text).split())
            assert len(textwrap.wrap(words, 54)) <= 2, text
