"""Memory that lies elsewhere in every turn."""

from __future__ import annotations

from typing import Any

from pytest_torchprof.capture.clock import shaken


def test_allocations_differ_from_turn_to_turn() -> None:
    sizes = []
    for _ in range(4):
        held: Any = shaken()
        sizes.append(len(held[-1]))
    assert len(set(sizes)) > 1


def test_the_callers_random_numbers_are_left_alone() -> None:
    import random

    before = random.getstate()
    shaken()
    assert before == random.getstate()
