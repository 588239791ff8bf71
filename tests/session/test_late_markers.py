"""A marker counts whoever adds it, and whenever before the test runs."""

from __future__ import annotations

import pytest
from support.sessions import run

TEST = """
import torch

def test_it():
    torch.ones(2) + 1
"""
ADDS = {
    "collected": """
        import pytest

        def pytest_itemcollected(item):
            item.add_marker(pytest.mark.max_ops(0))
    """,
    "modified": """
        import pytest

        def pytest_collection_modifyitems(items):
            for item in items:
                item.add_marker(pytest.mark.max_ops(0))
    """,
    "modified last": """
        import pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_collection_modifyitems(items):
            yield
            for item in items:
                item.add_marker(pytest.mark.max_ops(0))
    """,
    "by a fixture": """
        import pytest

        @pytest.fixture(autouse=True)
        def _limit(request):
            request.applymarker(pytest.mark.max_ops(0))
    """,
    "by a hook before the test": """
        import pytest

        def pytest_runtest_setup(item):
            item.add_marker(pytest.mark.max_ops(0))
    """,
}


@pytest.mark.parametrize("who", ADDS)
def test_a_limit_holds_whoever_adds_it(pytester: pytest.Pytester, who: str) -> None:
    pytester.makeconftest(ADDS[who])
    pytester.makepyfile(test_it=TEST)
    ran = run(pytester, "--torchprof")
    assert "over_budget" == ran.tests["test_it"]["status"]
    ran.result.stdout.fnmatch_lines(["ops * is over the budget of 0"])


@pytest.mark.parametrize("who", ["modified", "by a fixture"])
def test_an_invalid_limit_is_an_error_whoever_adds_it(pytester: pytest.Pytester, who: str) -> None:
    pytester.makeconftest(ADDS[who].replace("max_ops(0)", "max_ops('many')"))
    pytester.makepyfile(test_it=TEST)
    ran = run(pytester, "--torchprof")
    assert ran.ret != 0
    assert 'max_ops: "many" is not a count' in ran.out + ran.result.stderr.str()


LEAVES_OUT = """
    import pytest

    @pytest.fixture(autouse=True)
    def _limit(request):
        request.applymarker(pytest.mark.torchprof(enabled=False))
        request.applymarker(pytest.mark.max_ops(0))
"""


@pytest.mark.parametrize("case", ["left out by itself", "left out by a fixture", "not selected"])
def test_a_limit_of_a_test_that_is_not_profiled_is_not_forgotten(
    pytester: pytest.Pytester, case: str
) -> None:
    text = "import pytest\n" + TEST
    if case == "left out by itself":
        text = text.replace("def test_it", "@pytest.mark.torchprof(enabled=False)\ndef test_it")
    pytester.makeconftest(LEAVES_OUT if case == "left out by a fixture" else ADDS["by a fixture"])
    pytester.makepyfile(test_it=text)
    options = ("--torchprof-select=marked",) if case == "not selected" else ()
    assert 0 == run(pytester, "--torchprof", *options).ret
    ran = run(pytester, "--torchprof", "--torchprof-strict", *options)
    assert 1 == ran.ret
    ran.result.stdout.fnmatch_lines(["*max_ops*"])


def test_a_fixture_that_adds_its_limit_again_does_not_set_two(pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_rerunfailures", reason="pytest-rerunfailures is not installed")
    pytester.makeconftest(ADDS["by a fixture"].replace("max_ops(0)", "max_ops(100)"))
    pytester.makepyfile(
        test_it="""
        import torch
        TRIES = []

        def test_it():
            torch.ones(2) + 1
            TRIES.append(1)
            assert len(TRIES) > 2
        """
    )
    ran = run(pytester, "--torchprof", "--reruns", "2", needs=("rerunfailures",))
    ran.result.assert_outcomes(passed=1, errors=0)
    assert 100 == ran.tests["test_it"]["metrics"]["ops"]["limit"]


def test_two_different_limits_are_an_error_of_the_test(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(ADDS["by a fixture"])
    marked = TEST.replace("def test_it", "@pytest.mark.max_ops(5)\ndef test_it")
    pytester.makepyfile(test_it="import pytest\n" + marked)
    ran = run(pytester, "--torchprof")
    assert ran.ret == 1
    assert "max_ops is given twice" in ran.out


def test_arguments_of_other_markers_are_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest, torch

        def pytest_configure(config):
            config.addinivalue_line("markers", "data(values): values")

        @pytest.fixture(autouse=True)
        def _limit(request):
            request.node.add_marker(pytest.mark.data(torch.ones(2)), append=False)
            request.applymarker(pytest.mark.max_ops(0))
        """
    )
    marked = TEST.replace("def test_it", "@pytest.mark.data(torch.zeros(2))\ndef test_it")
    pytester.makepyfile(test_it="import pytest\n" + marked)
    assert "over_budget" == run(pytester, "--torchprof").tests["test_it"]["status"]


@pytest.mark.thorough
def test_limits_hold_in_workers(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(ADDS["modified"])
    pytester.makepyfile(test_it=TEST)
    ran = run(pytester, "--torchprof", "-n", "1", needs=("xdist",), subprocess=True)
    assert "over_budget" == ran.tests["test_it"]["status"]
