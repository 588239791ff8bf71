"""What a finding costs: never more than there was time, and a wait no more than it kept idle."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from labelled import collective_calls, corpus
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.device_time import device_time, idle, idle_by_waits
from pytest_torchprof.core.values import StepRange
from pytest_torchprof.rules.check import Checked, check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.rules.rule import Matches, Rule, span_ns
from pytest_torchprof.trace.events import Events
from pytest_torchprof.trace.facts import FACTS_KEY
from pytest_torchprof.trace.names import REGION, REGION_MARK
from pytest_torchprof.trace.read import parse_trace, read_trace
from pytest_torchprof.trace.steps import at_steps

if TYPE_CHECKING:
    from pytest_torchprof.core.values import Finding

A100 = "NVIDIA A100-SXM4-40GB"
SGEMM = "ampere_sgemm_128x64_tn"


def recorded(b: TraceBuilder) -> Events:
    return parse_trace(b.to_bytes())


def costs(trace: Events, *codes: str) -> list[float]:
    """In us, of these rules' findings."""
    found = check(trace, [RULES[code] for code in codes or RULES])
    return [finding.cost_ms * 1e3 for finding in found.findings() if finding.cost_ms is not None]


def total_ms(found: Iterable[Finding], *codes: str) -> float:
    """What findings cost together, of these rules or all."""
    return sum(one.cost_ms or 0 for one in found if not codes or one.rule in codes)


def span_ms(trace: Events) -> float:
    ends = trace.ts + trace.dur
    return float(ends.max() - trace.ts.min()) / 1e6


def waiting(busy_us: float, then_us: float = 0) -> Events:
    """A kernel for which the host waits, and another one some time after that."""
    b = TraceBuilder(A100, (8, 0))
    b.launch("first", busy_us)
    b.sync("cudaDeviceSynchronize")
    b.advance(then_us)
    b.launch("second", 10)
    return recorded(b)


# ------------------------------------------------------------------------------------- waits


def test_waiting_for_a_device_that_works_all_the_while_costs_next_to_nothing() -> None:
    trace = waiting(busy_us=100_000)
    (cost,) = costs(trace, "host-sync")
    assert 0 < cost < 10
    assert cost * 1e3 <= device_time(trace).idle_ns


def test_a_wait_costs_until_the_next_kernel_but_no_longer_than_it_took() -> None:
    short, long = (costs(waiting(10, then_us=t), "host-sync")[0] for t in (2, 10_000))
    sync = waiting(10, then_us=10_000)
    took = sync.dur[sync.named("cudaDeviceSynchronize")].max() / 1e3
    assert short < long == took


def test_two_waits_before_one_kernel_do_not_count_the_same_time_twice() -> None:
    b = TraceBuilder(A100, (8, 0))
    b.launch("first", 10)
    b.sync("cudaDeviceSynchronize")
    b.sync("cudaDeviceSynchronize", 500)
    b.launch("second", 10)
    trace = recorded(b)
    assert sum(costs(trace, "host-sync")) * 1e3 <= device_time(trace).idle_ns


def test_a_pageable_copy_does_not_cost_the_work_before_it() -> None:
    b = TraceBuilder(A100, (8, 0))
    b.launch("first", 50_000)
    with b.op("aten::copy_", [[1 << 20], [1 << 20]]):
        b.memcpy("HtoD", 4 << 20, device_us=300)
        b.sync("cudaStreamSynchronize")
    b.launch("second", 10)
    (cost,) = costs(recorded(b), "pageable-copy")
    assert 300 <= cost < 400


@pytest.mark.parametrize("closure", [False, True])
def test_a_step_does_not_cost_what_its_closure_computes(closure: bool) -> None:
    b = TraceBuilder()

    def pass_on() -> None:
        b.op("aten::linear", [[4, 3], [2, 3], [2]], dur_us=40_000)
        with b.op("autograd::engine::evaluate_function: AccumulateGrad"):
            b.op("torch::autograd::AccumulateGrad", [[2, 3]])

    if not closure:
        pass_on()
    with b.annotation("Optimizer.step#Adam.step"):
        if closure:
            pass_on()
        for _ in range(4):
            for name in ("add_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_"):
                b.op(f"aten::{name}", [[2, 3]], dur_us=1_000)
    (cost,) = costs(recorded(b), "single-tensor-optimizer")
    assert 10_000 < cost < 32_000


