"""Questions about a trace whose answers are kept with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

_Shared = TypeVar("_Shared")


def question(answer: Callable[[Events], _Shared]) -> Callable[[Events], _Shared]:
    """A function of a trace that is worked out once for it, and kept with it."""

    @wraps(answer)
    def ask(trace: Events) -> _Shared:
        return trace.once(answer)

    return ask
