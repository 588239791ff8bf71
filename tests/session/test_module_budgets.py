"""Limits within an ``nn.Module``: what counts as its run, and that they cost no memory."""

from __future__ import annotations

import resource

import pytest
import torch
from support.sessions import run

from pytest_torchprof.capture.lines import LineTracer


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    """Load the compiler whole: inner sessions forget imports, and it cannot be loaded twice."""
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


ODD = """
    lim = lambda name: pytest.mark.max_flops(1000, module=name)

    class Odd(torch.nn.Module):
        def forward(self, x): return x @ x

    class Early(Odd):
        def __init__(self):
            self.forward(X)
            super().__init__()

    class Empty(Odd):
        def __init__(self):
            super().__init__()
            self.__dict__["_modules"] = None

    class Secret(Odd):
        @property
        def __dict__(self): raise RuntimeError("secret")

    class Classless(Odd):
        @property
        def __class__(self): raise RuntimeError("secret")

    class Nameless(Odd, metaclass=type("Meta", (type,), {"__name__": property(lambda _: 1 / 0)})):
        pass

    class Deaf(Odd):
        def __getattr__(self, name): raise RuntimeError(name)

    class Unequal(Odd):
        __hash__ = None
        def __eq__(self, other): raise RuntimeError("not comparable")
        def __bool__(self): raise RuntimeError("neither")

    class Slotted(Odd):
        __slots__ = ("slot",)

    @lim("Early")
    def test_in_the_middle_of_init(): Early()

    @lim("Empty")
    def test_empty(): Empty().forward(X)

    @lim("Secret")
    def test_secret(): Secret().forward(X)

    @lim("Classless")
    def test_classless(): Classless()(X)

    @lim("Nameless")
    def test_nameless(): Nameless()(X)

    @lim("Deaf")
    def test_deaf(): Deaf().forward(X)

    @lim("Unequal")
    def test_unequal(): Unequal()(X)

    @lim("Slotted")
    def test_slotted(): Slotted()(X)

    @lim("LazyLinear")
    def test_lazy(): torch.nn.LazyLinear(4)(X)

    @lim("Odd")
    def test_symbolically_traced(): torch.fx.symbolic_trace(Odd())(X)

    @lim("Odd")
    def test_parallel(): torch.nn.DataParallel(Odd())(X)

    @lim("Odd")
    def test_copied(): __import__("copy").deepcopy(Odd())(X)
"""


@pytest.mark.thorough
def test_a_module_counts_whatever_its_attributes_do(pytester: pytest.Pytester) -> None:
    found = values(pytester, ODD, "-Wignore")
    assert dict.fromkeys(found, 2 * 4**3) == found
    assert 12 == len(found)


def test_a_scripted_or_traced_module_counts_under_its_original_class(
    pytester: pytest.Pytester,
) -> None:
    found = values(
        pytester,
        """
    import io

    SCRIPTED, TRACED = torch.jit.script(Net().eval()), torch.jit.trace(Net(), X)
    FILE = io.BytesIO()
    torch.jit.save(SCRIPTED, FILE)
    FILE.seek(0)
    LOADED, FROZEN = torch.jit.load(FILE), torch.jit.freeze(SCRIPTED)

    @pytest.mark.max_flops(1000, module="Net")
    @pytest.mark.parametrize("net", [SCRIPTED, TRACED, LOADED, FROZEN])
    def test_whole(net): net(X)

    @pytest.mark.max_flops(1000, module="Attention")
    def test_part_called(): SCRIPTED.a(X)

    @pytest.mark.max_flops(1000, module="Sequential")
    def test_inside_another(): torch.nn.Sequential(SCRIPTED)(X)
    """,
        "-Wignore",
    )
    one = 2 * 4**3
    assert one == found.pop("test_part_called")
    assert {3 * one} == set(found.values())
    assert 5 == len(found)


PARTS = """
    torch._dynamo.reset()
    FAST = torch.compile(Net(), backend="eager")
    SLOW = Net()
    SLOW.compile(backend="eager")
    NETS = [torch.jit.script(Net()), torch.jit.trace(Net(), X), FAST, SLOW]

    @pytest.mark.max_flops(1000, module="Attention")
    @pytest.mark.parametrize("net", NETS)
    def test_within(net): net(X)

    @pytest.mark.max_flops(127, module="Attention")
    @pytest.mark.parametrize("net", NETS)
    def test_elsewhere(net):
        net(X)
        NET.a(X)

    @pytest.mark.max_ops(0, module="Attention")
    @pytest.mark.parametrize("net", NETS)
    def test_none_allowed(net): net(X)

    @pytest.mark.max_peak_cpu_bytes(1, module="Attention")
    @pytest.mark.parametrize("net", NETS)
    def test_no_sum(net):
        net(X)
        NET.a(X)
"""


@pytest.mark.thorough
def test_parts_of_scripted_and_compiled_modules_are_unknown_and_what_ran_elsewhere_a_bound(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=NETS + PARTS)
    ran = run(pytester, "--torchprof", "-Wignore")
    rows = {
        name: next(row for label, row in test["metrics"].items() if "module=" in label)
        for name, test in ran.tests.items()
    }
    assert 16 == len(rows)
    for name, row in rows.items():
        assert "module Attention may have run inside a scripted or" in str(row["reason"]), name
        over = name.startswith("test_elsewhere")
        known = 2 * 4**3 if over else None
        assert (known, known) == (row["value"], row.get("at_least")), name
        assert ("over_budget" if over else "not_measured") == row["status"], name


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_path_without_a_name_begins_with_the_original_class() -> None:
    calls = [torch.jit.script(torch.nn.Linear(4, 4)), torch.nn.Linear(4, 4)]
    tracer = LineTracer(own=[__file__])
    tracer.start()
    for number in range(2):
        calls[number](torch.ones(4))
    tracer.stop()
    assert tracer.gap is None
    assert ("Linear",) == tracer.marks.modules
