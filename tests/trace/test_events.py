"""The event model: nesting, links, the measured region, parts of it, FLOPs of operators."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.trace_builder import TraceBuilder

from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import Arguments
from pytest_torchprof.trace.events import Events
from pytest_torchprof.trace.names import DEVICE_KINDS, REGION, Kind
from pytest_torchprof.trace.read import parse_trace
from pytest_torchprof.work.counting import has_shapes, op_flops

Interval = tuple[int, int, int]  # start, duration, thread


def trace_of(*intervals: Interval, kind: Kind = Kind.OP) -> Events:
    """Operators named by their position, in time order."""
    ordered = sorted(intervals, key=lambda i: (i[0], -i[1]))
    columns = np.array(ordered, np.int64).reshape(-1, 3)
    n = len(ordered)
    return Events(
        ts=columns[:, 0],
        dur=columns[:, 1],
        kind=np.full(n, kind, np.int8),
        name=np.arange(n),
        thread=columns[:, 2].astype(np.int32),
        names=[f"op{i}" for i in range(n)],
        args=Arguments.of([None] * n),
    )


def index(trace: Events, name: str) -> int:
    (found,) = np.flatnonzero(trace.named(name))
    return int(found)


def names(trace: Events, events: Any) -> list[str]:
    return [trace.names[trace.name[i]] for i in events]


# ------------------------------------------------------------------------------------- nesting


@pytest.mark.parametrize(
    ("intervals", "parents", "depths", "own"),
    [
        ([], [], [], []),
        ([(5, 3, 0)], [-1], [0], [3]),
        ([(0, 10, 0), (2, 3, 0), (6, 2, 0)], [-1, 0, 0], [0, 1, 1], [5, 3, 2]),
        ([(0, 10, 0), (1, 8, 0), (2, 3, 0), (6, 2, 0)], [-1, 0, 1, 1], [0, 1, 2, 2], [2, 3, 3, 2]),
        # equal starts: the longer is the parent; equal intervals: the first
        ([(0, 9, 0), (0, 4, 0)], [-1, 0], [0, 1], [5, 4]),
        ([(0, 9, 0), (0, 9, 0), (0, 4, 0)], [-1, 0, 1], [0, 1, 2], [0, 5, 4]),
        # what starts at an end is not inside
        ([(0, 4, 0), (4, 4, 0)], [-1, -1], [0, 0], [4, 4]),
        # threads do not enclose one another
        ([(0, 9, 0), (1, 2, 1), (3, 2, 0)], [-1, -1, 0], [0, 0, 1], [7, 2, 2]),
        # no duration: inside what is open, around nothing
        ([(0, 9, 0), (3, 0, 0), (3, 0, 0)], [-1, 0, 0], [0, 1, 1], [9, 0, 0]),
        ([(3, 4, 0), (3, 0, 0), (7, 0, 0)], [-1, 0, -1], [0, 1, 0], [4, 0, 0]),
        ([(3, 0, 0), (4, 2, 0)], [-1, -1], [0, 0], [0, 2]),
        # a child that ends 1 ns late is a child, and what follows is none of its own
        ([(0, 100, 0), (50, 51, 0), (100, 50, 0)], [-1, 0, -1], [0, 1, 0], [49, 51, 50]),
        (
            [(0, 100, 0), (50, 51, 0), (100, 50, 0), (110, 5, 0)],
            [-1, 0, -1, 2],
            [0, 1, 0, 1],
            [49, 51, 45, 5],
        ),
        # a call that starts 1 ns before its sibling's end
        (
            [(0, 100, 0), (10, 21, 0), (30, 20, 0), (35, 5, 0)],
            [-1, 0, 0, 2],
            [0, 1, 1, 2],
            [59, 21, 15, 5],
        ),
    ],
)
def test_nesting(
    intervals: list[Interval], parents: list[int], depths: list[int], own: list[int]
) -> None:
    trace = trace_of(*intervals)
    assert trace.parent.tolist() == parents
    assert trace.depth.tolist() == depths
    assert trace.self_ns.tolist() == own


@st.composite
def nested_intervals(draw: st.DrawFn) -> list[Interval]:
    """Properly nested calls on a few threads, many of them with equal ends and no duration."""
    steps = draw(st.lists(st.tuples(st.sampled_from("([)>"), st.integers(0, 2)), max_size=120))
    clock, done, stacks = 0, list[Interval](), {0: list[int](), 1: list[int](), 2: list[int]()}
    for what, thread in steps:
        if what in "([":
            stacks[thread].append(clock)
        elif what == ")" and stacks[thread]:
            start = stacks[thread].pop()
            done.append((start, clock - start, thread))
        elif what == ">":
            clock += thread
    done += [(start, clock - start, t) for t, stack in stacks.items() for start in stack]
    return done


def nested_by_stack(trace: Events) -> tuple[list[int], list[int], list[int]]:
    """Parent, depth and self time of properly nested events, as simply as can be."""
    parent, depth, own = [], [], trace.dur.tolist()
    stacks: dict[int, list[int]] = {}
    for i in range(len(trace)):
        stack = stacks.setdefault(int(trace.thread[i]), [])
        while stack and trace.ts[stack[-1]] + trace.dur[stack[-1]] <= trace.ts[i]:
            stack.pop()
        parent.append(stack[-1] if stack else -1)
        depth.append(len(stack))
        if stack:
            own[stack[-1]] -= int(trace.dur[i])
        if trace.dur[i]:
            stack.append(i)
    return parent, depth, own


@given(nested_intervals())
def test_nesting_equals_a_stack(intervals: list[Interval]) -> None:
    trace = trace_of(*intervals)
    parent, depth, own = nested_by_stack(trace)
    assert trace.parent.tolist() == parent
    assert trace.depth.tolist() == depth
    assert trace.self_ns.tolist() == own


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30), st.integers(0, 1)), max_size=60))
def test_any_intervals_give_a_tree(intervals: list[Interval]) -> None:
    """Overlapping events: a parent is open when its child starts, and for most of it."""
    trace = trace_of(*intervals)
    end = trace.ts + trace.dur
    for i, above in enumerate(trace.parent.tolist()):
        assert above < i
        if above >= 0:
            assert trace.thread[above] == trace.thread[i]
            assert trace.ts[above] <= trace.ts[i] < end[above]
            assert 2 * end[above] > trace.ts[i] + end[i]
            assert trace.depth[i] == trace.depth[above] + 1
        else:
            assert trace.depth[i] == 0
    assert (trace.self_ns >= 0).all()


@pytest.mark.thorough
@given(nested_intervals(), st.integers(0, 3))
def test_a_nanosecond_of_rounding_changes_no_parent(intervals: list[Interval], seed: int) -> None:
    """Calls of a microsecond and more, whose ends are off by a nanosecond, nest as before."""
    exact = [(1000 * start, 1000 * dur, thread) for start, dur, thread in intervals if dur]
    shaky = [
        (start, dur + (i * 7 + seed) % 3 - 1, thread)
        for i, (start, dur, thread) in enumerate(exact)
    ]
    if len({start for start, _, _ in exact}) < len(exact):
        return  # which of two that start together is the longer would change
    assert trace_of(*shaky).parent.tolist() == trace_of(*exact).parent.tolist()


@pytest.mark.thorough
@given(
    nested_intervals(),
    st.lists(st.tuples(st.integers(-1, 60), st.integers(0, 2)), max_size=9),
    st.lists(st.booleans(), max_size=9),
)
def test_a_point_is_enclosed_by_the_innermost_open_event(
    intervals: list[Interval], points: list[tuple[int, int]], left_out: list[bool]
) -> None:
    trace = trace_of(*intervals, *((ts, 0, thread) for ts, thread in points))
    wanted = set(points)
    moments = [
        i for i in range(len(trace))
        if not trace.dur[i] and (trace.ts[i], trace.thread[i]) in wanted
    ]  # fmt: skip
    hosts = np.array([i for i in range(len(trace)) if i not in moments], np.int64)
    parent, _ = nesting.nest(trace.ts[hosts], trace.dur[hosts], trace.thread[hosts])
    above = np.full(len(trace), -1, np.int64)
    above[hosts] = np.where(parent >= 0, hosts[parent], -1)
    end = trace.ts + trace.dur
    rows = np.array(
        [i for i, out in itertools.zip_longest(hosts, left_out[: len(hosts)]) if not out], int
    )
    found = nesting.enclosing(trace.ts, end, above, rows, trace.thread, np.array(moments, np.int64))
    marked = np.isin(np.arange(len(trace)), rows)
    above = nesting.nearest(marked, above, above)
    for moment, around in zip(moments, found.tolist(), strict=True):
        now, thread = trace.ts[moment], trace.thread[moment]
        around_it = [i for i in rows if trace.thread[i] == thread and trace.ts[i] <= now <= end[i]]
        if around >= 0:
            assert around in around_it
            inside = [i for i in around_it if above[i] == around and trace.ts[i] < now < end[i]]
            assert inside == []
        else:
            assert not any(trace.ts[i] <= now < end[i] for i in around_it)


def test_memory_events_belong_to_the_operator_around_them() -> None:
    b = TraceBuilder("GPU")
    with b.op("outer"):
        b.memory(8)
        with b.op("inner"):
            b.memory(16)
            with b.thread(7):
                b.memory(32)
        b.memory(64)
    b.memory(128)
    trace = parse_trace(b.to_bytes())
    around = trace.enclosing(trace.memory.event)
    assert names(trace, around[around >= 0]) == ["outer", "inner", "outer"]
    assert (around >= 0).tolist() == [True, True, False, True, False]


# ------------------------------------------------------------------------------------ the links


def test_a_device_event_is_linked_to_the_call_that_launched_it() -> None:
    b = TraceBuilder("GPU", external="correlation")
    with b.op("aten::mm"):
        b.launch("gemm")
    with b.op("aten::copy_"):
        b.memcpy("HtoD", 64)
        b.memset(32)
    b.kernel_without_runtime("orphan")
    trace = parse_trace(b.to_bytes())
    calls = {
        name: trace.launch[index(trace, name)]
        for name in ("gemm", "Memcpy HtoD (Pageable -> Device)", "Memset (Device)", "orphan")
    }
    orphan = calls.pop("orphan")
    assert orphan == -1
    assert names(trace, calls.values()) == [
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
        "cudaMemsetAsync",
    ]
    operators = names(trace, trace.parent[list(calls.values())])
    assert operators == ["aten::mm", "aten::copy_", "aten::copy_"]
    assert (trace.launch[~trace.is_kind(*DEVICE_KINDS)] == -1).all()


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_one_graph_launch_is_the_cause_of_many_kernels(vendor: str) -> None:
    b = TraceBuilder("GPU", vendor=vendor)
    with b.op("replay"):
        b.graph_launch(["k1", "k2", "k3"])
    trace = parse_trace(b.to_bytes())
    launch = trace.launch[trace.is_kind(Kind.KERNEL)]
    assert len(set(launch.tolist())) == 1
    assert names(trace, launch) == [f"{'hip' if vendor == 'amd' else 'cuda'}GraphLaunch"] * 3


def test_the_device_is_that_of_the_args_and_else_of_the_process() -> None:
    b = TraceBuilder("GPU", device_index=3)
    b.launch("k")
    for style in ((), "no_args"):
        trace = parse_trace(b.to_bytes(style))
        assert trace.device.tolist() == [-1, 3]


# ----------------------------------------------------------------------------------- the region


def region_trace() -> Events:
    b = TraceBuilder("GPU")
    with b.op("before"):
        b.launch("launched before", device_us=50)
    with b.annotation(REGION):
        with b.op("inside"):
            b.launch("starts in time")
            b.launch("starts late", device_us=100)
        with b.thread(99), b.op("on another thread"):
            b.launch("from another thread", stream=20)
        b.kernel_without_runtime("unlinked", stream=30)
        b.advance(5)
    with b.op("after"):
        b.launch("launched after")
    return parse_trace(b.to_bytes())


def test_the_region_holds_what_the_host_did_in_it_and_what_that_caused() -> None:
    trace = region_trace()
    assert trace.region is not None
    chosen = trace.selection & trace.is_kind(Kind.OP, Kind.KERNEL)
    assert set(names(trace, np.flatnonzero(chosen))) == {
        "inside",
        "starts in time",
        "starts late",
        "on another thread",
        "from another thread",
        "unlinked",
    }
    late = index(trace, "starts late")
    assert trace.ts[late] > trace.region[1]
    early = index(trace, "launched before")
    assert trace.ts[early] + trace.dur[early] > trace.region[0]
    assert not (trace.selection & trace.named(REGION) & trace.is_kind(Kind.ANNOTATION)).any()


def test_without_a_region_all_counts() -> None:
    b = TraceBuilder("GPU")
    with b.op("aten::mm"):
        b.launch("gemm")
    trace = parse_trace(b.to_bytes())
    assert trace.region is None
    assert trace.selection.all()


def test_a_region_without_duration_is_none() -> None:
    b = TraceBuilder()
    with b.annotation(REGION), b.op("aten::mm"):
        pass
    assert parse_trace(b.to_bytes("no_dur")).region is None


# ------------------------------------------------------------------------------- parts of a trace


def modules_trace() -> Events:
    b = TraceBuilder("GPU")
    with b.annotation(REGION):
        for number in range(2):
            with b.module(f"nn.Module: Attention_{number}"), b.op("aten::linear"):
                with b.op("aten::mm"):
                    b.launch("gemm", device_us=40)
                    b.memory(64)
                b.memory(32)
            with b.module("nn.Module: AttentionBias_0"), b.op("aten::mm"):
                b.launch("other")
        with b.annotation("load batch"), b.op("aten::copy_"):
            b.memcpy("HtoD", 64)
    with b.module("nn.Module: Attention_0"), b.op("aten::mm"):
        b.launch("outside")
    return parse_trace(b.to_bytes())


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"op": "aten::mm"}, {"aten::mm": 4, "gemm": 2, "other": 2}),
        ({"op": "aten::linear"}, {"aten::linear": 2, "aten::mm": 2, "gemm": 2}),
        ({"op": "gemm"}, {}),
        ({"op": "aten::nothing"}, {}),
        ({"module": "Attention"}, {"aten::linear": 2, "aten::mm": 2, "gemm": 2}),
        ({"module": "AttentionBias"}, {"aten::mm": 2, "other": 2}),
        ({"module": "Bias"}, {}),
        ({"op": "aten::[ml]*"}, {"aten::linear": 2, "aten::mm": 4, "gemm": 2, "other": 2}),
        ({"module": "Attention*"}, {"aten::linear": 2, "aten::mm": 4, "gemm": 2, "other": 2}),
        ({"kernel": "gemm"}, {"gemm": 2}),
        ({"kernel": "*e*"}, {"gemm": 2, "other": 2, "Memcpy HtoD (Pageable -> Device)": 1}),
        ({"kernel": "aten::mm"}, {}),
        ({"region": "load *"}, {"aten::copy_": 1, "Memcpy HtoD (Pageable -> Device)": 1}),
        ({"region": "aten::*"}, {}),
    ],
)
def test_within(part: dict[str, str], expected: dict[str, int]) -> None:
    trace = modules_trace()
    view = trace.within(**part)
    chosen = view.selection & view.is_kind(Kind.OP, *DEVICE_KINDS)
    found = names(view, np.flatnonzero(chosen))
    assert {name: found.count(name) for name in set(found)} == expected
    assert trace.selection.sum() > view.selection.sum()


def test_within_an_annotation() -> None:
    b = TraceBuilder()
    with b.annotation("step"), b.op("aten::add"):
        pass
    b.op("aten::mul")
    view = parse_trace(b.to_bytes()).within(op="step")
    assert names(view, np.flatnonzero(view.selection)) == ["step", "aten::add"]


def test_parts_share_computed_values_but_keep_their_own_results() -> None:
    trace = modules_trace()
    whole = trace.parent, trace.selection, trace.once(lambda t: t.selection.sum())
    view = trace.within(op="aten::mm")
    assert view.parent is whole[0]
    assert view.selection is not whole[1]
    assert trace.selection is whole[1]

    def asked(trace: Events) -> int:
        return int(trace.selection.sum())

    assert trace.once(asked) > view.once(asked) > trace.within(op="no").once(asked) == 0


def test_a_function_of_a_trace_is_computed_once() -> None:
    asked = itertools.count()
    compute: Callable[[Events, int], int] = lambda _, more: next(asked) + more  # noqa: E731
    trace = modules_trace()
    assert [trace.once(compute, 10), trace.once(compute, 10), trace.once(compute, 20)] == [
        10,
        10,
        21,
    ]


# ---------------------------------------------------------------------------------------- FLOPs

MM: dict[str, Any] = {"dims": [[4, 5], [5, 6]]}


def test_flops_are_those_of_the_outermost_operator_with_a_number() -> None:
    b = TraceBuilder()
    attention = [[1, 2, 4, 8]] * 3
    with (
        b.op("aten::linear", [[4, 5], [6, 5]]),
        b.op("aten::addmm", [[6], [4, 5], [5, 6], [], []]),
        b.op("aten::anything"),
        b.op("aten::mm", **MM),
    ):
        pass
    with b.op("aten::_scaled_dot_product_flash_attention", attention), b.op("aten::mm", **MM):
        pass
    with b.op("aten::mm", [[4, 5]]), b.op("aten::mm", **MM):  # the outer one has no number
        pass
    with b.thread(9):
        b.op("aten::mm", **MM)
    trace = parse_trace(b.to_bytes())
    counted = np.flatnonzero(op_flops(trace))
    assert list(zip(names(trace, counted), op_flops(trace)[counted].tolist(), strict=True)) == [
        ("aten::addmm", 240),
        ("aten::_scaled_dot_product_flash_attention", 1024),
        ("aten::mm", 240),
        ("aten::mm", 240),
    ]


def test_flops_within_an_operator_whose_caller_counts_too() -> None:
    """A limit on an inner operator is not passed because the outer one has the number."""
    b = TraceBuilder()
    with b.op("aten::addmm", [[6], [4, 5], [5, 6], [], []]), b.op("aten::mm", **MM):
        pass
    trace = parse_trace(b.to_bytes())
    assert op_flops(trace).sum() == 240
    assert op_flops(trace.within(op="aten::mm")).sum() == 240
    assert op_flops(trace.within(op="aten::addmm")).sum() == 240
    assert op_flops(trace.within(op="aten::bmm")).sum() == 0


@pytest.mark.parametrize(
    ("ops", "style", "expected"),
    [
        ({"aten::mm": [[4, 5], [5, 6]]}, (), True),
        ({"aten::mm": None}, (), False),
        ({"aten::mm": [[4, 5], [5, 6]]}, "no_args", False),
        ({"aten::add": None}, (), True),  # nothing here needs shapes
        ({}, (), True),
    ],
)
def test_has_shapes(ops: dict[str, Any], style: Any, expected: bool) -> None:
    b = TraceBuilder()
    for name, dims in ops.items():
        b.op(name, dims)
    assert has_shapes(parse_trace(b.to_bytes(style))) is expected


def test_odd_args_of_one_event_do_not_disturb_the_others() -> None:
    b = TraceBuilder("GPU")
    with b.op("aten::mm", **MM):
        b.launch("gemm")
    b.memory(64)

    def odd(document: dict[str, Any]) -> dict[str, Any]:
        place = {"ph": "X", "ts": 1, "dur": 1, "pid": 0, "tid": 7}
        memory = place | {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]"}
        more = [
            place | {"cat": "kernel", "name": "a", "args": {"correlation": "many"}},
            place | {"cat": "kernel", "name": "b", "args": [1, 2]},
            place | {"cat": "kernel", "name": "c", "args": {"correlation": 2**64 - 1}},
            place | {"cat": "kernel", "name": "d", "args": {"correlation": 2**80}},
            place | {"cat": "cpu_op", "name": "aten::mm", "args": {"Input Dims": "junk"}},
            place | {"cat": "cpu_op", "name": "aten::mm", "args": None},
            memory | {"args": {"Bytes": "junk", "Addr": 2**64 - 1}},
        ]
        return document | {"traceEvents": document["traceEvents"] + more}

    trace = parse_trace(b.to_bytes(odd))
    gemm = index(trace, "gemm")
    assert names(trace, [trace.launch[gemm]]) == ["cudaLaunchKernel"]
    assert op_flops(trace).sum() == 240
    assert trace.memory.bytes.tolist() == [0, 64]


@given(st.lists(st.sampled_from([Kind.OP, Kind.KERNEL, Kind.MEMORY, Kind.MEMSET]), max_size=6))
def test_kinds_that_occur(kinds: list[Kind]) -> None:
    column, zeros = np.array(kinds, np.int8), np.zeros(len(kinds), np.int64)
    threads = zeros.astype(np.int32)
    trace = Events(zeros, zeros, column, zeros, threads, ["a"], Arguments.of([None] * len(kinds)))
    for kind in Kind:
        assert trace.has(kind) == (kind in kinds)
    assert trace.has(Kind.OP, Kind.KERNEL) == (not {Kind.OP, Kind.KERNEL}.isdisjoint(kinds))
    rows = [i for i, kind in enumerate(kinds) if kind in DEVICE_KINDS]
    assert trace.device_rows.tolist() == rows
