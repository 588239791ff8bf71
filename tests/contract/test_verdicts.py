"""What a change means: red, improved, advice, or as accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.sessions import session

KEPT = """
    import torch

    def test_it(torchprof):
        with torchprof("part"):
            kept = torch.empty({size}, dtype=torch.uint8)
"""


@pytest.mark.parametrize(
    ("accepted", "now", "tolerance", "status"),
    [
        (100, 612, "", "ok"),  # 512 B more
        (100, 613, "", "regressed"),
        (613, 100, "", "improved"),
        (1_000_000, 1_001_000, "", "ok"),  # 0.1 % more
        (1_000_000, 1_001_001, "", "regressed"),
        (1_000_000, 1_001_001, "*_bytes: 1 KiB", "ok"),
        (1_000_000, 1_010_000, "*_bytes: 1 %", "ok"),
        (1_000_000, 1_010_001, "*_bytes: 1 %", "regressed"),
        (1_000_000, 1_000_513, "*_bytes: 0 %", "regressed"),
        (1_000_000, 1_000_512, "*_bytes: 0 %", "ok"),  # the 512 B stay
        (1_000_000, 1_000_001, "*: 0 %\n  *: 0 B", "regressed"),
        (1_000_000, 1_010_000, "*: 1 %\n  *_bytes: 0 %", "regressed"),
        (100, 612, "*_bytes: 1 %", "ok"),
        (1_000_000, 1_001_000, "*_bytes: 600 B", "ok"),
    ],
)
def test_memory_is_red_if_more_by_over_a_thousandth_and_over_512_bytes(
    pytester: pytest.Pytester, accepted: int, now: int, tolerance: str, status: str
) -> None:
    """The same for a region, and accepting keeps what is within the tolerance."""
    pytester.makeini(f"[pytest]\ntorchprof_tolerance =\n  {tolerance}")
    session(pytester, KEPT.format(size=accepted), "--accept")
    (file,) = Path("__torchprof__").glob("*.json")
    before = file.read_text()
    found, [test] = session(pytester, KEPT.format(size=now), "--torchprof")
    assert (status, status == "regressed") == (test["status"], found.ret == 1)
    for part in (test, test["regions"]["part"]):
        said = [part["metrics"][f"{what}_cpu_bytes"]["status"] for what in ("peak", "allocated")]
        assert [status] * 2 == said
    session(pytester, KEPT.format(size=now), "--accept")
    assert (status == "ok") == (before == file.read_text())


@pytest.mark.parametrize(
    ("now", "line", "passes"),
    [(612, "", True), (613, "", False), (613, "*: 513 B", True), (101, "*: 0 %\n  *: 0 B", False)],
)
def test_an_inline_expectation_of_memory_has_the_same_tolerance(
    pytester: pytest.Pytester, now: int, line: str, passes: bool
) -> None:
    pytester.makeini(f"[pytest]\ntorchprof_tolerance =\n  {line}")
    line = 'torchprof["part"].assert_expected_inline("peak_cpu_bytes 100 B")'
    found, _ = session(pytester, f"{KEPT.format(size=now)}        {line}", "--torchprof")
    assert passes == (found.ret == 0)


def test_a_budget_has_no_tolerance(pytester: pytest.Pytester) -> None:
    marked = KEPT.replace("def", "@__import__('pytest').mark.max_peak_cpu_bytes(100)\n    def")
    assert (
        "over_budget" == session(pytester, marked.format(size=101), "--torchprof")[1][0]["status"]
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("peek_cpu_bytes: 1 %", "*no such metric*peak_cpu_bytes*"),
        ("peak_cpu_byte: 4 KiB", "*no such metric*peak_cpu_bytes*"),
        ("flops: 4 KiB", "*unit does not fit*flops is in FLOP*"),
        ("flops: 1e400 %", "*too large*"),
        ("ops: -1 %", "*negative*"),
        ("ops: -1", "*negative*"),
        ("ops", "*'ops' is no tolerance*METRIC_GLOB: 1 %*"),
    ],
)
def test_a_wrong_tolerance_is_a_usage_error(
    pytester: pytest.Pytester, line: str, said: str
) -> None:
    pytester.makeini(f"[pytest]\ntorchprof_tolerance =\n  {line}")
    found, _ = session(pytester, KEPT.format(size=1), "--torchprof")
    found.stderr.fnmatch_lines([said])


@pytest.mark.parametrize(("now", "line", "status"), [(95, "5 %", "ok"), (94, "5 1/s", "regressed")])
def test_a_tolerance_may_be_of_a_metric_of_the_users_own(
    pytester: pytest.Pytester, now: int, line: str, status: str
) -> None:
    pytester.makeini(f"[pytest]\ntorchprof_tolerance =\n  images_per_s: {line}")
    source = """
        def test_it(torchprof):
            torchprof.record("images_per_s", {now}, unit="1/s", better="higher", compare="near")
    """
    session(pytester, source.format(now=100), "--accept")
    assert status == session(pytester, source.format(now=now), "--torchprof")[1][0]["status"]


ORDER = """
    import torch

    def test_it():
        parts = []
        for size in {sizes}:
            parts.append(torch.ones(size) * 2)
