"""What is said of pauses of the host: which one it is, where, and what to do about it."""

from __future__ import annotations

import gc
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from labelled import blocked, communication, pauses, starving
from support.recorded import record
from support.trace_builder import TraceBuilder

from pytest_torchprof.core.unknown import Why
from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.rules.rule import Matches, Rule
from pytest_torchprof.trace.facts import Facts, Quantity
from pytest_torchprof.trace.read import parse_trace, read_trace

if TYPE_CHECKING:
    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.core.values import Finding
    from pytest_torchprof.trace.events import Events


def recorded(b: object) -> Events:
    """The trace of what an example has built."""
    assert isinstance(b, TraceBuilder)
    return parse_trace(b.to_bytes())


def found(trace: Events, code: str) -> Finding:
    """The one finding of a rule."""
    (finding,) = check(trace, [RULES[code]]).findings()
    return finding


def gap(trace: Events, code: str) -> Reason | None:
    """Why a rule was not checked, or only partly."""
    return check(trace, [RULES[code]]).gaps.get(code)


# ----------------------------------------------------------------------------------- collections


def training() -> None:
    for _ in range(3):
        torch.ones(4).sum()
        gc.collect()


@pytest.mark.thorough
def test_a_collection_is_placed_in_the_function_that_asks_for_it(tmp_path: Path) -> None:
    finding = found(read_trace(record(training, tmp_path)), "gc-pause")
    _, line = inspect.getsourcelines(training)
    assert (finding.location or "").endswith(f"test_pauses.py:{line}")
    assert finding.count == 3


def python(idle_ms: float, *, live: bool = False) -> TraceBuilder:
    """Steps between which the host does something that leaves no event."""
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    with b.annotation("torchprof::call" if live else "all"):
        for _ in range(3):
            pauses.work(b, 50)
            b.advance((50 + idle_ms) * 1000)
        pauses.work(b, 1)
    return b


@pytest.mark.parametrize(("idle_ms", "why"), [(20, "no_stacks"), (1, None)])
def test_without_functions_collections_are_unseen_where_python_runs_long(
    idle_ms: float, why: str | None
) -> None:
    reason = gap(recorded(python(idle_ms)), "gc-pause")
    assert (reason and reason.code) == why


def test_a_live_test_says_nothing_of_collections() -> None:
    assert gap(recorded(python(20, live=True)), "gc-pause") is None


# ------------------------------------------------------------------------------ the driver's memory


@pytest.mark.parametrize(
    ("example", "message", "fix"),
    [
        (pauses.an_allocator_without_a_cache, "each tensor", "NO_CUDA_MEMORY_CACHING"),
        (pauses.an_allocator_without_a_cache_on_rocm, "each tensor", "NO_HIP_MEMORY_CACHING"),
        (pauses.a_cache_that_is_emptied_in_each_step, "given back", "empty_cache()"),
        (pauses.a_cache_that_is_emptied_after_each_batch_in_2021, "given back", "empty_cache()"),
        (pauses.an_allocator_that_tries_again, "frees its cache", "expandable_segments"),
        (pauses.workspaces_of_convolutions_that_do_not_fit, "frees its cache", "smaller batch"),
        (pauses.segments_that_are_mapped_anew, "frees its cache", "smaller batch"),
        (pauses.a_tensor_that_is_kept_in_each_step, "still grows", "pad to a few"),
        (pauses.keys_and_values_that_grow_with_each_word, "still grows", "pad to a few"),
    ],
)
def test_the_kind_of_trouble_with_memory_decides_the_advice(
    example: object, message: str, fix: str
) -> None:
    assert callable(example)
    finding = found(recorded(example()), "allocator-retry")
    assert message in finding.message
    assert fix in finding.fix


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (pauses.segments_that_are_mapped_anew, "to allocate other sizes"),
        (pauses.an_expandable_segment_that_grows_by_one_tensor, "still grows"),
    ],
)
def test_segments_that_are_expandable_are_not_advised(example: object, message: str) -> None:
    assert callable(example)
    finding = found(recorded(example()), "allocator-retry")
    assert message in finding.message
    assert "expandable_segments" not in finding.fix
    assert "do not change from step to step" in finding.fix


