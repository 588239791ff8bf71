"""Intervals and their nesting: which event encloses which, thread by thread."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_torchprof.core.records import Frozen

# ---- Interval nesting: which event encloses which, thread by thread.
#
# An event is half open: it encloses what starts at its start, but not what starts at its end. An
# event without a duration encloses nothing. Real clocks let a child end a nanosecond or so after
# its parent: the parent is the innermost event that is open for most of the child.

#: How many events are handled at a time, some of them as objects.
_AT_ONCE = 2**13
#: For so many, looking at all events once for each is about as fast as sorting them.
_FEW_THREADS = 8
#: Below this number of events, removing duplicates takes longer than it saves.
_SOME = 1000

#: Of any width: columns that are kept are as narrow as a trace allows, so products of two of them
#: need 64 bits.
Ints = npt.NDArray[np.signedinteger[Any]]
Bools = npt.NDArray[np.bool_]


def nest(
    ts: Ints, dur: Ints, thread: npt.NDArray[np.int32], rows: Bools | None = None
) -> tuple[Ints, Ints]:
    """(parent, depth) of each event by position, -1 for no parent.

    Events are in time order, and longer ones first where they start together. ``rows``: of these
    events only; others have no parent, and -1 for their depth.

    >>> starts, durations = np.array([0, 1, 2, 5]), np.array([9, 3, 1, 2])
    >>> parent, depth = nest(starts, durations, np.zeros(4, np.int32))
    >>> parent.tolist(), depth.tolist()
    ([-1, 0, 1, 0], [0, 1, 2, 1])
    """
    parent = np.full(len(ts), -1, np.int32)
    depth = np.full(len(ts), -1, np.int32)
    for positions in by_thread(thread, rows):
        # Narrow numbers: with those in between, this takes as much memory as many columns.
        mine, begin = narrow(positions), ts[positions[0]]
        lasts = dur[mine] > 0
        solid, empty = (mine, mine[:0]) if lasts.all() else (mine[lasts], mine[~lasts])
        start = narrow(ts[solid] - begin)
        end = narrow(start + dur[solid])
        above, level = _nest_fast(start, end) or _nest_any(start, end)
        parent[solid] = np.where(above >= 0, solid[above], -1)
        depth[solid] = level
        if len(empty):
            end -= 1
            at = _climb(start, end, above, ts[empty] - begin)
            parent[empty] = np.where(at >= 0, solid[at], -1) if len(solid) else -1
            depth[empty] = np.where(at >= 0, level[at] + 1, 0) if len(solid) else 0
    small = depth.max(initial=0) < 2**15
    return parent, depth.astype(np.int16) if small else depth


def enclosing(
    ts: Ints, end: Ints, parent: Ints, rows: Ints, thread: npt.NDArray[np.int32], points: Ints
) -> Ints:
    """The innermost of ``rows`` around each of the events ``points``, its last moment included."""
    out = np.full(len(points), -1, np.int64)
    among_rows = np.zeros(len(parent), bool)
    for mine in by_thread(thread[points]):
        here = rows[thread[rows] == thread[points[mine[0]]]]
        if len(here):
            among_rows[here] = True
            around = nearest(among_rows, parent, parent[here])
            above = np.where(around >= 0, here.searchsorted(around), -1)
            at = _climb(ts[here], end[here], above, ts[points[mine]])
            out[mine] = np.where(at >= 0, here[at], -1)
    return out


def below(roots: Bools, parent: Ints, events: Ints) -> Bools:
    """Which of these events are nested in a root, at any depth."""
    if not len(roots):
        return np.zeros(0, bool)
    first = int(roots.argmax())  # what encloses an event comes before it
    at = parent[events]
    near = at >= first
    found = roots[at]  # mostly the parent is one already
    found &= near
    near ^= found
    todo = near.nonzero()[0]
    at = at[todo]
    while len(todo):
        at = parent[at]
        left = (at >= first).nonzero()[0]
        if not len(left):
            break
        todo, at = todo[left], at[left]
        hit = roots[at]
        found[todo[hit]] = True
        left = (~hit).nonzero()[0]
        todo, at = todo[left], at[left]
    return found


def outermost(marks: Bools, parent: Ints) -> Bools:
    """Those of these events that are nested in no other one of them."""
    rows = marks.nonzero()[0]
    top = marks.copy()
    top[rows[below(marks, parent, rows)]] = False
    return top


def nearest(marked: Bools, parent: Ints, events: Ints) -> Ints:
    """The innermost marked event around each of these, the event itself included; -1 for none."""
    found: Ints = events.copy()
    todo = (found >= 0).nonzero()[0]
    while len(todo):
        at = found[todo]
        left = ~marked[at]
        todo, at = todo[left], parent[at[left]]
        found[todo] = at
        todo = todo[at >= 0]
    return found


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values of a one-dimensional array, once each, in order.

    Like `np.unique` without its options, which is slower and imports `numpy.ma`.
    """
    ordered = values.copy()
    ordered.sort()
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return np.asarray(ordered[first])


