"""Which annotations are the steps of a trace, what they hold, and what is no step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stepped import loop
from support.trace_builder import TraceBuilder

from pytest_torchprof.core.errors import SettingsError
from pytest_torchprof.core.values import ALL_STEPS, StepRange
from pytest_torchprof.trace.names import REGION, Kind, region_mark
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.trace.steps import at_steps, numbers_in_words, step_of, steps_of

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events


def annotated(*names: str, around: str = "", us: float = 50) -> Events:
    """One annotation after the other, with an operator in each."""
    b = TraceBuilder()
    scope = b.annotation(around) if around else None
    if scope is not None:
        scope.__enter__()
    for name in names:
        with b.annotation(name, us):
            b.op("aten::add")
            b.advance(us)
    if scope is not None:
        scope.__exit__()
    return parse_trace(b.to_bytes())


@pytest.mark.parametrize(
    ("names", "title", "numbers"),
    [
        (["ProfilerStep#7", "ProfilerStep#8"], "ProfilerStep*", [7, 8]),
        (["ProfilerStep#7"], "ProfilerStep*", [7]),
        (["train", "ProfilerStep*#1", "train"], "ProfilerStep*", [1]),
        (["train_step-40", "train_step-41"], "train_step-*", [40, 41]),
        (["train_step-40"], "train_step-*", [40]),
        (["[pl][profile]run_training_batch"] * 2, "[pl][profile]run_training_batch", [0, 1]),
        (["step[EXTEND bs=1 toks=9]", "step[DECODE bs=1]"], "step[EXTEND bs=* toks=*]", [0, 1]),
        (["batch 4", "batch 5", "batch 9"], "batch *", [4, 5, 9]),
        (["batch 5", "batch 4"], "batch *", [0, 1]),
        (["epoch 2 batch 4", "epoch 2 batch 5"], "epoch * batch *", [4, 5]),
        (["conv2d", "conv2d"], "conv*d", [0, 1]),
        (["train", "train", "train"], "train", [0, 1, 2]),
        (["cuda step"] * 2, "cuda step", [0, 1]),
        (
            ["[pl][profile][Strategy]DDP.validation_step"] * 2,
            "[pl][profile][Strategy]DDP.validation_step",
            [0, 1],
        ),
        ([region_mark("größe"), region_mark("größe")], "größe", [0, 1]),
        (["run " + "9" * 30, "run " + "8" * 30], "run *", [0, 1]),
    ],
)
def test_what_the_steps_are(names: list[str], title: str, numbers: list[int]) -> None:
    steps = steps_of(annotated(*names))
    assert (title, numbers) == (steps.name, steps.number.tolist())


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["train"],
        ["Optimizer.step#SGD.step"] * 3,
        ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"] * 3,
        ["nccl:all_reduce"] * 3,
        ["DistributedDataParallel.forward"] * 3,
        [REGION] * 2,
    ],
)
def test_what_is_no_step(names: list[str]) -> None:
    trace = annotated(*names)
    assert 0 == len(steps_of(trace))
    assert (step_of(trace) == -1).all()


def test_of_an_epoch_with_steps_the_steps() -> None:
    b = TraceBuilder()
    for _ in range(2):
        with b.annotation("epoch"):
            for _ in range(5):
                with b.annotation("step"):
                    with b.annotation("forward", 40):
                        b.advance(40)
                    b.op("aten::add", dur_us=60)
    steps = steps_of(parse_trace(b.to_bytes()))
    assert ("step", 10) == (steps.name, len(steps))


def test_what_repeats_over_less_than_half_of_the_time_is_no_step() -> None:
    b = TraceBuilder()
    for us in (10, 10):
        b.annotation("forward", us)
        b.op("aten::add", dur_us=30)
    assert 0 == len(steps_of(parse_trace(b.to_bytes())))
    assert 2 == len(steps_of(parse_trace(b.to_bytes()), "forward"))


@pytest.mark.parametrize("name", ["batch 4", "batch *", "b*", "batch [45]"])
def test_a_name_or_a_glob_chooses_them(name: str) -> None:
    trace = annotated("batch 4", "batch 5", "other", "other", "other")
    assert "other" == steps_of(trace).name
    chosen = steps_of(trace, name)
    assert [4, 5][: len(chosen)] == chosen.number.tolist()
    assert len(chosen) == (1 if name == "batch 4" else 2)


def test_a_name_as_it_is_shown_chooses_them_too() -> None:
    """Its brackets are no glob."""
    trace = annotated("MoE[experts=4]", "MoE[experts=5]", "x", "x", "x")
    assert 2 == len(steps_of(trace, "MoE[experts=*]"))


def test_an_annotation_within_a_step_of_its_name_is_part_of_it() -> None:
    b = TraceBuilder()
    for _ in range(2):
        with b.annotation("step"), b.annotation("step", 20):
            b.op("aten::add")
    assert 2 == len(steps_of(parse_trace(b.to_bytes())))


def test_an_event_is_of_the_step_in_which_it_starts_in_any_thread() -> None:
    b = TraceBuilder()
    for number in range(2):
        with b.annotation(f"ProfilerStep#{number}"):
            b.op("aten::mul")
            with b.thread(77):
                b.op("aten::mm", dur_us=3)
    b.op("aten::add")
    trace = parse_trace(b.to_bytes())
    ops = trace.is_kind(Kind.OP)
    assert [0, 0, 1, 1, -1] == step_of(trace)[ops].tolist()
    view = at_steps(trace, StepRange(1, 2))
    assert 2 == (view.selection & ops).sum()
    assert 4 == (at_steps(trace, ALL_STEPS).selection & ops).sum()


def test_device_work_is_of_the_step_whose_launch_made_it() -> None:
    """Kernels take longer than steps, so all but the first run in later ones."""
    trace = parse_trace(loop([500, 500, 500]).to_bytes())
    kernels = trace.is_kind(Kind.KERNEL)
    assert [-1, 0, 1, 2] == step_of(trace)[kernels].tolist()
    last = trace.ts[kernels][-1]
    assert last > steps_of(trace).end[-1]


def test_steps_of_a_live_capture_are_those_of_its_region() -> None:
    b = TraceBuilder()
    with b.annotation("ProfilerStep#0"):
        b.op("aten::add")
    with b.annotation(REGION), b.annotation("ProfilerStep#1"):
        b.op("aten::add")
    trace = parse_trace(b.to_bytes())
    assert [1] == steps_of(trace).number.tolist()
    assert 1 == (at_steps(trace, ALL_STEPS).selection & trace.is_kind(Kind.OP)).sum()


@given(st.lists(st.integers(1, 90), min_size=1, max_size=8), st.data())
def test_slices_are_a_partition(lengths: list[int], data: st.DataObject) -> None:
    b = TraceBuilder()
    for number, us in enumerate(lengths, 5):
        with b.annotation(f"ProfilerStep#{number}"):
            b.op("aten::add", dur_us=us)
        b.op("aten::mul")
    trace = parse_trace(b.to_bytes())
    cut = data.draw(st.integers(5, 4 + len(lengths)))
    parts = [StepRange(None, cut), StepRange(cut, cut + 1), StepRange(cut + 1, None)]
    found = [trace.part(("step", "", part)).selection for part in parts]
    whole = at_steps(trace, ALL_STEPS).selection
    assert (np.sum(found, axis=0) == whole).all()
    assert 2 * len(lengths) == whole.sum()


@pytest.mark.parametrize(
    ("which", "message"),
    [
        (StepRange(9, 10), "there is no step 9: its steps (ProfilerStep*) are 3 to 5; choose one"),
        (StepRange(4, 4), "there is no step from 4 to before 4: its steps"),
        (StepRange(6), "there is no step from 6: its steps"),
        (StepRange(None, 3), "there is no step before 3: its steps"),
    ],
)
def test_steps_that_are_not_there_are_an_error_that_says_which_are(
    which: StepRange, message: str
) -> None:
    trace = parse_trace(loop([1, 1, 1]).to_bytes())
    with pytest.raises(SettingsError) as error:
        at_steps(trace, which)
    assert message in str(error.value)


def test_a_trace_without_steps_is_an_error_that_says_what_there_is() -> None:
    with pytest.raises(SettingsError, match=r"no steps: .* annotations are a ×1, b ×1; name one"):
        at_steps(annotated("a", "b"), ALL_STEPS)
    with pytest.raises(SettingsError, match=r"it has no annotations; call the profiler's step"):
        at_steps(annotated(), ALL_STEPS)
    with pytest.raises(SettingsError, match=r"no annotation is called c: its annotations are a ×2"):
        at_steps(annotated("a", "a"), ALL_STEPS, "c")


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([4], "4"),
        ([4, 5, 6], "4 to 6"),
        ([1, 3, 4], "1, 3 to 4"),
        ([0, 2, 4, 6, 8, 10, 12], "0, 2, 4, 6, 8 and 2 more ranges"),
    ],
)
def test_numbers_are_ranges(numbers: list[int], text: str) -> None:
    assert text == numbers_in_words(np.array(numbers, np.int64))
