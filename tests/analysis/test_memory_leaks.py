"""What grows from step to step: clear growth with its stack, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import torch_categories
from support.trace_builder import TraceBuilder
from torch.profiler import ProfilerActivity, profile

from pytest_torchprof.analysis.memory import OUTSIDE, LeakRow, memory_leaks
from pytest_torchprof.analysis.memory import step_moments as moments_of
from pytest_torchprof.trace.read import parse_trace, read_trace


def loop(levels: Sequence[int], where: str = "cpu") -> TraceBuilder:
    """One operator has so many bytes live at the end of each step."""
    b, block = TraceBuilder("GPU"), None
    for number, level in enumerate(levels):
        with b.annotation(f"ProfilerStep#{number}"):
            with b.op("aten::randn"):
                batch = b.memory(1000, where)
            with b.op("aten::mul"):
                if block is not None:
                    b.free(block)
                block = b.memory(level, where) if level else None
            b.free(batch)
    return b


def found(b: TraceBuilder) -> list[LeakRow] | None:
    return memory_leaks(parse_trace(b.to_bytes()))


@pytest.mark.parametrize(
    ("levels", "grows"),
    [
        ([9, 1, 2, 3, 4], False),  # the first falls
        ([1, 2, 3, 4, 5], True),
        ([0, 2, 3, 4, 5], True),
        ([1, 2, 3, 4, 4], False),  # by chance 1 in 60
        ([1, 2, 3, 4, 5, 5], False),  # it may have come to an end
        ([1, 2, 3, 3, 4, 5, 6], True),
        ([0, 0, 0, 1, 2, 3, 3, 3], False),
        ([1, 2, 3, 5, 4, 6], False),
        ([1, 1, 2, 2, 3, 3, 4, 4], True),
        ([1, 2, 3, 4, 5, 5, 5, 5, 5], False),  # a cache that has filled
        ([1, 9, 9, 9, 9, 9], False),  # warm-up
        ([1] * 10 + [2] * 10, False),
        ([1] * 6 + [2, 3, 4, 5, 6], False),
        ([5] * 9, False),
        ([5, 4, 3, 2, 1], False),
    ],
)
def test_growth_is_clear_and_goes_on(levels: list[int], grows: bool) -> None:
    rows = found(loop(levels))
    assert rows is not None
    assert [row.operator for row in rows] == ["aten::mul"] * grows
    for row in rows:
        assert (row.bytes, row.steps) == (levels[-1] - levels[0], len(levels) - 1)
        assert row.bytes_per_step == row.bytes / row.steps


@pytest.mark.parametrize(("where", "device"), [("cpu", "cpu"), ("cuda", "cuda:0")])
def test_blocks_that_pile_up_are_counted(where: str, device: str) -> None:
    b = TraceBuilder("GPU")
    for number in range(6):
        with b.annotation(f"ProfilerStep#{number}"):
            with b.op("aten::mul"):
                b.memory(100, where)
                b.memory(10, where)
            b.memory(1, where)
    assert found(b) == [
        LeakRow(device, "aten::mul", 550, 110.0, 10, 5),
        LeakRow(device, OUTSIDE, 5, 1.0, 5, 5),
    ]


def test_a_block_that_is_replaced_by_a_larger_one_counts_no_more_blocks() -> None:
    (row,) = found(loop([10, 20, 30, 40, 50])) or []
    assert (row.blocks, row.bytes_per_step) == (0, 10)


def test_what_the_first_step_allocates_is_warm_up() -> None:
    b = TraceBuilder()
    for number in range(8):
        with b.annotation(f"ProfilerStep#{number}"), b.op("aten::mul"):
            if number == 0:
                b.memory(10**6, "cpu")
            b.free(b.memory(10, "cpu"))
    assert found(b) == []


def test_too_few_steps_tell_nothing() -> None:
    assert found(loop([1, 2, 3, 4])) is None
    assert found(TraceBuilder()) is None


def test_each_stack_is_tested() -> None:
    b = TraceBuilder()
    blocks = list[int]()
    for number in range(7):
        with b.annotation(f"ProfilerStep#{number}"), b.python("train.py(3): step"):
            with b.python("train.py(9): log"), b.op("aten::mul"):
                b.memory(100, "cpu")
            with b.python("train.py(20): net"), b.op("aten::mul"):
                blocks.append(b.memory(7, "cpu"))
            if len(blocks) > 1:
                b.free(blocks.pop(0))
    (row,) = found(b) or []
    assert row == LeakRow(
        "cpu", "aten::mul", 600, 100.0, 6, 6, "train.py(3): step;train.py(9): log"
    )


def test_an_operator_whose_stacks_take_turns_has_no_stack() -> None:
    b = TraceBuilder()
    for number in range(8):
        with b.annotation(f"ProfilerStep#{number}"):
            line = number // 3
            with b.python(f"train.py({line}): step"), b.op("aten::mul"):
                b.memory(100, "cpu")
    (row,) = found(b) or []
    assert (row.bytes, row.stack) == (700, None)


# -------------------------------------------------------------------- which annotation


def annotated(*steps: tuple[str, ...]) -> TraceBuilder:
    b = TraceBuilder()
    for names in steps:
        scopes = [b.annotation(name, 5) for name in names[:1]]
        for scope in scopes:
            with scope:
                for name in names[1:]:
                    b.annotation(name)
    return b


@pytest.mark.parametrize(
    ("steps", "name", "count"),
    [
        ([(f"ProfilerStep#{i}", "train") for i in range(3)], "ProfilerStep*", 3),
        ([("ProfilerStep#7", *["token"] * 6)], "ProfilerStep*", 1),
        ([(f"batch {i}",) for i in range(6)], "batch *", 6),
        ([("epoch", "step")] * 2, "epoch", 2),
        ([("step", "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad")] * 5, "step", 5),
        ([("Optimizer.step#SGD.step", "nccl:all_reduce")] * 5, "Optimizer.step", 5),
        ([("ProfilerStep#7", "Optimizer.step#SGD.step")], "ProfilerStep*", 1),
        ([("## Call CompiledFxGraph f4 ##", "Torch-Compiled Region: 0/0")] * 5, "", 0),
        ([("once",)], "", 0),
        ([], "", 0),
    ],
)
def test_steps_are_the_profilers_or_the_users_or_the_optimizers(
    steps: list[tuple[str, ...]], name: str, count: int
) -> None:
    known = moments_of(parse_trace(annotated(*steps).to_bytes()))
    assert (known.name, len(known.ends)) == (name, count)


def test_moments_of_a_part_are_those_in_it() -> None:
    b = TraceBuilder()
    for number in range(2):
        with b.annotation(f"epoch {number}"):
            for step in range(5 + number):
                with b.annotation(f"ProfilerStep#{5 * number + step}"), b.op("aten::mul"):
                    b.memory(100, "cpu")
    trace = parse_trace(b.to_bytes())
    assert [11, 5, 6] == [
        len(moments_of(part).ends)
        for part in (trace, trace.within(region="epoch 0"), trace.within(region="epoch 1"))
    ]
    (row,) = memory_leaks(trace.within(region="epoch 1")) or []
    assert (row.bytes, row.steps) == (500, 5)


# -------------------------------------------------------------------- properties, live loops


@pytest.mark.thorough
@given(st.lists(st.integers(0, 3), min_size=5, max_size=12))
def test_a_row_grows_as_its_levels_do(levels: list[int]) -> None:
    for row in found(loop(levels)) or []:
        assert levels == sorted(levels)
        assert row.bytes == levels[-1] - levels[0] > 0


def leaking() -> Callable[[], Any]:
    step, kept = torch_categories.mlp_with_sgd(), list[torch.Tensor]()

    def leaks() -> None:
        step()
        kept.append(torch.ones(1000))

    return leaks


def cached() -> Callable[[], Any]:
    step, kept = torch_categories.mlp_with_sgd(), dict[int, torch.Tensor]()

    def caches() -> None:
        step()
        kept.setdefault(len(kept) if len(kept) < 3 else 0, torch.ones(1000))

    return caches


@pytest.mark.parametrize(
    ("make", "grows"),
    [
        (leaking, True),
        (cached, False),
        (torch_categories.mlp_with_sgd, False),
        (torch_categories.cnn_with_adam, False),
    ],
)
def test_a_live_loop_that_keeps_a_tensor_in_each_step_grows(
    make: Callable[[], Callable[[], Any]], grows: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"profile_memory": True, "with_stack": True}
    with profile(activities=[ProfilerActivity.CPU], **options) as prof:
        step = make()
        for _ in range(8):
            step()
    prof.export_chrome_trace(str(tmp_path / "loop.json"))
    trace = read_trace(tmp_path / "loop.json")
    rows = memory_leaks(trace)
    assert ("Optimizer.step", 8) == (moments_of(trace).name, len(moments_of(trace).ends))
    if not grows:
        assert rows == []
        return
    (row,) = rows or []
    assert (row.operator, row.bytes, row.blocks) == ("aten::ones", 7 * 4000, 7)
    assert row.stack is not None
    assert "test_memory_leaks.py" in row.stack.split(";")[-2]
