"""What is said of a list that grows past the 30 tensors that torch records in a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from support.live import captured
from support.trace_builder import TraceBuilder

from pytest_torchprof.rules.check import Checked, check
from pytest_torchprof.rules.registry import RULES
from pytest_torchprof.trace.read import parse_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pytest_torchprof.core.values import Finding


def joined(numbers: Iterable[int], dtype: torch.dtype = torch.float32) -> Callable[[], object]:
    """A block that joins a list of so many of the same rows, time and again."""
    rows = [torch.ones(8, 512, dtype=dtype) for _ in range(100)]
    return lambda: [torch.cat(rows[:number]).amax() for number in numbers]


def checked(block: Callable[[], object], folder: Path, *, tensors: bool = True) -> Checked:
    """What the rule says of a block."""
    return check(captured(block, folder, tensors=tensors), [RULES["growing-cat"]])


def found(block: Callable[[], object], folder: Path) -> Finding:
    """The one finding, of a capture that identifies tensors."""
    (finding,) = checked(block, folder).findings()
    return finding


@pytest.mark.parametrize("numbers", [range(2, 80), range(25, 60), range(40, 70)])
def test_a_list_is_followed_past_what_the_trace_records(numbers: range, tmp_path: Path) -> None:
    finding = found(joined(numbers), tmp_path)
    ends = f"from [{8 * numbers[0]}, 512] to [{8 * numbers[-1]}, 512]"
    assert finding.message == f"aten::cat grows a tensor by copying it, {ends}"


def test_its_bytes_are_those_of_its_own_elements(tmp_path: Path) -> None:
    numbers = range(28, 45)
    one, other = (
        found(joined(numbers, kind), tmp_path).bytes for kind in (torch.float32, torch.bfloat16)
    )
    assert one is not None
    assert other is not None
    assert one / other == 2


@pytest.mark.parametrize(
    ("numbers", "asks"),
    [
        (range(40, 55), True),
        (range(22, 33), True),
        (range(40, 48), False),  # ten joins are not reached
        (range(3, 9), False),
    ],
)
def test_it_asks_which_tensors_are_joined_only_if_long_lists_may_grow(
    numbers: Iterable[int], asks: bool, tmp_path: Path
) -> None:
    without = checked(joined(numbers), tmp_path, tensors=False)
    assert without.wants_tensors is asks
    assert without.counts == {}


def stored(longest: int) -> Checked:
    """A trace of a list that is joined again from 2 to so many tensors of 32 KiB."""
    b = TraceBuilder()
    for number in range(2, longest + 1):
        shapes = [[16, 512]] * number if number <= 30 else []
        with b.op("aten::cat", [shapes, []], ["TensorList", "Scalar"], concrete=["", "0"]):
            b.advance(5)
        with b.op("aten::amax", [[16 * number, 512], [], []], ["float", "ScalarList", "Scalar"]):
            b.advance(5)
    return check(parse_trace(b.to_bytes()), [RULES["growing-cat"]])


@pytest.mark.parametrize(
    ("longest", "end"), [(20, "[320, 512]"), (29, "[464, 512]"), (60, "at least [480, 512]")]
)
def test_a_stored_trace_tells_at_least_how_long_it_gets(longest: int, end: str) -> None:
    (finding,) = stored(longest).findings()
    assert finding.message == f"aten::cat grows a tensor by copying it, from [32, 512] to {end}"
