"""Regions with any name are measured and found under it, in limits, report and baselines."""

from __future__ import annotations

import pytest
from support.sessions import accept, run

NAMES = ["größe", "a\\b", 'a"b', "50 %", "%41", "tab\there", "\x1b[31m", "日本", "💣", "[x]*"]


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NAMES)
def test_a_region_of_any_name_has_its_numbers(pytester: pytest.Pytester, name: str) -> None:
    pytester.makepyfile(
        test_it=f"""
        import pytest
        import torch

        NAME = {name!r}

        def test_right(torchprof):
            for _ in range(2):
                with torchprof(NAME):
                    torch.ones(4, 4) @ torch.ones(4, 4)
            assert 1 < torchprof[NAME].ops != 5
            assert torchprof[NAME].wall_ms > 0
            assert 2 * torchprof[NAME].laps[0].flops == torchprof[NAME].flops == 256

        def test_wrong(torchprof):
            with torchprof(NAME):
                torch.ones(4)
            assert torchprof[NAME].ops == 77
        """
    )
    ran = run(pytester, "--torchprof")
    assert {"passed": 1, "failed": 1} == ran.outcomes, ran.out
    regions = {t["nodeid"].partition("::")[2]: t.get("regions") for t in ran.report["tests"]}
    assert [name] == list(regions["test_right"])
    assert 1 == run(pytester, "--torchprof", "--accept", "-kright").outcomes["passed"]
    again = run(pytester, "--torchprof", "-kright")
    assert (1, "ok") == (again.outcomes["passed"], again.report["tests"][0]["status"])


def test_the_work_of_a_marked_region_is_that_of_the_code_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import torch

        def test_plain(): torch.ones(4)
        def test_named(torchprof):
            with torchprof("größe"): torch.ones(4)
        """
    )
    ran = run(pytester, "--torchprof")
    assert 1 == len({test["metrics"]["ops"]["value"] for test in ran.report["tests"]})


# -------------------------------------------------------------------- what is not checked is said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            """
            with torchprof("a"): torch.ones(4)
            assert torchprof["a"].kernels == 7
            """,
            "a: kernels",
        ),
        (
            """
            try:
                with torchprof("a"): torch.ones(4); raise ValueError
            except ValueError: pass
            assert torchprof["a"].ops == 12345
            """,
            "a was left with ValueError",
        ),
    ],
)
def test_a_comparison_that_was_not_made_is_said(
    pytester: pytest.Pytester, body: str, said: str
) -> None:
    pytester.makepyfile(test_it=f"import torch\n\ndef test_it(torchprof):{body}")
    ran = run(pytester, "--torchprof")
    assert ({"passed": 1}, True) == (ran.outcomes, said in ran.out), ran.out


def test_a_number_that_is_not_measured_is_never_0(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        def test_it(torchprof):
            with torchprof("a"): pass
            assert int(torchprof["a"].flops) == 0
        """
    )
    ran = run(pytester)
    assert ({"failed": 1}, True) == (ran.outcomes, "has no int: compare it as it is" in ran.out)


@pytest.mark.parametrize("marker", ["max_ops(0, region='a')", "max_flops(5, region='a')"])
def test_a_limit_on_a_region_in_another_thread_is_not_checked(
    pytester: pytest.Pytester, marker: str
) -> None:
    pytester.makepyfile(
        test_it=f"""
        import threading
        import pytest
        import torch

        @pytest.mark.{marker}
        def test_it(torchprof):
            def work():
                with torchprof("a"): torch.ones(4, 4) @ torch.ones(4, 4)
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        """
    )
    ran = run(pytester, "--torchprof")
    assert {"passed": 1} == ran.outcomes
    assert "not checked: region a was entered in another thread" in ran.out


def test_an_exceeded_limit_names_operators_beside_a_baseline_too(
    pytester: pytest.Pytester,
) -> None:
    source = """
        import pytest
        import torch

        LIMITS

        def test_it(torchprof):
            with torchprof("y"): torch.ones(4, 4) @ torch.ones(4, 4)
        """
    pytester.makepyfile(test_it=source.replace("LIMITS", ""))
    accept(pytester)
    for limit in ("max_ops(2)", "max_ops(2, region='y')"):
        mark = f"pytestmark = pytest.mark.{limit}"
        pytester.makepyfile(test_it=source.replace("LIMITS", mark))
        ran = run(pytester, "--torchprof")
        assert {"failed": 1} == ran.outcomes
        assert "  aten::fill_  2 ops  test_it.py:7 (2×)\n" in ran.out


@pytest.mark.thorough
@pytest.mark.parametrize("lazy", ["async def f(): pass", "def f(): yield 1"])
def test_what_does_nothing_when_called_is_not_compared(
    pytester: pytest.Pytester, lazy: str
) -> None:
    pytester.makepyfile(test_it=f"{lazy}\n\ndef test_it(torchprof): torchprof.ab(f, f)")
    for args in ([], ["--torchprof"]):
        ran = run(pytester, *args)
        assert ({"failed": 1}, True) == (ran.outcomes, "must do its work when called" in ran.out)
