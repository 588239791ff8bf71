"""What users see, letter by letter, and how long it may get."""

# ruff: noqa: E501 - golden text is as wide as it is
from __future__ import annotations

import itertools
import string
from typing import Any
from unittest import mock

import pytest
from expecttest import TestCase
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.reasons import words
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.diff import COLUMN_OF
from pytest_torchprof.core.values import (
    Baseline,
    Budget,
    Cause,
    Finding,
    MissingValue,
    Normalised,
    Profile,
    Record,
    Sample,
    TestStatus,
)
from pytest_torchprof.render.failure import MAX_LINES, failure_message, inline_mismatch
from pytest_torchprof.render.report import test_of as report_of
from pytest_torchprof.render.summary import session_totals, summary_table
from pytest_torchprof.render.table import OPS_COLUMNS, ops_table
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.verdict.compare import Policy, compare
from pytest_torchprof.verdict.judgement import failures
from pytest_torchprof.verdict.metrics import METRICS

BEFORE = Baseline(
    metrics={"flops": 2_359_296_000, "ops": 312, "kernels": 40, "peak_cuda_bytes": 512 << 20},
    operators={
        "aten::mm": {"calls": 12, "ops": 12, "flops": 2_359_296_000, "kernels": 12},
        "aten::add": {"calls": 300, "ops": 300, "kernels": 28},
    },
    kernels={"ampere_sgemm_128x64_tn": 12, "vectorized_elementwise_kernel": 28},
    times={
        "wall_ms": 3.0,
        "normalised": {"wall_ms": 15.0, "n": 30, "reference_ms": 0.2, "conditions": "reference 1"},
    },
)
NOW = Profile(
    metrics={
        "wall_ms": 4.5,
        "flops": 2_359_296_001,
        "ops": 314,
        "kernels": 41,
        "peak_cuda_bytes": (512 << 20) + 1,
        "syncs": MissingValue(words("no device")),
    },
    operators={
        "aten::mm": {"calls": 12, "ops": 12, "flops": 2_359_296_001, "kernels": 12},
        "aten::add": {"calls": 299, "ops": 299, "kernels": 28},
        "aten::item": {"calls": 3, "ops": 3, "kernels": 1},
    },
    kernels={
        "ampere_sgemm_128x64_tn": 12,
        "vectorized_elementwise_kernel": 28,
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::Mean>>": 1,
    },
)


def message(
    now: Profile,
    before: Baseline | None,
    *budgets: Budget,
    policy: Policy | None = None,
    **more: Any,
) -> str:
    policy = policy or Policy()
    verdicts = compare(now, before, budgets, policy)
    why = failures(verdicts, policy, has_baseline=before is not None, accept=False)
    accept = "pytest --accept tests/test_a.py"
    ab = "torchprof ab REF -- tests/test_a.py"
    return failure_message(why, verdicts, now, before, accept, ab_command=ab, **more)


def record(nodeid: str, status: TestStatus, **more: Any) -> Record:
    """The record of one test with the metrics of `NOW`."""
    verdicts = compare(NOW, BEFORE, [Budget("syncs", 0), Budget("ops", 313)], Policy())
    return replace(Record(nodeid, status, metrics={v.label: v for v in verdicts}), **more)


NOTHING: dict[str, Any] = {"metrics": {}, "reason": words("the test runs torch.profiler itself")}


def measured(of: Record, metric: str, **now: Any) -> Record:
    """The record with this about one of its metrics."""
    return replace(of, metrics={**of.metrics, metric: replace(of.metrics[metric], **now)})


class Golden(TestCase):
    """Text in the source, which EXPECTTEST_ACCEPT=1 rewrites."""

    def setUp(self) -> None:
        # expecttest rewrites nothing but printable ASCII, and we print a few signs more.
        printable = mock.patch.object(string, "printable", f"{string.printable}→…–×")
        printable.start()
        self.addCleanup(printable.stop)


