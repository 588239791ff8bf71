"""--torchprof-device, limits and columns: what a device would do, measured only if asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.sessions import accept, run

from pytest_torchprof.verdict.metrics import ON_REQUEST

STEP = """
import pytest
import torch

X = torch.arange(8.0)
{marker}
def test_it():
    assert (X[X > 1] * 2).sum().item() > 0
"""

#: Each slip, and its form before: `python -m pytest` with `SLIP` set has all six.
SLIPS = """
import os
import pytest
import torch
import torch.nn.functional as F

SLIP = bool(os.environ.get("SLIP"))


@pytest.mark.max_host_reads(1)
def test_a_value_is_read_in_the_loop():
    total = torch.zeros(())
    for batch in torch.ones(4, 8):
        loss = batch.mean()
        if SLIP:
            loss = torch.tensor(loss.item())  # <- item
        total += loss
    assert total.item() == 4


@pytest.mark.max_host_reads(0)
def test_a_mask_chooses_rows():
    x = torch.linspace(-1, 1, 64)
    if SLIP:
        kept = x[x > 0].sum()  # <- mask
    else:
        kept = torch.where(x > 0, x, 0.0).sum()


def activation(x):
    if SLIP:
        return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x.pow(3))))  # <- activation
    return F.gelu(x, approximate="tanh")


@pytest.mark.max_launches(2)
def test_an_activation_is_one_kernel():
    activation(torch.ones(16, 16))


A = torch.ones(256, 1024, dtype=torch.bfloat16)
B = torch.ones(1024, 256, dtype=torch.bfloat16)


@pytest.mark.max_bound_ms(0.001)
def test_a_product_is_in_half_precision():
    a, b = A, B
    if SLIP:
        a, b = a.float(), b.float()  # <- upcast
    a @ b


WEIGHTS = [torch.nn.Parameter(torch.ones(4, 4)) for _ in range(8)]


@pytest.mark.max_launches(1)
def test_an_optimizer_updates_all_at_once():
    for weight in WEIGHTS:
        weight.grad = weight.detach()  # a view
    optimizer = torch.optim.SGD(WEIGHTS, lr=0.1, foreach=not SLIP)
    optimizer.step()  # <- optimizer


@pytest.mark.max_host_reads(0)
def test_a_loop_has_a_fixed_length():
    x = torch.full((8,), 4.0)
    for _ in range(3):
        if SLIP and not (x > 1).any():  # <- loop
            break
        x = x / 2
