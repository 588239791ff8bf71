"""Modules, functions and annotations as a tree: what belongs where, and the parts are the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.real_traces import CORPUS
from support.stepped import record_steps
from support.trace_builder import TraceBuilder

from pytest_torchprof.analysis.operators import (
    TREES,
    TreeBy,
    TreeRow,
    op_stats,
    self_cpu_ns,
    tree_rows,
)
from pytest_torchprof.core.values import StepRange
from pytest_torchprof.trace.names import DEVICE_KINDS, MODULE_MARK, REGION, Kind
from pytest_torchprof.trace.read import parse_trace, read_trace
from pytest_torchprof.trace.steps import at_steps, steps_of
from pytest_torchprof.work.counting import op_flops

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.trace_builder import Scope

    from pytest_torchprof.trace.events import Events

H100 = "NVIDIA H100 80GB HBM3"


def transformer(layers: int = 3) -> TraceBuilder:
    """Layers of two kinds, one kernel each, and an operator outside of all."""
    b = TraceBuilder(H100)
    with b.module("nn.Module: Net_0"):
        for layer in range(layers):
            with b.module(f"nn.Module: Block_{layer}"):
                with b.module(f"nn.Module: Linear_{layer}"), b.op("aten::mm", [[2, 3], [3, 4]]):
                    b.launch("gemm", 10)
                with b.op("aten::add", [[2, 4], [2, 4]]):
                    b.launch("add", 1)
        with b.module("nn.Module: Linear_9"), b.op("aten::mm", [[2, 3], [3, 4]]):
            b.launch("gemm", 10)
    with b.op("aten::argmax", [[2, 4]]):
        b.launch("reduce", 5)
    return b


def rows_of(b: TraceBuilder, by: TreeBy = "module", depth: int | None = None) -> list[TreeRow]:
    return tree_rows(parse_trace(b.to_bytes()), by, depth)


def outline(rows: list[TreeRow]) -> list[str]:
    return [f"{'  ' * (row.depth - 1)}{row.name} ×{row.count}" for row in rows]


def test_layers_of_one_kind_are_one_row() -> None:
    rows = rows_of(transformer())
    expected = ["Net ×1", "  Block ×3", "    Linear ×3", "  Linear ×1", "(no module) ×0"]
    assert expected == outline(rows)
    block = rows[1]
    assert (["Net", "Block"], 2, 3) == (block.path, block.depth, block.calls)
    assert pytest.approx(0.003) == block.self_cuda_ms
    assert pytest.approx(0.033) == block.cuda_ms
    assert (3, 6) == (block.self_kernels, block.kernels)
    assert (0, 3 * 48) == (block.self_flops, block.flops)
    assert pytest.approx(33 / 48) == block.share
    assert ([], 1, 0) == (rows[-1].path, rows[-1].depth, rows[-1].calls)


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (1, ["Net ×1", "(no module) ×0"]),
        (2, ["Net ×1", "  Block ×3", "  Linear ×1", "(no module) ×0"]),
        (9, ["Net ×1", "  Block ×3", "    Linear ×3", "  Linear ×1", "(no module) ×0"]),
    ],
)
def test_what_is_deeper_counts_for_the_last_level(depth: int, expected: list[str]) -> None:
    rows = rows_of(transformer(), depth=depth)
    assert expected == outline(rows)
    assert 8 == sum(row.self_kernels or 0 for row in rows)
    assert 7 == rows[0].kernels
    assert all(row.self_kernels == row.kernels for row in rows if row.depth == depth)


def test_by_stack_the_nodes_are_functions() -> None:
    b = TraceBuilder()
    with b.python("train.py(9): train"):
        for layer in range(2):
            with (
                b.python("model.py(3): forward"),
                b.module(f"nn.Module: Block_{layer}"),
                b.op("aten::add"),
            ):
                b.advance(5)
        b.python("log.py(1): quiet")
    expected = ["train.py(9): train ×1", "  model.py(3): forward ×1", "    nn.Module: Block ×2"]
    assert expected == outline(rows_of(b, "stack"))
    assert [1, 2, 2] == [row.calls for row in rows_of(b, "stack")]


@pytest.mark.parametrize("by", TREES)
def test_without_stacks_the_nodes_are_annotations(by: TreeBy) -> None:
    b = TraceBuilder()
    for step in range(2):
        with b.annotation(f"ProfilerStep#{step}"):
            for layer in range(3):
                with b.annotation(f"h.{layer}"), b.op("aten::add"):
                    b.advance(5)
            with b.annotation("fc1"):
                b.op("aten::add", dur_us=3)
            with b.annotation("fc2"):
                b.op("aten::add", dur_us=2)
    b.op("aten::mul", dur_us=1)
    rows = rows_of(b, by)
    expected = ["ProfilerStep* ×2", "  h.* ×3", "  fc1 ×1", "  fc2 ×1", "(no annotation) ×0"]
    assert expected == outline(rows)
    assert 6 == rows[1].calls


@pytest.mark.parametrize(
    ("names", "title"),
    [
        (["layers.0", "layers.1"], "layers.*"),
        (["layers.0"], "layers.0"),
        (["layer_0", "layer_1"], "layer_*"),
        (["enc.0.attn", "enc.1.attn"], "enc.*.attn"),
        (["batch 0", "batch 1"], "batch *"),
        (["conv2d", "conv2d"], "conv2d"),
    ],
)
def test_numbers_that_stand_alone_are_merged(names: list[str], title: str) -> None:
    b = TraceBuilder()
    for name in names:
        with b.annotation(name):
            b.op("aten::add")
    assert [title] == [row.name for row in rows_of(b)]


def test_annotations_of_modules_have_the_names_of_the_model() -> None:
    """Lightning's profiler writes them; they say more than the classes of Python frames."""
    b = TraceBuilder()
    with b.module("nn.Module: Net_0"), b.annotation("[pl][module]my.Net: net"):
        for layer in range(2):
            name = f"[pl][module]torch.nn.modules.linear.Linear: net.layers.{layer}"
            with b.annotation(name), b.op("aten::mm"):
                b.advance(3)
    assert ["net ×1", "  net.layers.* ×2"] == outline(rows_of(b))