@pytest.mark.parametrize("on_device", [False, True])
def test_filling_new_memory_costs_what_it_takes(on_device: bool) -> None:
    b = TraceBuilder(A100, (8, 0))
    with b.op("aten::empty", [[]]), b.op("aten::fill_", [[4096, 4096], []]):
        b.launch("fill", 50) if on_device else None
        b.advance(25_000)
    (cost,) = costs(recorded(b), "debug-left-on")
    assert cost == 50 if on_device else cost == pytest.approx(25_000, rel=0.01)


TIMES = st.lists(st.integers(0, 200), min_size=2, max_size=12)


@pytest.mark.thorough
@given(TIMES, TIMES)
def test_waits_never_cost_more_than_the_device_was_idle(device: list[int], host: list[int]) -> None:
    b = TraceBuilder(A100, (8, 0))
    b.launch("k")
    trace = recorded(b)
    at = [(a, b) for a, b in pairwise(sorted(device)) if b > a][::2] or [(0, 1)]
    start, end = (np.array(times, np.int64) for times in zip(*at, strict=True))
    kernel = np.flatnonzero(trace.named("k"))[0]
    busy = Events(
        ts=start,
        dur=end - start,
        kind=np.full(len(at), trace.kind[kernel]),
        name=np.zeros(len(at), np.int64),
        thread=np.zeros(len(at), np.int32),
        names=["k"],
        args=trace.args[np.full(len(at), kernel)],
        threads=((0, 0),),
    )
    waits = np.array(sorted(host), np.int64)
    cost = idle_by_waits(busy, waits[:-1], waits[1:])
    gaps = [(a[1], b[0]) for a, b in pairwise(at)]
    idle_ns = {t for since, until in gaps for t in range(since, until)}
    assert (cost >= 0).all()
    assert cost.sum() <= len(idle_ns)
    one = idle(busy).between(waits[:1], waits[-1:])
    assert int(one[0]) == len(idle_ns & set(range(int(waits[0]), int(waits[-1]))))


# --------------------------------------------------------------------------- spans and sums


def test_kernels_side_by_side_cost_no_more_than_their_span() -> None:
    b = TraceBuilder(A100, (8, 0))
    for stream in range(8):
        with b.op("aten::mm", [[1024, 1024], [1024, 1024]], ["float", "float"]):
            b.launch(SGEMM, 1000, stream=stream)
    (cost,) = costs(recorded(b), "fp32-matmul")
    assert cost < 1100  # and not 8 halves of 1000


def test_all_findings_together_cost_no_more_than_the_trace_lasted() -> None:
    b = TraceBuilder(A100, (8, 0))
    with b.annotation(REGION), b.op("aten::mul", [[2]]):
        b.advance(10)

    def costly(trace: Events) -> Matches:
        rows = np.flatnonzero(trace.named("aten::mul"))
        return Matches(rows, "slow", cost_ns=np.full(len(rows), 10**9))

    rules = [Rule(code, costly, "do not") for code in ("a", "b", "c")]
    trace = recorded(b)
    found = check(trace, rules).findings()
    assert len(found) == 3
    assert total_ms(found) == pytest.approx(trace.dur[trace.named("aten::mul")][0] / 1e6)
    assert len({one.cost_ms for one in found}) == 1


@pytest.mark.thorough
@pytest.mark.one_in(4)
@pytest.mark.parametrize("theme", ["waiting", "products", "copies", "outsider_moves"])
def test_costs_of_labelled_examples_are_within_bounds(theme: str) -> None:
    built = [b for case in corpus.themes()[theme] if isinstance(b := case.make(), TraceBuilder)]
    assert built
    for trace in map(recorded, built):
        found = check(trace, RULES.values()).findings()
        assert 0 <= total_ms(found) <= span_ms(trace) + 1e-9
        assert total_ms(found, "host-sync") * 1e6 <= device_time(trace).idle_ns + 1e-6


