"""--torchprof-warmup and --torchprof-rounds: how often a test really runs."""

from __future__ import annotations

import pytest
from support.sessions import calls, run

COUNTED = """
    import pytest
    from support.sessions import note

    {marker}
    def test_add(): note("calls")
"""


def count(pytester: pytest.Pytester, marker: str, ini: str, *args: str) -> int:
    """Runs of one test with these settings."""
    pytester.makepyfile(test_it=COUNTED.format(marker=marker))
    pytester.makeini(f"[pytest]\n{ini}")
    ran = run(pytester, "--torchprof", *args)
    assert {"passed": 1} == ran.outcomes
    return calls(pytester)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((), 3),
        (("--torchprof-warmup=0", "--torchprof-rounds=0"), 1),
        (("--torchprof-warmup=0",), 2),
        (("--torchprof-rounds=0",), 2),
        (("--torchprof-warmup=3", "--torchprof-rounds=5"), 9),
    ],
)
def test_a_test_runs_so_often_and_once_under_the_profiler(
    pytester: pytest.Pytester, args: tuple[str, ...], expected: int
) -> None:
    assert expected == count(pytester, "", "", *args)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("marker", "ini", "args", "expected"),
    [
        ("", "torchprof_warmup = 4", (), 4 + 1 + 1),
        ("", "torchprof_rounds = 4", (), 1 + 4 + 1),
        ("@pytest.mark.torchprof(warmup=3)", "torchprof_warmup = 4", (), 3 + 1 + 1),
        ("@pytest.mark.torchprof(rounds=3)", "torchprof_rounds = 4", (), 1 + 3 + 1),
        ("@pytest.mark.torchprof(rounds=3)", "", ("--torchprof-rounds=2",), 1 + 2 + 1),
        ("@pytest.mark.torchprof(warmup=3)", "", ("--torchprof-warmup=2",), 2 + 1 + 1),
        ("@pytest.mark.torchprof(warmup=3, rounds=0)", "", ("--torchprof-rounds=2",), 3 + 2 + 1),
        ("", "torchprof_warmup = 4", ("--torchprof-warmup=0",), 0 + 1 + 1),
        ("@pytest.mark.torchprof(enabled=False)", "", ("--torchprof-rounds=9",), 1),
    ],
)
def test_the_command_line_is_stronger_than_the_marker_and_the_marker_than_the_ini(
    pytester: pytest.Pytester, marker: str, ini: str, args: tuple[str, ...], expected: int
) -> None:
    assert expected == count(pytester, marker, ini, *args)


def test_the_closest_marker_wins(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        from support.sessions import note

        pytestmark = pytest.mark.torchprof(rounds=5, warmup=0)

        @pytest.mark.torchprof(rounds=4)
        class TestIt:
            def test_class(self): note("class")

            @pytest.mark.torchprof(rounds=3)
            def test_function(self): note("function")

        def test_module(): note("module")
        """
    )
    run(pytester, "--torchprof")
    found = {name: calls(pytester, name) for name in ("module", "class", "function")}
    assert {"module": 6, "class": 5, "function": 4} == found


def test_function_fixtures_are_set_up_for_each_run_and_wider_ones_are_shared(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        from support.sessions import note

        def noted(name):
            note(name)
            yield
            note(name + "-down")

        @pytest.fixture
        def function(): yield from noted("function")

        @pytest.fixture(scope="class")
        def class_(): yield from noted("class")

        @pytest.fixture(scope="module")
        def module(): yield from noted("module")

        @pytest.fixture(scope="session")
        def session(): yield from noted("session")

        class TestIt:
            def test_it(self, session, module, class_, function, tmp_path):
                assert not hasattr(self, "seen")
                self.seen = 1
                assert not list(tmp_path.iterdir())
                (tmp_path / "file").touch()
        """
    )
    ran = run(pytester, "--torchprof", "--torchprof-warmup=2", "--torchprof-rounds=3")
    assert ({"passed": 1}, {"TestIt::test_it": "new"}) == (ran.outcomes, ran.statuses)
    names = [scope + end for scope in ("function", "class", "module", "session")
             for end in ("", "-down")]  # fmt: skip
    assert [6, 6, 1, 1, 1, 1, 1, 1] == [calls(pytester, name) for name in names]