def test_marks_of_a_live_capture_are_modules() -> None:
    b = TraceBuilder()
    with b.annotation(REGION), b.annotation(f"{MODULE_MARK}Attention"):
        b.op("aten::mm")
    assert ["Attention ×1"] == outline(rows_of(b))


def test_a_backward_operator_belongs_to_the_module_of_its_forward_operator() -> None:
    b = TraceBuilder(H100)
    forward, backward = ({"Sequence number": 7, "Fwd thread id": n} for n in (0, 1))
    with b.module("nn.Module: Linear_0"), b.op("aten::addmm", args=forward):
        b.launch("gemm", 10)
    with b.thread(99):
        mark = "autograd::engine::evaluate_function: AddmmBackward0"
        with b.op(mark, args=backward), b.op("AddmmBackward0", args=backward), b.op("aten::mm"):
            b.launch("gemm", 20)
            b.memory(4096)
    (row,) = rows_of(b)
    assert ("Linear", 2, 4096) == (row.name, row.kernels, row.cuda_bytes)
    assert pytest.approx(0.03) == row.cuda_ms


def test_what_other_threads_do_is_of_the_annotation_that_is_open() -> None:
    b = TraceBuilder()
    with b.annotation("step"), b.annotation("backward", 100), b.thread(99):
        b.op("aten::mm", dur_us=50)
    with b.thread(99):
        b.op("aten::add", dur_us=7)
    rows = {row.name: row for row in rows_of(b)}
    assert 0.05 <= rows["backward"].self_cpu_ms < 0.2
    assert pytest.approx(0.007) == rows["(no annotation)"].self_cpu_ms


def test_what_was_not_recorded_is_unknown() -> None:
    b = TraceBuilder()
    with b.annotation("step"):
        b.op("aten::mm")
    (row,) = rows_of(b)
    assert (None, None, None, None) == (row.cuda_ms, row.kernels, row.flops, row.cpu_bytes)
    assert [] == rows_of(TraceBuilder())


def assert_parts_are_the_whole(trace: Events, by: TreeBy, depth: int | None = None) -> None:
    """Own numbers add up to the trace's, and to those of the rows above."""
    rows = tree_rows(trace, by, depth)
    device = trace.selection & trace.is_kind(*DEVICE_KINDS)
    assert pytest.approx(self_cpu_ns(trace) / 1e6) == sum(row.self_cpu_ms for row in rows)
    if device.any():
        own = sum(row.self_cuda_ms or 0 for row in rows)
        assert pytest.approx(trace.dur[device].sum() / 1e6) == own
        kernels = int((trace.selection & trace.is_kind(Kind.KERNEL)).sum())
        assert kernels == sum(row.self_kernels or 0 for row in rows)
        assert pytest.approx(1) == sum(row.share or 0 for row in rows if row.depth == 1)
    flops = [row.self_flops for row in rows]
    if None not in flops:
        assert op_flops(trace)[trace.selection].sum() == sum(map(int, flops))  # type: ignore[arg-type]
    ops = op_stats(trace)
    for field in ("self_cpu_bytes", "self_cuda_bytes"):
        assert sum(getattr(r, field) or 0 for r in ops) == sum(getattr(r, field) or 0 for r in rows)
    below: dict[tuple[str, ...], float] = {}
    for row in rows:
        if row.path:
            above = tuple(row.path[:-1])
            below[above] = below.get(above, 0) + row.cpu_ms
    for row in rows:
        if row.path:
            inside = below.get(tuple(row.path), 0)
            assert pytest.approx(row.cpu_ms) == row.self_cpu_ms + inside
            assert depth is None or row.depth <= depth


