"""Locate events by the Python functions and modules around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.places.call_stacks import Stacks, stacks_of
from pytest_torchprof.places.libraries import Frame, Owner, frame_of
from pytest_torchprof.places.place import (
    NO_PARTS,
    Parts,
    Place,
    by_operator,
    clear_of,
    counted,
    joined,
    labels_of,
    shared,
)
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.backward import ENGINE, forward_of, node_around
from pytest_torchprof.trace.tree import has_frames

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


def by_frames(trace: Events, events: Ints, parts: Parts = NO_PARTS) -> tuple[list[Place], Ints]:
    """Places by the innermost function of the user's code; by operators in a trace without stacks.

    Events in library code that no user code encloses are placed there. An operator of the backward
    pass has the place of the forward operator whose gradient it computes. The path is the function
    and the operators in it. What one line does in several modules of the same classes is one place;
    ``*`` stands for module numbers that differ.
    """
    if not has_frames(trace):
        return by_operator(trace, events)
    known = events >= 0
    rows = nesting.distinct(events[known])
    forward = forward_of(trace, rows)
    found = stacks_of(trace, nesting.distinct(np.concatenate([rows, forward[forward >= 0]])))
    # In a user's own `backward`, or in recomputation, the functions around the event decide.
    back = np.flatnonzero(forward >= 0)
    node = node_around(trace, rows[back])
    forward[back[found.meets(rows[back], node)]] = -1
    around = _Around(trace, found, rows, np.where(forward >= 0, forward, rows))
    _, first, index = np.unique(around.key, return_index=True, return_inverse=True)
    modules = _grouped(index, around.module, len(first))
    places = [around.place(i, modules[n]) for n, i in enumerate(first.tolist())]
    places.append(Place())
    out = np.full(len(events), len(places) - 1, np.int64)
    out[known] = index[np.searchsorted(rows, events[known])]
    for position, around_all in _around(trace, parts).items():
        own = places[out[position]]
        loop = parts[position].kind == "loop"
        places.append(replace(around_all, module=own.module) if loop else around_all)
        out[position] = len(places) - 1
    return places, out


def _around(trace: Events, parts: Parts) -> dict[int, Place]:
    """The user's innermost function around several events that no module calls, and their outermost
    module; no entry where there is no such function. Of a loop, the one that ran once for all.
    """
    if not parts:
        return {}
    every = [events for stretch in parts.values() for events in (stretch.events, stretch.apart)]
    found = stacks_of(trace, nesting.distinct(np.concatenate(every)))
    number, inside = trace.name, found.module >= 0
    module = np.where(inside, number, -1)
    for level in nesting.levels(found.depth):
        above = found.parent[level]
        module[level] = np.where(module[above] >= 0, module[above], module[level])
    users = (found.owner == Owner.USER) & (module < 0)
    path, chain = nesting.paths(found.parent, found.depth, np.where(users, number, -1))
    out = {}
    for position, (events, apart, kind) in parts.items():
        if kind == "constructed":
            continue  # stacks do not tell who constructed it
        if kind == "loop":
            function = _function_around(trace, found, *events.tolist())
            if function is not None:
                out[position] = Place(function.location, function.called)
            continue
        way = shared(path[events].tolist(), chain)
        way = clear_of(way, counted(path[events]), path[apart].tolist(), chain)
        function = frame_of(trace.names[chain[way][1]]) if way >= 0 else None
        if function is not None:
            names = {trace.names[one] if one >= 0 else "" for one in module[events].tolist()}
            name = names.pop().removeprefix("nn.Module: ") if len(names) == 1 else None
            out[position] = Place(function.location, function.called, name or None)
    return out


def _function_around(trace: Events, found: Stacks, first: int, last: int) -> Frame | None:
    """The user's innermost function around both of these events."""
    outer = set[int]()
    at = last
    while at >= 0:
        outer.add(at)
        at = int(found.parent[at])
    at = first
    while at >= 0 and (at not in outer or found.owner[at] != Owner.USER):
        at = int(found.parent[at])
    return frame_of(trace.names[trace.name[at]]) if at >= 0 else None


def _grouped(group: Ints, value: Ints, count: int) -> list[list[int]]:
    """The distinct values of each group."""
    out: list[list[int]] = [[] for _ in range(count)]
    width = int(value.max(initial=-1)) + 2
    pairs = nesting.distinct(group * width + value + 1)
    for number, one in zip((pairs // width).tolist(), (pairs % width - 1).tolist(), strict=True):
        out[number].append(one)
    return out


class _Around:
    """What encloses events: columns with one entry for each of ``rows``, -1 for none.

    ``frame`` is the function's name and ``module`` the path of module instances, of ``at``;
    ``operator`` is the path of operators, of ``rows`` themselves. Places with the same ``key`` are
    one: they differ only in modules of the same classes.
    """

    def __init__(self, trace: Events, stacks: Stacks, rows: Ints, at: Ints) -> None:
        self.trace = trace
        found = nesting.above(np.concatenate([rows, at]), stacks.parent)
        found[rows] = found[at] = True
        events = np.flatnonzero(found)
        position = np.full(len(trace), -1, np.int64)
        position[events] = np.arange(len(events))
        above = stacks.parent[events]
        above = np.where(above >= 0, position[above], -1)
        level, owner, classes = (c[events] for c in (stacks.depth, stacks.owner, stacks.module))
        name = trace.name[events]
        user = _innermost(above, level, np.where(owner == Owner.USER, name, -1))
        library = _innermost(above, level, np.where(owner == Owner.LIBRARY, name, -1))
        # The function's callers do not belong to its path.
        begins = (owner == Owner.USER) | ((owner == Owner.LIBRARY) & (user < 0))
        operator = labels_of(trace, events)
        operator[stacks.telling[events]] = -1
        operators, self.operators = nesting.paths(np.where(begins, -1, above), level, operator)
        modules, self.modules = nesting.paths(above, level, np.where(classes >= 0, name, -1))
        kinds, known = nesting.paths(above, level, classes)
        rows, at = position[rows], position[at]
        self.frame = np.where(user >= 0, user, library)[at]
        self.module, self.operator = modules[at], operators[rows]
        self.key = (self.frame + 1) * (len(known) + 1) + kinds[at] + 1
        self.key = self.key * (len(self.operators) + 1) + self.operator + 1

    def place(self, row: int, modules: list[int]) -> Place:
        """The place of a row whose equivalents ran in these modules."""
        names, shown = self.trace.names, self.trace.shown_names[0]
        frame = int(self.frame[row])
        function = frame_of(names[frame]) if frame >= 0 else None
        path = joined(int(self.operator[row]), self.operators, shown)
        path = [word for word in path if not word.startswith(ENGINE)]
        if function:
            path.insert(0, function.called)
        instances = [joined(one, self.modules, names) for one in modules]
        return Place(
            location=function.location if function else None,
            path=" > ".join(path) or None,
            module=".".join(map(_together, zip(*instances, strict=True))) or None,
        )


def _together(names: Sequence[str]) -> str:
    """Modules of one class that the same line calls in turn.

    >>> _together(["nn.Module: Linear_0", "nn.Module: Linear_3"])
    'Linear_*'
    """
    found = [name.removeprefix("nn.Module: ") for name in names]
    return found[0] if len(set(found)) == 1 else f"{found[0].rpartition('_')[0]}_*"


def _innermost(above: Ints, level: Ints, own: Ints) -> Ints:
    """The nearest number other than -1, of each event itself or of an event around it."""
    for rows in nesting.levels(level):
        own[rows] = np.where(own[rows] >= 0, own[rows], own[above[rows]])
    return own
