"""What blocks are for: each rule with its near misses, and torch's own memory profiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import torch_categories
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.memory import Category, device_memory, memory_timeline
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

PARTS = [category.name.lower() for category in Category]
STEP, ZERO = "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"


class Loop(TraceBuilder):
    """A training loop of one layer; ``where`` are its tensors."""

    def __init__(self, where: str = "cpu", **options: Any) -> None:
        super().__init__("GPU", **options)
        self.where = where

    def node(self, name: str, sequence: int = -1) -> AbstractContextManager[None]:
        args = {"Sequence number": sequence, "Fwd thread id": 1} if sequence >= 0 else {}
        return self.op(f"autograd::engine::evaluate_function: {name}", args=args)

    def accumulate(self, *shape: int) -> None:
        with self.node("torch::autograd::AccumulateGrad"):
            self.op("torch::autograd::AccumulateGrad", [list(shape)], ["float"])

    def forward(self, sequence: int = 5) -> AbstractContextManager[None]:
        return self.op("aten::linear", args={"Sequence number": sequence, "Fwd thread id": 0})

    def get(self, size: int) -> int:
        return self.memory(size, self.where)


def last(b: TraceBuilder, device: str = "cpu") -> dict[str, int]:
    """The bytes of each category at the end of the trace, without those of 0."""
    point = [p for p in memory_timeline(parse_trace(b.to_bytes())) if p.device == device][-1]
    parts = {name: getattr(point, f"{name}_bytes") for name in PARTS}
    assert point.live_bytes == sum(parts.values())
    return {name: size for name, size in parts.items() if size}


def at_peak(b: TraceBuilder, device: str = "cpu") -> dict[str, int]:
    (found,) = (d for d in device_memory(parse_trace(b.to_bytes())) if d.device == device)
    return {n: size for n in PARTS if (size := getattr(found, f"{n}_bytes"))}


# -------------------------------------------------------------------- backward


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_what_outlives_a_backward_pass_with_the_size_of_a_leaf_is_its_gradient(where: str) -> None:
    b = Loop(where)
    with b.node("AddmmBackward0"):
        gone = b.get(4096)
        b.get(1024)
    b.free(gone)
    b.accumulate(256)
    b.op("aten::add")
    device = "cpu" if where == "cpu" else "cuda:0"
    assert last(b, device) == {"gradients": 1024}
    assert at_peak(b, device) == {"temporaries": 4096, "gradients": 1024}


def test_what_outlives_a_backward_pass_with_another_size_is_unknown() -> None:
    b = Loop()
    with b.node("AddmmBackward0"):
        b.get(1020)
    b.accumulate(256)
    assert last(b) == {"unknown": 1020}


def test_more_blocks_than_leaves_of_a_size_are_unknown() -> None:
    b = Loop()
    with b.node("AddmmBackward0"):
        b.get(1024)
        b.get(1024)
        b.get(512)
    b.accumulate(256)
    b.accumulate(128)
    assert last(b) == {"unknown": 2048, "gradients": 512}


def test_what_zero_grad_frees_was_a_gradient_whatever_its_size() -> None:
    b = Loop()
    with b.node("AddmmBackward0"):
        block = b.get(1000)
    b.accumulate(256)
    with b.annotation(ZERO):
        b.free(block)
    assert at_peak(b) == {"gradients": 1000}


def test_a_pass_ends_where_the_next_operator_begins() -> None:
    b = Loop()
    with b.node("AddmmBackward0"):
        block = b.get(1024)
    b.accumulate(256)
    b.op("aten::add")
    b.free(block)
    assert at_peak(b) == {"gradients": 1024}


def test_each_pass_has_its_own_leaves() -> None:
    b = Loop()
    for size in (256, 128):
        with b.node("AddmmBackward0"):
            b.get(4 * 256)
        b.accumulate(size)
        b.op("aten::add")
    assert last(b) == {"gradients": 1024, "unknown": 1024}


def test_without_shapes_what_outlives_a_pass_are_gradients_if_there_are_as_many_leaves() -> None:
    b = Loop()
    with b.node("AddmmBackward0"):
        b.get(1020)
    b.op("torch::autograd::AccumulateGrad")
    assert last(b) == {"gradients": 1020}
    with b.node("AddmmBackward0"):
        b.get(4)
    assert last(b) == {"unknown": 1024}


@pytest.mark.parametrize(
    ("leaf", "block", "fits"),
    [
        (10, 40, False),
        (10, 512, True),
        (10, 1024, False),
        (2**18, 2**20, True),
        (2**18, 2**20 + 512, False),
        (2**18 + 128, 2**20 + 512, True),
        (2**18 + 128, 2**21 + 512, True),
        (2**18 + 128, 2**21 + 1024, False),
    ],
)
def test_sizes_on_an_accelerator_are_those_of_its_allocator(
    leaf: int, block: int, fits: bool
) -> None:
    b = Loop("cuda")
    with b.node("AddmmBackward0"):
        b.get(block)
    b.accumulate(leaf)
    assert last(b, "cuda:0") == {"gradients" if fits else "unknown": block}


# -------------------------------------------------------------------- the optimizer's step


def test_what_outlives_a_step_and_the_next_is_optimizer_state() -> None:
    b = Loop()
    with b.annotation(STEP), b.op("aten::clone"):
        kept, gone, middle = b.get(100), b.get(20), b.get(3)
        b.free(gone)
    b.free(middle)
    with b.annotation(STEP):
        b.op("aten::add_")
    assert last(b) == {"optimizer_state": 100}
    b.free(kept)
    assert at_peak(b) == {"optimizer_state": 100, "temporaries": 20, "unknown": 3}


def test_what_the_last_step_keeps_is_optimizer_state() -> None:
    b = Loop()
    with b.annotation(STEP):
        b.get(100)
    assert last(b) == {"optimizer_state": 100}


def test_a_backward_pass_within_a_step_is_a_backward_pass() -> None:
    b = Loop()
    with b.annotation(STEP):
        with b.node("AddmmBackward0"):
            b.get(1024)
        b.accumulate(256)
    assert last(b) == {"gradients": 1024}


# -------------------------------------------------------------------- forward


def test_what_an_operator_allocates_and_frees_is_a_temporary() -> None:
    b = Loop()
    with b.op("aten::conv2d"), b.op("aten::mkldnn_convolution"):
        b.free(b.get(100))
    assert at_peak(b) == {"temporaries": 100}


def test_what_a_backward_pass_frees_is_an_activation() -> None:
    b = Loop()
    with b.op("aten::relu"):
        saved, other = b.get(100), b.get(20)
    with b.node("ReluBackward0"):
        b.free(saved)
    b.op("aten::add")
    b.free(other)
    assert at_peak(b) == {"activations": 100, "unknown": 20}


@pytest.mark.parametrize(("ran", "category"), [(5, "activations"), (4, "unknown"), (6, "unknown")])
def test_what_an_operator_with_a_node_allocates_is_an_activation(ran: int, category: str) -> None:
    b = Loop()
    with b.forward(5):
        b.get(100)
    b.op("aten::mul", args={"Sequence number": 6, "Fwd thread id": 0})
    b.op("aten::randn")
    with b.node("MulBackward0", ran):
        pass
    assert last(b) == {category: 100}


def test_an_operator_without_a_node_has_the_number_of_the_next() -> None:
    b = Loop()
    with b.op("aten::detach", args={"Sequence number": 5, "Fwd thread id": 0}):
        b.get(100)
    with b.forward(5):
        b.get(30)
    with b.node("AddmmBackward0", 5):
        pass
    assert last(b) == {"unknown": 100, "activations": 30}


def test_without_a_backward_pass_what_modules_allocate_are_activations() -> None:
    b = Loop()
    b.get(7)
    with b.module("nn.Module: Linear_0"), b.op("aten::linear"):
        b.get(100)
        b.free(b.get(20))
    with b.op("aten::add"):
        b.get(3)
    assert last(b) == {"activations": 100, "unknown": 10}


# -------------------------------------------------------------------- parameters, and before


def built(*shapes: int, model: tuple[int, ...], where: str = "cpu", **options: Any) -> Loop:
    """A loop with leaves of these sizes that allocates blocks of the other sizes before."""
    b = Loop(where, **options)
    for size in model:
        with b.op("aten::empty"):
            b.get(size)
    with b.forward(5):
        saved = b.get(64)
    with b.node("AddmmBackward0", 5):
        for size in shapes:
            b.get(4 * size)
        b.free(saved)
    for size in shapes:
        b.accumulate(size)
    with b.annotation(STEP):
        b.op("aten::add_")
    return b


@pytest.mark.parametrize(
    ("model", "parameters", "unknown"),
    [
        ((40, 400), 440, 0),
        ((40, 400, 44), 440, 44),
        ((40, 40, 400), 400, 80),  # one of the two is another tensor
        ((400,), 0, 400),  # a model from before the trace has all its parameters there
    ],
)
def test_what_lives_through_all_passes_with_the_size_of_a_leaf_is_a_parameter(
    model: tuple[int, ...], parameters: int, unknown: int
) -> None:
    found = last(built(10, 100, model=model))
    assert found == {
        key: size
        for key, size in (
            ("parameters", parameters),
            ("gradients", 440),
            ("unknown", unknown),
        )
        if size
    }


def test_a_block_that_a_pass_did_not_see_is_no_parameter() -> None:
    b = Loop()
    with b.op("aten::empty"):
        early = b.get(40)
    with b.node("AddmmBackward0"):
        b.free(b.get(40))
    b.accumulate(10)
    b.op("aten::add")
    b.free(early)
    b.accumulate(10)
    with b.op("aten::empty"):
        b.get(40)
    assert last(b) == {"unknown": 40}


def test_a_block_that_is_younger_than_an_activation_is_no_parameter() -> None:
    b = Loop()
    with b.forward(5):
        b.get(64)
    with b.op("aten::clone"):
        b.get(40)
    with b.node("AddmmBackward0", 5):
        pass
    b.accumulate(10)
    assert last(b) == {"activations": 64, "unknown": 40}


def test_parameters_from_before_are_known_by_the_sizes_of_their_gradients() -> None:
    b = built(128, 256, model=(), where="cuda", start_bytes={"cuda": 10_000})
    assert last(b, "cuda:0") == {"parameters": 1536, "gradients": 1536, "before": 10_000 - 1536}
    b = built(128, 256, model=(512, 1024), where="cuda", start_bytes={"cuda": 10_000})
    assert last(b, "cuda:0") == {"parameters": 1536, "gradients": 1536, "before": 10_000}


def test_gradients_that_are_not_all_new_do_not_tell_the_parameters() -> None:
    b = Loop("cuda", start_bytes={"cuda": 10_000})
    with b.node("AddmmBackward0"):
        b.get(512)
    b.accumulate(128)
    b.accumulate(64)
    assert last(b, "cuda:0") == {"gradients": 512, "before": 10_000}


def test_one_pass_with_all_gradients_new_tells_the_parameters() -> None:
    b = built(128, model=(), where="cuda", start_bytes={"cuda": 10_000})
    b.accumulate(64)
    assert last(b, "cuda:0") == {"parameters": 512, "gradients": 512, "before": 10_000 - 512}


def test_parameters_that_do_not_fit_in_what_was_live_before_are_not_told() -> None:
    b = built(128, 256, model=(), where="cuda", start_bytes={"cuda": 1000})
    assert last(b, "cuda:0") == {"gradients": 1536, "before": 1000}


def test_older_blocks_are_told_by_where_they_are_freed() -> None:
    b = Loop("cuda", start_bytes={"cuda": 1000})
    with b.annotation(ZERO):
        b.memory(-100)
    with b.node("AddmmBackward0"):
        b.memory(-20)
    b.memory(-3)
    with b.op("aten::mul"):
        b.get(1)
    first = memory_timeline(parse_trace(b.to_bytes()))[0]
    assert (first.live_bytes, first.activations_bytes, first.before_bytes) == (900, 20, 880)
    assert last(b, "cuda:0") == {"before": 877, "unknown": 1}


def test_blocks_without_addresses_are_unknown() -> None:
    b = Loop()
    with b.op("aten::mul"):
        b.free(b.get(100))
        b.get(30)
    trace = parse_trace(b.to_bytes("schema_2021"))
    assert [(p.live_bytes, p.unknown_bytes) for p in memory_timeline(trace)] == [
        (100, 100),
        (0, 0),
        (30, 30),
    ]


# -------------------------------------------------------------------- torch's own

#: What torch calls a block, and what we may call it. Where we differ, the documents say why.
SAME = {
    "PARAMETER": {"PARAMETERS", "UNKNOWN", "TEMPORARIES"},
    "GRADIENT": {"GRADIENTS"},
    "OPTIMIZER_STATE": {"OPTIMIZER_STATE"},
    "ACTIVATION": {"ACTIVATIONS", "UNKNOWN", "TEMPORARIES"},
    "AUTOGRAD_DETAIL": {"TEMPORARIES"},
    "TEMPORARY": {"TEMPORARIES"},
    "INPUT": {"UNKNOWN", "TEMPORARIES"},
    "NONE": {"TEMPORARIES", "ACTIVATIONS", "UNKNOWN"},
}


@pytest.mark.parametrize("make", [torch_categories.mlp_with_sgd, torch_categories.cnn_with_adam])
def test_blocks_of_a_training_loop_are_what_torch_says(
    make: Callable[[], Callable[[], Any]], tmp_path: Path
) -> None:
    trace, profile = torch_categories.recorded(make, 3, tmp_path / "loop.json")
    bytes_of = torch_categories.compared(trace, profile)
    for ours, theirs in bytes_of:
        assert ours in SAME[theirs], bytes_of
    for ours, theirs, least in (
        ("GRADIENTS", "GRADIENT", 1),
        ("OPTIMIZER_STATE", "OPTIMIZER_STATE", 1),
        ("ACTIVATIONS", "ACTIVATION", 0.99),
        ("PARAMETERS", "PARAMETER", 0.99),
    ):
        mine = sum(size for (name, _), size in bytes_of.items() if name == ours)
        known = sum(
            size
            for (name, other), size in bytes_of.items()
            if other == theirs and name != "TEMPORARIES"
        )
        assert bytes_of[ours, theirs] >= least * max(mine, known) > 0, bytes_of
