"""How operators are found in the profiler's own tree of events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pytest_torchprof.capture.storage_numbers import StorageNumbers


def event(name: str, start: int, end: int, *children: Any, takes: int | None = None) -> Any:
    """An event of the tree; ``takes``: it is an operator, with the tensor of this number."""
    fields = SimpleNamespace()
    if takes is not None:
        tensor = SimpleNamespace(allocation_id=takes, storage_data_ptr=1)
        fields = SimpleNamespace(inputs=[tensor])
    return SimpleNamespace(
        name=name,
        start_time_ns=start,
        end_time_ns=end,
        start_tid=1,
        children=list(children),
        typed=(None, fields),
    )


def memory(number: int, size: int) -> Any:
    fields = SimpleNamespace(alloc_size=size, allocation_id=number, id=0)
    return SimpleNamespace(
        name="[memory]", start_time_ns=0, end_time_ns=0, children=[], typed=(None, fields)
    )


def numbers(*roots: Any) -> StorageNumbers:
    results = SimpleNamespace(experimental_event_tree=lambda: list(roots))
    return StorageNumbers(results, 0)


def test_an_operator_is_found_beside_a_longer_event_that_began_within_the_one_around_it() -> None:
    """A region's device work is below it in the tree, and begins while an operator runs."""
    inner = event("aten::mm", 20, 25, takes=7)
    on_device = event("torchprof::call", 15, 90)
    outer = event("aten::matmul", 10, 30, inner, takes=3)
    found = numbers(event("torchprof::call", 0, 100, outer, on_device))
    assert found.taken([20, 10], ["aten::mm", "aten::matmul"]) == [(7,), (3,)]


def test_an_operator_is_found_below_an_event_of_another_thread_that_overlaps() -> None:
    inner = event("aten::add_", 50, 55, takes=7)
    backward = event("AccumulateGrad", 40, 60, inner, takes=1)
    short = event("aten::item", 45, 46, takes=2)
    found = numbers(event("torchprof::call", 0, 100, backward, short))
    assert found.taken([50], ["aten::add_"]) == [(7,)]
    assert found.taken([51, 50], ["aten::add_", "aten::add"]) == [(), ()]


def test_what_an_operator_frees_again_it_has_not_made() -> None:
    """Whether it does so itself, or an operator that it calls allocates it."""
    empty = event("aten::empty", 1, 2, memory(5, 64), memory(6, 64), takes=1)
    found = numbers(event("aten::mul", 0, 9, empty, memory(5, -64), takes=1))
    assert found.made([0], ["aten::mul"]) == [frozenset({6})]
