"""Metrics of users' own in tests of an unusual shape: nothing that is recorded passes unchecked."""

from __future__ import annotations

import pytest
from support.sessions import run

HEAD = """
    import os
    import pytest
    import torch

    X = torch.ones(4)
    NOW = os.environ.get("NOW")
"""


@pytest.mark.parametrize("how", ["torchprof(lambda: X + X)", "with torchprof: X + X"])
def test_what_is_recorded_after_the_measurement_is_checked(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    @pytest.mark.max_metric("t", 1)
    def test_limit(torchprof):
        {how}
        torchprof.record("t", 5, compare="exact")

    def test_regression(torchprof):
        {how}
        torchprof.record("n", 500 if NOW else 5, compare="exact")
    """
    )
    run(pytester, "--accept")
    monkeypatch.setenv("NOW", "1")
    ran = run(pytester, "--torchprof")
    assert {"test_limit": "over_budget", "test_regression": "regressed"} == ran.statuses


def test_a_time_recorded_beside_a_measured_callable_says_where_to_record_it(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it=f"""{HEAD}
    @pytest.mark.torchprof(rounds=2)
    @pytest.mark.max_metric("t", 1)
    def test_it(torchprof):
        torchprof(lambda: X + X)
        torchprof.record("t", 5)
    """
    )
    found = run(pytester, "--torchprof").metric("t", "test_it")
    assert "not_measured" == found["status"]
    assert "outside the callable" in str(found["reason"])
    assert "rounds=1" not in str(found["reason"])
