"""Limits on parts of a test: names and globs, regions, minima, and the devices they are for."""

from __future__ import annotations

import pytest
from support.sessions import run

TESTS = """
    import pytest
    import torch
    from torch.profiler import record_function

    X, A, B = torch.ones(4), torch.ones(2, 3), torch.ones(3, 2)

    class SelfAttention(torch.nn.Module):
        def forward(self, x): return x + x

    NET = SelfAttention()

    @pytest.mark.{marker}
    def test_it():
        with record_function("decode step"):
            torch.mm(A, B)
        for n in range(2):
            with record_function(f"layer {{n}}"):
                NET(X)
        X - X
"""


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("marker", "label", "value", "passes"),
    [
        ('max_ops(2, op="aten::ad*")', "ops[op=aten::ad*]", 2, True),
        ('max_ops(1, op="aten::ad?")', "ops[op=aten::ad?]", 2, False),
        ('max_ops(3, op="aten::[as][du][db]")', "ops[op=aten::[as][du][db]]", 3, True),
        ('max_ops(2, module="*Attention")', "ops[module=*Attention]", 2, True),
        ('max_ops(1, module="Self*")', "ops[module=Self*]", 2, False),
        ('max_flops(24, region="decode step")', "flops[region=decode step]", 24, True),
        ('max_flops(23, region="decode*")', "flops[region=decode*]", 24, False),
        ('max_ops(2, region="layer ?")', "ops[region=layer ?]", 2, True),
        ('max_ops(1, region="layer 0")', "ops[region=layer 0]", 1, True),
        ('min_ops(2, op="aten::add")', "ops[op=aten::add]", 2, True),
        ('min_ops(3, op="aten::add")', "ops[op=aten::add]", 2, False),
        ('min_ops(1, op="aten::mul")', "ops[op=aten::mul]", 0, False),
        ('min_flops(25, region="decode step")', "flops[region=decode step]", 24, False),
        ('min_ops(3, module="SelfAttention")', "ops[module=SelfAttention]", 2, False),
        ('min_flops("24 FLOP")', "flops", 24, True),
        ('min_flops("25 FLOP")', "flops", 24, False),
    ],
)
def test_a_limit_on_a_part(
    pytester: pytest.Pytester, marker: str, label: str, value: int, passes: bool
) -> None:
    pytester.makepyfile(test_it=TESTS.format(marker=marker))
    ran = run(pytester, "--torchprof")
    row = ran.metric(label, "test_it")
    assert ({"passed" if passes else "failed": 1}, value) == (ran.outcomes, row["value"]), ran.out
    limit = "least" if marker.startswith("min_") else "limit"
    assert row[limit] is not None
    assert "over_budget" == row["status"] or passes


def test_a_minimum_that_is_missed_says_both_numbers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS.format(marker='min_ops(1, op="aten::_scaled_dot*flash*")'))
    out = run(pytester, "--torchprof").out
    assert "ops[op=aten::_scaled_dot*flash*] 0 is below the minimum of 1" in out.splitlines()


def test_both_limits_are_an_equality(pytester: pytest.Pytester) -> None:
    for n, outcome in ((1, "failed"), (2, "passed"), (3, "failed")):
        both = f'max_ops({n}, op="aten::add")\n    @pytest.mark.min_ops({n}, op="aten::add")'
        pytester.makepyfile(test_it=TESTS.format(marker=both))
        ran = run(pytester, "--torchprof")
        assert {outcome: 1} == ran.outcomes
        row = ran.metric("ops[op=aten::add]", "test_it")
        assert (n, n, 2) == (row["limit"], row["least"], row["value"])


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("marker", "what", "near"),
    [
        ('max_ops(3, op="aten::sab")', "operator aten::sab", "aten::add, aten::mm, aten::sub"),
        ('max_ops(3, region="layer")', "region layer", "layer 0, layer 1"),
        ('max_ops(3, module="SelfAtention")', "module SelfAtention", "SelfAttention"),
        ('max_ops(3, op="*flash*")', "operator *flash*", ""),
    ],
)
def test_a_maximum_on_what_did_not_run_is_not_checked_and_names_what_did(
    pytester: pytest.Pytester, marker: str, what: str, near: str
) -> None:
    pytester.makepyfile(test_it=TESTS.format(marker=marker))
    ran = run(pytester, "--torchprof")
    assert {"passed": 1} == ran.outcomes
    names = f"; similar names that did: {near}" if near else ""
    assert f"{what} did not run in the measured region{names} (test_it" in ran.out
    assert {"failed": 1} == run(pytester, "--torchprof", "--torchprof-strict").outcomes