def summed(group: Ints, values: Ints | int, count: int) -> Ints:
    """The sum of these values for each of so many groups: exact, as `np.bincount` is not.

    >>> summed(np.array([0, 2, 0]), np.array([1, 2, 3]), 3).tolist()
    [4, 0, 2]
    """
    total = np.zeros(count, np.int64)
    np.add.at(total, group, values)
    return total


def narrow(column: Ints) -> Ints:
    """The same numbers in half the memory, if they fit with room for a little arithmetic."""
    small = not len(column) or (column.min() > -(2**30) and column.max() < 2**30)
    return column.astype(np.int32) if small else column


def among(values: npt.ArrayLike, known: npt.ArrayLike) -> Bools:
    """Which of these values are known ones.

    Like `np.isin`, which imports `numpy.ma` for some of them.
    """
    values, ordered = np.asarray(values), np.sort(np.asarray(known))
    if not len(ordered):
        return np.zeros(values.shape, bool)
    at = ordered.searchsorted(values)
    at[at == len(ordered)] = 0
    found: Bools = ordered[at] == values
    return found


def above(events: Ints, parent: Ints) -> Bools:
    """Everything that these events are nested in, possibly including some of them."""
    found = np.zeros(len(parent), bool)
    at = parent[events]
    at = at[at >= 0]
    while len(at):
        at = at[~found[at]]
        found[at] = True
        at = parent[at]
        at = at[at >= 0]
        if len(at) > _SOME:
            at = distinct(at)
    return found


def by_thread(thread: npt.NDArray[np.int32], rows: Bools | None = None) -> Iterator[Ints]:
    """Positions of each thread's events, in order; ``rows``: of these events only."""
    mine = thread if rows is None else thread[rows]
    if len(mine) and (mine == mine[0]).all():  # mostly
        yield np.arange(len(thread)) if rows is None else rows.nonzero()[0]
        return
    numbers = distinct(mine)
    if len(numbers) <= _FEW_THREADS:
        # Thread by thread: an order of all events would be twice as large as a column.
        del mine
        chosen = np.ones(len(thread), bool) if rows is None else rows
        for number in numbers:
            yield (chosen & (thread == number)).nonzero()[0]
        return
    order = mine.argsort(kind="stable")
    cuts = mine[order].searchsorted(numbers).tolist()
    if rows is not None:
        order = rows.nonzero()[0][order]
    for first, last in pairwise([*cuts, len(order)]):
        yield order[first:last]


def levels(depth: Ints) -> Iterator[Ints]:
    """Positions of the events of depth 1, then 2, …: parents come before their children."""
    end = int(depth.max(initial=0)) + 2
    # Numbers of 16 bits are sorted in linear time.
    key = depth.astype(np.int16, copy=False) if end < 2**15 else depth
    order = narrow(key.argsort(kind="stable"))
    bounds = key[order].searchsorted(np.arange(1, end, dtype=key.dtype))
    del key
    for start, stop in pairwise(bounds.tolist()):
        yield order[start:stop]


def with_nested(roots: Bools, parent: Ints, depth: Ints) -> Bools:
    """The roots and everything nested below them."""
    out = roots.copy()
    for level in levels(depth):
        out[level] |= out[parent[level]]
    return out