class TestFailureMessage(Golden):
    def test_regressed(self) -> None:
        self.assertExpectedInline(
            message(NOW, BEFORE),
            """\
flops 2,359,296,000 FLOP → 2,359,296,001 FLOP (+<0.1 %), 2 more: regressed against the baseline
  ops 312 → 314  (+0.6 %), kernels 40 → 41  (+2.5 %)
  no cause is known: the baseline has no detail for these numbers
accept: pytest --accept tests/test_a.py""",
        )

    def test_over_budget(self) -> None:
        now = Profile(NOW.metrics, NOW.operators, NOW.kernels, scoped={"kernels[op=aten::mm]": 12})
        budgets = [Budget("kernels", 40), Budget("kernels", 11, op="aten::mm")]
        self.assertExpectedInline(
            message(now, BEFORE, *budgets),
            """\
kernels 41 is over the budget of 40
  also kernels[op=aten::mm] 12 is over the budget of 11
  aten::add  28 kernels
  aten::mm  12 kernels
  aten::item  1 kernels
  flops 2,359,296,000 FLOP → 2,359,296,001 FLOP  (+<0.1 %), ops 312 → 314  (+0.6 %)
  no cause is known: the baseline has no detail for these numbers
accept: pytest --accept tests/test_a.py""",
        )

    def test_over_budget_without_a_baseline(self) -> None:
        budgets = [Budget("flops", 1_000_000), Budget("wall_ms", 4.4999)]
        self.assertExpectedInline(
            message(NOW, None, *budgets),
            """\
wall_ms 4.5 ms is over the budget of 4.4999 ms
  also flops 2.36 GFLOP is over the budget of 1 MFLOP
  aten::mm  2.36 GFLOP""",
        )

    def test_strict(self) -> None:
        policy = Policy(strict=True)
        text = message(NOW, BEFORE, Budget("syncs", 0), policy=policy)
        self.assertExpectedInline(
            text.splitlines()[0].replace("; ", ";\n"),
            """\
flops 2,359,296,000 FLOP → 2,359,296,001 FLOP (+<0.1 %), 2 more: regressed against the baseline;
strict: the budget syncs could not be checked: no device""",
        )
        text = message(NOW, None, policy=policy)
        self.assertExpectedInline(
            text,
            """\
strict: no baseline for this environment
accept: pytest --accept tests/test_a.py""",
        )
        better = Profile({"ops": 311})
        self.assertExpectedInline(
            message(better, BEFORE, policy=policy),
            """\
ops 312 → 311 (-0.3 %): strict: improved, but the improvement is not accepted
accept: pytest --accept tests/test_a.py""",
        )
        rows = {"aten::add": {"calls": 299, "ops": 299}, "aten::mm": {"calls": 12, "ops": 12}}
        self.assertExpectedInline(
            message(
                replace(better, operators=rows),
                BEFORE,
                policy=policy,
                where={"aten::add": [("lib.py:9", None, 299)]}.__getitem__,
            ),
            """\
ops 312 → 311 (-0.3 %): strict: improved, but the improvement is not accepted
  fewer     aten::add  300 → 299  lib.py:9 (299×)
accept: pytest --accept tests/test_a.py""",
        )

    def test_time(self) -> None:
        slow = Profile(
            {"wall_ms": 4.5},
            samples={"wall_ms": Sample(40, 4.5, 4.4, 4.7, 4.25)},
            normalised=Normalised({"wall_ms": 23.4}, 40, 0.19, "reference 1"),
        )
        self.assertExpectedInline(
            message(slow, BEFORE, policy=Policy(time="gate")),
            """\
wall_ms 3 ms → 4.5 ms (+50.0 %): regressed against the baseline
  fastest round / reference kernel: 15 → 23.4  (+56.0 %, tolerance 25 %)
  40 rounds, ±3 %: quartiles 4.4 ms and 4.7 ms, fastest 4.25 ms
  no cause is known: the baseline has no detail for these numbers
to confirm the time: torchprof ab REF -- tests/test_a.py
accept: pytest --accept tests/test_a.py""",
        )


class TestInlineMismatch(Golden):
    def test_a_line_differs(self) -> None:
        expected, actual = "flops   2.36 GFLOP\nops     312\n", "flops   2.36 GFLOP\nops     314\n"
        self.assertExpectedInline(
            inline_mismatch(expected, actual, "pytest --accept tests/test_a.py"),
            """\
ops 312 → 314: the inline expectation does not match
  --- expected
  +++ measured
  @@ -1,2 +1,2 @@
   flops   2.36 GFLOP
  -ops     312
  +ops     314
accept: pytest --accept tests/test_a.py""",
        )

    def test_it_was_empty(self) -> None:
        self.assertExpectedInline(
            inline_mismatch("", "ops 3\n", "pytest --accept tests/test_a.py"),
            """\
the inline expectation does not match
  --- expected
  +++ measured
  @@ -0,0 +1 @@
  +ops 3
accept: pytest --accept tests/test_a.py""",
        )


