"""How operators are found in the profiler's own tree of events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pytest_torchprof.capture.lines import StorageNumbers


def event(
    name: str, start: int, end: int, *children: Any, takes: int | None = None, thread: int = 1
) -> Any:
    """An event of the tree; ``takes``: it is an operator, with the tensor of this number."""
    fields = SimpleNamespace()
    if takes is not None:
        tensor = SimpleNamespace(allocation_id=takes, storage_data_ptr=1)
        fields = SimpleNamespace(inputs=[tensor])
    return SimpleNamespace(
        name=name,
        start_time_ns=start,
        end_time_ns=end,
        start_tid=thread,
        children=list(children),
        typed=(None, fields),
    )


def memory(number: int, size: int, at: int, thread: int = 1) -> Any:
    fields = SimpleNamespace(alloc_size=size, allocation_id=number, id=0)
    return SimpleNamespace(
        name="[memory]",
        start_time_ns=at,
        end_time_ns=at,
        start_tid=thread,
        children=[],
        typed=(None, fields),
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
    empty = event("aten::empty", 1, 2, memory(5, 64, 1), memory(6, 64, 2), takes=1)
    found = numbers(event("aten::mul", 0, 9, empty, memory(5, -64, 3), takes=1))
    assert found.made([0, 1], ["aten::mul", "aten::empty"]) == [{6}, {5, 6}]


def test_the_thread_of_backward_passes_is_below_a_region_of_the_device_that_has_ended() -> None:
    """It is below what was open when the first pass began."""
    first = event("MulBackward0", 20, 30, memory(5, 64, 21, thread=2), takes=3, thread=2)
    add = event("aten::add_", 61, 63, memory(6, 64, 62, thread=2), takes=5, thread=2)
    second = event("MulBackward0", 60, 65, add, takes=3, thread=2)
    on_device = event("torchprof::call", 10, 50, first, second)
    found = numbers(event("torchprof::call", 0, 100, on_device))
    asked = [20, 60, 61], ["MulBackward0", "MulBackward0", "aten::add_"]
    assert found.taken(*asked) == [(3,), (3,), (5,)]
    assert found.made(*asked) == [{5}, {6}, {6}]


def test_an_operator_goes_on_after_torch_has_ended_it_with_a_region_of_the_device() -> None:
    """What follows is not below it in the tree, but is its own."""
    multiply = event("aten::mul", 20, 40, memory(5, 64, 25), takes=1)
    on_device = event("torchprof::call", 10, 30, multiply)
    later = [memory(6, 64, 35), memory(7, 64, 36, thread=2), memory(5, -64, 38), memory(8, 64, 41)]
    found = numbers(event("torchprof::call", 0, 100, on_device, *later))
    assert found.made([20], ["aten::mul"]) == [{6}]
