"""Limits within an ``nn.Module``: what counts as its run, and that they cost no memory."""

from __future__ import annotations

import resource

import pytest
from support.sessions import run


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    """Load the compiler whole: inner sessions forget imports, and it cannot be loaded twice."""
    import torch

    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))


NETS = """
    import pytest
    import torch

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(4, 4))

        def forward(self, x): return x @ self.w

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Attention(), Attention()

        def forward(self, x): return self.b(self.a(x)) @ x

    NET, X = Net(), torch.ones(4, 4)
    ONE = 2 * 4**3
"""


def values(pytester: pytest.Pytester, tests: str, *args: str) -> dict[str, object]:
    """The value within a module of the one limit of each test, or why there is none."""
    pytester.makepyfile(test_it=NETS + tests)
    ran = run(pytester, "--torchprof", *args)
    rows = {
        name: next(row for label, row in test["metrics"].items() if "module=" in label)
        for name, test in ran.tests.items()
    }
    return {n: row["reason"] if row["value"] is None else row["value"] for n, row in rows.items()}


def test_a_module_runs_while_it_is_called_or_its_forward_is(pytester: pytest.Pytester) -> None:
    found = values(
        pytester,
        """
    @pytest.mark.max_flops(1000, module="Net")
    def test_called(): NET(X)

    @pytest.mark.max_flops(1000, module="Net")
    def test_forward(): NET.forward(X)

    @pytest.mark.max_flops(1000, module="Attention")
    def test_parts_of_forward(): NET.forward(X) @ X

    @pytest.mark.max_flops(1000, module="Net")
    def test_backward_is_outside(): NET(X).sum().backward()

    @pytest.mark.max_flops(1000, module="Attention")
    def test_hooks():
        net = Attention()
        net.register_forward_hook(lambda *_: X @ X)
        net(X)

    @pytest.mark.max_flops(1000, module="Attention")
    def test_left_with_an_error():
        try: NET.a(None)
        except TypeError: pass
        X @ X
        NET.a(X)

    @pytest.mark.max_flops(1000, module="Attention")
    def test_callable(torchprof): torchprof(lambda: NET.a(X))

    @pytest.mark.max_allocated_cpu_bytes(1000, module="Attention")
    def test_memory(): NET(X)

    @pytest.mark.max_flops(1000, module="ScaledLinear")
    def test_not_there(): NET(X)

    @pytest.mark.max_flops(1000, module="Attention")
    def test_scripted():
        net = torch.jit.script(Net())
        NET.a(X)
    """,
        "-Wignore",
    )
    one = 2 * 4**3
    not_there = found.pop("test_not_there")
    assert "module ScaledLinear did not run" in str(not_there)
    assert {
        "test_called": 3 * one,
        "test_forward": 3 * one,
        "test_parts_of_forward": 2 * one,
        "test_backward_is_outside": 3 * one,
        "test_hooks": 2 * one,
        "test_left_with_an_error": one,
        "test_callable": one,
        "test_memory": 2 * 64,
        "test_scripted": one,
    } == found


def test_a_million_python_calls_take_no_memory(pytester: pytest.Pytester) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = values(
        pytester,
        """
    def nothing(): pass

    @pytest.mark.max_flops(1000, module="Net")
    @pytest.mark.torchprof(warmup=0, rounds=0)
    def test_calls():
        for _ in range(1_000_000): nothing()
        with torch.no_grad(): NET(X)
    """,
    )
    assert {"test_calls": 3 * 2 * 4**3} == found
    # In KiB; each call took 4 KB with stacks.
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200 * 1024


def test_what_is_compiled_has_its_own_class_and_compiles_no_more_often(
    pytester: pytest.Pytester,
) -> None:
    tests = """
    torch._dynamo.reset()
    FAST = torch.compile(Net(), backend="eager")
    BEFORE = []

    @pytest.mark.max_flops(1000, module="Net")
    @pytest.mark.max_recompiles(0)
    def test_compiled():
        FAST(X)
        BEFORE.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        print("graphs", BEFORE[-1] - BEFORE[0])
    """
    assert {"test_compiled": 3 * 2 * 4**3} == values(pytester, tests, "-s")


def test_a_capture_that_fails_leaves_the_other_numbers(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_torchprof.capture.lines.MOST_MARKS", 2)
    tests = """
    @pytest.mark.max_flops(1000, module="Net")
    def test_it(): NET(X)
    """
    assert {"test_it": "it runs more than 2 modules"} == values(pytester, tests)
