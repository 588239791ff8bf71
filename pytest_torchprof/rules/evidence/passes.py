"""Backward passes: which of the autograd engine's steps belong together, and what began them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.trace.levels import are_engine_steps, compiled
from pytest_torchprof.trace.name_index import Names, are_named
from pytest_torchprof.trace.tree import outermost

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: ``backward`` begins with this, on the user's line: the gradient of the loss itself.
_BEGINS = Names(r"aten::ones_like$")


def pass_of(trace: Events, steps: Ints) -> Ints:
    """The number of the backward pass of each of these steps, which are in time order.

    Between two passes, the user's code calls something.
    """
    if not len(steps):
        return np.zeros(0, np.int64)
    place = np.searchsorted(np.sort(trace.ts[_others(trace)]), trace.ts[steps])
    return np.cumsum(np.diff(place, prepend=place[0]) != 0)


def begun_by(trace: Events, first: Ints) -> Ints:
    """The call with which each pass began, by its first step; that step if unknown.

    A step is placed where its node was recorded, this call where ``backward`` was called.
    """
    others = np.sort(_others(trace))
    at = np.searchsorted(others, first) - 1
    before = others[np.maximum(at, 0)]
    known = (at >= 0) & are_named(trace, before, _BEGINS)
    return np.where(known, before, first)


def _others(trace: Events) -> Ints:
    return trace.once(_calls)


def _calls(trace: Events) -> Ints:
    rows = outermost(trace)
    return rows[~are_engine_steps(trace, rows) & ~compiled(trace, rows)]
