"""What changed between two operator tables, and between two traces."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.diff import (
    Delta,
    DiffBy,
    DiffRow,
    Growth,
    deltas,
    diff_rows,
    growth,
)
from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.trace.read import parse_trace, read_trace

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (0, 0, "same"),
        (3, 3, "same"),
        (0, 3, "appeared"),
        (3, 0, "vanished"),
        (3, 4, "more"),
        (4, 3, "fewer"),
        (0, -8, "appeared"),  # bytes of before the region are freed in it
        (-8, -16, "fewer"),
    ],
)
def test_the_word_for_a_change_in_count(before: int, now: int, change: str) -> None:
    assert Delta("aten::mm", before, now).change == change


def test_the_largest_change_comes_first() -> None:
    before = {"mm": {"calls": 5, "flops": 9}, "add": {"calls": 2}, "gone": {"calls": 7}}
    now = {"mm": {"calls": 5}, "add": {"calls": 9}, "new": {"calls": 1}}
    assert deltas(before, now, "calls") == [
        Delta("add", 2, 9),
        Delta("gone", 7, 0),
        Delta("new", 0, 1),
    ]
    assert deltas(before, now, "flops") == [Delta("mm", 9, 0)]
    assert deltas(before, now, "kernels") == []
    assert deltas({}, {}, "calls") == []


TABLES = st.dictionaries(st.sampled_from("abcdef"), st.fixed_dictionaries({"n": st.integers(0, 5)}))


@given(TABLES, TABLES)
def test_all_changes_are_there_and_add_up(
    before: dict[str, dict[str, int]], now: dict[str, dict[str, int]]
) -> None:
    found = deltas(before, now, "n")
    total = sum(row["n"] for row in now.values()) - sum(row["n"] for row in before.values())
    assert sum(d.now - d.before for d in found) == total
    assert {d.change for d in found} <= {"appeared", "vanished", "more", "fewer"}
    sizes = [abs(d.now - d.before) for d in found]
    assert sizes == sorted(sizes, reverse=True)
    assert deltas(now, before, "n") == [Delta(d.name, d.now, d.before) for d in found]


# -------------------------------------------------------------------------------- two traces


def ran(*ops: tuple[str, float], device: str | None = None) -> Events:
    """Operators in sequence, with these durations in us, and kernels half as long, if any."""
    b = TraceBuilder(device)
    for name, us in ops:
        with b.op(name, dur_us=us):
            if device:
                b.launch(f"{name}_kernel", device_us=us / 2, host_us=0)
    return parse_trace(b.to_bytes())


def rows(a: Events, b: Events, by: DiffBy = "op") -> dict[str, DiffRow]:
    return {row.name: row for row in diff_rows(a, b, by=by)}


def test_every_change_has_its_word() -> None:
    a = ran(
        ("gone", 9), ("mm", 9), ("add", 9), ("add", 9), ("slow", 100), ("fast", 100), ("sum", 9)
    )
    b = ran(("mm", 9), ("mm", 9), ("add", 9), ("slow", 150), ("fast", 50), ("sum", 9), ("new", 9))
    assert {name: row.change for name, row in rows(a, b).items()} == {
        "gone": "vanished",
        "mm": "more",
        "add": "fewer",
        "slow": "slower",
        "fast": "faster",
        "sum": "same",
        "new": "appeared",
    }


@pytest.mark.parametrize(
    ("before_us", "now_us", "change"),
    [
        (100, 105, "same"),
        (100, 105.1, "slower"),
        (100, 94.9, "faster"),
        (100, 95, "same"),
        (10, 15, "same"),  # 50 %, and only 5 us
        (10, 15.1, "slower"),
    ],
)
def test_a_time_that_hardly_changed_is_the_same(
    before_us: float, now_us: float, change: str
) -> None:
    (row,) = diff_rows(ran(("mm", before_us)), ran(("mm", now_us)))
    times = round(before_us * 1000) / 1e6, round(now_us * 1000) / 1e6
    own = (*times, None, None)
    assert row == DiffRow("mm", change, 1, 1, *own, *own)  # type: ignore[arg-type]
    assert row.change_ms == pytest.approx(abs(now_us - before_us) / 1e3)


def test_of_cpu_and_device_time_the_one_that_changed_more_decides() -> None:
    def times(host_us: float, device_us: float) -> Events:
        b = TraceBuilder("GPU")
        with b.op("mm", dur_us=host_us):
            b.launch("gemm", device_us=device_us, host_us=0)
        return parse_trace(b.to_bytes())

    for host_us, device_us, change in [
        (100, 300, "slower"),
        (300, 50, "slower"),
        (120, 20, "faster"),
        (104, 150, "slower"),
        (104, 104, "same"),
    ]:
        assert rows(times(100, 100), times(host_us, device_us))["mm"].change == change
    # The larger change is one of 1 %, and hides none of 50 %.
    assert rows(times(10_000, 100), times(10_100, 150))["mm"].change == "slower"


def test_the_largest_change_in_time_comes_first_then_in_calls_then_by_name() -> None:
    a = ran(("mm", 100), ("add", 10), ("same2", 5), ("same1", 5))
    b = ran(("mm", 90), ("add", 50), ("same2", 5), ("same1", 5), ("new", 20))
    assert [row.name for row in diff_rows(a, b)] == ["add", "new", "mm", "same1", "same2"]
    c, d = TraceBuilder("GPU"), TraceBuilder("GPU")
    for name in ("one", "two", "two"):
        d.launch(name, device_us=0)
    d.launch("tick", device_us=1)
    names = [
        row.name
        for row in diff_rows(parse_trace(c.to_bytes()), parse_trace(d.to_bytes()), by="kernel")
    ]
    assert names == ["tick", "two", "one"]


def test_times_are_totals_and_a_call_in_itself_counts_once() -> None:
    b = TraceBuilder("GPU")
    with b.op("linear"), b.op("mm", dur_us=30):
        b.launch("gemm", device_us=40)
        with b.op("mm", dur_us=10):
            b.launch("gemm", device_us=2)
    b.launch("gemm", device_us=1000)  # by no operator
    b.memcpy("HtoD", 64, device_us=3)
    trace = parse_trace(b.to_bytes())
    found = rows(trace, trace)
    assert (found["mm"].calls_a, found["mm"].cuda_ms_a) == (2, 0.042)
    assert found["linear"].cuda_ms_b == 0.042
    assert (found["linear"].cpu_ms_a or 0) > (found["mm"].cpu_ms_a or 0) >= 0.03
    kernels = rows(trace, trace, "kernel")
    own = (None, None, 1.042, 1.042)
    assert kernels["gemm"] == DiffRow("gemm", "same", 3, 3, *own, *own)
    assert kernels["Memcpy HtoD (Pageable -> Device)"].calls_a == 1


@pytest.mark.thorough
@given(st.integers(1, 40), st.integers(1, 40))
def test_per_step_all_numbers_are_divided(one: int, other: int) -> None:
    a, b = (ran(*[("mm", 7.001), ("add", 3)] * steps) for steps in (one, other))
    for row in diff_rows(a, b, per_step=(one, other)):
        assert (row.change, row.calls_a, row.calls_b) == ("same", 1, 1)
        assert row.cpu_ms_a == row.cpu_ms_b == row.self_cpu_ms_a == row.self_cpu_ms_b
    (check,) = growth(a, b, limit_percent=0, per_step=(one, other))
    assert check.before == check.now == pytest.approx(0.010001)
    assert check.exceeded is False


def test_what_a_trace_does_not_say_is_unknown_and_what_is_not_there_took_no_time() -> None:
    cpu, gpu = ran(("mm", 10), ("add", 10)), ran(("mm", 10), device="GPU")
    assert rows(cpu, gpu)["mm"].cuda_ms_a is None
    assert rows(cpu, gpu)["mm"].cuda_ms_b == 0.005
    assert rows(cpu, gpu)["add"].cuda_ms_b == 0
    assert rows(cpu, gpu)["add"].cpu_ms_b == 0
    assert rows(gpu, gpu, "kernel")["mm_kernel"].cpu_ms_a is None
    b = TraceBuilder("GPU")
    with b.op("mm"):
        b.launch("gemm")
    timeless, unlinked = parse_trace(b.to_bytes("no_dur")), parse_trace(b.to_bytes("no_args"))
    assert (rows(timeless, gpu)["mm"].cpu_ms_a, rows(timeless, gpu)["mm"].cuda_ms_a) == (None, None)
    assert rows(timeless, timeless)["mm"].change == "same"
    assert rows(timeless, timeless, "kernel")["gemm"].cuda_ms_a is None
    assert rows(unlinked, unlinked)["mm"].cuda_ms_a is None
    assert rows(unlinked, unlinked, "kernel")["gemm"].cuda_ms_a == 0.01
    assert diff_rows(parse_trace(b"[]"), parse_trace(b"[]")) == []


# -------------------------------------------------------------------------------- growth


def test_growth_within_the_limit_is_inclusive() -> None:
    a, b = ran(("mm", 100)), ran(("mm", 110))
    (check,) = growth(a, b, limit_percent=10)
    assert (check.metric, check.before, check.now) == ("self_cpu_ms", 0.1, 0.11)
    assert check.percent == pytest.approx(10)
    assert [c.exceeded for limit in (9, 11) for c in growth(a, b, limit_percent=limit)] == [1, 0]
    assert [c.exceeded for c in growth(b, a, limit_percent=0)] == [False]
    assert [c.exceeded for c in growth(a, a, limit_percent=0)] == [False]


@pytest.mark.parametrize(
    ("before", "now", "percent", "exceeded"),
    [
        (0, 0, 0, False),
        (0, 1, math.inf, True),
        (100, 200, 100, True),
        (100, 150, 50, False),
        (None, 1, None, None),
        (1, None, None, None),
    ],
)
def test_an_unknown_total_is_never_within_the_limit(
    before: float | None, now: float | None, percent: float | None, exceeded: bool | None
) -> None:
    check = Growth("self_cuda_ms", before, now, 50)
    assert (check.percent, check.exceeded) == (percent, exceeded)


def test_device_and_cpu_time_are_both_checked_where_there_is_a_device() -> None:
    cpu, gpu, slow = ran(("mm", 9)), ran(("mm", 9), device="GPU"), ran(("mm", 99), device="GPU")

    def verdicts(a: Events, b: Events, by: DiffBy = "op") -> dict[str, bool | None]:
        return {c.metric: c.exceeded for c in growth(a, b, by=by, limit_percent=5)}

    assert verdicts(cpu, cpu) == {"self_cpu_ms": False}
    assert verdicts(gpu, slow) == {"self_cpu_ms": True, "self_cuda_ms": True}
    assert verdicts(gpu, slow, "kernel") == {"self_cuda_ms": True}
    assert verdicts(gpu, cpu)["self_cuda_ms"] is None
    assert verdicts(cpu, cpu, "kernel") == {"self_cuda_ms": None}


@pytest.mark.parametrize("limit", [-1, -0.001, math.nan])
def test_a_limit_that_makes_no_sense_is_an_error(limit: float) -> None:
    with pytest.raises(SettingsError, match="percentage"):
        growth(ran(), ran(), limit_percent=limit)


# -------------------------------------------------------------------------------- real traces

STORED = sorted(CORPUS.glob("*.json.gz"))
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
HOST = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "hip_runtime"}


def counted(path: Path, cats: set[str]) -> tuple[Counter[str], Counter[str]]:
    """Calls and total us by name."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    chosen: list[dict[str, Any]] = [e for e in events if e.get("cat") in cats]
    # On ROCm, the call knows which way a copy of pinned memory went.
    up = {
        e["args"]["correlation"]
        for e in events
        if str(e.get("name")).startswith("hipMemcpy") and e["args"]["kind"] == "1"
    }
    for event in chosen:
        if event["cat"] == "gpu_memcpy" and event["args"].get("correlation") in up:
            event["name"] = "Memcpy HtoD (Host -> Device)"
    times: Counter[str] = Counter()
    for event in chosen:
        event["name"] = re.sub(r"^(ProfilerStep)#\d+$", r"\1*", event["name"])
        times[event["name"]] += event["dur"]
    return Counter(e["name"] for e in chosen), times