@pytest.mark.parametrize("more", [0, 1, 2, 3])
@pytest.mark.parametrize("budgets", [1, 2, 3])
def test_a_list_that_is_cut_does_not_end_in_a_heading(more: int, budgets: int) -> None:
    names = [*COLUMN_OF, "syncs", "h2d_copies", "d2h_copies"][: len(COLUMN_OF) + more]
    sides: list[Any] = [
        {"metrics": dict.fromkeys([*names, "findings"], n),
         "operators": {operator: dict.fromkeys(COLUMN_OF.values(), n) for operator in "abc"}}
        for n in (10_000, 20_000)
    ]  # fmt: skip
    found = [Finding(rule, 2, "m", location=f"a.py:{n}") for rule in "xy" for n in range(3)]
    now = Profile(**sides[1], findings=tuple(found), found=dict.fromkeys("xy", 6))
    limits = [Budget(name, 1) for name in ("findings", *names[: budgets - 1])]
    lines = message(now, Baseline(**sides[0]), *limits).splitlines()
    assert len(lines) > MAX_LINES - 3
    pairs = itertools.pairwise([*lines, ""])
    assert [] == [a for a, b in pairs if a.endswith(":") and not b.startswith("    ")]


class TestSummary(Golden):
    def table(self, *records: Record, **options: Any) -> str:
        options = {"columns": (), "sort": None, "top": 0, "width": 100} | options
        lines = summary_table(records, **options)
        assert all("\x1b" not in line for line in lines)
        return "\n".join(lines)

    def test_table(self) -> None:
        found = (Finding("host-sync", 3, "m"), Finding("pageable-copy", 1, "m"))
        text = self.table(
            record("tests/gpu/test_a.py::test_ok", "ok"),
            record("tests/gpu/test_a.py::test_step[cuda-bf16]", "over_budget", findings=found),
            record("tests/cpu/test_with_a_very_long_name.py::TestLong::test_of_a_long_name", "new"),
            record("tests/cpu/test_b.py::test_profiles_itself", "not_profiled", **NOTHING),
        )
        self.assertExpectedInline(
            text,
            """\
test                                  status          wall_ms        flops    ops    kernels    peak_cuda_bytes  findings
------------------------------------  ------------  ---------  -----------  -----  ---------  -----------------  ------------------------------
gpu/test_a.py::test_step[cuda-bf16]   over budget      4.5 ms  2.36 GFLOP!   314!        41!            512 MiB  host-sync ×3, pageable-copy ×1
cpu/test_b.py::test_profiles_itself   not profiled          –            –      –          –                  –
…e.py::TestLong::test_of_a_long_name  new              4.5 ms  2.36 GFLOP!   314!        41!            512 MiB
gpu/test_a.py::test_ok                ok               4.5 ms  2.36 GFLOP!   314!        41!            512 MiB
not profiled: the test runs torch.profiler itself (cpu/test_b.py::test_profiles_itself)
budget max_syncs not checked: no device (3 tests: gpu/test_a.py::test_step[cuda-bf16], …est_with_a_very_long_name.py::TestLong::test_of_a_long_name, gpu/test_a.py::test_ok)""",
        )

    def test_chosen_columns(self) -> None:
        records = [record(f"test_a.py::test_{i}", "ok") for i in range(3)]
        records[1] = measured(records[1], "ops", value=999)
        text = self.table(*records, columns=["ops", "syncs"], sort="ops", top=2)
        self.assertExpectedInline(
            text,
            """\
test               status      ops    syncs
-----------------  --------  -----  -------
test_a.py::test_1  ok         999!        –
test_a.py::test_0  ok         314!        –
… and 1 more test: --torchprof-top=0 shows all
budget max_syncs not checked: no device (3 tests: test_a.py::test_1, test_a.py::test_0, test_a.py::test_2)""",
        )

    def test_nothing(self) -> None:
        self.assertExpectedInline(
            self.table(),
            """""",
        )

    def test_totals(self) -> None:
        one, bad = record("a::b", "ok"), record("a::c", "regressed")
        text = "\n".join(
            session_totals(records, runs)
            for records, runs in (
                ([], 0),
                ([one], 1),
                ([one, bad, bad], 9),
                ([replace(one, status="not_profiled", **NOTHING)], 3),
            )
        )
        self.assertExpectedInline(
            text,
            """\
torchprof: 0 tests profiled
torchprof: 1 test profiled in 1 run: 1 ok, 1 budget not checked
torchprof: 3 tests profiled in 9 runs: 2 regressed, 1 ok, 3 budgets not checked
torchprof: 0 tests profiled in 3 runs: 1 not profiled""",
        )