CALLS: st.SearchStrategy[list[tuple[int, str, int]]] = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["op", "module", "python", "note"]), st.just(3)),
    max_size=25,
)


@pytest.mark.thorough
@given(CALLS, st.sampled_from(TREES), st.none() | st.integers(1, 4))
def test_any_nesting(calls: list[tuple[int, str, int]], by: TreeBy, depth: int | None) -> None:
    b = TraceBuilder(H100)
    b.kernel_without_runtime("ghost", 3)
    open_: list[Scope] = []
    makers: dict[str, Callable[[int], Scope]] = {
        "op": lambda _: b.op("aten::mm", [[2, 3], [3, 4]]),
        "module": lambda n: b.module(f"nn.Module: Block_{n}"),
        "python": lambda n: b.python(f"a.py({n}): f"),
        "note": lambda n: b.annotation(f"note {n}"),
    }
    for level, kind, us in calls:
        while len(open_) > level:
            open_.pop().__exit__()
        scope = makers[kind](level)
        scope.__enter__()
        open_.append(scope)
        b.memory(us * 100)
        if kind == "op":
            b.launch("gemm", us)
    while open_:
        open_.pop().__exit__()
    assert_parts_are_the_whole(parse_trace(b.to_bytes()), by, depth)


@pytest.mark.parametrize("stacks", [False, True])
def test_a_recorded_training(tmp_path: Path, stacks: bool) -> None:
    trace = read_trace(record_steps(tmp_path / "three.json", 3, stacks=stacks))
    for by in TREES:
        assert_parts_are_the_whole(trace, by)
        for number in steps_of(trace).number.tolist():
            part = at_steps(trace, StepRange(number, number + 1))
            assert_parts_are_the_whole(part, by, 2)
    rows = {row.name: row for row in tree_rows(trace)}
    assert ("Linear" if stacks else "forward") in rows
    if stacks:  # forward twice, backward three times: no gradient of the input
        assert (6, 2) == (rows["Linear"].calls, rows["Linear"].count)
        assert op_flops(trace).sum() == rows["Sequential"].flops


PATHS = sorted(CORPUS.rglob("*.json.gz"))


@pytest.mark.skipif(not PATHS, reason="no real traces: TORCHPROF_TRACE_CORPUS has none")
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name.partition(".")[0])
@pytest.mark.parametrize("by", TREES)
def test_trees_of_real_traces(path: Path, by: TreeBy) -> None:
    trace = read_trace(path)
    assert_parts_are_the_whole(trace, by)
    assert_parts_are_the_whole(trace, by, 2)


@pytest.mark.skipif(not PATHS, reason="no real traces: TORCHPROF_TRACE_CORPUS has none")
def test_a_real_model() -> None:
    """ViT-Base: 12 layers of 72 linear layers in all, and of 24 norms."""
    found = [path for path in PATHS if path.name.startswith("h100_vit")]
    if not found:
        pytest.skip("this corpus has no h100_vit_inference")
    rows = {tuple(row.path): row for row in tree_rows(read_trace(found[0]))}
    layer = rows["ViTModel", "ViTEncoder", "ViTLayer"]
    assert (12, 12, 3) == (layer.count, layer.calls, layer.depth)
    linear = [row for row in rows.values() if row.name == "Linear" and "ViTLayer" in row.path]
    assert 72 == sum(row.count for row in linear)
    assert 24 == rows["ViTModel", "ViTEncoder", "ViTLayer", "LayerNorm"].count


def test_a_kernel_without_an_operator_has_unknown_flops() -> None:
    b = transformer()
    b.launch("cutlass_80_tensorop_bf16_gemm", 10)
    rows = rows_of(b)
    assert {"(no module)"} == {row.name for row in rows if row.flops is None}
