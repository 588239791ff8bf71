"""Bounds of two chips, which each tree's ini file may name, are not compared."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_torchprof.ab.controller import PairedRun, Profiled
from pytest_torchprof.core.unknown import because


@pytest.mark.parametrize(
    ("chips", "differing", "why"),
    [
        (("T4", "T4"), ["bound_ms", "launches"], None),
        (
            ("T4", "L4"),
            ["launches"],
            because(
                "chips_differ",
                "bound_ms not compared: A's is of {a}, and B's of {b}",
                a="T4",
                b="L4",
            ),
        ),
        (("T4", None), ["bound_ms", "launches"], None),
    ],
)
def test_bounds_are_compared_on_one_chip(
    chips: tuple[str | None, str | None], differing: list[str], why: Any
) -> None:
    test = PairedRun.__new__(PairedRun)
    values = ({"launches": 3, "bound_ms": 1.0}, {"launches": 4, "bound_ms": 2.0})
    test._profiles = {
        side: Profiled("passed", metrics=one, chip=chip)
        for side, one, chip in zip("AB", values, chips, strict=True)
    }
    assert differing == sorted(one.metric for one in test._differences())
    assert why == test._unprofiled()
