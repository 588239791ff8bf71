"""What is said of pauses of the host: which one it is, where, and what to do about it."""

from __future__ import annotations

import gc
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from labelled import blocked, communication, pauses, starving
from support.recorded import record
from support.trace_builder import TraceBuilder

from pytest_torchprof.core.unknown import Why
from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
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
