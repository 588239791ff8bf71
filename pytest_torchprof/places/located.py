"""Locate events by the user's lines, which another run of the same code marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.places.markers import (
    MARKERS,
    constructors,
    labels,
    line_marks,
    module_calls,
    outside_modules,
)
from pytest_torchprof.places.place import (
    NO_PARTS,
    Parts,
    Place,
    PlacedEvents,
    by_operator,
    clear_of,
    counted,
    shared,
)
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import DEVICE_KINDS, Kind
from pytest_torchprof.trace.known_names import REGION

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: Numbers at the end of names of steps and compiled regions, which a process counts up.
_COUNTED = late(r"(?<=[# ])\d+(/\d+)*$")


class Located:
    """Tells where events of a measured run happened, from the trace of a run with markers.

    ``lines`` are the ``file:line`` and ``modules`` the module paths of the markers, by number. The
    sequences of the two runs' operators are aligned.
    """

    def __init__(self, trace: Events, lines: Sequence[str | None], modules: Sequence[str]) -> None:
        self._words: dict[str, int] = {}
        self._lines, self._modules = lines, modules
        line, module = labels(trace)
        width = len(modules) + 1  # 0 is no module, and no line
        known, place = np.unique((line + 1) * width + module + 1, return_inverse=True)
        self._places = []
        for number in known.tolist():
            at, within = divmod(number, width)
            where = lines[at - 1] if at else None
            self._places.append(Place(where, None, modules[within - 1] if within else None))
        outside, self._outer, self._chain = outside_modules(trace)
        words, call = self._words_of(trace), module_calls(trace)
        mark, self._marks = line_marks(trace)
        constructed = constructors(trace)
        self._runs = [
            _Run(
                words[rows],
                place[rows],
                outside[rows],
                call[rows],
                mark[rows],
                constructed[rows],
            )
            for rows in _sequences(trace)
        ]

    def __call__(
        self, trace: Events, events: Ints, parts: Parts = NO_PARTS
    ) -> tuple[list[Place], Ints]:
        """Return the distinct places, and the index of each event's place."""
        paths, path = by_operator(trace, events)
        place = trace.once(self._places_of)
        mine = np.full(len(events), -1, np.int64)
        mine[events >= 0] = place[events[events >= 0]]
        keys, at = np.unique((mine + 1) * len(paths) + path, return_inverse=True)
        found = []
        for number in keys.tolist():
            known, way = divmod(number, len(paths))
            here = self._places[known - 1] if known else Place()
            found.append(Place(here.location, paths[way].path, here.module))
        at = at.astype(np.int64)
        for position, stretch in parts.items():
            own = found[at[position]]
            if stretch.kind in ("stretch", "steps"):
                around = self._around(trace, stretch)
                if around is not None and stretch.kind == "steps":
                    around = self._called(trace, stretch, around)
            else:
                find = self._repeated if stretch.kind == "loop" else self._constructed
                line = find(trace, stretch)
                around = None if line is None else replace(own, location=line)
            if around is not None:
                found.append(replace(around, path=own.path))
                at[position] = len(found) - 1
        return found, at

    def module_calls(self, trace: Events) -> Ints:
        """The number of each event's outermost call of a module, -1 for none or unknown."""
        return self._spread(trace, _Run.calls)

    def _around(self, trace: Events, stretch: PlacedEvents) -> Place | None:
        """What encloses the whole stretch, outside of any module; None where no line is known."""
        outside = trace.once(self._outside_of)
        number = outside[stretch.events]
        known = [self._outer[one] for one in nesting.distinct(number[number >= 0]).tolist()]
        path = np.array([path for path, _ in self._outer] + [-1], np.int64)
        way = shared((path for path, _ in known), self._chain)
        others = nesting.distinct(path[outside[stretch.apart]]).tolist()
        way = clear_of(way, counted(path[number]), others, self._chain)
        if way < 0:
            return None
        modules = {module for _, module in known}
        module = self._modules[modules.pop()] if len(modules) == 1 and min(modules) >= 0 else None
        return Place(self._lines[self._chain[way][1]], None, module)

    def _called(self, trace: Events, steps: PlacedEvents, around: Place) -> Place:
        """The same, or the line that a loop repeats where that calls what has this place."""
        marks = trace.once(self._marks_of)[steps.events].tolist()
        inner, most = list[int](), -1
        # A loop may run several times: the steps before and after a join share the most lines.
        for at in np.searchsorted(steps.events, steps.apart).tolist():
            if 0 < at < len(marks):
                one, other = (self._marks.around(mark) for mark in marks[at - 1 : at + 1])
                both = sum(a == b for a, b in zip(one, other, strict=False))
                inner, most = (one[both:], both) if both > most else (inner, most)
        lines = [self._lines[self._marks.line[mark]] for mark in inner]
        return replace(around, location=lines[0]) if around.location in lines[1:] else around

    def _repeated(self, trace: Events, stretch: PlacedEvents) -> str | None:
        """The line that a loop repeats; None where no line is known."""
        marks = trace.once(self._marks_of)[stretch.events].tolist()
        first, last = (self._marks.around(mark) for mark in marks)
        both = sum(a == b for a, b in zip(first, last, strict=False))
        if not (first and last):
            return None
        # A loop on one line may be within one marker.
        return self._lines[self._marks.line[first[min(both, len(first) - 1)]]]

    def _constructed(self, trace: Events, step: PlacedEvents) -> str | None:
        """The line that constructed what steps or fetches; None where that is not known."""
        line = int(trace.once(self._constructors_of)[step.events[0]])
        return self._lines[line] if line >= 0 else None

    def _constructors_of(self, trace: Events) -> Ints:
        """The number of the line that constructed what steps or fetches, or -1."""
        return self._spread(trace, _Run.constructors)

    def _marks_of(self, trace: Events) -> Ints:
        """The marker of the innermost line around each event, or -1."""
        return self._spread(trace, _Run.marks)

    def _places_of(self, trace: Events) -> Ints:
        """The number of each event's place, or -1."""
        return self._spread(trace, _Run.places)

    def _outside_of(self, trace: Events) -> Ints:
        """The number of what is around each event outside of modules, or -1."""
        return self._spread(trace, _Run.outsides)

    def _spread(self, trace: Events, of: Callable[[_Run, Ints], Ints]) -> Ints:
        words = self._words_of(trace)
        place = np.full(len(trace), -1, np.int64)
        for rows, run in zip(_sequences(trace), self._runs, strict=True):
            place[rows] = of(run, words[rows])
        ops = trace.is_kind(Kind.OP)
        for level in nesting.levels(trace.depth):
            todo = level[(place[level] < 0) & ops[trace.parent[level]]]
            place[todo] = place[trace.parent[todo]]
        device = np.flatnonzero(trace.is_kind(*DEVICE_KINDS) & (trace.launch >= 0))
        place[device] = place[trace.launch[device]]
        return place

    def _words_of(self, trace: Events) -> Ints:
        """A number for each event's name, the same in both traces."""
        words = self._words
        number = [words.setdefault(_COUNTED.sub("", name), len(words)) for name in trace.names]
        return np.array(number, np.int64)[trace.name] if number else np.zeros(0, np.int64)


