"""Where an event happened, for the user: a line of their code, or the operators around it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.known_names import ALL_STEPS, REGION, shown_name

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


#: Encloses everything, so it does not identify a place.
_HIDDEN = (ALL_STEPS, REGION)
#: As a plain number, which compares faster.
_RUNTIME: Final = int(Kind.RUNTIME)
#: Up to this number, events are handled one by one.
_FEW = 20


#: Between the operators of a path.
PATH_SEPARATOR: Final = " > "


class Place(Frozen, frozen=True):
    """``location`` is ``file:line`` in the user's code, ``path`` the operators from the outermost
    in (from the user's function in, where it is known), ``module`` the path of the innermost
    ``nn.Module``; None if unknown.
    """

    location: str | None = None
    path: str | None = None
    module: str | None = None


Kinds: TypeAlias = Literal["stretch", "steps", "loop", "constructed"]


class PlacedEvents(NamedTuple):
    """Events that share one place, and events that the place must not enclose.

    ``kind``: ``"steps"`` are a loop's, and the place is outside of what each of them calls; of a
    ``"loop"`` they are the first and the last, and its place is the line that it repeats;
    ``"constructed"`` is a step of an optimizer or a fetch of a loader, and the place is
    the line that constructed that.
    """

    events: Ints
    apart: Ints
    kind: Kinds = "stretch"


#: By position among the requested events: the stretch whose place that event is to have.
Parts: TypeAlias = Mapping[int, PlacedEvents]
NO_PARTS: Final[Parts] = {}


class Placing(Protocol):
    """Tells where events of a trace happened."""

    def __call__(
        self, trace: Events, events: Ints, parts: Parts = NO_PARTS
    ) -> tuple[list[Place], Ints]:
        """Return the distinct places, and the index of each event's place.

        An event that stands for a stretch gets the place of what encloses all of the stretch, or
        most of it where that would enclose events apart from it: the innermost line outside of any
        module, and the outermost module. A loop gets the line that ran again and again, in the
        innermost function that ran once; an optimizer or a loader the line that constructed it,
        where that is known.
        """


def shared(paths: Iterable[int], chain: Sequence[tuple[int, int]]) -> int:
    """The longest common path; -1 for none. ``chain`` is as from `nesting.paths`.

    >>> shared([1, 2], [(-1, 7), (0, 8), (0, 9)])
    0
    """
    ways = []
    for path in set(paths):
        way = []
        at = path
        while at >= 0:
            way.append(at)
            at = chain[at][0]
        ways.append(way[::-1])
    common = -1
    for steps in zip(*ways, strict=False):
        if len(set(steps)) > 1:
            break
        common = steps[0]
    return common


def clear_of(
    way: int, paths: Mapping[int, int], others: Iterable[int], chain: Sequence[tuple[int, int]]
) -> int:
    """The first path, from ``way`` on toward most of ``paths``, that none of the others goes
    through; the last one if the others go through all of them.

    A line that the others go through, too, on another path, as in a function that both call, is
    left for what encloses it, if that is clear of them.

    ``paths`` go through ``way``; each has the number of its events. At a tie, the first is taken.
    With -1 as ``way``, which is around everything, the first path is wanted in any case.

    >>> chain = [(-1, 7), (0, 8), (0, 9), (2, 5)]
    >>> clear_of(0, {1: 1, 3: 2}, [1], chain), clear_of(0, {1: 2, 3: 1}, [0], chain)
    (2, 1)
    >>> clear_of(0, {3: 2}, [], chain), clear_of(0, {3: 2}, [3], chain)
    (0, 3)
    >>> clear_of(4, {4: 2}, [3], [*chain, (1, 5)])
    1
    """
    taken = {-1}
    for other in others:
        taken.update(_steps(other, -1, chain))
    left = [(_steps(path, way, chain), number) for path, number in paths.items()]
    at = way
    while at in taken:
        ahead = Counter[int]()
        for steps, number in left:
            ahead[steps[-1] if steps else -1] += number
        nearest = max(ahead, key=ahead.__getitem__, default=-1)
        if nearest < 0:
            break
        at = nearest
        left = [(steps[:-1], number) for steps, number in left if steps[-1:] == [at]]
    lines = {chain[path][1] for path in taken if path >= 0}
    while at >= 0 and at not in taken and chain[at][1] in lines and chain[at][0] not in taken:
        at = chain[at][0]
    return at


def counted(paths: Ints) -> dict[int, int]:
    """How often each path occurs, -1 for none left out, in the order of their first events.

    >>> counted(np.array([4, -1, 2, 4]))
    {4: 2, 2: 1}
    """
    known, first, number = np.unique(paths[paths >= 0], return_index=True, return_counts=True)
    order = first.argsort()
    return dict(zip(known[order].tolist(), number[order].tolist(), strict=True))


def _steps(path: int, way: int, chain: Sequence[tuple[int, int]]) -> list[int]:
    """The paths from this one outward to ``way``, which is excluded."""
    out = []
    while path not in (way, -1):
        out.append(path)
        path = chain[path][0]
    return out


def by_operator(trace: Events, events: Ints, parts: Parts = NO_PARTS) -> tuple[list[Place], Ints]:
    """Places in a trace without stacks: the path of operators and annotations. An event that stands
    for several gets its own.
    """
    del parts
    if len(events) <= _FEW:
        return _one_by_one(trace, events)
    known = events >= 0
    rows = nesting.distinct(events[known])
    around = nesting.above(rows, trace.parent)
    around[rows] = True
    at = np.flatnonzero(around)
    position = np.full(len(trace), -1, np.int64)
    position[at] = np.arange(len(at))
    above = trace.parent[at]
    parent = np.where(above >= 0, position[above], -1)
    depth = trace.depth[at] if len(at) else np.zeros(0, np.int64)
    label = labels_of(trace, at)
    path, chain = nesting.paths(parent, depth, label)
    used, index = np.unique(path[position[rows]], return_inverse=True)
    shown = trace.shown_names[0]
    places = [
        Place(path=PATH_SEPARATOR.join(joined(p, chain, shown)) or None) for p in used.tolist()
    ]
    places.append(Place())
    out = np.full(len(events), len(places) - 1, np.int64)
    out[known] = index[np.searchsorted(rows, events[known])]
    return places, out


def _one_by_one(trace: Events, events: Ints) -> tuple[list[Place], Ints]:
    """The same, faster for a few events."""
    parent, kind, name = trace.parent, trace.kind, trace.name
    number: dict[str | None, int] = {}
    at = []
    for row in events.tolist():
        words = []
        while row >= 0:
            shown = shown_name(trace.names[name[row]])
            if shown not in _HIDDEN and kind[row] != _RUNTIME:
                words.append(shown)
            row = parent[row]  # noqa: PLW2901 - upwards
        at.append(number.setdefault(PATH_SEPARATOR.join(words[::-1]) or None, len(number)))
    return [Place(path=path) for path in number], np.array(at, np.int64)


def labels_of(trace: Events, events: Ints) -> Ints:
    """What each event adds to a path, as numbers of `Events.shown_names`; -1 for nothing."""
    shown, number = trace.shown_names
    label = number[trace.name[events]]
    hidden = [i for i, name in enumerate(shown) if name in _HIDDEN]
    label[nesting.among(label, hidden) | trace.is_kind(Kind.RUNTIME)[events]] = -1
    return label


def joined(path: int, chain: Sequence[tuple[int, int]], shown: Sequence[str]) -> list[str]:
    """The labels of a path, the outermost first."""
    words: list[str] = []
    while path >= 0:
        path, label = chain[path]
        words.append(shown[label])
    return words[::-1]
