"""Change points of series, which are found only once for the same values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from pytest_torchprof.analysis.change_points import ChangePoint, change_points

if TYPE_CHECKING:
    from pytest_torchprof.history.index import Index

#: Of another number, answers are found anew.
_VERSION = 1


class Finder:
    """Finds change points, or remembers them: they take longer than all else of a question."""

    def __init__(self, index: Index) -> None:
        self._index, self._known = index, index.drifts()
        self._new: dict[int, tuple[str, str]] = {}

    def of(self, series: int) -> Callable[[Sequence[float]], list[ChangePoint]]:
        """The function that finds those of this series."""

        def find(values: Sequence[float]) -> list[ChangePoint]:
            content = np.asarray(values, float).tobytes()
            key = f"{_VERSION} {hashlib.sha256(content).hexdigest()}"
            known, points = self._known.get(series, ("", ""))
            if known == key:
                return msgspec.json.decode(points, type=list[ChangePoint])
            found = change_points(values)
            self._new[series] = key, msgspec.json.encode(found).decode()
            return found

        return find

    def keep(self) -> None:
        """Remember what was found."""
        if self._new:
            self._index.keep_drifts(self._new)