def paths(parent: Ints, depth: Ints, label: Ints) -> tuple[Ints, list[tuple[int, int]]]:
    """The chain of labels from the root to each event, as a number; -1 for an empty one.

    ``label`` is a number per event, -1 for one that adds nothing to its parent's path. The list has
    (path above or -1, last label) for each path.

    >>> parent, depth = np.array([-1, 0, 1, 0]), np.array([0, 1, 2, 1])
    >>> path, known = paths(parent, depth, np.array([7, -1, 8, 8]))
    >>> path.tolist(), known
    ([0, 0, 1, 1], [(-1, 7), (0, 8)])
    """
    path = np.full(len(parent), -1, np.int64)
    known: dict[tuple[int, int], int] = {}
    width = int(label.max(initial=0)) + 1
    for level in (np.flatnonzero(depth == 0), *levels(depth)):
        above = np.where(parent[level] >= 0, path[parent[level]], -1)
        adds = label[level] >= 0
        path[level] = above
        keys, at = np.unique((above[adds] + 1) * width + label[level][adds], return_inverse=True)
        pairs = zip((keys // width - 1).tolist(), (keys % width).tolist(), strict=True)
        numbers = [known.setdefault(pair, len(known)) for pair in pairs]
        path[level[adds]] = np.array(numbers, np.int64)[at]
    return path, list(known)


def _nest_fast(start: Ints, end: Ints) -> tuple[Ints, Ints] | None:
    """Parent and depth if all intervals nest properly, else None.

    The depth is the number of intervals open at the start; the parent is the last earlier one with
    the depth above. If each lies within its parent, its chain of parents is everything that is
    open.
    """
    count = len(start)
    closed = np.sort(end).searchsorted(start, side="right")
    depth = narrow(np.subtract(np.arange(count), closed, out=closed))
    del closed
    parent = np.full(count, -1, depth.dtype)
    outer = np.flatnonzero(depth == 0)
    for level in levels(depth):
        # In blocks: each of these temporary columns may be as large as those of the events.
        for first in range(0, len(level), _AT_ONCE):
            inner = level[first : first + _AT_ONCE]
            at = outer.searchsorted(inner) - 1
            above = outer[at]
            if at.min() < 0 or (end[above] < end[inner]).any():
                return None
            parent[inner] = above
        outer = level
    return parent, depth


def _nest_any(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Parent and depth if some intervals only overlap."""
    parent, depth = np.empty(len(start), np.int64), np.empty(len(start), np.int64)
    # What is open, and twice its ends; an end that never comes saves asking whether anything is.
    rows, ends = [-1], [int(np.iinfo(np.int64).max)]
    top = ends[0]
    # As objects, all numbers at once would take five times as much memory.
    for first in range(0, len(start), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        above, level = [], []
        middles, lasts = (start[some] + end[some]).tolist(), (2 * end[some]).tolist()
        for row, (middle, last) in enumerate(zip(middles, lasts, strict=True), first):
            while top <= middle:
                rows.pop()
                ends.pop()
                top = ends[-1]
            above.append(rows[-1])
            level.append(len(rows) - 1)
            rows.append(row)
            ends.append(last)
            top = last
        parent[some], depth[some] = above, level
    return parent, depth


def _climb(start: Ints, last: Ints, above: Ints, when: Ints) -> Ints:
    """From the last of these events that has begun, up to one that has not ended, or -1."""
    at: Ints = start.searchsorted(when, side="right") - 1
    if len(start):
        todo = ((at >= 0) & (last[at] < when)).nonzero()[0]
        while len(todo):
            at[todo] = above[at[todo]]
            todo = todo[(at[todo] >= 0) & (last[at[todo]] < when[todo])]
    return at


# ---- Intervals of time: how many are apart, and how much time they cover together.


def reached(begin: Ints, end: Ints) -> Ints:
    """When all earlier ones of these intervals, in order of their begins, have ended."""
    return np.concatenate([begin[:1], np.maximum.accumulate(end)[:-1]])


def uncovered(begin: Ints, end: Ints) -> Ints:
    """The length of each interval, in order of their begins, that no earlier one covers.

    >>> uncovered(np.array([0, 1, 3, 9]), np.array([4, 2, 6, 10])).tolist()
    [4, 0, 2, 1]
    """
    own: Ints = np.maximum(end - np.maximum(begin, reached(begin, end)), 0)
    return own


def union_ns(begin: Ints, end: Ints) -> int:
    """How long at least one of these intervals, in any order, is open."""
    order = begin.argsort(kind="stable")
    return int(uncovered(begin[order], end[order]).sum())


class Cover(Frozen, frozen=True):
    """For each group, ascending: the length of the union of its intervals, its whole span, and when
    that begins.

    ``outer`` marks the intervals that begin when the earlier ones of their group are over, or less
    than half of which overlaps them: clocks round.
    """

    group: Ints
    busy_ns: Ints
    span_ns: Ints
    begin: Ints
    outer: Bools


def covered(group: Ints, start: Ints, end: Ints) -> Cover:
    """The unions of these intervals, in ns, by group.

    >>> found = covered(*np.array([[7, 7, 7, 9], [0, 1, 9, 5], [4, 3, 10, 6]]))
    >>> found.group.tolist(), found.busy_ns.tolist(), found.span_ns.tolist()
    ([7, 9], [5, 1], [10, 1])
    >>> found.outer.tolist()
    [True, False, True, True]
    """
    if not len(group):
        none = np.zeros(0, np.int64)
        return Cover(none, none, none, none, np.zeros(0, bool))
    order = np.lexsort((-end, start, group))
    own, begin, until = group[order], start[order], end[order]
    new = np.concatenate([[True], own[1:] != own[:-1]])
    first = new.nonzero()[0]
    # Each group has a stretch of time of its own, so that no reach extends into the next one.
    shift = (np.cumsum(new) - 1) * (int(until.max()) - int(begin.min()) + 1)
    reach = np.maximum.accumulate(until + shift)
    before = np.concatenate([begin[:1], reach[:-1]])
    gap = np.where(new, 0, np.maximum(begin + shift - before, 0))
    last = np.append(first[1:], len(own)) - 1
    span = reach[last] - (begin + shift)[first]
    outer = np.empty(len(group), bool)
    outer[order] = new | (begin + until + 2 * shift >= 2 * before)
    return Cover(own[first], span - np.add.reduceat(gap, first), span, begin[first], outer)
