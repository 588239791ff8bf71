"""Questions about a trace whose answers are kept with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

_Shared = TypeVar("_Shared")


def question(answer: Callable[[Events], _Shared]) -> Callable[[Events], _Shared]:
    """Make a function of a trace compute its answer once, and cache it with the trace."""

    @wraps(answer)
    def ask(trace: Events) -> _Shared:
        return trace.once(answer)

    return ask