class TestOpsTable(Golden):
    def table(self, sort_by: str, limit: int) -> str:
        b = TraceBuilder("GPU")
        with b.annotation(REGION):
            addmm = [[6], [4, 5], [5, 6], [], []]
            with b.op("aten::linear", dur_us=20), b.op("aten::addmm", addmm, dur_us=10):
                b.launch("gemm", device_us=33)
                b.memory(4096)
            for _ in range(3):
                b.op("aten::an_operator_with_quite_a_long_name_in_a_namespace", dur_us=1)
            b.kernel_without_runtime("graph", device_us=5)
        return ops_table(parse_trace(b.to_bytes()), sort_by, limit)

    def test_all(self) -> None:
        self.assertExpectedInline(
            self.table("self_cpu_ms", 0),
            """\
operator                                            calls    self_cpu_ms    cpu_ms    self_cuda_ms    kernels     flops    allocated_cuda_bytes    peak_cuda_bytes
------------------------------------------------  -------  -------------  --------  --------------  ---------  --------  ----------------------  -----------------
aten::linear                                            1          10 us     20 us
aten::addmm                                             1           5 us     10 us           33 us          1  240 FLOP                   4 KiB              4 KiB
aten::an_operator_with_…long_name_in_a_namespace        3           3 us      3 us                                    –
""",
        )

    def test_the_first(self) -> None:
        self.assertExpectedInline(
            self.table("calls", 1),
            """\
operator                                            calls    self_cpu_ms    cpu_ms    self_cuda_ms    kernels    flops    allocated_cuda_bytes    peak_cuda_bytes
------------------------------------------------  -------  -------------  --------  --------------  ---------  -------  ----------------------  -----------------
aten::an_operator_with_…long_name_in_a_namespace        3           3 us      3 us                                   –
… and 2 more
""",
        )

    def test_of_nothing(self) -> None:
        self.assertExpectedInline(
            ops_table(parse_trace(b"[]"), "flops", 5),
            """\
operator      flops
----------  -------
""",
        )


# ------------------------------------------------------------------------------ length, rounding


@pytest.mark.parametrize("with_baseline", [True, False])
def test_a_message_has_at_most_twelve_lines(with_baseline: bool) -> None:
    """With every metric regressed, a budget on each, 30 on parts, and 500 operators in each; with
    and without causes.
    """
    columns = ("calls", "flops", "kernels", "allocated_cpu_bytes", "peak_cuda_bytes")

    def rows(factor: int) -> dict[str, dict[str, int]]:
        names = [f"aten::operator_{i}_{'x' * i}" for i in range(500)]
        return {n: dict.fromkeys(columns, i * factor + 1) for i, n in enumerate(names)}

    for has_limits in (True, False):
        labels = [Budget("kernels", 1, op=f"aten::op{i}") for i in range(30 * has_limits)]
        now = Profile(
            metrics=dict.fromkeys(METRICS, 100),
            operators=rows(2),
            kernels=dict.fromkeys(rows(1), 2),
            scoped={b.label: 5 for b in labels},
        )
        before = Baseline(
            metrics=dict.fromkeys(METRICS, 10),
            operators=rows(1),
            kernels=dict.fromkeys(rows(1), 1),
            times=dict.fromkeys(METRICS, 10),
        )
        budgets = [*labels, *(Budget(name, 50) for name in METRICS if has_limits)]
        policy = Policy(time="gate", strict=True)
        evidence = tuple(f"line {n}" for n in range(9))
        causes = [Cause("new_operators", f"mm ×{n} is new", evidence=evidence) for n in range(9)]
        for known in ([], causes):
            old = before if with_baseline else None
            lines = message(now, old, *budgets, policy=policy, causes=known).splitlines()
            assert len(lines) <= MAX_LINES == 12
            assert len(lines) >= 8 or not (known or has_limits)
            assert max(map(len, lines)) <= 120
            # Accepting does not help against a limit.
            accept = "accept: pytest --accept tests/test_a.py"
            assert (lines[-1] == accept) is (not has_limits or not with_baseline)


def test_an_inline_mismatch_has_at_most_twelve_lines() -> None:
    text = inline_mismatch("".join(f"a {i}\n" for i in range(99)), "b 1\n", "pytest --accept")
    assert len(text.splitlines()) <= MAX_LINES
    assert text.endswith("--accept")


def numbers_line(metric: str, before: float, now: float) -> str:
    is_time = METRICS[metric].klass == "time"
    baseline = Baseline(times={metric: before}) if is_time else Baseline({metric: before})
    text = message(Profile({metric: now}), baseline, policy=Policy(time="gate"))
    return text.splitlines()[0].removesuffix(": regressed against the baseline")


