"""Replace a function as the test sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_torchprof.capture.patch_guard import PATCH_GUARD

if TYPE_CHECKING:
    from pytest_torchprof.capture.undo import Undo


def replace(where: Any, name: str, wrap: Callable[[Callable[..., Any]], Any], undo: Undo) -> None:
    """Wrap a function as the test sees it; ``undo`` restores it, unless the test has."""
    old = PATCH_GUARD.seen_by_test(where, name)
    new = wrap(old)
    PATCH_GUARD.show_test(where, name, new)

    def back() -> None:
        if PATCH_GUARD.seen_by_test(where, name) is new:
            PATCH_GUARD.show_test(where, name, old)

    undo.callback(back)
