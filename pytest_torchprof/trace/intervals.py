"""Intervals of time by group: how many are apart, and how much time they cover together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from pytest_torchprof.trace.nesting import Bools, Ints


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
