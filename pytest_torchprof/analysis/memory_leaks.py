"""Memory that grows from step to step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, lgamma
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.live_bytes import (
    OUTSIDE,
    changes_of,
    memory_of_devices,
    owners_of,
    selected,
)
from pytest_torchprof.analysis.training_phases import OPTIMIZER_STEP
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting, steps
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.name_index import marks_named
from pytest_torchprof.trace.tree import has_frames

if TYPE_CHECKING:
    from pytest_torchprof.trace.allocations import Memory
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Levels that are exchangeable rise as often as not. Below this probability growth is clear: five
#: levels in ascending order have 1 in 5! = 0.8 %.
_CHANCE: Final = 0.01
#: The least number of steps: the first warms up, and its end is the first level.
LEAST_STEPS: Final = 5
#: How many levels to hold at once.
_TABLE: Final = 1_000_000


@dataclass(frozen=True)
class LeakRow:
    """Blocks of one allocating operator (and stack, if recorded) that pile up from step to step.

    ``bytes`` and ``blocks`` are how much more of them was live at the end of the last step than at
    the end of the first, ``bytes_per_step`` is their mean growth. ``blocks`` is 0 if blocks were
    replaced by larger ones. ``steps`` is how many steps that took, the first one not included.
    """

    device: str
    operator: str
    bytes: int
    bytes_per_step: float
    blocks: int
    steps: int
    #: Python functions, outermost first, joined by ``;``; None where not recorded.
    stack: str | None = None


class Moments(Frozen, frozen=True):
    """Between which moments to look for leaks: what ends then, and when, in ns, ascending."""

    name: str
    ends: Ints


def moments_of(trace: Events) -> Moments:
    """The ends of the steps, of the optimizer's if there are none; without a name if of neither."""
    return trace.once(_moments)


def _moments(trace: Events) -> Moments:
    found = steps.steps_of(trace, steps.step_name_of(trace))
    chosen = trace.selection[found.event]
    if len(found):
        return Moments(found.name, np.sort(found.end[chosen]))
    updates = marks_named(trace, OPTIMIZER_STEP)
    updates = updates[trace.selection[updates]]
    name = "Optimizer.step" if len(updates) else ""
    return Moments(name, np.sort(trace.ts[updates] + trace.dur[updates]))


def memory_leaks(trace: Events) -> list[LeakRow] | None:
    """What grows from step to step, the most bytes first.

    None with fewer steps than `LEAST_STEPS`, and if the trace has no addresses of blocks.

    The level of an operator's blocks at the ends of steps, from the first one on, never falls and
    rises in at least a third of the steps, early ones, middle ones and late ones. That it
    rises is not chance: in random order, the levels would be ascending with a probability of the
    product of the factorials of how often each level occurs, by the factorial of their number
    (a permutation test), which is below 1 %. If the trace has stacks, each of them is tested, too.
    """
    ends = moments_of(trace).ends
    if len(ends) < LEAST_STEPS or trace.memory.addr is None or not len(trace.memory.event):
        return None
    found = [
        leak
        for device, memory in memory_of_devices(trace)
        for leak in _leaks(trace, device, memory, ends)
    ]
    return sorted(found, key=lambda leak: (-leak.bytes, leak.device, leak.operator))


def _leaks(trace: Events, device: str, memory: Memory, ends: Ints) -> Iterator[LeakRow]:
    row, block, size = changes_of(memory, selected(trace, memory), bool(memory.on_device[0]))
    step = ends.searchsorted(trace.ts[memory.event[row]])
    known = (block >= 0) & (step < len(ends))
    block, size, step = block[known], size[known], step[known]
    owner = owners_of(trace, memory.event)
    for number, level, count in _growing(owner[block], size, step, len(ends)):
        operator = trace.names[number] if number >= 0 else OUTSIDE
        mine = owner[block] == number
        rows = [_row(device, operator, level, count)]
        if has_frames(trace):
            path, text = _stacks(trace, memory.event[block[mine]])
            by_stack = _growing(path, size[mine], step[mine], len(ends))
            rows = [_row(device, operator, of, n, text(one)) for one, of, n in by_stack] or rows
        yield from rows


def _row(device: str, operator: str, level: Ints, count: Ints, stack: str | None = None) -> LeakRow:
    grown, steps = int(level[-1] - level[0]), len(level) - 1
    return LeakRow(device, operator, grown, grown / steps, int(count[-1] - count[0]), steps, stack)


def _growing(key: Ints, size: Ints, step: Ints, steps: int) -> Iterator[tuple[int, Ints, Ints]]:
    """Keys that grow, with their bytes and blocks at the end of each step."""
    keys, at = np.unique(key, return_inverse=True)
    net = np.zeros(len(keys), np.int64)
    np.add.at(net, at[step > 0], size[step > 0])
    some = (net > 0).nonzero()[0]
    width = max(_TABLE // steps, 1)
    for first in range(0, len(some), width):
        part = some[first : first + width]
        place = np.full(len(keys), -1, np.int64)
        place[part] = np.arange(len(part))
        mine = (place[at] >= 0).nonzero()[0]
        where = place[at[mine]], step[mine]
        level, count = np.zeros((2, len(part), steps), np.int64)
        np.add.at(level, where, size[mine])
        np.add.at(count, where, np.sign(size[mine]))
        level, count = level.cumsum(1), count.cumsum(1)
        for i in _clear(level).nonzero()[0].tolist():
            yield int(keys[part[i]]), level[i], count[i]


def _clear(level: Ints) -> Bools:
    """Which rows of levels grow clearly, see `memory_leaks`."""
    change = np.diff(level, axis=1)
    found: Bools = np.all(change >= 0, axis=1)
    for part in np.array_split(change, 3, axis=1):
        found &= 3 * (part > 0).sum(axis=1) >= part.shape[1]
    rows = found.nonzero()[0]
    found[rows] = [_chance(one) <= _CHANCE for one in level[rows]]
    return found


def _chance(level: Ints) -> float:
    """The probability that levels in random order are ascending.

    >>> round(1 / _chance(np.array([1, 2, 3, 4, 5]))), round(1 / _chance(np.array([1, 1, 2])))
    (120, 3)
    """
    _, ties = np.unique(level, return_counts=True)
    return exp(sum(lgamma(tie + 1) for tie in ties.tolist()) - lgamma(len(level) + 1))


def _stacks(trace: Events, events: Ints) -> tuple[Ints, Callable[[int], str | None]]:
    """The path of Python functions around each of these events, as a number, and its text."""
    parent, depth = trace.frames
    label = np.where(trace.is_kind(Kind.PYTHON), trace.name, -1)
    path, known = nesting.paths(parent, depth, label)
    rows = (depth >= 0).nonzero()[0]
    around = nesting.enclosing(trace.ts, trace.ts + trace.dur, parent, rows, trace.thread, events)

    def text(number: int) -> str | None:
        parts = []
        while number >= 0:
            number, last = known[number]
            parts.append(trace.names[last])
        return ";".join(reversed(parts)) or None

    return np.where(around >= 0, path[around], -1), text
