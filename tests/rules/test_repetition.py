"""Casts and clones of one tensor: used or not, kept or not, in steps, written to in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from support.live import captured
from support.recorded import record

from pytest_torchprof.rules.check import check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.read import read_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "repeated-cast": torch.Tensor.double,
    "contiguous-copy": torch.clone,
}


def ten(code: str) -> Callable[[], None]:
    x = torch.randn(64)

    def block() -> None:
        for _ in range(10):
            COPIES[code](x)

    return block


def counted(code: str, block: Callable[[], object], folder: Path) -> int:
    trace = captured(block, folder, tensors=True)
    return check(trace, [RULES[code]]).counts.get(code, 0)


@pytest.mark.parametrize("code", COPIES)
def test_what_is_thrown_away_each_time_is_found(code: str, tmp_path: Path) -> None:
    assert counted(code, ten(code), tmp_path) == 9


def test_clones_that_are_kept_side_by_side_are_not(tmp_path: Path) -> None:
    x, kept = torch.randn(64), list[torch.Tensor]()
    clones = (x.clone() for _ in range(10))
    assert counted("contiguous-copy", lambda: kept.extend(clones), tmp_path) == 0


@pytest.mark.parametrize("code", COPIES)
def test_a_stored_trace_which_does_not_identify_tensors_says_so(code: str, tmp_path: Path) -> None:
    assert check(captured(ten(code), tmp_path), [RULES[code]]).wants_tensors
    stored = check(read_trace(record(ten(code), tmp_path)), [RULES[code]])
    assert stored.counts == {}
    assert "only a live test can tell" in stored.partly[code].text


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
    assert expected == counted("repeated-cast", in_steps(lambda: x.double().sum(), mark), tmp_path)


#: What takes x last, and whether it writes to it.
TAKES_LAST: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], object], bool]] = {
    "adds it as a bias": (
        lambda other, x: torch.nn.functional.linear(x[None], other, x).sum(),
        False,
    ),
    "writes its result there": (lambda other, x: torch.mul(other[0], other[0], out=x), True),
}


@pytest.mark.parametrize("how", TAKES_LAST)
def test_a_tensor_that_is_taken_last_is_written_to_only_as_a_result(
    how: str, tmp_path: Path
) -> None:
    takes, writes = TAKES_LAST[how]
    x, other = torch.randn(64), torch.eye(64)

    def block() -> None:
        for _ in range(8):
            x.double()
            takes(other, x)

    assert counted("repeated-cast", block, tmp_path) == (0 if writes else 7)