"""


def values(pytester: pytest.Pytester, marker: str = "", *args: str) -> dict[str, Any]:
    """The metrics that only some tests ask for, of one test that reads two values."""
    pytester.makepyfile(test_it=STEP.format(marker=marker))
    ran = run(pytester, "--torchprof", *args)
    assert {"passed": 1} == ran.outcomes
    metrics = ran.tests["test_it"]["metrics"]
    assert 2 == metrics["host_reads"]["value"]
    return {name: metrics[name]["value"] for name in ON_REQUEST if name in metrics}


def test_a_test_that_asks_for_nothing_has_none_of_them(pytester: pytest.Pytester) -> None:
    assert {} == values(pytester)


def test_reads_are_compared_and_limited_in_every_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        test_it="""
        import os
        import pytest, torch

        def test_it():
            for at in range(10):
                total = torch.ones(10).sum()
                if at == 9 or "READS" in os.environ: total.item()

        @pytest.mark.max_host_reads(0)
        def test_limited():
            total = torch.ones(10).sum()
            if "READS" in os.environ: assert total > 0
        """
    )
    accept(pytester)
    assert {"passed": 2} == run(pytester, "--torchprof", "--torchprof-strict").outcomes
    monkeypatch.setenv("READS", "1")
    ran = run(pytester, "--torchprof")
    assert {"failed": 2} == ran.outcomes
    assert "regressed" == ran.statuses["test_it"]
    found = ran.metric("host_reads", "test_it")
    assert (1, 10, "regressed") == (found["baseline"], found["value"], found["status"])
    assert "item is called 10 times instead of 1: the host reads values" in ran.out
    assert "over_budget" == ran.metric("host_reads", "test_limited")["status"]


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["", 'line="test_it.py:6"'])
def test_reads_that_are_allowed_count_nowhere_whether_a_chip_is_given_or_not(
    pytester: pytest.Pytester, where: str
) -> None:
    source = SAMPLER.format(where=where, limit=9).replace('"host-read", , ', '"host-read", ')
    limit = "@pytest.mark.max_host_reads(9)\n"
    assert limit in source
    pytester.makepyfile(test_it=source.replace(limit, ""))
    found = [
        run(pytester, "--torchprof", *args).metric("host_reads", "test_it")["value"]
        for args in ((), ("--torchprof-device=H200",))
    ]
    assert [1 if where else 0] * 2 == found


@pytest.mark.thorough
def test_a_chip_asks_for_all(pytester: pytest.Pytester) -> None:
    found = values(pytester, "", "--torchprof-device=h200")
    assert 7 == found["launches"]
    assert 0 < found["bound_ms"] < 1
    assert 0 < found["estimated_cuda_bytes"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("marker", "args", "names"),
    [
        ("@pytest.mark.max_host_reads(2)", (), set()),
        ("@pytest.mark.max_launches(7)", (), {"launches"}),
        ("", ("--torchprof-columns=launches,ops",), {"launches"}),
        ("", ("--torchprof-sort=estimated_cuda_bytes",), {"estimated_cuda_bytes"}),
        ('@pytest.mark.no_antipatterns("host-sync")', (), set()),
        ("@pytest.mark.no_antipatterns", (), set()),
        ("@pytest.mark.max_ops(99)", (), set()),
    ],
)
def test_a_limit_or_a_column_asks_for_its_metric(
    pytester: pytest.Pytester, marker: str, args: tuple[str, ...], names: set[str]
) -> None:
    assert names == set(values(pytester, marker, *args))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("on", "args", "outcome", "limit"),
    [
        ("H100", ("--torchprof-device=H100 SXM",), "failed", 1e-6),
        ("H100", ("--torchprof-device=T4",), "passed", None),
        ("T4", ("--torchprof-device=T4",), "failed", 1e-6),
        ("T4", (), "passed", None),
        ("cpu", ("--torchprof-device=T4",), "failed", 1e-6),
    ],
)
def test_a_limit_on_a_bound_is_for_the_chip_that_it_names(
    pytester: pytest.Pytester, on: str, args: tuple[str, ...], outcome: str, limit: float | None
) -> None:
    marker = f'@pytest.mark.max_bound_ms("0.001 us", on="{on}")'
    pytester.makepyfile(test_it=STEP.format(marker=marker))
    ran = run(pytester, "--torchprof", *args)
    assert {outcome: 1} == ran.outcomes
    found = ran.tests["test_it"]["metrics"].get("bound_ms", {"limit": None})
    assert limit == found["limit"]
    assert bool(args) == ("bound_ms" in ran.tests["test_it"]["metrics"])


@pytest.mark.thorough
def test_without_a_chip_a_bound_is_not_measured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=STEP.format(marker="@pytest.mark.max_bound_ms(1)"))
    ran = run(pytester, "--torchprof")
    bound = ran.metric("bound_ms", "test_it")
    assert (None, "not_measured") == (bound["value"], bound["status"])
    assert "--torchprof-device" in bound["reason"]


@pytest.mark.thorough
def test_the_ini_file_names_the_chip(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntorchprof_device = MI300X")
    assert set(ON_REQUEST) == set(values(pytester))


@pytest.mark.thorough
@pytest.mark.parametrize("args", [("-o", "torchprof_device="), ("--torchprof-device=off",)])
def test_the_chip_of_the_ini_file_can_be_switched_off(
    pytester: pytest.Pytester, args: tuple[str, ...]
) -> None:
    pytester.makeini("[pytest]\ntorchprof_device = MI300X")
    assert set() == set(values(pytester, "", *args))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("chip", "says"),
    [("H1000", "no chip 'H1000' is known"), ("H100", "'H100' is one of H100 SXM, H100 PCIe")],
)
def test_an_unknown_chip_is_refused_with_the_near_ones(
    pytester: pytest.Pytester, chip: str, says: str
) -> None:
    pytester.makepyfile(test_it=STEP.format(marker=""))
    result = pytester.runpytest("--torchprof", f"--torchprof-device={chip}")
    assert pytest.ExitCode.USAGE_ERROR == result.ret
    result.stderr.fnmatch_lines([f"ERROR: --torchprof-device: {says}*"])


@pytest.mark.thorough
def test_the_rule_is_asked_for_by_name_or_by_its_metric(pytester: pytest.Pytester) -> None:
    marker = '@pytest.mark.no_antipatterns("host-read")'
    pytester.makepyfile(test_it=STEP.format(marker=marker))
    ran = run(pytester, "--torchprof")
    assert {"failed": 1} == ran.outcomes
    found = [(f["rule"], f["count"]) for f in ran.tests["test_it"]["findings"]]
    assert [("host-read", 1), ("host-read", 1)] == found
    assert {"test_it.py:7"} == {f["location"] for f in ran.tests["test_it"]["findings"]}


@pytest.mark.thorough
def test_findings_of_a_rule_that_few_ask_for_do_not_count_for_all_rules(
    pytester: pytest.Pytester,
) -> None:
    marker = "@pytest.mark.no_antipatterns\n@pytest.mark.max_host_reads(2)"
    pytester.makepyfile(test_it=STEP.format(marker=marker))
    ran = run(pytester, "--torchprof")
    assert {"passed": 1} == ran.outcomes
    assert 0 == ran.metric("findings", "test_it")["value"]


@pytest.mark.thorough
def test_slips_that_hurt_on_a_gpu_fail_on_a_cpu_with_their_lines(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_slips=SLIPS)
    device = ("--torchprof", "--torchprof-device=H100 SXM")
    assert {"passed": 6} == run(pytester, *device).outcomes
    monkeypatch.setenv("SLIP", "1")
    ran = run(pytester, *device)
    assert {"failed": 6} == ran.outcomes
    lines = [n for n, line in enumerate(SLIPS.strip().splitlines(), 1) if "# <- " in line]
    text = ran.out
    missing = [n for n in lines if f"test_slips.py:{n}" not in text]
    assert [] == missing, text


@pytest.mark.thorough
def test_what_is_measured_does_not_depend_on_threads(pytester: pytest.Pytester) -> None:
    one, two = (
        values(pytester, "", "--torchprof-device=T4", f"--torchprof-threads={n}") for n in (1, 2)
    )
    assert one == two


@pytest.mark.thorough
def test_the_peak_does_not_depend_on_threads_that_work_on_parts_of_an_operator(
    pytester: pytest.Pytester,
) -> None:
    """Torch records no memory where it profiles all threads."""
    pytester.makepyfile(
        test_it="""
        import torch
        import torch.nn.functional as F

        def test_it():
            q = torch.ones(8, 4, 64, 32, requires_grad=True)
            F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
        """
    )
    found = []
    for threads in (1, 2):
        ran = run(
            pytester, "--torchprof", "--torchprof-device=T4", f"--torchprof-threads={threads}"
        )
        metrics = ran.tests["test_it"]["metrics"]
        found.append({name: metrics[name]["value"] for name in ON_REQUEST})
    assert found[0] == found[1]
    assert found[0]["estimated_cuda_bytes"] > 0


@pytest.mark.thorough
def test_a_kept_trace_has_the_same_numbers(pytester: pytest.Pytester) -> None:
    asked = ("--torchprof-device=T4", "--torchprof-traces=kept", "--torchprof-traces-of=all")
    found = values(pytester, "", *asked)
    (trace,) = (pytester.path / "kept").rglob("*.json.gz")
    from pytest_torchprof import Trace

    stored = Trace.load(trace).metrics()
    assert found == {name: stored[name] for name in ON_REQUEST}
    assert json.dumps(found)


FORBIDDEN = '@pytest.mark.no_antipatterns("host-read")'
SAMPLER = """
import pytest
import torch

