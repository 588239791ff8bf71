"""Where an event happened, as a user can find it: his own line, or else the operators around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pytest_torchprof import nesting
from pytest_torchprof.events import ALL_STEPS, REGION, Kind

if TYPE_CHECKING:
    from pytest_torchprof.events import Trace
    from pytest_torchprof.nesting import Ints


@dataclass(frozen=True)
class Place:
    """``location`` is ``file:line`` in the user's code, ``path`` the operators from the outermost
    in, ``module`` the path of the innermost ``nn.Module``; None where nobody knows.
    """

    location: str | None = None
    path: str | None = None
    module: str | None = None


class Placing(Protocol):
    """Tells where events of a trace happened."""

    def __call__(self, trace: Trace, events: Ints) -> tuple[list[Place], Ints]:
        """Distinct places, and which of them each event's is."""


def by_operator(trace: Trace, events: Ints) -> tuple[list[Place], Ints]:
    """Places of a trace without stacks: the path of operators and annotations."""
    known = events >= 0
    rows = np.unique(events[known])
    around = nesting.above(rows, trace.parent)
    around[rows] = True
    at = np.flatnonzero(around)
    position = np.full(len(trace), -1, np.int64)
    position[at] = np.arange(len(at))
    above = trace.parent[at]
    parent = np.where(above >= 0, position[above], -1)
    depth = trace.depth[at] if len(at) else np.zeros(0, np.int64)
    shown, number = trace.shown_names
    label = number[trace.name[at]]
    hidden = [i for i, name in enumerate(shown) if name in (ALL_STEPS, REGION)]
    label[np.isin(label, hidden) | trace.is_kind(Kind.RUNTIME)[at]] = -1
    path, chain = nesting.paths(parent, depth, label)
    used, index = np.unique(path[position[rows]], return_inverse=True)
    places = [Place(path=_said(p, chain, shown)) for p in used.tolist()]
    places.append(Place())
    out = np.full(len(events), len(places) - 1, np.int64)
    out[known] = index[np.searchsorted(rows, events[known])]
    return places, out


def _said(path: int, chain: list[tuple[int, int]], shown: list[str]) -> str | None:
    words: list[str] = []
    while path >= 0:
        path, label = chain[path]
        words.append(shown[label])
    return " > ".join(reversed(words)) or None
