"""What has to be taken back at the end of a block: a quick `contextlib.ExitStack`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class Undo:
    """Calls what it was told, last first, whatever one of the calls raises."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def callback(self, call: Callable[..., object], *arguments: Any) -> None:
        """One more."""
        self._calls.append((call, arguments))

    def enter_context(self, context: Any) -> None:
        """Enter one now, and leave it then: it is not told of exceptions."""
        context.__enter__()
        self._calls.append((context.__exit__, (None, None, None)))

    def pop_all(self) -> Undo:
        """Leave all of it to another one."""
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
