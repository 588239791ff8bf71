"""Budget markers: every max_<metric>, its boundary, its units and scopes, and what is refused."""

from __future__ import annotations

import re

import pytest
import torch
from support.reasons import words
from support.sessions import Ran, accept, run

from pytest_torchprof.core.values import Budget, MissingValue, Profile
from pytest_torchprof.render.failure import sentence
from pytest_torchprof.verdict.compare import Policy, compare, status_of
from pytest_torchprof.verdict.judgement import failures
from pytest_torchprof.verdict.metrics import METRICS

#: Two additions of 4 floats: a result is 16 B, the first is kept and the second dropped. With
#: `PRODUCT`, a 2×3 by 3×2 product too: 24 FLOP, and some operators that depend on torch's version.
PAYLOAD = """
    import pytest
    import torch

    X, A, B = torch.ones(4), torch.ones(2, 3), torch.ones(3, 2)
    kept = []

    {marker}
    def test_it():
        kept.append(X + X)
        X + X
"""
PRODUCT = f"{PAYLOAD}        torch.mm(A, B)\n"
EXACT = {
    "flops": 24,
    "ops": 2,
    "allocated_cpu_bytes": 32,
    "peak_cpu_bytes": 32,
    "leaked_cpu_bytes": 16,
    "graph_breaks": 0,
    "recompiles": 0,
}
LIVE = {"wall_ms": 10**6, "cpu_ms": 10**6, "self_cpu_ms": 10**6, "instructions": 10**15}
DEVICE = [name for name, metric in METRICS.items() if "device" in metric.needs]


def profiled(pytester: pytest.Pytester, *markers: str) -> Ran:
    """The payload under these markers."""
    text = "\n    ".join(f"@pytest.mark.{marker}" for marker in markers)
    payload = PRODUCT if "flops" in text or "aten::mm" in text else PAYLOAD
    pytester.makepyfile(test_it=payload.format(marker=text))
    return run(pytester, "--torchprof")


@pytest.mark.thorough
@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "value"), EXACT.items())
def test_a_limit_is_inclusive(pytester: pytest.Pytester, name: str, value: int) -> None:
    assert {"passed": 1} == profiled(pytester, f"max_{name}({value})").outcomes
    if value:
        assert {"failed": 1} == profiled(pytester, f"max_{name}({value - 1})").outcomes


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "value"), LIVE.items())
def test_a_generous_limit_on_what_varies_holds(
    pytester: pytest.Pytester, name: str, value: int
) -> None:
    assert {"passed": 1} == profiled(pytester, f"max_{name}({value})").outcomes


@pytest.mark.parametrize("name", ["wall_ms", "self_cpu_ms"])
def test_a_tiny_limit_on_time_fails(pytester: pytest.Pytester, name: str) -> None:
    assert {"failed": 1} == profiled(pytester, f'max_{name}("0.001 us")').outcomes


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize(
    ("now", "limit", "expected"),
    [
        (7, 7, "new"),
        (7, 6, "over_budget"),
        (0, 0, "new"),
        (1, 0, "over_budget"),
        (7, 6.999, "over_budget"),
        (7, 7.001, "new"),
    ],
)
def test_the_boundary_of_every_metric(name: str, now: int, limit: float, expected: str) -> None:
    verdicts = compare(Profile({name: now}), None, [Budget(name, limit)], Policy())
    assert [(expected, now, limit)] == [(v.status, v.value, v.limit) for v in verdicts]
    causes = failures(verdicts, Policy(), has_baseline=False, accept=False)
    assert (["over budget"] if expected == "over_budget" else []) == list(map(sentence, causes))
    assert expected == status_of(verdicts, has_baseline=False)


@pytest.mark.parametrize("name", METRICS)
def test_an_unmeasured_metric_is_neither_within_nor_over_its_limit(name: str) -> None:
    nothing = MissingValue(words("no such thing here"))
    (verdict,) = compare(Profile({name: nothing}), None, [Budget(name, 0)], Policy())
    assert ("not_measured", words("no such thing here")) == (verdict.status, verdict.reason)
    assert [] == failures([verdict], Policy(), has_baseline=False, accept=False)
    shown = f"strict: the budget {name} could not be checked: no such thing here"
    strict = failures([verdict], Policy(strict=True), has_baseline=True, accept=False)
    assert [shown] == list(map(sentence, strict))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", METRICS)