def test_output_of_the_test_is_captured_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_it(): print('hear', 'me')")
    assert 1 == run(pytester, "--torchprof", "--torchprof-rounds=3", "-rP").out.count("hear me")


@pytest.mark.thorough
def test_output_that_is_not_captured_is_printed_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_it(): print('hear', 'me')")
    assert 1 == run(pytester, "--torchprof", "-s", subprocess=True).out.count("hear me")


@pytest.mark.thorough
def test_time_metrics_are_the_median_over_rounds(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import time
        calls = []
        def test_add():
            calls.append(1)
            # warm-up, three rounds, profiled run
            time.sleep([0, 0, 0.02, 1, 0][len(calls) - 1])
        """
    )
    ran = run(pytester, "--torchprof", "--torchprof-rounds=3")
    wall = ran.metric("wall_ms")["value"]
    assert 20 <= wall < 1000
    assert ran.metric("cpu_ms")["value"] < wall  # who sleeps does not work


def test_without_rounds_there_are_no_times(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_add(): pass")
    ran = run(pytester, "--torchprof", "--torchprof-rounds=0")
    wall = ran.metric("wall_ms")
    assert (None, "not_measured") == (wall["value"], wall["status"])
    assert "no timed rounds (--torchprof-rounds=0)" == wall["reason"]


def test_the_terminal_says_how_many_runs_there_were(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_a(): pass\ndef test_b(): pass")
    out = run(pytester, "--torchprof", "--torchprof-warmup=2", "--torchprof-rounds=4").out
    assert "runs a test: 2 warm-up, 4 timed, 1 profiled" in out
    assert "2 tests profiled in 14 runs: 2 new" in out


@pytest.mark.one_in(4)
@pytest.mark.parametrize("option", ["warmup", "rounds"])
@pytest.mark.parametrize("text", ["-1", "1.5", "many", ""])
@pytest.mark.parametrize("where", ["command line", "ini"])
def test_a_count_is_a_whole_number_of_0_or_more(
    pytester: pytest.Pytester, option: str, text: str, where: str
) -> None:
    pytester.makepyfile(test_it="def test_it(): pass")
    given, source = [f"--torchprof-{option}={text}"], f"--torchprof-{option}"
    if where == "ini":
        pytester.makeini(f"[pytest]\ntorchprof_{option} = {text}")
        given, source = [], f"ini option torchprof_{option}"
    message = run(pytester, "--torchprof", *given).usage_error()
    assert f"ERROR: {source}: {text!r} is not a whole number of 0 or more" == message


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("marker", "shown"),
    [
        ("torchprof(round=3)", "torchprof has no argument 'round'. Did you mean rounds?"),
        ("torchprof(rounds=-1)", "marker torchprof(rounds=…): '-1' is not a whole number of 0 or"),
        ("torchprof(rounds=1.5)", "marker torchprof(rounds=…): '1.5' is not a whole number of 0"),
        ("torchprof(enabled=1)", "marker torchprof(enabled=…): 1 is not True or False"),
        ("torchprof(3)", "the marker torchprof takes no positional argument: (3,)"),
        ("torchprof(strict=True)", "torchprof has no argument 'strict'. Known are: warmup, rounds"),
    ],
)
def test_a_wrong_marker_argument_is_an_error_at_collection_that_names_the_test(
    pytester: pytest.Pytester, marker: str, shown: str
) -> None:
    pytester.makepyfile(test_it=COUNTED.format(marker=f"@pytest.mark.{marker}"))
    message = run(pytester, "--torchprof").usage_error()
    assert f"ERROR: torchprof: test_it.py::test_add: {shown}" in message
    assert 0 == calls(pytester)
