"""Totals of events by name or another key, for tables, baselines and diffs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.core.cached import cached
from pytest_torchprof.work.counting import op_flops

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Keys up to this many times the number of events are grouped by counting, not sorting.
_SPARSE = 8


class Groups:
    """Events by key: `keys` are distinct and ascending, and totals have an entry for each.

    The totals are in ns, FLOPs and calls, as int64.
    """

    def __init__(self, trace: Events, events: Ints, key: Ints) -> None:
        self.trace, self.events = trace, events
        if len(key) and int(key.max()) < _SPARSE * len(key) + 1024:
            there = np.bincount(key)
            self.keys: Ints = there.nonzero()[0]
            self.calls: Ints = there[self.keys]
            number = np.empty(len(there), np.int64)
            number[self.keys] = np.arange(len(self.keys))
            self.at: Ints = number[key]
        else:
            self.keys, self.at = np.unique(key, return_inverse=True)
            self.calls = np.bincount(self.at, minlength=len(self.keys))

    def total(self, values: Ints) -> Ints:
        """The sum of a value for each event, by group."""
        out = np.zeros(len(self.keys), np.int64)
        if values.any():
            np.add.at(out, self.at, values)
        return out

    @cached
    def outermost(self) -> Bools:
        """Which host events are not nested in another of their group, which includes them."""
        return ~inside_itself(self.trace, self.events, self.at)

    @property
    def self_cpu_ns(self) -> Ints:
        """Host time without nested events."""
        return self.total(self.trace.self_ns[self.events])

    @property
    def cpu_ns(self) -> Ints:
        """Host time with nested events, counting those of the same group once."""
        return self.total(np.where(self.outermost, self.trace.dur[self.events], 0))

    @property
    def cuda_ns(self) -> Ints:
        """Device time of what was launched inside, counting events of the same group once."""
        launched = self.trace.once(launched_ns)
        return self.total(np.where(self.outermost, launched[self.events], 0))

    @property
    def flops(self) -> Ints:
        """FLOPs of operators."""
        return self.total(op_flops(self.trace)[self.events])


def inside_itself(trace: Events, events: Ints, group: Ints) -> Bools:
    """Which of these host events run inside another of their group."""
    groups, parent = np.full(len(trace), -1, np.int64), trace.parent
    groups[events] = group
    found = np.zeros(len(events), bool)
    at = parent[events]
    todo = (at >= 0).nonzero()[0]
    at, own = at[todo], group[todo]
    while len(todo):
        same = groups[at] == own
        found[todo[same]] = True
        at = parent[at]
        left = ((at >= 0) & ~same).nonzero()[0]
        at = at[left]
        own = own[left]
        todo = todo[left]
    return found
