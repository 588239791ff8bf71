"""Repeated work: the same calls in one iteration after the other, like the body of a loop."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.core.records import Frozen
from pytest_torchprof.trace.names import STEP, Names, are_named, marks_named
from pytest_torchprof.trace.tree import BACKWARD, FETCH, calls, within

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


#: Nested operators that may appear next to their parent on a clock of whole microseconds.
_PARTS: Final = Names(r"aten::(as_strided|resolve_conj|resolve_neg|_local_scalar_dense)$")
#: Never in the body of a loop over a tensor's elements: training, and batches of a loader.
_BOUNDARY: Final = Names(rf"{BACKWARD}|Optimizer\.|{re.escape(FETCH)}|{STEP.pattern}")
#: What is nested in these is torch's own.
_LIBRARY_CALL: Final = Names(rf"{re.escape(FETCH)}|Optimizer\.step#")
#: Operators that split a tensor at once: ``for row in x`` is an unbind.
APART: Final = Names(r"aten::(unbind|(unsafe_)?(split|split_with_sizes|chunk)|tensor_split)$")


class CallSequence(Frozen, frozen=True):
    """Calls in order, thread by thread: event and name; ``key`` also distinguishes separate parts
    of the trace. ``apart`` are the events that split a tensor, which are not included as calls, and
    ``before`` is the number of calls before each of them.
    """

    rows: Ints
    name: Ints
    key: Ints
    apart: Ints
    before: Ints


class Stretch(Frozen, frozen=True):
    """Calls of a sequence from ``start`` to ``stop``, whose names repeat with this period."""

    start: int
    stop: int
    period: int

    @property
    def repeats(self) -> int:
        """The number of whole iterations."""
        return (self.stop - self.start) // self.period


def sequence(trace: Events) -> CallSequence:
    """The calls of the measured code, in order."""
    return trace.once(_sequence)


def _sequence(trace: Events) -> CallSequence:
    rows = calls(trace)
    rows = rows[trace.selection[rows] & ~are_named(trace, rows, _BOUNDARY, _PARTS)]
    rows = rows[~within(trace, rows, lambda events: are_named(trace, events, _LIBRARY_CALL))]
    boundaries = marks_named(trace, _BOUNDARY)
    thread = trace.thread[rows].astype(np.int64)
    part = np.searchsorted(boundaries, rows) + (len(boundaries) + 1) * thread
    key = part * len(trace.names) + trace.name[rows]
    apart = are_named(trace, rows, APART)
    before: Ints = np.cumsum(~apart, dtype=np.int64)[apart]
    kept = rows[~apart]
    return CallSequence(kept, trace.name[kept], key[~apart], rows[apart], before)


def stretches(key: Ints, repeats: int, longest: int) -> Iterator[Stretch]:
    """All stretches with at least ``repeats`` iterations, those with the shortest period first.

    A stretch is left out if another one, whose period divides its own, covers it.
    """
    known: dict[int, list[Stretch]] = {}
    for period in range(1, min(longest, len(key) // repeats) + 1):
        same = key[period:] == key[:-period]
        least = (repeats - 1) * period
        if np.count_nonzero(same) < least:
            continue
        edges = np.flatnonzero(np.diff(same.astype(np.int8), prepend=0, append=0))
        starts, stops = edges[::2], edges[1::2]
        long = stops - starts >= least
        shorter = [known[one] for one in known if period % one == 0]
        found = []
        for start, stop in zip(starts[long].tolist(), stops[long].tolist(), strict=True):
            one = Stretch(start, stop + period, period)
            if not any(_covered(one, others) for others in shorter):
                found.append(one)
        if found:
            known[period] = found
            yield from found


def _covered(one: Stretch, others: list[Stretch]) -> bool:
    """Whether one of these, which are in order, covers all of it."""
    at = bisect_right(others, one.start, key=lambda other: other.start) - 1
    return at >= 0 and one.stop <= others[at].stop