def test_every_metric_has_a_marker_with_help(pytester: pytest.Pytester, name: str) -> None:
    pytester.makepyfile(test_it=PAYLOAD.format(marker=f"@pytest.mark.max_{name}(10**15)"))
    ran = run(pytester, "--torchprof", "--strict-markers")
    assert {"passed": 1} == ran.outcomes
    assert 10**15 == ran.metric(name, "test_it")["limit"]


def test_markers_are_listed_by_family(pytester: pytest.Pytester) -> None:
    out = run(pytester, "--markers").out
    scopes = "op=, kernel=, module=, region=, on=, rank=, each="
    assert f"@pytest.mark.max_NAME(limit, {scopes}): fail above this; NAME is one of wall" in out
    assert f"@pytest.mark.min_NAME(limit, {scopes}): fail below this; the same names" in out
    listed = {line.partition("(")[0] for line in out.splitlines() if line.startswith("@")}
    for name in METRICS:
        if name.startswith("max_"):
            assert f"@pytest.mark.{name}" in listed
        else:
            assert re.search(rf"NAME is one of .*\b{name}\b", out)
    assert "max_max" not in out
    assert "@pytest.mark.torchprof(warmup=N, rounds=N, min_time=S, enabled=True)" in out
    assert "@pytest.mark.no_antipatterns(*rules)" in out
    places = "op=None, module=None, line=None"
    assert f"@pytest.mark.allow_antipatterns(*rules, reason, {places}): accept" in out


@pytest.mark.parametrize("name", ["max_cuda_bytes", "max_max_cuda_bytes"])
def test_a_metric_that_is_a_maximum_has_a_marker_of_its_own_name(
    pytester: pytest.Pytester, name: str
) -> None:
    pytester.makepyfile(test_it=PAYLOAD.format(marker=f"@pytest.mark.{name}(10**15)"))
    ran = run(pytester, "--torchprof", "--strict-markers")
    assert {"passed": 1} == ran.outcomes
    assert 10**15 == ran.metric("max_cuda_bytes", "test_it")["limit"]
    assert "budget max_cuda_bytes not checked" in ran.out or torch.cuda.is_available()


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("marker", "limit", "passes"),
    [
        ('max_flops("24 FLOP")', 24, True),
        ('max_flops("0.024 kFLOP")', 24, True),
        ('max_flops("0.023 kFLOP")', 23, False),
        ('max_flops("1 GFLOP")', 10**9, True),
        ('max_peak_cpu_bytes("32 B")', 32, True),
        ('max_peak_cpu_bytes("0.03125 KiB")', 32, True),
        ('max_peak_cpu_bytes("31B")', 31, False),
        ('max_peak_cpu_bytes("1 kB")', 1000, True),
        ('max_peak_cpu_bytes("512 MiB")', 512 * 2**20, True),
        ('max_wall_ms("1000 s")', 10**6, True),
        ('max_wall_ms("1 us")', 0.001, False),
        ('max_ops("2")', 2, True),
        ("max_ops(2.5)", 2.5, True),
        ("max_ops(1.5)", 1.5, False),
    ],
)
def test_a_string_carries_its_own_unit(
    pytester: pytest.Pytester, marker: str, limit: float, passes: bool
) -> None:
    ran = profiled(pytester, marker)
    name = marker.partition("(")[0].removeprefix("max_")
    assert (limit, {"passed" if passes else "failed": 1}) == (
        ran.metric(name, "test_it")["limit"],
        ran.outcomes,
    )


def test_the_message_holds_limit_and_value_and_where_most_of_it_comes_from(
    pytester: pytest.Pytester,
) -> None:
    out = profiled(pytester, "max_ops(1)").out
    assert ("ops 2 is over the budget of 1\n  aten::add  2 ops  test_it.py:9, :10\n") in out


def test_a_budget_holds_though_the_baseline_allows_more(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=PAYLOAD.format(marker=""))
    accept(pytester)
    pytester.makepyfile(test_it=PAYLOAD.format(marker="@pytest.mark.max_ops(1)"))
    ran = run(pytester, "--torchprof")
    assert ({"failed": 1}, {"test_it": "over_budget"}) == (ran.outcomes, ran.statuses)


def test_accept_does_not_excuse_a_budget(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=PAYLOAD.format(marker="@pytest.mark.max_ops(1)"))
    ran = run(pytester, "--accept")
    assert ({"failed": 1}, {"test_it": "over_budget"}) == (ran.outcomes, ran.statuses)