@pytest.mark.one_in(4)
@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.gz")), ids=lambda p: p.name.split(".")[0])
def test_costs_in_real_traces_are_within_bounds(path: Path) -> None:
    trace = read_trace(path)
    found = check(trace, RULES.values()).findings()
    assert total_ms(found) <= span_ms(trace)
    assert total_ms(found, "host-sync") * 1e6 <= device_time(trace).idle_ns + 1e-6


CLAIMS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(1, 20), st.integers(0, 30)),
    min_size=1,
    max_size=10,
)


@pytest.mark.thorough
@given(CLAIMS)
def test_time_that_several_findings_claim_is_counted_once(
    drawn: list[tuple[int, int, int, int]],
) -> None:
    b = TraceBuilder()
    b.op("aten::mul", [[2]], dur_us=60)
    trace = recorded(b)
    start = int(trace.ts.min())
    rules = []
    for number in range(4):
        mine = [one for one in drawn if one[0] == number]
        begin = np.array([start + 1000 * since for _, since, _, _ in mine], np.int64)
        length = np.array([1000 * took for _, _, took, _ in mine], np.int64)
        cost = np.array([1000 * wanted for *_, wanted in mine], np.int64)
        found = Matches(
            np.zeros(len(mine), np.int64), "slow", cost_ns=cost, span_ns=(begin, begin + length)
        )
        rules.append(Rule(f"rule-{number}", lambda _, found=found: found, "do not"))
    costs_us = {one.rule: (one.cost_ms or 0) * 1e3 for one in check(trace, rules).findings()}
    covered = {t for _, since, took, _ in drawn for t in range(since, since + took)}
    assert sum(costs_us.values()) <= len(covered) + 1e-9
    for number in range(4):
        mine = [one for one in drawn if one[0] == number]
        own = {t for _, since, took, _ in mine for t in range(since, since + took)}
        wanted = min(sum(min(took, cost) for *_, took, cost in mine), len(own))
        assert costs_us.get(f"rule-{number}", 0) <= wanted + 1e-9
        others = {
            t for n, since, took, _ in drawn if n != number for t in range(since, since + took)
        }
        if not own & others:
            assert costs_us.get(f"rule-{number}", 0) == pytest.approx(wanted)


def stepped(steps: int = 4) -> TraceBuilder:
    """Steps of ten kernels, each of which the device waits for."""
    b = TraceBuilder(A100, (8, 0))
    for number in range(steps):
        with b.annotation(f"ProfilerStep#{number}"):
            for _ in range(20):
                with b.op("aten::mul", [[4]]):
                    b.advance(40)
                    b.launch("mul", 2)
    return b


def test_what_is_one_match_in_all_has_its_share_in_each_step() -> None:
    trace = recorded(stepped())
    whole = check(trace, [RULES["launch-bound"]])
    (all_ms,) = costs_ms(whole)
    parts = [costs_ms(whole.of_part(at_steps(trace, StepRange(n, n + 1)))) for n in range(4)]
    assert [1] * 4 == [len(one) for one in parts]
    assert sum(one[0] for one in parts) == pytest.approx(all_ms, rel=0.05)
    assert max(parts)[0] < 0.3 * all_ms


def test_a_stretch_has_in_a_step_the_share_of_its_events_there() -> None:
    trace = recorded(stepped())
    every = np.flatnonzero(trace.named("aten::mul"))

    def stretch(_: Events) -> Matches:
        return Matches(
            every[:1], "slow", cost_ns=np.array([800_000]), parts=[every[every != every[5]]],
            span_ns=(trace.ts[every[:1]], trace.ts[every[-1:]]),
        )  # fmt: skip

    whole = check(trace, [Rule("stretch", stretch, "do not")])
    parts = [costs_ms(whole.of_part(at_steps(trace, StepRange(n, n + 1)))) for n in range(4)]
    assert [[pytest.approx(0.8 * n / 79, abs=1e-6)] for n in (19, 20, 20, 20)] == parts


