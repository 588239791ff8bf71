"""Folded stacks: every path once, and all of them add up."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.live import captured
from support.real_traces import CORPUS
from support.trace_builder import TraceBuilder

from pytest_torchprof.core.errors import TraceError
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.render.export import StackMetric, _whole_us, fold, write_stacks
from pytest_torchprof.trace.names import REGION
from pytest_torchprof.trace.read import parse_trace, read_trace
from pytest_torchprof.verdict.metrics import METRICS, measure

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

#: As flamegraph.pl and inferno take a line apart.
LINE = re.compile(r"^(\S+) (\d+)$")


def folded(trace: Events, metric: StackMetric = "self_cpu_ms") -> dict[str, int]:
    """Paths and us, after checking that each is there once and that they add up."""
    lines = [*fold(trace, metric)]
    matches = [LINE.match(line) for line in lines]
    assert None not in matches, lines
    found = {match[1]: int(match[2]) for match in matches if match}
    assert len(found) == len(lines)
    value = measure(METRICS[metric], trace)
    whole = 0 if isinstance(value, MissingValue) else value * 1000
    assert abs(sum(found.values()) - whole) <= 0.5001
    assert 0 not in found.values()
    return found


def test_operators_fold_by_nesting() -> None:
    b = TraceBuilder("GPU")
    for _ in range(2):
        with b.annotation("forward"), b.op("aten::linear", dur_us=20):
            with b.op("aten::addmm", dur_us=10):
                b.launch("void gemm<float, 4>(int; int)", device_us=7, host_us=4)
            b.op("aten::add", dur_us=3)
    found = folded(parse_trace(b.to_bytes()))
    top = "forward;aten::linear;"
    assert found.pop("forward") in {1, 2}
    assert found == {
        "forward;aten::linear": 14,
        top + "aten::addmm": 12,
        top + "aten::addmm;cudaLaunchKernel": 8,
        top + "aten::add": 6,
    }
    kernel = top + "aten::addmm;void_gemm<float,_4>(int__int)"
    assert folded(parse_trace(b.to_bytes()), "self_cuda_ms") == {kernel: 14}


def test_python_functions_and_modules_are_frames() -> None:
    b = TraceBuilder("GPU")
    with b.python("model.py(12): forward", 50), b.module("nn.Module: Linear_0", 40):
        with b.op("aten::mm", dur_us=10):
            b.launch("gemm", device_us=5)
        b.launch("by hand", device_us=3, host_us=2)
    found = folded(parse_trace(b.to_bytes()))
    module = "model.py(12):_forward;nn.Module:_Linear_0"
    assert found == {
        f"{module};aten::mm": 5,
        f"{module};aten::mm;cudaLaunchKernel": 5,
        f"{module};cudaLaunchKernel": 2,
    }
    assert folded(parse_trace(b.to_bytes()), "self_cuda_ms") == {
        f"{module};aten::mm;gemm": 5,
        f"{module};by_hand": 3,
    }


def test_events_that_no_operator_launched_are_included() -> None:
    b = TraceBuilder("GPU")
    b.launch("gemm", device_us=5)
    b.kernel_without_runtime("lost", device_us=3)
    b.graph_launch(["one", "two"], device_us=1)
    expected = {"gemm": 5, "lost": 3, "one": 1, "two": 1}
    found = folded(parse_trace(b.to_bytes()), "self_cuda_ms")
    assert found == {f"(no_operator);{name}": us for name, us in expected.items()}


def test_a_live_capture_counts_its_region_which_is_not_a_frame() -> None:
    b = TraceBuilder()
    b.op("aten::before")
    with b.annotation(REGION):
        with b.op("aten::add", dur_us=8):
            b.op("aten::add", dur_us=3)
        with b.thread(2):  # as the backward pass
            b.op("aten::add", dur_us=4)
    assert folded(parse_trace(b.to_bytes())) == {"aten::add": 9, "aten::add;aten::add": 3}


def test_equal_stacks_of_all_steps_are_one() -> None:
    b = TraceBuilder()
    for step in range(3):
        with b.annotation(f"ProfilerStep#{step}", 10):
            b.op("aten::add", dur_us=2)
    assert folded(parse_trace(b.to_bytes())) == {"ProfilerStep": 24, "ProfilerStep;aten::add": 6}


@pytest.mark.parametrize(
    ("name", "frame"),
    [
        ("a;b", "a_b"),
        ("a b\tc\nd\r\n", "a_b_c_d__"),
        ("a\u2028b\u00a0c", "a_b_c"),
        ("", "(unnamed)"),
        (" ", "_"),
        ("ProfilerStep#7", "ProfilerStep"),
        ("ProfilerStep*#7", "ProfilerStep"),
        ("MyProfilerStep#7", "MyProfilerStep#7"),
    ],
)
def test_names_keep_to_the_format(name: str, frame: str) -> None:
    b = TraceBuilder()
    b.op(name)
    assert folded(parse_trace(b.to_bytes())) == {frame: 5}


@given(st.lists(st.integers(0, 5000), max_size=30))
def test_rounding_loses_nothing(ns: list[int]) -> None:
    whole = _whole_us(np.array(ns, np.int64))
    assert abs(int(whole.sum()) - sum(ns) / 1000) <= 0.5
    assert all(abs(us - exact / 1000) < 1 for us, exact in zip(whole.tolist(), ns, strict=True))


TREES = st.recursive(
    st.tuples(st.sampled_from("abc"), st.just(())),
    lambda inner: st.tuples(st.sampled_from("abc"), st.lists(inner, max_size=4)),
    max_leaves=15,
)


@pytest.mark.thorough
@given(st.lists(st.tuples(st.integers(1, 3), TREES), max_size=5))
def test_random_trees_fold_as_a_walk_counts(
    trees: list[tuple[int, tuple[str, list[object]]]],
) -> None:
    b, counts = TraceBuilder(), Counter[str]()

    def grow(tree: tuple[str, list[object]], path: str = "") -> None:
        name, children = tree
        path += f";{name}" if path else name
        counts[path] += 1
        with b.op(name, dur_us=50):
            for child in children:
                grow(child, path)  # type: ignore[arg-type]

    for thread, tree in trees:
        with b.thread(thread):
            grow(tree)
    assert folded(parse_trace(b.to_bytes())).keys() <= counts.keys()
    leaves = {p: n for p, n in counts.items() if not any(q.startswith(f"{p};") for q in counts)}
    found = folded(parse_trace(b.to_bytes()))
    assert {path: found[path] for path in leaves} == {p: 50 * n for p, n in leaves.items()}


def test_a_trace_of_nothing_has_no_lines() -> None:
    for metric in ("self_cpu_ms", "self_cuda_ms"):
        assert [*fold(parse_trace(b"[]"), metric)] == []


def test_live_stacks_add_up(tmp_path: Path) -> None:
    found = folded(captured(lambda: torch.ones(9, 9) @ torch.ones(9, 9), tmp_path))
    assert any(path.endswith("aten::matmul;aten::mm") for path in found)


def test_the_file_holds_the_lines(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.op("aten::größer")
    b.op("aten::add")
    trace, target = parse_trace(b.to_bytes()), tmp_path / "new" / "out.folded"
    assert write_stacks(trace, target) == 2
    assert target.read_text("utf-8").splitlines() == [*fold(trace)]
    with pytest.raises(TraceError, match="cannot be written"):
        write_stacks(trace, tmp_path)


STORED = sorted(CORPUS.glob("*.json.gz"))


@pytest.mark.skipif(not STORED, reason="the folder of real traces is not here")
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name.partition(".")[0])
def test_stacks_of_a_real_trace_add_up(path: Path) -> None:
    trace = read_trace(path)
    assert folded(trace)
    assert folded(trace, "self_cuda_ms")