"""


@pytest.mark.parametrize(
    ("accepted", "now", "status"),
    [
        ((30_000, 10_000), (10_000, 30_000), "regressed"),  # 240 → 280 kB
        ((50_000, 45_000), (45_000, 50_000), "ok"),  # 140,000 → 145,000
        ((45_000, 50_000), (50_000, 45_000), "ok"),
        ((50_000, 45_000), (50_000, 50_000), "regressed"),  # not the same bytes
    ],
)
def test_another_order_of_the_same_operators_only_advises_on_the_peak_up_to_a_tenth(
    pytester: pytest.Pytester, accepted: Any, now: Any, status: str
) -> None:
    session(pytester, ORDER.format(sizes=accepted), "--accept")
    found, [test] = session(pytester, ORDER.format(sizes=now), "--torchprof", "--torchprof-strict")
    assert (status, status == "regressed") == (test["status"], found.ret == 1)
    if status == "ok":
        assert "advisory" == test["metrics"]["peak_cpu_bytes"]["status"]
        found.stdout.fnmatch_lines(["the same operators*only the peak*PYTHONHASHSEED*test_it*"])


LESS = """
    import time, torch

    def test_it(torchprof):
        with torchprof("part"):
            for _ in range({runs}):
                torch.ones(8) + 1
        end = time.process_time() + {seconds}
        while time.process_time() < end:
            pass
"""


@pytest.mark.parametrize(("seconds", "status"), [(0.01, "improved"), (0.2, "regressed")])
def test_less_work_is_no_improvement_if_it_takes_longer(
    pytester: pytest.Pytester, seconds: float, status: str
) -> None:
    """The time is said in words, old → new, in every report, and strict mode does not fail it."""
    session(pytester, LESS.format(runs=3, seconds=0.02), "--accept")
    options = (
        "--torchprof",
        "--torchprof-strict",
        "--torchprof-markdown=r.md",
        "--torchprof-html=r.html",
    )
    found, [test] = session(pytester, LESS.format(runs=2, seconds=seconds), *options)
    ops = [part["metrics"]["ops"]["status"] for part in (test, test["regions"]["part"])]
    expected = "improved" if status == "improved" else "ok"
    assert (status, [expected] * 2, 1) == (test["status"], ops, found.ret)
    if status == "regressed":
        assert test["reason"].startswith("CPU time ")
        found.stdout.fnmatch_lines(["CPU time * → *test_it*"])
        for file in ("r.md", "r.html"):
            assert "CPU time" in Path(file).read_text()
        more = LESS.format(runs=2, seconds=seconds) + "        kept = torch.ones(99_999)\n"
        found, [test] = session(pytester, more, "--torchprof")
        assert ("regressed", None) == (test["status"], test["reason"])
        assert "less work" not in found.stdout.str()


NAMED = """
    import pytest, torch
    from torch.profiler import record_function

    class Head(torch.nn.Module):
        def forward(self, x):
            return x + 1

    class Tail(Head):
        pass

    if not hasattr(torch.ops.mine, "twice"):
        torch.library.define("mine::twice", "(Tensor x) -> Tensor")

    @pytest.mark.max_{metric}(0, {scope})
    def test_it(torchprof):
        with torchprof("part"), record_function("label"):
            pass
        Head()(torch.ones(4))
"""


@pytest.mark.parametrize(
    ("metric", "scope", "near"),
    [
        ("ops", 'op="aten::unbind"', None),
        ("ops", 'op="aten::unb*"', None),
        ("ops", 'op="mine::twice"', None),
        ("ops", 'op="MulBackward0"', None),
        ("ops", 'op="aten::untbind"', "aten::unbind"),
        ("ops", 'op="aten::untb*"', ""),
        ("flops", 'op="aten::matmull"', "aten::matmul"),
        ("ops", 'module="Tail"', None),
        ("ops", 'module="Tial"', "Tail"),
        ("ops", 'region="label"', None),
        ("ops", 'region="part"', None),
        ("ops", 'region="prt"', "part"),
        ("kernels", 'kernel="*nchwToNhwc*"', "no accelerator in this"),
    ],
)
def test_a_limit_of_zero_is_checked_only_if_its_name_could_run(
    pytester: pytest.Pytester, metric: str, scope: str, near: str | None
) -> None:
    found, [test] = session(pytester, NAMED.format(metric=metric, scope=scope), "--torchprof")
    label = f"{metric}[{scope.replace(chr(34), '')}]"
    status = test["metrics"][label]["status"]
    if near is None:
        assert "ok" == status
    else:
        assert "not_measured" == status
        found.stdout.fnmatch_lines([f"budget max_{label.replace('[', '[[]')} not checked:*{near}*"])


def test_a_misspelled_limit_of_the_project_is_said(pytester: pytest.Pytester) -> None:
    """A region that this test does not have is another test's, and stays unsaid."""
    lines = ["max_ops = 0, op=aten::untbind", "max_ops = 0, region=other"]
    pytester.makeini("\n  ".join(["[pytest]\ntorchprof_budgets =", *lines]))
    _, [test] = session(pytester, KEPT.format(size=4), "--torchprof")
    assert "not_measured" == test["metrics"]["ops[op=aten::untbind]"]["status"]


def test_a_limit_of_zero_holds_for_a_region_that_was_accepted(pytester: pytest.Pytester) -> None:
    session(pytester, KEPT.format(size=4), "--accept")
    marked = KEPT.replace("def", "@__import__('pytest').mark.max_ops(0, region='part')\n    def")
    gone = marked.replace('torchprof("part")', 'torchprof("parts")').format(size=4)
    _, [test] = session(pytester, gone, "--torchprof")
    assert "ok" == test["metrics"]["ops[region=part]"]["status"]
