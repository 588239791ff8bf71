"""Notice calls of functions that torch.compile has wrapped, whether or not they are compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_torchprof.capture.undo import Undo


class CompiledCalls:
    """Counts them within a block; what runs compiled is in the trace.

    Sources: torch/_dynamo/eval_frame.py, ``_callback_from_stance``, which each call of a wrapped
    function asks for its compiler, and ``_NullDecorator`` of ``torch.compile(disable=True)``.
    """

    def __init__(self) -> None:
        #: Those seen so far.
        self.count = 0

    def watch(self, replace: Callable[..., None], undo: Undo) -> None:
        """Watch until ``undo``, if dynamo is imported."""
        room = sys.modules.get("torch._dynamo.eval_frame")
        if hasattr(room, "_callback_from_stance"):
            replace(room, "_callback_from_stance", self._asked, undo)
        if (kind := getattr(room, "_NullDecorator", None)) is not None:
            replace(kind, "__call__", self._left_alone, undo)

    def _asked(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def callback_from_stance(callback: Any) -> Any:
            self.count += callable(callback)  # there is none where dynamo is switched off
            return original(callback)

        return callback_from_stance

    def _left_alone(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(decorator: Any, function: Any) -> Any:
            self.count += 1
            return original(decorator, function)

        return call
