"""Callbacks to run at the end of a block: a faster `contextlib.ExitStack`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class Undo:
    """Runs its callbacks, last first, even if one of them raises."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def callback(self, call: Callable[..., object], *arguments: Any) -> None:
        """Add a callback."""
        self._calls.append((call, arguments))

    def enter_context(self, context: Any) -> None:
        """Enter a context now, and leave it at the end; it does not see exceptions."""
        context.__enter__()
        self._calls.append((context.__exit__, (None, None, None)))

    def pop_all(self) -> Undo:
        """Move all callbacks to a new instance."""
        other = Undo()
        other._calls, self._calls = self._calls, []
        return other

    def close(self) -> None:
        """Call them, each once."""
        calls = self._calls
        while calls:
            call, arguments = calls.pop()
            try:
                call(*arguments)
            except BaseException:
                self.close()
                raise