def test_a_step_without_device_work_has_a_span() -> None:
    b = stepped(1)
    with b.annotation("ProfilerStep#1"):
        b.op("aten::mul", [[4]], dur_us=500)
    part = at_steps(recorded(b), StepRange(1, 2))
    assert span_ns(part) >= 500_000
    assert check(part.whole, RULES.values()).of_part(part).findings() == ()


def test_a_wait_costs_the_step_in_which_the_device_is_idle() -> None:
    b = TraceBuilder(A100, (8, 0))
    with b.annotation("ProfilerStep#0"):
        b.launch("first", 1_000)
        b.sync("cudaDeviceSynchronize")
    b.advance(5_000)
    with b.annotation("ProfilerStep#1"):
        b.launch("second", 1_000)
    trace = recorded(b)
    whole = check(trace, [RULES["host-sync"]])
    before, after = (
        sum(costs_ms(whole.of_part(at_steps(trace, StepRange(n, n + 1))))) for n in range(2)
    )
    assert before == 0
    assert after == pytest.approx(sum(costs_ms(whole)), rel=0.05)
    assert after > 0.5


def test_what_is_one_match_in_all_has_its_share_in_each_region() -> None:
    b = TraceBuilder(A100, (8, 0))
    with b.annotation(REGION):
        for region in ("a", "b"):
            with b.annotation(f"{REGION_MARK}{region}"):
                for _ in range(40):
                    with b.op("aten::add", [[4], [4]]):
                        b.launch("add", 2)
                    b.advance(30)
    trace = recorded(b)
    whole = check(trace, [RULES["launch-bound"]])
    (all_ms,) = costs_ms(whole)
    for region in ("a", "b"):
        part = whole.of_part(trace.within(region=region))
        assert [1] == [one.count for one in part.findings()]
        assert costs_ms(part) == [pytest.approx(all_ms / 2, rel=0.05)]


def test_an_event_without_duration_leaves_the_costs_of_others() -> None:
    b = TraceBuilder(A100, (8, 0))
    for _ in range(3):
        with b.op("aten::mm", [[1024, 1024], [1024, 1024]], ["float", "float"]):
            b.launch(SGEMM, 1000)
    b.launch("other", 3)

    def untimed(document: dict[str, Any]) -> dict[str, Any]:
        (event,) = (e for e in document["traceEvents"] if e["name"] == "other")
        del event["dur"]
        return document

    known = costs(recorded(b), "fp32-matmul")
    assert costs(parse_trace(b.to_bytes(untimed)), "fp32-matmul") == pytest.approx(known, rel=0.01)


def test_a_match_of_an_unknown_event_has_an_unknown_cost() -> None:
    b = TraceBuilder()
    b.op("aten::mul", [[2]], dur_us=60)
    rules = [Rule("a", lambda _: Matches(np.array([-1]), "x"), "")]
    (found,) = check(recorded(b), rules).findings()
    assert found.cost_ms is None


def costs_ms(checked: Checked) -> list[float]:
    return [one.cost_ms for one in checked.findings() if one.cost_ms is not None]


def test_an_unknown_cost_is_none_and_comes_last() -> None:
    b = TraceBuilder()
    b.op("aten::mul", [[2]], dur_us=60)
    costs_ns = {"a": -1, "b": 0, "c": 5_000}
    rules = [
        Rule(code, lambda _, ns=ns: Matches(np.zeros(1, np.int64), "x", cost_ns=np.array([ns])), "")
        for code, ns in costs_ns.items()
    ]
    found = check(recorded(b), rules).findings()
    assert [(one.rule, one.cost_ms) for one in found] == [("c", 0.005), ("b", 0.0), ("a", None)]


