"""Meta and fake tensors have no values, so operators on them are no work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.live import captured
from torch._subclasses.fake_tensor import FakeTensorMode

from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.verdict.metrics import METRICS, measure

X = torch.ones(3)


def module() -> None:
    with torch.device("meta"):
        torch.nn.Linear(64, 64)(torch.ones(8, 64))


def fake() -> None:
    with FakeTensorMode():
        (torch.ones(5, 5) @ torch.ones(5, 5)).relu()


def both() -> None:
    shape = torch.ones(64, 64, device="meta")
    shape @ shape + 1
    X + 1


def into() -> None:
    """Allocations of nothing, of no size, and results in memory that is there."""
    torch.add(X, X, out=torch.empty(3))
    torch.zeros(0)
    X.clone().mul_(2)


@pytest.mark.parametrize(("block", "launches"), [(module, 0), (fake, 0), (both, 1), (into, 2)])
def test_operators_on_tensors_without_values_start_nothing(
    block: Callable[[], None], launches: int, tmp_path: Path
) -> None:
    block()
    trace = captured(block, tmp_path)
    assert launches == measure(METRICS["launches"], trace)
    assert 0 == measure(METRICS["host_reads"], trace)


def test_what_writes_beside_them_makes_it_a_lower_bound(tmp_path: Path) -> None:
    def block() -> Any:
        shape = torch.ones(64, 64, device="meta")
        return (shape @ shape).relu_(), X + 1

    block()
    trace = captured(block, tmp_path)
    found = measure(METRICS["launches"], trace)
    assert isinstance(found, MissingValue)
    assert (1, True) == (found.at_hand, found.at_least)
    assert "aten::relu_ (1 call" in found.reason.text
    assert "may be on meta or fake tensors" in found.reason.text
    assert 0 == measure(METRICS["host_reads"], trace)