# -------------------------------------------------------------------- scopes


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("marker", "label", "value", "passes"),
    [
        ('max_ops(2, op="aten::add")', "ops[op=aten::add]", 2, True),
        ('max_ops(1, op="aten::add")', "ops[op=aten::add]", 2, False),
        ('max_flops(24, op="aten::mm")', "flops[op=aten::mm]", 24, True),
        ('max_flops(23, op="aten::mm")', "flops[op=aten::mm]", 24, False),
        ('max_flops(0, op="aten::add")', "flops[op=aten::add]", 0, True),
        ('max_peak_cpu_bytes(16, op="aten::mm")', "peak_cpu_bytes[op=aten::mm]", 16, True),
        ('max_peak_cpu_bytes(15, op="aten::mm")', "peak_cpu_bytes[op=aten::mm]", 16, False),
    ],
)  # fmt: skip
def test_a_limit_within_one_operator(
    pytester: pytest.Pytester, marker: str, label: str, value: int, passes: bool
) -> None:
    ran = profiled(pytester, marker)
    row = ran.metric(label, "test_it")
    assert ({"passed" if passes else "failed": 1}, value) == (ran.outcomes, row["value"])
    assert ("ok" if passes else "over_budget") == row["status"]


MODULES = """
    import pytest
    import torch

    class Attention(torch.nn.Module):
        def forward(self, x): return x + x + x

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Attention(), Attention()

        def forward(self, x): return self.b(self.a(x)) + x

    @pytest.fixture
    def net(): return Net()

    X = torch.ones(4)

    {marker}
    def test_it(net): net(X)
"""


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("marker", "label", "value", "passes"),
    [
        ('max_ops(4, module="Attention")', "ops[module=Attention]", 4, True),
        ('max_ops(3, module="Attention")', "ops[module=Attention]", 4, False),
        ('max_ops(5, module="Net")', "ops[module=Net]", 5, True),
        ('max_ops(4, module="Net")', "ops[module=Net]", 5, False),
    ],
)
def test_a_limit_within_one_module(
    pytester: pytest.Pytester, marker: str, label: str, value: int, passes: bool
) -> None:
    pytester.makepyfile(test_it=MODULES.format(marker=f"@pytest.mark.{marker}"))
    ran = run(pytester, "--torchprof")
    row = ran.metric(label, "test_it")
    assert ({"passed" if passes else "failed": 1}, value) == (ran.outcomes, row["value"]), row


def test_one_metric_may_have_a_limit_for_the_whole_and_for_each_scope(
    pytester: pytest.Pytester,
) -> None:
    three = ("max_ops(2)", 'max_ops(2, op="aten::add")', 'max_ops(0, op="aten::sub")')
    assert {"passed": 1} == profiled(pytester, *three).outcomes


# -------------------------------------------------------------------- where markers stand


def test_markers_work_on_functions_classes_modules_and_unittest(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import unittest
        import pytest
        import torch

        pytestmark = pytest.mark.max_flops(0)
        A = torch.ones(2, 2)

        def test_module(): A @ A

        @pytest.mark.max_ops(0)
        class TestClass:
            def test_over(self): A + A
            def test_within(self): pass

        @pytest.mark.max_ops(0)
        class Case(unittest.TestCase):
            def test_over(self): A + A
            def test_within(self): pass

            @pytest.mark.max_peak_cpu_bytes(15)
            def test_both(self): A + A
        """
    )
    ran = run(pytester, "--torchprof")
    over_budget = {name for name, status in ran.statuses.items() if status == "over_budget"}
    expected = {"test_module", "TestClass::test_over", "Case::test_over", "Case::test_both"}
    assert (expected, {"failed": 4, "passed": 2}) == (over_budget, ran.outcomes)
    assert "over_budget" == ran.metric("peak_cpu_bytes", "Case::test_both")["status"]


def test_a_marker_on_one_parameter_is_for_that_one(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        import torch
        X = torch.ones(4)

        @pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.max_ops(1))])
        def test_it(n):
            for _ in range(n): X + X
        """
    )
    assert {"test_it[1]": "new", "test_it[2]": "over_budget"} == run(
        pytester, "--torchprof"
    ).statuses


