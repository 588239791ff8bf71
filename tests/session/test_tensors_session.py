"""A rule that has to know which tensor is which gets a capture that knows, in any test."""

from __future__ import annotations

import pytest
from support.sessions import run

CONFTEST = """
    import pytest
    from pytest_torchprof import Matches, rule

    @rule("known", fix="none needed", triggers="aten::tanh$")
    def known(trace):
        "Matches where tensors are known."
        rows = trace.named("aten::tanh").nonzero()[0]
        if trace.tensors is None:
            return Matches(rows[:0], "", wants_tensors=True)
        assert trace.tensors.taken(trace.ts[rows].tolist(), ["aten::tanh"])[0][0] >= 0
        return Matches(rows, "a tensor is known")

    def pytest_torchprof_rules(config):
        return [known]
"""
PLAIN = """
    import torch

    def test_it():
        torch.ones(4).tanh()
"""
REGION = """
    import torch

    def test_it(torchprof):
        with torchprof:
            torch.ones(4).tanh()
        assert torchprof.stats.findings == 1
"""
CALLABLE = """
    import torch

    def test_it(torchprof):
        torchprof(torch.ones(4).tanh, rounds=2)
        assert torchprof.stats.findings == 1
"""
NOTHING = """
    import torch

    RUNS = []

    def test_it():
        RUNS.append(1)
        assert len(RUNS) <= 3
        torch.ones(4) + 1
"""


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.parametrize("source", [PLAIN, REGION, CALLABLE])
@pytest.mark.parametrize("options", [(), ("--torchprof-warmup=0", "--torchprof-rounds=0")])
def test_its_findings_equal_those_of_a_capture_with_tensor_numbers(
    pytester: pytest.Pytester, source: str, options: tuple[str, ...]
) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=source)
    test = run(pytester, "--torchprof", *options).tests["test_it"]
    assert test["outcome"] == "passed"
    assert [found["rule"] for found in test["findings"]] == ["known"]
    assert test["metrics"]["findings"]["value"] == 1
    if not options or source is CALLABLE:  # else there is no other run to say where
        assert test["findings"][0]["location"].startswith("test_it.py:")


def test_no_run_is_added_where_no_rule_asks(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=NOTHING)
    assert run(pytester, "--torchprof").tests["test_it"]["reason"] is None


def test_a_test_that_fails_in_that_run_keeps_its_numbers(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=NOTHING + "        torch.ones(4).tanh()\n")
    test = run(pytester, "--torchprof").tests["test_it"]
    assert (test["outcome"], test["reason"]) == ("passed", None)
    assert test["metrics"]["ops"]["value"] > 0
    assert test["findings"] == []