class Sampler(torch.nn.Module):
    def forward(self, x):
        return x[x > 1].tolist()

X = torch.arange(8.0)

@pytest.mark.max_host_reads({limit})
@pytest.mark.allow_antipatterns("host-read", {where}, reason="indices stay on the CPU")
def test_it():
    Sampler()(X)
    assert X.sum().item() > 0
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("where", "reads"),
    [
        ('line="test_it.py:6"', 1),
        ('line="test_it.py:7"', 3),
        ('line="test_it.py"', 0),
        ('line="./test_it.py"', 0),
        ('line="./test_it.py:6"', 1),
        ('line="it.py"', 3),
        ('module="Sampler"', 1),
        ('module="Samp"', 3),
        ('op="aten::nonzero"', 2),
        ('op="aten::_local_scalar*"', 2),
        ('op="aten::nonzer"', 3),
        ('op="aten::nonzero", line="test_it.py:14"', 3),
    ],
)
def test_reads_are_allowed_at_their_place(
    pytester: pytest.Pytester, where: str, reads: int
) -> None:
    pytester.makepyfile(test_it=SAMPLER.format(where=where, limit=reads))
    ran = run(pytester, "--torchprof")
    assert {"passed": 1} == ran.outcomes, ran.out
    if reads:
        pytester.makepyfile(test_it=SAMPLER.format(where=where, limit=reads - 1))
        assert {"failed": 1} == run(pytester, "--torchprof").outcomes