@pytest.mark.parametrize("costs_ns", [[-1, 5_000], [5_000, -1, -1], [-1]])
def test_a_finding_costs_an_unknown_time_if_one_of_its_matches_does(costs_ns: list[int]) -> None:
    b = TraceBuilder()
    for _ in costs_ns:
        b.op("aten::mul", [[2]], dur_us=60)
    rows = np.arange(len(costs_ns))
    rule = Rule("a", lambda _: Matches(rows, "x", cost_ns=np.array(costs_ns)), "")
    (found,) = check(recorded(b), [rule]).findings()
    assert (len(costs_ns), None) == (found.count, found.cost_ms)


# --------------------------------------------------------------------------- without the profiler


def filling(wall_ms: object) -> Events:
    """A region in which a call of zero_grad takes half the time, in a test with such rounds."""
    b = TraceBuilder()
    b.metadata(FACTS_KEY, {"torch": "2.13.0", "wall_ms": wall_ms})
    with b.annotation(REGION, 500), b.annotation("Optimizer.zero_grad#SGD.zero_grad"):
        b.op("aten::zero_", [[4]], ["float"], dur_us=500)
    return recorded(b)


@pytest.mark.parametrize(
    ("wall_ms", "expected_us"),
    [
        ({"median": 0.2, "n": 3}, 200),
        ({"median": 0.4}, 400),
        ({"median": 3.0}, None),
        ("none", None),
        (None, None),
    ],
)
def test_costs_are_from_the_timed_rounds_if_there_are_any(
    wall_ms: object, expected_us: float | None
) -> None:
    trace = filling(wall_ms)
    assert trace.region is not None
    region_us = (trace.region[1] - trace.region[0]) / 1e3
    (profiled,), (cost,) = (costs(one, "grad-not-none") for one in (filling(None), trace))
    assert profiled > 400
    assert cost == pytest.approx(profiled * (expected_us or region_us) / region_us)


@pytest.mark.parametrize("first_ms", [1, 500])  # the other rank is late, for one collective, too
def test_small_collectives_cost_all_but_one(first_ms: float) -> None:
    b = collective_calls.job()
    for number in range(10):
        collective_calls.called(b, 64 + number, ms=1 if number else first_ms)
    (cost_us,) = costs(recorded(b), "small-collectives")
    assert cost_us == pytest.approx(9_000, rel=0.02)


def test_collectives_that_run_at_once_cost_no_more_than_the_time_from_first_to_last() -> None:
    b = collective_calls.job()
    for number in range(10):
        collective_calls.called(b, 64 + number, ms=1, later=True)
    (cost_us,) = costs(recorded(b), "small-collectives")
    assert cost_us == pytest.approx(1000 + 9 * 20 - 1000, rel=0.05)


def test_what_gloo_does_while_the_host_waits_can_be_hidden() -> None:
    b = collective_calls.job()
    collective_calls.called(b, 2**18, later=True, ms=10)
    b.advance(10_010)
    collective_calls.computed(b, 10_000)
    (found,) = check(recorded(b), [RULES["blocking-collective"]]).findings()
    assert found.cost_ms == pytest.approx(10, rel=0.01)


def test_on_a_device_a_graph_costs_its_nodes_and_not_the_memory_that_it_keeps() -> None:
    b = TraceBuilder(A100, (8, 0))
    sequence = 0
    for _ in range(3):
        for _ in range(4):
            dims = [[4096, 4096], [4096, 4096], [4096]]
            with b.op("aten::linear", dims, ["float"] * 3, args={"Sequence number": sequence}):
                b.launch(SGEMM, 5_000)
            sequence += 1
    trace = recorded(b)
    (cost,) = costs(trace, "missing-no-grad")
    assert cost == pytest.approx(1.2 * sequence)


# --------------------------------------------------------------------------- what is not gained


