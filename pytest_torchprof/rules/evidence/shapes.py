"""Shapes of operators' operands; only for candidates, because each is decoded."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from pytest_torchprof.rules.evidence.calls import sizes
from pytest_torchprof.trace.arguments import decode_part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


def shapes(trace: Events, rows: Ints) -> list[list[tuple[int, ...] | None]]:
    """The shape of each argument of each operator; None if it is not a tensor, or unknown."""
    known: dict[bytes, list[tuple[int, ...] | None]] = {}
    found = []
    for args in trace.operands(rows):
        key = bytes(args.dims)
        if key not in known:
            known[key] = [sizes(one) for one in decode_part(key) or []]
        found.append(known[key])
    return found


def mean_elements(operands: Iterable[OpArgs]) -> float:
    """The mean number of elements of these operators' first operands, without scalars; inf if
    unknown.
    """
    first = [n for args in operands if (n := _elements(bytes(args.dims))) is not None]
    return sum(first) / len(first) if first else math.inf


@lru_cache(maxsize=1000)
def _elements(dims: bytes) -> int | None:
    """How many elements the first operand has; None for a scalar, or if unknown."""
    shape = sizes(next(iter(decode_part(dims) or ()), None))
    return math.prod(shape) if shape else None
