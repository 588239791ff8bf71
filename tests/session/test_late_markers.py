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
    ran.result.stdout.fnmatch_lines(["*ops*limited to 0 but measured*"])


@pytest.mark.parametrize("who", ["modified", "by a fixture"])
def test_an_invalid_limit_is_an_error_whoever_adds_it(pytester: pytest.Pytester, who: str) -> None:
    pytester.makeconftest(ADDS[who].replace("max_ops(0)", "max_ops('many')"))
    pytester.makepyfile(test_it=TEST)
    ran = run(pytester, "--torchprof")
    assert ran.ret != 0
    assert 'max_ops: "many" is not a count' in ran.out + ran.result.stderr.str()


def test_a_test_that_is_left_out_while_it_runs_is_said_to_be(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(ADDS["by a fixture"].replace("max_ops(0)", "torchprof(enabled=False)"))
    pytester.makepyfile(test_it=TEST)
    assert run(pytester, "--torchprof").ret == 0
