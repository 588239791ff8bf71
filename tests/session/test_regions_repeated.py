"""Numbers of regions repeat: in each process, alone or after other tests, and under xdist."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest
from support.sessions import Ran, run

from pytest_torchprof.verdict.metrics import METRICS

#: Fresh processes to compare.
PROCESSES = int(os.environ.get("TORCHPROF_PROCESSES", "4"))

TESTS = """
    import pytest
    import torch
    from torch import nn

    X = torch.ones(4, 8, 16)
    KEPT = []

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad @ torch.ones(16, 16)

    def mlp():
        return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 16))

    def layer():
        return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    @pytest.mark.parametrize("build", [mlp, layer, lambda: nn.LSTM(16, 16)])
    def test_training(torchprof, build):
        with torchprof("build"):
            model = build()
            optimizer = torch.optim.AdamW(model.parameters())
        for step in range(3):
            with torchprof("step"):
                with torchprof("forward"):
                    out = model(Scaled.apply(X.clone().requires_grad_()))
                    loss = (out[0] if isinstance(out, tuple) else out).square().mean()
                with torchprof("backward"):
                    loss.backward()
                with torchprof("update"):
                    optimizer.step()
                    optimizer.zero_grad()

    def test_memory(torchprof):
        for n in range(20):
            with torchprof(f"keep {n % 4}"):
                KEPT.append(torch.ones(100 * n) + 1)
            if n % 3 == 0:
                with torchprof("free"):
                    KEPT.clear()
        with torchprof("inference"), torch.no_grad():
            layer().eval()(X)
            X.view(-1)[3:].tolist()
        with torchprof("nothing"):
            pass
"""


def numbers(ran: Ran) -> Mapping[tuple[str, str, str], Any]:
    """Each exact metric of each region and test: its value, or the reason for none."""
    assert {"passed": len(ran.tests)} == ran.outcomes, ran.out
    found: dict[tuple[str, str, str], Any] = {}
    for test, record in ran.tests.items():
        parts = {"": record, **record["regions"]}
        for part, one in parts.items():
            found[test, part, "laps"] = one.get("laps")
            for name, row in one["metrics"].items():
                if METRICS[name].klass == "exact":
                    # Behind the colon a reason may tell shares of the time.
                    reason = (row.get("reason") or "").partition(":")[0]
                    found[test, part, name] = row["value"], reason
    return found


@pytest.mark.thorough
def test_exact_metrics_of_regions_are_the_same_in_each_process(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it=TESTS)
    first: Mapping[tuple[str, str, str], Any] = {}
    for seed in range(PROCESSES):
        monkeypatch.setenv("PYTHONHASHSEED", str(seed))
        now = numbers(run(pytester, "--torchprof", subprocess=True))
        first = first or now
        assert first == now
    regions = {(test, part) for test, part, _ in first if part}
    values = [value for value in first.values() if isinstance(value, tuple)]
    assert len(regions) == 3 * 5 + 4 + 3
    assert sum(value is not None for value, _ in values) > 6 * len(regions)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["xdist", "alone", "only run"])
def test_exact_metrics_of_regions_do_not_depend_on_what_else_runs(
    pytester: pytest.Pytester, how: str
) -> None:
    pytester.makepyfile(test_it=TESTS)
    together = numbers(run(pytester, "--torchprof", subprocess=True))
    if how == "xdist":
        pytest.importorskip("xdist", reason="pytest-xdist is not installed")
        assert together == numbers(
            run(pytester, "--torchprof", "-n2", needs=["xdist"], subprocess=True)
        )
        return
    for test in dict.fromkeys(test for test, _, _ in together):
        options = ("--torchprof-warmup=0", "--torchprof-rounds=0") if how == "only run" else ()
        alone = numbers(
            run(pytester, "--torchprof", *options, f"test_it.py::{test}", subprocess=True)
        )
        assert alone == {key: value for key, value in together.items() if key[0] == test}
