"""The order of runs: that of commits, and of clocks only where ancestry is unknown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.history.git import Order, main_line, order_of
from pytest_torchprof.history.series import RunInfo

Graph = list[tuple[str, list[str]]]

LINE: Graph = [("a", []), ("b", ["a"]), ("c", ["b"]), ("d", ["c"])]
#: b and c are made on a branch, d on the main line; m merges them.
MERGED: Graph = [("a", []), ("d", ["a"]), ("b", ["a"]), ("c", ["b"]), ("m", ["d", "c"])]


def run(name: str, commit: str | None, started: str = "", **values: object) -> RunInfo:
    known = {"branch": "main", "dirty": False, "parents": None, "merge_base": None, **values}
    return RunInfo(
        number=0, name=name, repository="r", commit=commit, started=started or name, **known  # type: ignore[arg-type]
    )  # fmt: skip


def told(order: Order) -> dict[str, str]:
    """The name of each run in order, and the names of those before it."""
    return {
        run.name: "".join(order.runs[at].name for at in before)
        for run, before in zip(order.runs, order.before, strict=True)
    }


@pytest.mark.parametrize(
    ("wanted", "graph", "expected"),
    [
        ("abcd", LINE, {"a": "", "b": "a", "c": "b", "d": "c"}),
        ("ad", LINE, {"a": "", "d": "a"}),
        ("adcm", MERGED, {"a": "", "d": "a", "c": "a", "m": "dc"}),
        ("acm", MERGED, {"a": "", "c": "a", "m": "ac"}),
        ("am", MERGED, {"a": "", "m": "a"}),
        ("", LINE, {}),
    ],
)
def test_the_nearest_commits_with_runs_are_those_before(
    wanted: str, graph: Graph, expected: dict[str, str]
) -> None:
    order = order_of([run(commit, commit) for commit in wanted], graph)
    assert (expected, 0) == (told(order), order.by_clock)


@pytest.mark.parametrize(
    ("runs", "graph", "is_shallow", "expected", "by_clock"),
    [
        # The graph lacks y and z, whose documents know what is before them.
        ([run("x", "x"), run("y", "y", parents=("x",)),
          run("z", "z", parents=("?",), merge_base="y")],
         [("x", [])], False, {"x": "", "y": "x", "z": "y"}, 0),
        # A merge base is older than what the parents lead to.
        ([run("a", "a"), run("c", "c"), run("z", "z", parents=("c",), merge_base="a")],
         LINE, False, {"a": "", "c": "a", "z": "c"}, 0),
        # What is before z is unknown: the clock puts it after a, if it is of the same branch.
        ([run("a", "a"), run("z", "z", parents=("?",)), run("y", "y", parents=("?",))],
         LINE, False, {"a": "", "y": "a", "z": "y"}, 2),
        ([run("a", "a", branch="other"), run("z", "z", parents=("?",)), run("y", "y")],
         LINE, False, {"a": "", "y": "", "z": "y"}, 2),
        # In a shallow clone git says that c has no parents; its document knows better.
        ([run("c", "c"), run("d", "d")], [("c", []), ("d", ["c"])], True, {"c": "", "d": "c"}, 0),
        ([run("b", "b", parents=("a",)), run("c", "c", parents=("b",)), run("d", "d")],
         [("c", []), ("d", ["c"])], True, {"b": "", "c": "b", "d": "c"}, 0),
        # A first commit has nothing before it, which is known.
        ([run("a", "a"), run("x", "x", parents=())], LINE[:1], False, {"x": "", "a": ""}, 0),
    ],
)  # fmt: skip
def test_what_documents_know_helps_and_else_the_clock(
    runs: list[RunInfo],
    graph: Graph,
    is_shallow: bool,
    expected: dict[str, str],
    by_clock: int,
) -> None:
    order = order_of(runs, graph, is_shallow=is_shallow)
    assert (expected, by_clock) == (told(order), order.by_clock)


def test_documents_that_lie_in_a_circle_are_still_ordered() -> None:
    runs = [run("x", "x", parents=("y",)), run("y", "y", parents=("x",))]
    assert {"x", "y"} == told(order_of(runs, [])).keys()


@given(st.lists(st.integers(0, 5), max_size=12))
def test_a_commit_comes_after_those_before_it(steps: Sequence[int]) -> None:
    """Each commit has up to two earlier ones as parents; half of them have runs."""
    graph: Graph = []
    for number, step in enumerate(steps):
        parents = {number - 1 - step % 3, number - 1 - step // 2} - {number}
        graph.append((f"c{number}", [f"c{p}" for p in sorted(parents) if p >= 0]))
    order = order_of([run(commit, commit) for commit, _ in graph[::2]], graph)
    assert len(graph[::2]) == len(order.runs)
    assert all(place < at for at, before in enumerate(order.before) for place in before)


@pytest.mark.parametrize(
    ("runs", "expected", "without_commit"),
    [
        ([run("1", "c"), run("2", "a"), run("3", "b")], {"2": "", "3": "2", "1": "3"}, 0),
        # Those of one commit are in the order of their clocks.
        ([run("2", "a"), run("1", "a"), run("3", "b")], {"1": "", "2": "1", "3": "2"}, 0),
        # A changed tree comes after its commit and before no other.
        ([run("1", "a", dirty=True), run("2", "a"), run("3", "b", dirty=True), run("4", "c")],
         {"2": "", "1": "2", "3": "2", "4": "2"}, 0),
        # If all trees are changed, they count as their commits.
        ([run("1", "a", dirty=True), run("2", "b", dirty=True)], {"1": "", "2": "1"}, 0),
        ([run("2", None), run("1", None), run("3", "a")], {"3": "", "1": "", "2": "1"}, 2),
    ],
)  # fmt: skip
def test_the_order_is_that_of_commits_and_then_of_clocks(
    runs: list[RunInfo], expected: dict[str, str], without_commit: int
) -> None:
    order = order_of(runs, LINE)
    assert list(expected.items()) == list(told(order).items())
    assert (0, without_commit) == (order.by_clock, order.without_commit)


def test_the_main_line_leaves_out_branches_and_changed_trees() -> None:
    runs = [
        run("1", "a"),
        run("2", "d"),
        run("3", "c", branch="feature"),
        run("4", "m"),
        run("5", "m", dirty=True),
    ]
    order = order_of(runs, MERGED)
    assert ["1", "2", "4"] == [order.runs[at].name for at in main_line(order)]
    assert [] == main_line(order_of([], []))