# -------------------------------------------------------------------- what is refused


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("marker", "shown"),
    [
        ('max_peak_cpu_bytes("5 ms")', '"5 ms" is not an amount of memory: the unit "ms"; write'),
        ('max_wall_ms("5 B")', '"5 B" is not a time: the unit "B"; write a number in ms, or'),
        ('max_flops("5")', '"5" is not a number of FLOPs: no unit; write'),
        ('max_ops("5 B")', '"5 B" is not a count: the unit "B"; write a number'),
        ("max_ops(-1)", "-1 is not a count: it is negative"),
        ('max_wall_ms("-1 ms")', '"-1 ms" is not a time: it is negative'),
        ('max_ops(float("nan"))', "nan is not a count: it is not a finite number"),
        ('max_ops(float("inf"))', "inf is not a count: it is not a finite number"),
        ("max_ops(None)", "None is not a count: NoneType is not a number or a string"),
        ("max_ops(True)", "True is not a count: bool is not a number or a string"),
        ("max_ops", "max_ops takes one limit, got none: max_ops(5)"),
        ("max_ops()", "max_ops takes one limit, got none: max_ops(5)"),
        ("max_ops(1, 2)", "max_ops takes one limit, got 2 limits: max_ops(5)"),
        ("max_ops(1, opp='aten::mm')", "max_ops has no argument 'opp'. Did you mean op?"),
        ("max_ops(1, nope='aten::mm')", "max_ops has no argument 'nope'. "),
        (
            "max_wall_ms(1, op='aten::mm')",
            "max_wall_ms has no argument 'op'. Known are: region, on.",
        ),
        ("max_ops(1, op='a', module='B')", "max_ops takes op= or module=, not both"),
        ("max_ops(1, op=3)", "max_ops: op= takes a name, got 3"),
        ("max_ops(1, op='')", "max_ops: op= takes a name, got ''"),
        ("max_flop(1)", "max_flop: no such metric. Did you mean max_flops"),
        ("max_cuda_byte(1)", "max_cuda_byte: no such metric. Did you mean max_"),
        ("no_antipatterns('host-synk')", "there is no anti-pattern rule 'host-synk'. Did you mean"),
        ("no_antipatterns(rule='x')", "no_antipatterns has no argument 'rule'. It takes none."),
        ("allow_antipatterns('host-sync')", "allow_antipatterns takes rules and a reason: "),
        ("allow_antipatterns(reason='x')", "allow_antipatterns takes rules and a reason: "),
        ("allow_antipatterns('x', reason='y')", "there is no anti-pattern rule 'x'. "),
    ],
)
def test_an_invalid_marker_is_a_collection_error_that_names_the_test(
    pytester: pytest.Pytester, marker: str, shown: str
) -> None:
    pytester.makepyfile(test_it=PAYLOAD.format(marker=f"@pytest.mark.{marker}"))
    message = run(pytester, "--torchprof").usage_error()
    assert "ERROR: torchprof: test_it.py::test_it: " in message
    assert shown in message


def test_two_limits_for_one_metric_are_an_error_wherever_they_stand(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        pytestmark = pytest.mark.max_ops(5)

        @pytest.mark.max_ops("7")
        def test_it(): pass
        """
    )
    message = run(pytester, "--torchprof").usage_error()
    assert "test_it.py::test_it: max_ops is given twice for ops: 7 and 5. Keep one." in message


def test_another_plugins_marker_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = max_retries(when): of another plugin")
    pytester.makepyfile(test_it=PAYLOAD.format(marker="@pytest.mark.max_retries('often')"))
    assert 1 == run(pytester, "--torchprof").outcomes["passed"]


def test_all_wrong_markers_are_reported_at_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.parametrize("n", range(12))
        @pytest.mark.max_ops(-1)
        def test_it(n): pass
        """
    )
    ran = run(pytester, "--torchprof")
    shown = ran.err + ran.out
    assert pytest.ExitCode.USAGE_ERROR == ran.ret
    assert 10 == shown.count("max_ops: -1 is not a count")
    assert "… and 2 more" in shown


# -------------------------------------------------------------------- without the device


def test_on_a_machine_without_a_device_its_metrics_are_not_measured(
    pytester: pytest.Pytester,
) -> None:
    import torch

    if torch.accelerator.is_available():
        pytest.skip("this machine has one")
    tests = [
        f"@pytest.mark.max_{name}(0)\ndef test_{name}():\n    torch.ones(1)\n" for name in DEVICE
    ]
    pytester.makepyfile(test_it="import pytest\nimport torch\n" + "".join(tests))
    ran = accept(pytester)
    for name in DEVICE:
        row = ran.metric(name, f"test_{name}")
        assert (None, "not_measured") == (row["value"], row["status"])
        assert "no accelerator in this capture" == row["reason"]
        shown = f"budget max_{name} not checked: no accelerator in this capture (test_it.py::"
        assert f"{shown}test_{name})" in ran.out
    assert f"{len(DEVICE)} budgets not checked" in ran.out
    strict = run(pytester, "--torchprof", "--torchprof-strict")
    assert {"failed": len(DEVICE)} == strict.outcomes
