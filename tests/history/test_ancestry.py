"""The order of runs, by the ancestry of their commits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.history.git import (
    Commits,
    Documented,
    commits_between,
    main_line,
    order_of,
)
from pytest_torchprof.history.index import IndexedRun

Graph = list[tuple[str, list[str]]]

LINE: Graph = [("a", []), ("b", ["a"]), ("c", ["b"]), ("d", ["c"])]
#: b and c are made on a branch, d on the main line; m merges them.
MERGED: Graph = [("a", []), ("d", ["a"]), ("b", ["a"]), ("c", ["b"]), ("m", ["d", "c"])]


def run(name: str, commit: str | None, started: str = "", **values: object) -> IndexedRun:
    known = {"branch": "main", "dirty": False, "parents": None, "merge_base": None, **values}
    return IndexedRun(
        id=0, name=name, repository="r", commit=commit, started=started or name, **known  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "graph", "before"),
    [
        ("abcd", LINE, {"a": (), "b": ("a",), "c": ("b",), "d": ("c",)}),
        ("ad", LINE, {"a": (), "d": ("a",)}),
        ("adcm", MERGED, {"a": (), "d": ("a",), "c": ("a",), "m": ("d", "c")}),
        ("acm", MERGED, {"a": (), "c": ("a",), "m": ("a", "c")}),
        ("am", MERGED, {"a": (), "m": ("a",)}),
        ("", LINE, {}),
    ],
)
def test_the_nearest_commits_with_runs_are_those_before(
    wanted: str, graph: Graph, before: dict[str, tuple[str, ...]]
) -> None:
    found = commits_between(wanted, graph, {})
    assert before == found.before
    assert () == found.open_ended


def test_what_documents_know_helps_where_the_repository_lacks_commits() -> None:
    documented = {"y": Documented(("x",), None), "z": Documented(("?",), "y")}
    found = commits_between("xyz", [("x", [])], documented)
    assert {"x": (), "y": ("x",), "z": ("y",)} == found.before
    assert () == found.open_ended


def test_a_merge_base_is_older_than_what_the_parents_lead_to() -> None:
    documented = {"z": Documented(("c",), "a")}
    assert ("c",) == commits_between("acz", LINE, documented).before["z"]


def test_a_commit_without_a_known_past_is_open_ended() -> None:
    found = commits_between("az", LINE, {"z": Documented(("?",), None)})
    assert {"a": (), "z": ()} == found.before
    assert ("z",) == found.open_ended


def test_beyond_the_boundary_of_a_shallow_clone_nothing_is_known() -> None:
    graph: Graph = [("c", []), ("d", ["c"])]  # as git says: c has no parents here
    assert ("c",) == commits_between("cd", graph, {}, boundary={"c"}).open_ended
    documented = {"c": Documented(("b",), None), "b": Documented(("a",), None)}
    found = commits_between("bcd", graph, documented, boundary={"c"})
    assert {"b": (), "c": ("b",), "d": ("c",)} == found.before
    assert ("b",) == found.open_ended


def test_a_first_commit_has_nothing_before_it_which_is_known() -> None:
    assert () == commits_between("x", [], {"x": Documented((), None)}).open_ended


def test_documents_that_lie_in_a_circle_are_still_ordered() -> None:
    documented = {"x": Documented(("y",), None), "y": Documented(("x",), None)}
    assert {"x", "y"} == commits_between("xy", [], documented).before.keys()


@given(st.lists(st.integers(0, 5), max_size=12), st.randoms(use_true_random=False))
def test_a_commit_comes_after_those_before_it(steps: list[int], random: object) -> None:
    """Each commit has up to two earlier ones as parents; half of them have runs."""
    graph: Graph = []
    for number, step in enumerate(steps):
        parents = {number - 1 - step % 3, number - 1 - step // 2} - {number}
        graph.append((f"c{number}", [f"c{p}" for p in sorted(parents) if p >= 0]))
    wanted = [commit for commit, _ in graph[::2]]
    found = commits_between(wanted, graph, {}).before
    names = list(found)
    assert set(wanted) == set(names)
    for commit, earlier in found.items():
        assert all(names.index(one) < names.index(commit) for one in earlier)


CHAIN = Commits({"a": (), "b": ("a",), "c": ("b",)})


def test_the_order_is_that_of_commits_not_of_clocks() -> None:
    runs = [run("1", "c"), run("2", "a"), run("3", "b")]
    order = order_of(runs, CHAIN)
    assert ["2", "3", "1"] == [one.name for one in order.runs]
    assert [(), (0,), (1,)] == order.before
    assert (0, 0) == (order.by_clock, order.without_commit)


def test_runs_of_one_commit_are_in_the_order_of_their_clocks() -> None:
    order = order_of([run("2", "a"), run("1", "a"), run("3", "b")], CHAIN)
    assert ["1", "2", "3"] == [one.name for one in order.runs]
    assert [(), (0,), (1,)] == order.before


def test_a_changed_tree_comes_after_its_commit_and_before_no_other() -> None:
    runs = [run("1", "a", dirty=True), run("2", "a"), run("3", "b", dirty=True), run("4", "c")]
    order = order_of(runs, CHAIN)
    assert ["2", "1", "3", "4"] == [one.name for one in order.runs]
    assert [(), (0,), (0,), (0,)] == order.before


def test_if_all_trees_are_changed_they_count_as_their_commits() -> None:
    order = order_of([run("1", "a", dirty=True), run("2", "b", dirty=True)], CHAIN)
    assert [(), (0,)] == order.before


def test_runs_without_a_commit_are_ordered_by_their_clocks() -> None:
    order = order_of([run("2", None), run("1", None), run("3", "a")], CHAIN)
    assert ["3", "1", "2"] == [one.name for one in order.runs]
    assert [(), (), (1,)] == order.before
    assert 2 == order.without_commit


def test_where_the_past_is_unknown_the_clock_puts_a_commit_and_it_is_counted() -> None:
    commits = Commits({"a": (), "b": ("a",), "y": (), "z": ("y",)}, open_ended=("a", "y"))
    runs = [run("3", "y"), run("4", "z"), run("1", "a"), run("2", "b")]
    order = order_of(runs, commits)
    assert ["1", "2", "3", "4"] == [one.name for one in order.runs]
    assert [(), (0,), (1,), (2,)] == order.before
    assert 1 == order.by_clock


def test_another_branch_is_not_before_a_commit_with_an_unknown_past() -> None:
    commits = Commits({"a": (), "z": ()}, open_ended=("a", "z"))
    order = order_of([run("1", "a", branch="other"), run("2", "z")], commits)
    assert [(), ()] == order.before


def test_the_main_line_leaves_out_branches_and_changed_trees() -> None:
    commits = commits_between("adcm", MERGED, {})
    runs = [
        run("1", "a"),
        run("2", "d"),
        run("3", "c", branch="feature"),
        run("4", "m"),
        run("5", "m", dirty=True),
    ]
    order = order_of(runs, commits)
    assert ["1", "2", "4"] == [order.runs[at].name for at in main_line(order)]


def test_no_runs_have_no_line() -> None:
    assert [] == main_line(order_of([], Commits({})))
