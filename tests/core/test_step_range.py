"""How steps are asked for: by one number, or as a slice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchprof.core.values import ALL_STEPS, StepRange


@pytest.mark.parametrize(
    ("text", "first", "stop"),
    [
        ("3", 3, 4),
        ("0", 0, 1),
        (" 2:5 ", 2, 5),
        (":5", None, 5),
        ("2:", 2, None),
        (":", None, None),
        ("5:2", 5, 2),
    ],
)
def test_a_number_or_a_slice(text: str, first: int | None, stop: int | None) -> None:
    assert StepRange(first, stop) == StepRange.parse(text)


@pytest.mark.parametrize("text", ["", "-1", "1:-1", "a", "1:2:3", "1,2", "1-2", "1.0", "٣٣:x", "²"])
def test_anything_else_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not N or A:B"):
        StepRange.parse(text)


ENDS = st.none() | st.integers(0, 10**17)


@given(ENDS, ENDS)
def test_what_is_written_reads_as_the_same(first: int | None, stop: int | None) -> None:
    asked = StepRange(first, stop)
    assert asked == StepRange.parse(str(asked))


def test_all_steps_have_no_ends() -> None:
    assert ALL_STEPS == StepRange.parse(":")
    assert not ALL_STEPS.is_one
