"""Where an annotation of a live test was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from support.live import captured, placing
from torch.profiler import record_function

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def lines_of(block: Callable[[], object], name: str, folder: Path) -> list[str | None]:
    """The location of each annotation of this name."""
    trace = captured(block, folder)
    found, at = placing(block, trace, folder)(trace, np.flatnonzero(trace.named(name)))
    return [found[number].location for number in at.tolist()]


def test_an_annotation_is_at_the_line_that_begins_it(tmp_path: Path) -> None:
    """Its ``with`` block runs other lines, which end before it does."""
    x = torch.ones(4)

    def part() -> None:
        with record_function("part"):
            x * x
            x + x

    def block() -> None:
        x - x
        part()
        with record_function("own"):
            x * x

    first, own = part.__code__.co_firstlineno, block.__code__.co_firstlineno
    assert [f"{__file__}:{first + 1}"] == lines_of(block, "part", tmp_path)
    assert [f"{__file__}:{own + 3}"] == lines_of(block, "own", tmp_path)
