"""Casts and clones of which nothing uses the result: memory events say whether they are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from support.live import captured, captured_file

from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.names import Kind

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_torchprof.trace.events import Events

THROWN_AWAY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "repeated-cast": torch.Tensor.double,
    "contiguous-copy": torch.clone,
}


def counted(code: str, trace: Events) -> int:
    return check(trace, [RULES[code]]).counts.get(code, 0)


def without_memory(trace: Events) -> Events:
    kind = trace.kind.copy()
    kind[trace.is_kind(Kind.MEMORY)] = Kind.OTHER
    return replace(trace, kind=kind)


@pytest.mark.parametrize("code", THROWN_AWAY)
def test_what_is_thrown_away_each_time_is_found(code: str, tmp_path: Path) -> None:
    x, copy = torch.randn(64), THROWN_AWAY[code]

    def block() -> None:
        for _ in range(10):
            copy(x)

    assert counted(code, captured(block, tmp_path)) == 9


@pytest.mark.parametrize("code", THROWN_AWAY)
def test_what_is_kept_side_by_side_is_not(code: str, tmp_path: Path) -> None:
    tensors, copy = [torch.randn(64) for _ in range(10)], THROWN_AWAY[code]
    kept: list[torch.Tensor] = []
    trace = captured(lambda: kept.extend(map(copy, tensors)), tmp_path)
    assert counted(code, trace) == 0


@pytest.mark.parametrize("code", THROWN_AWAY)
def test_without_memory_events_nothing_is_found(code: str, tmp_path: Path) -> None:
    x, copy = torch.randn(64), THROWN_AWAY[code]
    trace = captured(lambda: [copy(x) for _ in range(10)] and None, tmp_path)
    assert counted(code, without_memory(trace)) == 0


def in_steps(body: Callable[[], object], mark: str) -> Callable[[], None]:
    def block() -> None:
        for number in range(8):
            with torch.profiler.record_function(mark.format(number)):
                body()

    return block


@pytest.mark.parametrize(
    ("mark", "expected"),
    [("ProfilerStep#{}", 0), ("enumerate(DataLoader)#_X.__next__", 0), ("layer {}", 7)],
)
def test_steps_are_counted_apart(mark: str, expected: int, tmp_path: Path) -> None:
    x = torch.randn(64)
    trace = captured(in_steps(lambda: x.double().sum(), mark), tmp_path)
    assert counted("repeated-cast", trace) == expected


#: What takes x last, and whether it writes to it.
TAKES_LAST: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], object], bool]] = {
    "reads it, and nothing uses the result": (torch.mul, False),
    "adds it as a bias": (lambda other, x: torch.nn.functional.linear(x[None], other, x), False),
    "writes its result there": (lambda other, x: torch.mul(other, other, out=x), True),
}


@pytest.mark.parametrize("how", TAKES_LAST)
def test_a_tensor_that_is_taken_last_is_written_to_only_as_a_result(
    how: str, tmp_path: Path
) -> None:
    takes, writes = TAKES_LAST[how]
    x = torch.randn(64)
    other = torch.eye(64) if "bias" in how else torch.ones(64)

    def block() -> None:
        for _ in range(8):
            x.double()
            takes(other, x)

    trace, _ = captured_file(block, tmp_path, tensors=True)
    assert counted("repeated-cast", trace) == (0 if writes else 7)