def test_a_wait_for_work_that_is_not_recorded_has_an_unknown_cost() -> None:
    b = TraceBuilder(A100, (8, 0))
    b.launch("first", 10)
    for _ in range(3):
        b.runtime("cudaLaunchKernel")
    with b.op("aten::item"), b.op("aten::_local_scalar_dense"):
        b.memcpy("DtoH", 4)
        b.sync("cudaStreamSynchronize")
    b.launch("second", 10)
    found = check(recorded(b), [RULES["host-sync"]]).findings()
    assert [None] == [one.cost_ms for one in found]


def test_waits_of_a_search_for_the_fastest_kernel_are_not_the_users() -> None:
    b = TraceBuilder(A100, (8, 0))
    b.launch("first", 10)
    with b.op("aten::cudnn_convolution", [[8, 3, 32, 32], [8, 3, 3, 3]]):
        for _ in range(3):
            b.launch("candidate", 100)
            b.sync("cudaEventSynchronize")
    b.launch("second", 10)
    assert {} == check(recorded(b), [RULES["host-sync"]]).counts


def test_a_bias_costs_a_share_of_the_kernels_and_not_of_their_loading() -> None:
    b = TraceBuilder(A100, (8, 0))
    b.launch("first", 10)
    dims = [[2, 3, 6, 6], [4, 3, 3, 3], [4], [], [], [], []]
    with b.op("aten::conv2d", args={"Input Dims": dims}):
        b.runtime("cuModuleLoadData", 500_000)
        b.launch("implicit_convolve_sgemm", 100)
    types = ["long int", "long int", "Scalar"]
    b.op("aten::add_", args={"Input Dims": [[], [], []], "Input type": types})
    norm = [[2, 4, 4, 4], [4], [4], [4], [4], [], [], [], []]
    with b.op("aten::batch_norm", args={"Input Dims": norm}):
        b.launch("bn_fw_tr_1C11_kernel_NCHW", 20)
    (cost,) = costs(recorded(b), "conv-bias-batchnorm")
    assert 0 < cost <= 10


@pytest.mark.parametrize(("side", "cost_us"), [(16, 2.06), (256, 17.7), (1024, 3399)])
def test_a_bias_of_a_large_result_costs_a_pass_over_memory(side: int, cost_us: float) -> None:
    """Of 8 * side * side elements: 0.03 ns each, and 0.4 ns more beyond 2**19 of them."""
    b = TraceBuilder()
    size = [2, 4, side, side]
    conv = [[2, 3, side, side], [4, 3, 1, 1], [4], [], [], [], []]
    b.op("aten::conv2d", args={"Input Dims": conv}, dur_us=9_000)
    types = ["long int", "long int", "Scalar"]
    b.op("aten::add_", args={"Input Dims": [[], [], []], "Input type": types})
    b.op("aten::batch_norm", args={"Input Dims": [size, [4], [4], [4], [4], [], [], [], []]})
    rule = "conv-bias-batchnorm"
    found = check(recorded(b), [RULES[rule]], thresholds={rule: {"cpu_share": 0}}).findings()
    assert [pytest.approx(cost_us / 1e3, rel=0.01)] == [one.cost_ms for one in found]


@pytest.mark.parametrize(("kernel", "cost_us"), [([1, 1], 16), ([3, 3], 23), ([1, 5], 23)])
def test_a_bias_of_a_wider_kernel_costs_more_in_a_backward_pass(
    kernel: list[int], cost_us: float
) -> None:
    b = TraceBuilder()
    sizes = [[2, 4, 8, 8], [4], [4], [4], [4], [], [], [], []]
    sequence = {"Sequence number": 7, "Fwd thread id": 0}
    b.op("aten::conv2d", [[2, 4, 8, 8], [4, 4, *kernel], [4], [], [], [], []], dur_us=9_000)
    b.op("aten::add_", [[], [], []], ["long int", "long int", "Scalar"])
    b.op("aten::batch_norm", sizes, args=sequence)
    norm = "autograd::engine::evaluate_function: NativeBatchNormBackward0"
    b.op(norm, args={"Sequence number": 7, "Fwd thread id": 1})
    (cost,) = costs(recorded(b), "conv-bias-batchnorm")
    assert cost == pytest.approx(cost_us, rel=0.01)