def test_emptying_the_cache_is_placed_in_the_function_that_does_it() -> None:
    finding = found(recorded(pauses.a_cache_that_is_emptied_in_each_step()), "allocator-retry")
    assert finding.location == "train.py:50"


def test_a_retry_is_placed_at_the_operator_that_allocates() -> None:
    finding = found(recorded(pauses.an_allocator_that_tries_again()), "allocator-retry")
    assert finding.path == "aten::empty_strided"


def first_use(ms: float) -> Events:
    """A trace without steps that allocates."""
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    pauses.work(b, 1)
    for _ in range(4):
        pauses.empty(b, ("cudaMalloc", ms))
        pauses.work(b, 10)
    return recorded(b)


@pytest.mark.parametrize(("ms", "why"), [(30, "no_steps"), (0.01, None)])
def test_without_steps_memory_is_not_checked_if_it_matters(ms: float, why: str | None) -> None:
    reason = gap(first_use(ms), "allocator-retry")
    assert (reason and reason.code) == why


# ----------------------------------------------------------------------------------------- loaders


def test_workers_that_start_anew_are_told_from_slow_ones() -> None:
    slow = found(recorded(starving.pictures_that_are_decoded_too_slowly()), "starved-loader")
    anew = found(recorded(starving.workers_that_start_for_each_of_four_epochs()), "starved-loader")
    assert "late with batches" in slow.message
    assert "num_workers" in slow.fix
    assert "start anew" in anew.message
    assert "persistent_workers=True" in anew.fix


def test_a_device_that_is_not_recorded_leaves_a_loader_unchecked() -> None:
    b = TraceBuilder("NVIDIA H100 80GB HBM3")
    for _ in range(4):
        starving.fetch(b, 20)
        b.op("aten::linear", [[4, 4], [4, 4]])
    reason = gap(recorded(b), "starved-loader")
    assert reason is not None
    assert reason.code == Why.NO_DEVICE_RECORDS.code


@pytest.mark.parametrize(("load", "matches"), [(None, 1), (1.5, 1), (12.0, 0)])
def test_a_loaded_machine_excuses_workers_of_a_live_test(load: float | None, matches: int) -> None:
    b = TraceBuilder()
    b.facts(Facts(load_per_processor=load))
    with b.annotation("torchprof::call"):
        for _ in range(4):
            starving.fetch(b, 20)
            b.op("aten::linear", [[4, 4], [4, 4]], dur_us=20_000)
    assert len(check(recorded(b), [RULES["starved-loader"]]).findings()) == matches


@pytest.mark.parametrize(
    ("wall_ms", "cpu_ms", "computes_ms", "load", "cost_ms"),
    [
        (None, None, 20, 0, 60),
        (160, None, 20, 0, 60),
        (160, 80, 20, 0, 60),
        (160, 50, 20, 0, 90),
        (120, 10, 20, 0, 90),  # with shorter steps
        (160, 50, 20, 1.5, 60),  # others use the processors
        (160, 20, 10, 0, 80),  # 40 ms of sleep in the steps
        (160, 0, 5, 0, 76),  # more than 5 ms of operators may be due to the profiler
        (200, 10, 20, 0, 120),  # no more than the whole stretch
    ],
)
def test_waits_that_the_profiler_hides_count(
    wall_ms: float | None, cpu_ms: float | None, computes_ms: float, load: float, cost_ms: float
) -> None:
    finding = found(with_rounds(wall_ms, cpu_ms, computes_ms, load), "starved-loader")
    assert finding.cost_ms == pytest.approx(cost_ms, rel=0.02)


