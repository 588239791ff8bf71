"""Anomaly detection that is on before a test begins, and that a test of it switches on itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.sessions import run

if TYPE_CHECKING:
    import pytest

TESTS = """
    import torch
    from torch import nn

    model = nn.Linear(4, 2)

    def test_step():
        model(torch.ones(3, 4)).sum().backward()

    def test_of_it():
        with torch.autograd.detect_anomaly():
            model(torch.ones(3, 4)).sum().backward()
"""
LEFT_ON = """
    import pytest
    import torch

    @pytest.fixture(autouse=True, scope="session")
    def looking():
        torch.autograd.set_detect_anomaly(True)
        yield
        torch.autograd.set_detect_anomaly(False)
"""


def test_one_step_counts_where_it_was_on_before(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(LEFT_ON)
    pytester.makepyfile(test_it=TESTS)
    ran = run(pytester, "--torchprof", "-Wignore")
    (found,) = ran.tests["test_step"]["findings"]
    assert (found["rule"], found["count"]) == ("debug-left-on", 1)
    assert found["location"] == "test_it.py:7"
    assert found["cost_ms"] > 0


def test_a_test_that_switches_it_on_is_about_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    ran = run(pytester, "--torchprof", "-Wignore")
    assert [] == ran.tests["test_step"]["findings"] == ran.tests["test_of_it"]["findings"]
