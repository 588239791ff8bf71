"""The graph of data flow: who wrote what is read, exactly or by looks, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st
from support.live import captured
from support.trace_builder import TraceBuilder

from pytest_torchprof.trace.names import Kind, operators_named
from pytest_torchprof.trace.read import read_trace
from pytest_torchprof.trace.tree import backward_of, forward_of
from pytest_torchprof.work.dataflow import OUTSIDE, UNKNOWN, Dataflow, dataflow

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

#: An operator of a small program: what it is, what it takes, and the tensor that it makes, if any.
Step = tuple[str, tuple[int, ...], int]


def program(steps: list[Step], folder: Path) -> Events:
    """A trace of these operators on tensors of 16 numbers, told apart as by a live capture."""
    trace = TraceBuilder()
    for name, taken, _ in steps:
        trace.op(name, [[4, 4]] * len(taken))
    events = read_trace(trace.save(folder / "t.json"))
    by_start = dict(zip(events.ts[events.is_kind(Kind.OP)].tolist(), steps, strict=True))
    tensors: Any = SimpleNamespace(
        taken=lambda starts, _: [by_start[one][1] for one in starts],
        made=lambda starts, _: [frozenset({by_start[one][2]} - {-1}) for one in starts],
        lifetimes=lambda: dict.fromkeys([99, *[made for _, _, made in steps]], (1, -1)),
    )
    return replace(events, tensors=tensors)


def naive(steps: list[Step]) -> list[list[int]]:
    """Who wrote what each step reads, found by running the program."""
    last, found, made = dict[int, int](), list[list[int]](), {99}
    made |= {new for _, _, new in steps}
    for at, (name, taken, new) in enumerate(steps):
        reads = taken[1:] if name == "aten::copy_" else taken
        found.append([last.get(one, UNKNOWN if one in made else OUTSIDE) for one in reads])
        if name.endswith("_"):
            last[taken[0]] = at
        if new >= 0:
            last[new] = at
    return found


STEPS = st.tuples(
    st.sampled_from(["aten::add", "aten::add_", "aten::copy_"]),
    st.tuples(*[st.integers(0, 13)] * 2),
    st.booleans(),
)


@given(st.lists(STEPS, min_size=1, max_size=12))
def test_writers_are_those_that_running_the_program_finds(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, tuple[int, int], bool]]
) -> None:
    """Those that add may make one of the tensors 8 to 19."""
    steps: list[Step] = [
        (name, taken, 8 + at if makes and name == "aten::add" else -1)
        for at, (name, taken, makes) in enumerate(drawn)
    ]
    graph = dataflow(program(steps, tmp_path_factory.mktemp("program")))
    found: list[list[int]] = [[] for _ in steps]
    for node, value in zip(graph.reads.node.tolist(), graph.reads.value.tolist(), strict=True):
        found[node].append(int(graph.writer[value]))
    assert found == naive(steps)
    # What a node reads is written over by itself or later.
    after = graph.next_write(graph.reads.value)
    assert ((after < 0) | (after >= graph.event[graph.reads.node])).all()


#: x is 0, y is 1; 10 and more are made.
SMALL: list[Step] = [
    ("aten::add", (0, 1), 10),
    ("aten::mul", (10, 0), 11),
    ("aten::add_", (0, 11), -1),
    ("aten::mul", (10, 0), 12),
    ("aten::copy_", (10, 12), -1),
    ("aten::add", (0, 99), 13),
]


def test_questions_about_a_small_program(tmp_path: Path) -> None:
    graph = dataflow(program(SMALL, tmp_path))
    rows = graph.event.tolist()
    add, mul, add_, again, copy, last = rows
    assert graph.exact
    assert graph.readers(add).tolist() == [mul, again]
    assert graph.writers(again).tolist() == [add, add_]
    assert graph.writers(last).tolist() == [UNKNOWN, add_]
    assert graph.writers(add).tolist() == [OUTSIDE]
    assert graph.next_write(graph.left(add).value).tolist() == [copy]
    later = graph.next_write(graph.values(np.array(rows))).tolist()
    assert later == [add_, copy, add_, copy, copy, -1]
    assert graph.in_place.tolist() == [False, False, True, False, True, False]
    before, after = graph.values(np.array([mul, again]), 1)
    assert graph.values(np.array([add]))[0] == before != after
    assert graph.values(np.array(rows), 5).tolist() == [-1] * 6
    assert graph.event[graph.unused().node].tolist() == [copy, last]


#: Tensor, and between which steps it is changed or not.
CHANGED = {(0, 0, 1): False, (0, 1, 3): True, (0, 3, 5): False, (10, 1, 4): False,
           (10, 4, 5): True, (1, 0, 5): False, (77, 0, 5): False}  # fmt: skip
#: Steps of which the first depends on the second, or does not.
DEPENDS = {(1, 0): True, (2, 0): True, (3, 2): True, (5, 0): True, (5, 3): False, (0, 1): False}


def test_what_is_changed_and_what_depends_on_what(tmp_path: Path) -> None:
    graph = dataflow(program(SMALL, tmp_path))
    row = graph.event.tolist()
    assert {key: graph.is_changed(key[0], row[key[1]], row[key[2]]) for key in CHANGED} == CHANGED
    assert {key: graph.depends(row[key[0]], row[key[1]]) for key in DEPENDS} == DEPENDS


# ---- Live captures.


def live(block: Callable[[], Any], folder: Path) -> tuple[Events, Dataflow]:
    trace = captured(block, folder, tensors=True)
    return trace, dataflow(trace)


def names(trace: Events, events: Any) -> list[Any]:
    return [trace.names[trace.name[one]] if one >= 0 else int(one) for one in events]


def test_data_flows_through_layers_views_and_the_backward_pass(tmp_path: Path) -> None:
    layer, x = torch.nn.Linear(4, 3), torch.randn(5, 4)

    def block() -> None:
        loss = layer(x).view(3, 5).t().relu().sum()
        loss.backward()
        loss.item()

    trace, graph = live(block, tmp_path)
    (relu,) = operators_named(trace, "aten::relu")
    (linear,) = operators_named(trace, "aten::linear")
    total = graph.readers(relu)[0]
    assert names(trace, graph.writers(relu)) == ["aten::addmm"]
    assert graph.writers(linear).tolist() == [OUTSIDE]
    assert names(trace, graph.readers(total)) == ["aten::_local_scalar_dense"]
    assert set(names(trace, graph.readers(relu))) == {"aten::sum", "aten::threshold_backward"}
    ran = backward_of(trace, np.array([linear, relu]))
    steps = [one.split()[-1] for one in names(trace, ran)]
    assert steps == ["AddmmBackward0", "ReluBackward0"]
    assert names(trace, forward_of(trace, ran))[1] == "aten::relu"


def test_what_is_written_in_place_in_part_or_as_a_result(tmp_path: Path) -> None:
    x = torch.randn(3, 4)

    def block() -> None:
        y = torch.empty(3, 4)
        y[0] = 1
        y[1:].copy_(x[1:])
        y.exp()
        torch.mul(x, x, out=y)
        y.sin()

    _trace, graph = live(block, tmp_path)
    fill, copy, exp, mul, sin = graph.event.tolist()
    assert graph.writers(exp).tolist() == [copy]
    assert graph.writers(copy).tolist() == [OUTSIDE, fill]
    assert graph.depends(exp, fill)
    assert graph.writers(sin).tolist() == [mul]
    assert not graph.depends(sin, fill)


W, X, M, V = torch.randn(6, 4), torch.randn(4), torch.zeros(4), torch.ones(4)
NORM = partial(F.batch_norm, W, M, V)
AGAIN: dict[str, tuple[Callable[[], Any], str, list[int]]] = {
    "the same twice": (lambda: [W.exp() for _ in range(3)], "aten::exp", [0, 0, 0]),
    "through one view": (lambda: [W.t().clone() for _ in range(3)], "aten::clone", [0, 0, 0]),
    "one row again": (lambda: [W[2].exp() for _ in range(3)], "aten::exp", [0, 0, 0]),
    "row by row": (lambda: [W[i].exp() for i in range(3)], "aten::exp", [0, 1, 2]),
    "split rows": (lambda: [row.exp() for row in W.unbind()], "aten::exp", [*range(6)]),
    "other arguments": (lambda: [W.sum(i) for i in (0, 1, 0)], "aten::sum", [0, 1, 0]),
    "changed": (lambda: [W.add_(W.exp()) for _ in range(2)], "aten::exp", [0, 1]),
    "norms": (lambda: [NORM(), NORM()], "aten::batch_norm", [0, 0]),
    "trained norms": (lambda: [NORM(training=True) for _ in "ab"], "aten::batch_norm", [0, 1]),
    "drawn": (lambda: [torch.bernoulli(W.sigmoid())], "aten::bernoulli", [-1]),
    "products": (lambda: [torch.mv(W, X) for _ in range(2)], "aten::mv", [0, 0]),
}


@pytest.mark.parametrize("how", AGAIN)
def test_what_is_computed_again(how: str, tmp_path: Path) -> None:
    block, name, expected = AGAIN[how]
    trace, graph = live(block, tmp_path)
    found = graph.again(operators_named(trace, name)).tolist()
    assert [found.index(one) if one >= 0 else -1 for one in found] == expected


def test_what_outlives_a_call(tmp_path: Path) -> None:
    kept = list[torch.Tensor]()

    def block() -> None:
        kept.append(torch.ones(4).exp())
        torch.ones(4).sin().cos()
        kept[0].tan()

    trace, graph = live(block, tmp_path)
    rows = np.concatenate([operators_named(trace, f"aten::{one}") for one in ("exp", "sin", "tan")])
    made = np.concatenate([graph.left(one).value for one in rows[:2]])
    assert graph.outlives(made, int(trace.ts[rows[2]])).tolist() == [True, False]
    assert graph.released_ns(made).tolist()[0] == -1


# ---- The possible graph of stored traces.


def test_a_stored_trace_has_a_possible_graph_by_looks(tmp_path: Path) -> None:
    built = TraceBuilder(device="H100")
    with built.op("aten::linear", [[8, 4], [6, 4]]):
        built.op("aten::t", [[6, 4]])
        built.op("aten::mm", [[8, 4], [4, 6]])
    built.op("aten::relu_", [[6, 8]])
    built.op("aten::exp", [[8, 6]], ["c10::Half"])
    with built.op("aten::copy_", [[8, 6], [8, 6], []], ["float", "float", "Scalar"]):
        built.memcpy("HtoD", 192)
    with built.op("aten::sin", [[48]]):
        built.launch("sin")
    with built.thread(7):
        built.op("aten::tan", [[48]])
    trace = read_trace(built.save(tmp_path / "t.json"))
    graph = dataflow(trace)
    _mm, relu, exp, copy, sin, tan = graph.event.tolist()
    assert not graph.exact
    assert [names(trace, graph.writers(one)) for one in (relu, exp, copy, sin, tan)] == [
        ["aten::mm"], [OUTSIDE], ["aten::relu_"], ["aten::copy_"], [OUTSIDE],
    ]  # fmt: skip
    assert graph.again(graph.event).tolist() == [-1] * 6
