"""Functions of a trace that are computed once, and whose result is cached with the trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

_Shared = TypeVar("_Shared")


def once_per_trace(compute: Callable[[Events], _Shared]) -> Callable[[Events], _Shared]:
    """Make a function of a trace compute its result once, and cache it with the trace."""

    @wraps(compute)
    def cached(trace: Events) -> _Shared:
        return trace.once(compute)

    return cached
