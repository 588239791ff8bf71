"""Places as reports show them: relative to the tests' folder, and by operator."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.trace.kinds import Kind

if TYPE_CHECKING:
    from pytest_torchprof.places.place import Placing
    from pytest_torchprof.trace.events import Events


class Roots:
    """The folder that locations are shown relative to, as spelled and resolved."""

    def __init__(self, root: Path) -> None:
        self._prefixes = {f"{path}{os.sep}" for path in (root, root.resolve())}

    def relative(self, location: str | None) -> str | None:
        """``file:line`` as shown; independent of a test's patches of paths."""
        for prefix in self._prefixes:
            if location is not None and location.startswith(prefix):
                return location[len(prefix) :].replace(os.sep, "/")
        return location


class CallSites:
    """Tells where an operator was called in the measured region."""

    def __init__(
        self, trace: Events, placing: Placing, roots: Roots, name_of: Callable[[str], str]
    ) -> None:
        self._trace, self._placing, self._roots, self._name_of = trace, placing, roots, name_of

    def __call__(self, name: str) -> list[tuple[str, str | None, int]]:
        """(location, module, calls), the most calls first; unknown locations are left out."""
        trace = self._trace
        named = trace.names_where(lambda known: self._name_of(known) == name)
        kinds = trace.is_kind(Kind.OP, Kind.ANNOTATION)
        calls = np.flatnonzero(named & trace.selection & kinds)
        try:
            places, at = self._placing(trace, calls)
        except Exception:  # noqa: BLE001 - a failure without lines is a failure
            return []
        count: Counter[tuple[str, str | None]] = Counter()
        for place, calls_there in enumerate(np.bincount(at, minlength=len(places)).tolist()):
            location = self._roots.relative(places[place].location)
            if location is not None and calls_there:
                count[location, places[place].module] += calls_there
        found = [(location, module, calls) for (location, module), calls in count.items()]
        return sorted(found, key=lambda row: (-row[2], row[0], row[1] or ""))


def joined(
    sites: Sequence[Callable[[str], Sequence[tuple[str, str | None, int]]]],
) -> Callable[[str], list[tuple[str, str | None, int]]]:
    """Call sites of several processes as one, with their calls added up."""

    def where(name: str) -> list[tuple[str, str | None, int]]:
        count: Counter[tuple[str, str | None]] = Counter()
        for one in sites:
            for location, module, calls in one(name):
                count[location, module] += calls
        found = [(location, module, calls) for (location, module), calls in count.items()]
        return sorted(found, key=lambda row: (-row[2], row[0], row[1] or ""))

    return where