def with_rounds(
    wall_ms: float | None, cpu_ms: float | None, computes_ms: float = 20, load: float = 0
) -> Events:
    """Four steps of 20 ms, each after a fetch of 20 ms, of which the first does not count."""
    b = TraceBuilder()
    wall, cpu = (None if ms is None else Quantity(median=ms) for ms in (wall_ms, cpu_ms))
    b.facts(Facts(wall_ms=wall, cpu_ms=cpu, load_per_processor=load))
    with b.annotation("torchprof::call"):
        starving.seed(b)
        for _ in range(4):
            starving.fetch(b, 20)
            b.op("aten::linear", [[4, 4], [4, 4]], dur_us=computes_ms * 1000)
            b.advance((20 - computes_ms) * 1000)
    return recorded(b)


def all_of_the_steps(trace: Events) -> Matches:
    rows = np.flatnonzero(trace.named("aten::linear"))
    ends = trace.ts[rows] + trace.dur[rows]
    return Matches(rows, "x", cost_ns=trace.dur[rows], span_ns=(trace.ts[rows], ends))


@pytest.mark.parametrize("hidden_ms", [0, 1, 10, 30])
def test_only_what_the_profiler_hides_is_shared_with_findings_in_the_steps(hidden_ms: int) -> None:
    trace = with_rounds(160, 80 - hidden_ms)
    rules = [RULES["starved-loader"], Rule("other", all_of_the_steps, "")]
    cost_ms = {one.rule: one.cost_ms for one in check(trace, rules).findings()}
    shared = pytest.approx(60 + hidden_ms / 2, abs=0.1)
    assert {
        "starved-loader": shared,
        "other": pytest.approx(80 - hidden_ms / 2, abs=0.1),
    } == cost_ms


# ----------------------------------------------------------------------------------------- copies


def test_a_blocked_copy_costs_the_idle_time_after_it() -> None:
    trace = recorded(blocked.copies(4, 20, 3))
    finding = found(trace, "blocked-copy")
    assert finding.cost_ms == pytest.approx(4 * 3, rel=0.05)


def test_copies_are_those_of_one_rule_only() -> None:
    trace = recorded(blocked.batches_in_pageable_memory())
    both = check(trace, [RULES["pageable-copy"], RULES["blocked-copy"]])
    assert {rule.code for rule in both.matches} == {"pageable-copy"}


# ---------------------------------------------------------------------------------- communication


@pytest.mark.parametrize(
    ("example", "message", "fix"),
    [
        (communication.gradients_in_one_bucket, "all_reduce over 8 ranks", "bucket_cap_mb"),
        (communication.each_gradient_of_a_compiled_backward_pass, "2 ranks", "bucket_cap_mb"),
        (communication.activations_of_tensor_parallel_layers, "all_reduce", "sequence parallel"),
        (communication.embeddings_of_one_step_that_are_exchanged, "all_to_all", "start it early"),
        (communication.stages_of_a_pipeline, "send and receive", "micro-batches"),
        (communication.a_rank_that_waits_for_the_others, "waits for other ranks", "same work"),
        (communication.custom_kernels_of_a_server, "all_reduce over 2 ranks", "fewer ranks"),
    ],
)
def test_the_kind_of_collective_and_its_caller_decide_the_advice(
    example: object, message: str, fix: str
) -> None:
    assert callable(example)
    for finding in check(recorded(example()), [RULES["exposed-communication"]]).findings():
        assert message in finding.message
        assert fix in finding.fix


def test_units_of_fsdp_are_to_be_prefetched() -> None:
    trace = recorded(communication.shards_of_fsdp_that_nobody_prefetches())
    findings = check(trace, [RULES["exposed-communication"]]).findings()
    assert {f.message.split()[0] for f in findings} == {"all_gather", "reduce_scatter"}
    assert all("prefetch" in f.fix for f in findings)