@given(
    st.sampled_from(["flops", "ops", "moved_bytes"]),
    st.integers(0, 2**62),
    st.integers(1, 2**30),
)
def test_a_change_is_never_printed_as_none(metric: str, before: int, more: int) -> None:
    line = numbers_line(metric, before, before + more)
    old, rest = line.split(metric)[1].split(" → ")
    new, change = rest.split(" (")
    assert old.strip() != new.strip()
    assert change.rstrip(")").strip("+<0. %") or "<0.1" in change or change == "from 0)"
    assert change not in ("0 %)", "+0.0 %)", "-0.0 %)")


@pytest.mark.parametrize(
    ("metric", "before", "now", "expected"),
    [
        ("ops", 100_000, 100_001, "100,000 → 100,001 (+<0.1 %)"),
        ("ops", 0, 1, "0 → 1 (from 0)"),
        ("flops", 2**62, 2**62 + 1, "4,611,686,018,427,387,904 FLOP → 4,611,686,018,427,387,905"),
        ("moved_bytes", 2**29, 2**29 + 1, "536,870,912 B → 536,870,913 B (+<0.1 %)"),
        ("self_cuda_ms", 1.0, 60.0, "1 ms → 60 ms (×60, tolerance 25 %)"),
    ],
)
def test_numbers(metric: str, before: float, now: float, expected: str) -> None:
    assert expected in numbers_line(metric, before, now)


def test_an_unknown_is_a_dash_and_never_zero() -> None:
    unknown, zero = record("test_a.py::test_1", "ok"), record("test_a.py::test_2", "ok")
    zero = measured(zero, "syncs", value=0, status="ok")
    absent = record("test_a.py::test_3", "not_profiled", **NOTHING)
    lines = summary_table([unknown, zero, absent], ["syncs"], None, 0, 100)
    cells = {line.split()[0]: line.split()[-1] for line in lines[2:5]}
    assert cells == {"test_a.py::test_1": "–", "test_a.py::test_2": "0", "test_a.py::test_3": "–"}


@pytest.mark.parametrize(
    ("sample", "cell", "noisy"),
    [
        (None, "4.5 ms", False),
        (Sample(1, 4.5, 4.5, 4.5, 4.5), "4.5 ms", False),
        (Sample(2, 4.5, 4.4, 4.6, 4.3), "4.5 ms ±2 %", False),
        (Sample(9, 4.5, 4.5, 4.5, 4.5), "4.5 ms ±0 %", False),
        (Sample(9, 4.5, 4.49, 4.5, 4.5), "4.5 ms ±<1 %", False),
        (Sample(9, 4.5, 4.0, 5.0, 3.9), "4.5 ms ±11 %", True),
    ],
)
def test_a_time_of_several_rounds_says_how_noisy_it_is(
    sample: Sample | None, cell: str, noisy: bool
) -> None:
    now = Profile({"wall_ms": 4.5}, samples={"wall_ms": sample} if sample else {})
    verdicts = compare(now, BEFORE, [], Policy())
    made = Record("test_a.py::test_1", "ok", metrics={v.label: v for v in verdicts})
    table = summary_table([made], ["wall_ms"], None, 0, 100)
    assert table[2].endswith(f"  {cell}")
    assert bool(table[3:]) is noisy
    if noisy:
        assert table[3].startswith("wall_ms is noisy: use more rounds (--torchprof-min-time=1)")
        assert table[3].endswith("(test_a.py::test_1 ±11 %)")
    expected = None if sample is None else [sample.n, sample.low, sample.high, sample.minimum]
    reported = report_of(made)["metrics"]["wall_ms"]
    assert expected == ([reported[k] for k in ("n", "low", "high", "min")] if sample else None)
    assert reported["value"] == 4.5
    assert reported.get("spread") == (sample.spread if sample else None)


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_wide_names_are_cut_in_the_middle(width: int) -> None:
    records = [record(f"tests/test_a.py::test_{'long_' * 30}{i}", "ok") for i in range(2)]
    lines = summary_table(records, ["ops"], None, 0, width)
    rows = [line for line in lines if "long" in line and "not checked" not in line]
    assert len(set(rows)) == 2
    assert all("…" in row for row in rows)
    assert all(len(row) <= max(width, 60) for row in rows)


def test_a_table_can_be_sorted_by_each_of_its_columns() -> None:
    trace = parse_trace(b'[{"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 2}]')
    for column in OPS_COLUMNS:
        text = ops_table(trace, column, 5)
        assert column in text.splitlines()[0]
        assert "aten::add" in text