@pytest.mark.thorough
def test_reads_that_are_allowed_anywhere_do_not_count(pytester: pytest.Pytester) -> None:
    source = SAMPLER.format(where="", limit=0).replace('"host-read", , ', '"host-read", ')
    pytester.makepyfile(test_it=source)
    ran = run(pytester, "--torchprof")
    assert {"passed": 1} == ran.outcomes, ran.out
    assert 0 == ran.metric("host_reads", "test_it")["value"]
    assert {True} == {found["accepted"] for found in ran.tests["test_it"]["findings"]}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("where", "limit", "outcome", "at_least"),
    [
        ('line="test_it.py:6"', 0, "passed", None),
        ('module="Sampler"', 2, "passed", None),
        ('op="aten::nonzero", line="test_it.py:6"', 2, "passed", 2),
        ('op="aten::nonzero", line="test_it.py:6"', 1, "failed", 2),
    ],
)
def test_where_lines_are_not_known_what_a_place_may_allow_is_not_checked(
    pytester: pytest.Pytester, where: str, limit: int, outcome: str, at_least: int | None
) -> None:
    pytester.makepyfile(test_it=SAMPLER.format(where=where, limit=limit))
    only_run = ("--torchprof-warmup=0", "--torchprof-rounds=0")
    ran = run(pytester, "--torchprof", *only_run)
    assert {outcome: 1} == ran.outcomes, ran.out
    found = ran.metric("host_reads", "test_it")
    assert found.get("at_least") == at_least
    assert "at its line or module is not known: the profiled run was the only" in found["reason"]
    if outcome == "passed":
        assert "not_measured" == found["status"]
        strict = run(pytester, "--torchprof", "--torchprof-strict", *only_run)
        assert {"failed": 1} == strict.outcomes


@pytest.mark.thorough
def test_what_is_allowed_at_a_line_is_not_accepted_either(pytester: pytest.Pytester) -> None:
    source = SAMPLER.format(where='line="test_it.py:6"', limit=1)
    pytester.makepyfile(test_it=source)
    assert {"passed": 1} == run(pytester, "--accept").outcomes
    ran = run(pytester, "--torchprof", "--torchprof-strict")
    assert {"passed": 1} == ran.outcomes, ran.out
    found = ran.metric("host_reads", "test_it")
    assert (1, 1, "ok") == (found["value"], found["baseline"], found["status"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("where", "outcome"), [('line="test_it.py"', "passed"), ('line="test_it.py:6"', "failed")]
)
def test_what_is_allowed_at_its_place_is_no_forbidden_finding(
    pytester: pytest.Pytester, where: str, outcome: str
) -> None:
    source = SAMPLER.format(where=where, limit=3)
    forbidden = source.replace("@pytest.mark.max_host_reads(3)", FORBIDDEN)
    assert forbidden != source
    pytester.makepyfile(test_it=forbidden)
    ran = run(pytester, "--torchprof")
    assert {outcome: 1} == ran.outcomes, ran.out


@pytest.mark.thorough
def test_a_place_must_be_a_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SAMPLER.format(where="line=6", limit=0))
    result = pytester.runpytest("--torchprof")
    assert "allow_antipatterns: line=6 is no name; give a text" in result.stderr.str()


@pytest.mark.thorough
def test_the_fixture_tells_what_it_is_asked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import torch

        def test_block(torchprof):
            with torchprof:
                torch.ones(3).sum()
            assert (torchprof.stats.launches, torchprof.stats.host_reads) == (2, 0)

        def test_region(torchprof):
            with torchprof("sum"):
                torch.ones(3).sum().item()
            assert torchprof["sum"].launches == 2
            assert torchprof["sum"].host_reads == 1
        """
    )
    ran = run(pytester, "--torchprof")
    assert {"passed": 2} == ran.outcomes
    assert {"new"} == set(ran.statuses.values())


@pytest.mark.thorough
def test_a_failure_counts_from_the_accepted_reads(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A baseline has the number of reads, and not their lines."""
    pytester.makepyfile(
        test_it="""
        import os
        import torch

        def test_it():
            for _ in range(1 + 2 * bool(os.environ.get("SLIP"))):
                torch.ones(3).sum().item()
        """
    )
    device = "--torchprof-device=T4"
    assert {"passed": 1} == run(pytester, "--accept", device).outcomes
    monkeypatch.setenv("SLIP", "1")
    ran = run(pytester, "--torchprof", device)
    assert {"failed": 1} == ran.outcomes
    assert "host_reads 1 → 3  (+200.0 %)" in ran.out
    assert "test_it.py:6 (test_it): sum ×2, ones ×2, item ×2 more than before" in ran.out
    assert "host-read: on a device the host would wait for a value" in ran.out


@pytest.mark.thorough
def test_a_failure_names_the_operators_whose_blocks_are_live(pytester: pytest.Pytester) -> None:
    """In blocks of a device, and without scratch of the CPU."""
    pytester.makepyfile(
        test_it="""
        import pytest
        import torch

        @pytest.mark.max_estimated_cuda_bytes(4096)
        def test_it():
            a = torch.ones(100, 100)
            b = a @ a
            a.sum() + b.sum()
        """
    )
    ran = run(pytester, "--torchprof")
    assert {"failed": 1} == ran.outcomes
    block = "\n  aten::mm  39.5 KiB  test_it.py:7\n"
    assert block in ran.out
    assert "\n  aten::sum  1 KiB  test_it.py:8 (4×)" in ran.out