class _Run(NamedTuple):
    """A sequence of events with markers: the number of each event's name, of its place, of what is
    around it outside of modules, of the outermost call of a module, of the innermost line's
    marker, and of the line that constructed what steps or fetches.
    """

    words: Ints
    place: Ints
    outside: Ints
    call: Ints
    mark: Ints
    constructor: Ints

    def places(self, words: Ints) -> Ints:
        """The places of another run's sequence, -1 where uncertain."""
        return self._laid(self.place, words)

    def outsides(self, words: Ints) -> Ints:
        """What is around the events of another run's sequence, -1 where uncertain."""
        return self._laid(self.outside, words)

    def calls(self, words: Ints) -> Ints:
        """The outermost calls of modules around another run's sequence, -1 where uncertain."""
        return self._laid(self.call, words)

    def marks(self, words: Ints) -> Ints:
        """The innermost markers of lines around another run's sequence, -1 where uncertain."""
        return self._laid(self.mark, words)

    def constructors(self, words: Ints) -> Ints:
        """What constructed what steps or fetches in another run's sequence, -1 where uncertain."""
        return self._laid(self.constructor, words)

    def _laid(self, place: Ints, words: Ints) -> Ints:
        out = np.full(len(words), -1, np.int64)
        shorter = min(len(words), len(self.words))
        head = _alike(words[:shorter], self.words[:shorter])
        # The common head and tail must not overlap.
        rest = shorter - head
        tail = _alike(words[::-1][:rest], self.words[::-1][:rest])
        out[:head] = place[:head]
        if tail:
            out[-tail:] = place[-tail:]
        ours, theirs = slice(head, len(words) - tail), slice(head, len(self.words) - tail)
        out[ours] = _in_turn(words[ours], self.words[theirs], place[theirs])
        return np.where(out >= 0, out, _of_name(words, self.words, place))


def _alike(a: Ints, b: Ints) -> int:
    """Length of the common prefix."""
    differ = np.flatnonzero(a != b)
    return int(differ[0]) if len(differ) else len(a)


def _in_turn(words: Ints, known: Ints, place: Ints) -> Ints:
    """The place of a name's k-th event, if both runs have as many."""
    out = np.full(len(words), -1, np.int64)
    width = int(max(words.max(initial=0), known.max(initial=0))) + 1
    as_many = np.bincount(words, minlength=width) == np.bincount(known, minlength=width)
    mine, theirs = np.argsort(words, kind="stable"), np.argsort(known, kind="stable")
    mine, theirs = mine[as_many[words[mine]]], theirs[as_many[known[theirs]]]
    out[mine] = place[theirs]
    return out


def _of_name(words: Ints, known: Ints, place: Ints) -> Ints:
    """The place of all events of a name, if they share one."""
    width = int(max(words.max(initial=0), known.max(initial=0))) + 1
    least, most = np.full(width, np.iinfo(np.int64).max), np.full(width, -1, np.int64)
    np.minimum.at(least, known, place)
    np.maximum.at(most, known, place)
    out: Ints = np.where(least == most, most, -1)[words]
    return out


# -------------------------------------------------------------------- sequences


def _sequences(trace: Events) -> list[Ints]:
    """Events of the region, without markers, in an order that two runs of one program share.

    Operators and annotations of the test's thread; those of other threads, above all autograd's;
    and runtime calls outside of operators.
    """
    marks = trace.is_kind(Kind.ANNOTATION) & trace.named(REGION)
    test = nesting.among(trace.thread, nesting.distinct(trace.thread[marks]))
    real = ~trace.names_where(lambda name: name.startswith(MARKERS))
    ops = trace.is_kind(Kind.OP) & real
    inside = ops.copy()
    for level in nesting.levels(trace.depth):
        inside[level] |= inside[trace.parent[level]]
    region = trace.in_region & real
    calls = np.flatnonzero(region & trace.is_kind(Kind.OP, Kind.ANNOTATION))
    others = calls[~test[calls]]
    _, first, thread = np.unique(trace.thread[others], return_index=True, return_inverse=True)
    others = others[np.argsort(first[thread], kind="stable")] if len(others) else others
    waits = np.flatnonzero(region & trace.is_kind(Kind.RUNTIME) & test & ~inside)
    return [calls[test[calls]], others, waits]
