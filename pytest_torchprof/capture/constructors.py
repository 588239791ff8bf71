"""Where the user's code constructed the optimizers that step, and the loaders that fetch."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

from pytest_torchprof.capture.machine import real_torch
from pytest_torchprof.capture.module_classes import weakly
from pytest_torchprof.places.markers import CONSTRUCTOR


class Constructors:
    """Names the marker of a step or a fetch, by the line that constructed what takes it.

    ``line_of`` gives the number of the user's innermost line around a frame, None if there is none.
    No optimizer or loader is kept alive.
    """

    def __init__(self, line_of: Callable[[FrameType], int | None]) -> None:
        self._line_of = line_of
        #: By id: the object, and the marker of what it does.
        self._known: dict[int, tuple[Callable[[], Any], str]] = {}
        codes = real_torch().constructor_codes
        self._roles = {
            **{id(code): self._constructed for code in codes.constructors},
            **{id(code): self._iterates for code in codes.iterators},
            **{id(code): self._steps for code in codes.steps},
            **{id(code): self._fetches for code in codes.fetches},
        }
        #: The names of all functions that `marker_of` knows.
        self.names = frozenset(code.co_name for some in codes for code in some)

    def marker_of(self, frame: FrameType) -> str | None:
        """The marker of a step or fetch that begins; notes what is constructed. None for others."""
        role = self._roles.get(id(frame.f_code))
        return None if role is None else role(frame)

    def forget(self) -> None:
        """Release all names."""
        self._known.clear()

    def _constructed(self, frame: FrameType) -> None:
        number = self._line_of(frame)
        if number is not None:
            self._note(_argument(frame, 0), f"{CONSTRUCTOR}{number}")

    def _iterates(self, frame: FrameType) -> None:
        marker = self._marker(_argument(frame, 1))
        if marker is not None:
            self._note(_argument(frame, 0), marker)

    def _steps(self, frame: FrameType) -> str | None:
        arguments = _argument(frame, 0)
        return self._marker(arguments[0]) if arguments else None

    def _fetches(self, frame: FrameType) -> str | None:
        return self._marker(_argument(frame, 0))

    def _note(self, made: Any, marker: str) -> None:
        self._known[id(made)] = weakly(made), marker

    def _marker(self, made: Any) -> str | None:
        known = self._known.get(id(made))
        return None if known is None or known[0]() is not made else known[1]


def _argument(frame: FrameType, number: int) -> Any:
    """What a function that begins was called with."""
    return frame.f_locals.get(frame.f_code.co_varnames[number])