def test_a_minimum_is_not_checked_where_the_metric_is_unknown(pytester: pytest.Pytester) -> None:
    import torch

    if torch.accelerator.is_available():
        pytest.skip("this machine has a device")
    pytester.makepyfile(test_it=TESTS.format(marker='min_kernels(1, kernel="*gemm*")'))
    ran = run(pytester, "--torchprof")
    row = ran.metric("kernels[kernel=*gemm*]", "test_it")
    assert ({"passed": 1}, "not_measured", 1) == (ran.outcomes, row["status"], row["least"])
    assert "budget min_kernels[kernel=*gemm*] not checked" in ran.out


# -------------------------------------------------------------------- devices


ON = """
    import pytest
    import torch

    {markers}
    def test_it(): torch.ones(4) + 1
"""


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("markers", "limit", "outcome"),
    [
        (['max_ops(1, on="cuda")'], None, "passed"),
        (['max_ops(1, on="cpu")'], 1, "failed"),
        (['max_ops(1, on="H100")', 'max_ops(1, on="sm_90")'], None, "passed"),
        (['max_ops(9, on="cpu")', 'max_ops(1, on="A100")'], 9, "passed"),
        (["max_ops(9)", 'max_ops(1, on="cpu")'], 1, "failed"),
        (["max_ops(9)", 'max_ops(20, on="cpu")'], 9, "passed"),
    ],
)  # fmt: skip
def test_a_limit_is_in_force_on_the_devices_it_names(
    pytester: pytest.Pytester, markers: list[str], limit: int | None, outcome: str
) -> None:
    import torch

    if torch.accelerator.is_available():
        pytest.skip("this machine has a device")
    text = "\n    ".join(f"@pytest.mark.{marker}" for marker in markers)
    pytester.makepyfile(test_it=ON.format(markers=text))
    ran = run(pytester, "--torchprof", "--torchprof-warmup=0")
    row = ran.metric("ops", "test_it")
    assert (limit, {outcome: 1}) == (row["limit"], ran.outcomes)
    assert "not checked:" not in ran.out


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("marker", "shown"),
    [
        ("max_ops(1, on='H1000')", "max_ops: on='H1000' is no chip of the table of devices, "),
        ("max_ops(1, on='H1000')", "none of cpu, cuda, xpu, mps. Did you mean H100"),
        ("max_ops(1, on='gpu')", "Did you mean xpu or cpu?"),
        ("max_ops(1, on='???')", "docs/devices.md lists the chips."),
        ("max_ops(1, on=90)", "max_ops: on= takes a name, got 90"),
        ("max_ops(1, kernel='x')", "max_ops has no argument 'kernel'"),
        ("max_kernels(1, kernel='x', region='y')", "takes kernel= or region=, not both"),
        ("min_ops(-1)", "min_ops: -1 is not a count: it is negative"),
        ("min_opss(1)", "min_opss: no such metric. Did you mean min_ops"),
        ("min_ops(3)\n    @pytest.mark.max_ops(2)", "no ops is at least 3 and at most 2"),
        ("min_ops(3)\n    @pytest.mark.min_ops(2)", "min_ops is given twice for ops: 2 and 3"),
        ("max_ops(3, on='cpu')\n    @pytest.mark.max_ops(2, on='cpu')", "max_ops is given twice"),
    ],
)  # fmt: skip
def test_an_invalid_limit_is_a_collection_error(
    pytester: pytest.Pytester, marker: str, shown: str
) -> None:
    pytester.makepyfile(test_it=ON.format(markers=f"@pytest.mark.{marker}"))
    message = run(pytester, "--torchprof").usage_error()
    assert shown in " ".join(message.split())


def test_a_marker_named_like_a_minimum_of_something_else_is_left_alone(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=ON.format(markers="@pytest.mark.min_torch_version('2.6')"))
    assert 1 == run(pytester, "--torchprof").outcomes["passed"]


def test_a_region_over_its_budget_names_the_operators_within(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        import torch

        @pytest.mark.max_allocated_cpu_bytes(100, region="decode")
        def test_it(torchprof):
            x = torch.ones(64)
            x.cos()
            with torchprof("decode"):
                x.sin()
        """
    )
    ran = run(pytester, "--torchprof")
    assert {"failed": 1} == ran.outcomes
    assert "over the budget of 100 B\n  aten::sin  256 B" in ran.out
    assert "aten::cos" not in ran.out
