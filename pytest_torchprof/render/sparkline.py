"""A series of numbers as a line of small bars."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_torchprof.core.results import Number

_BARS = "▁▂▃▄▅▆▇█"


def can_show(encoding: str | None) -> bool:
    """Whether text in this encoding can have the bars.

    >>> can_show("utf-8"), can_show("ascii")
    (True, False)
    """
    try:
        return bool(_BARS.encode(encoding or "utf-8"))
    except (UnicodeEncodeError, LookupError):
        return False


def sparkline(values: Sequence[Number], width: int = 24) -> str:
    """The numbers from the least to the largest as bars, at most so many.

    Of more numbers, each bar is the median of neighbors. Equal numbers are all lowest bars.

    >>> sparkline([1, 2, 3, 8])
    '▁▂▃█'
    >>> sparkline([5, 5, 5])
    '▁▁▁'
    """
    if len(values) > width:
        edges = [len(values) * at // width for at in range(width + 1)]
        values = [median(values[a:b]) for a, b in pairwise(edges)]
    low, high = min(values, default=0), max(values, default=0)
    if low == high:
        return _BARS[0] * len(values)
    top = len(_BARS) - 1
    return "".join(_BARS[round((value - low) / (high - low) * top)] for value in values)