@pytest.mark.thorough
@pytest.mark.one_in(3)
@pytest.mark.skipif(not STORED, reason="the folder of real traces is not here")
@pytest.mark.parametrize(("one", "other"), [*itertools.pairwise(STORED)], ids=lambda p: p.name[:9])
def test_real_traces_differ_as_counted_over_the_raw_json(one: Path, other: Path) -> None:
    a, b = read_trace(one), read_trace(other)
    operators, kernels = rows(a, b), rows(a, b, "kernel")
    for found, cats in ((operators, HOST), (kernels, DEVICE)):
        calls_a, calls_b = counted(one, cats)[0], counted(other, cats)[0]
        assert {n: r.calls_a for n, r in found.items() if r.calls_a} == dict(calls_a)
        assert {n: r.calls_b for n, r in found.items() if r.calls_b} == dict(calls_b)
    times = counted(one, DEVICE)[1]
    assert {n: r.cuda_ms_a for n, r in kernels.items() if r.calls_a} == {
        name: pytest.approx(us / 1e3) for name, us in times.items()
    }
    for by in ("op", "kernel"):
        assert {row.change for row in diff_rows(a, a, by=by)} == {"same"}
        there, back = diff_rows(a, b, by=by), {row.name: row for row in diff_rows(b, a, by=by)}
        opposite = {"appeared": "vanished", "more": "fewer", "slower": "faster", "same": "same"}
        opposite |= {now: before for before, now in opposite.items()}
        for row in there:
            if row.change not in {"slower", "faster", "same"}:  # 5 % of the other is another limit
                assert back[row.name].change == opposite[row.change]
        sizes = [row.change_ms for row in there]
        assert sizes == sorted(sizes, reverse=True)
