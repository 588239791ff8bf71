"""What a thread of the host did at each time, a stretch of time after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.known_names import REGION

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: How many events are put in order at once.
_AT_ONCE: Final = 2**12
_FIRST: Final = int(np.iinfo(np.int64).min)
_LAST: Final = int(np.iinfo(np.int64).max)


class Timeline:
    """Times at which the innermost event of a thread changes, and the event from then on.

    Only of the times that are asked for: all of it would be as large as the trace.
    """

    def __init__(self, trace: Events, thread: int, end: Ints | None) -> None:
        """``end``: when each event ends, where that is not its own duration, see `nested_ends`."""
        self._trace, self._end = trace, end
        self._parent, self._depth = trace.frames
        rows = np.flatnonzero((trace.thread == thread) & (self._depth >= 0) & (trace.dur > 0))
        self._region = trace.named(REGION)
        rows = rows[~self._region[rows]]
        if end is not None:
            rows = rows[end[rows] > trace.ts[rows]]
        self._rows = nesting.narrow(rows)
        self._rewind()

    def _rewind(self) -> None:
        self._times, self._state = np.array([_FIRST]), np.array([-1], np.int32)
        self._begin = self._reached = _FIRST
        self._next, self._open = 0, self._rows[:0]

    def begin_at(self, begin: int) -> None:
        """Forget what was before, or begin again: earlier times are not asked for."""
        if begin < self._begin:
            self._rewind()
        first = self._times.searchsorted(begin, side="right") - 1
        self._times, self._state = self._times[first:].copy(), self._state[first:].copy()
        self._begin = begin

    def until(self, end: int) -> tuple[Ints, npt.NDArray[np.int32]]:
        """The times and the innermost event from each on, -1 for none, up to this time.

        The first time may be earlier than where it begins, and the last one is later than ``end``.
        """
        times, state = [self._times], [self._state]
        while self._reached < end:
            some, then = self._piece()
            if self._reached < self._begin and len(some):
                # Only what lasts is of interest.
                times, state = [some[-1:].copy()], [then[-1:].copy()]
            else:
                times.append(some)
                state.append(then)
        self._times, self._state = np.concatenate(times), np.concatenate(state)
        return np.append(self._times, _LAST), self._state

    def _piece(self) -> tuple[Ints, npt.NDArray[np.int32]]:
        """What changes before the next event that is not looked at begins."""
        trace, rows = self._trace, self._rows
        reached, stop = _LAST, self._next + _AT_ONCE
        if stop < len(rows):
            # All that begin at one time belong together.
            reached = max(int(trace.ts[rows[stop]]), int(trace.ts[rows[self._next]]) + 1)
            first = trace.ts.searchsorted(reached)
            stop = int(rows.searchsorted(first.astype(rows.dtype)))
        new = rows[self._next : stop]
        due = np.concatenate([self._open, new])
        end = trace.ts[due] + trace.dur[due] if self._end is None else self._end[due]
        ending = end <= reached
        ended = due[ending]
        above = self._parent[ended]
        above[(above >= 0) & self._region[above]] = -1
        times = np.concatenate([trace.ts[new], end[ending]])
        state = np.concatenate([new, above], dtype=np.int32, casting="same_kind")
        # At one time, ends come first, from the inside out; then begins, from the outside in.
        depth = self._depth
        level = np.concatenate([depth[new] + 1, -depth[ended] - 1])
        order = np.lexsort((level, times))
        self._next, self._open, self._reached = stop, due[~ending], reached
        return times[order], state[order]


def nested_ends(trace: Events) -> Ints | None:
    """When each event ends, at the latest with what encloses it; None if all do anyway."""
    parent, depth = trace.frames
    for at in range(0, len(trace), _AT_ONCE):
        some = slice(at, at + _AT_ONCE)
        above = parent[some]
        late = trace.ts[some] + trace.dur[some] > trace.ts[above] + trace.dur[above]
        if ((above >= 0) & late).any():
            break
    else:  # mostly
        return None
    end: Ints = trace.ts + trace.dur
    for level in nesting.levels(depth):
        end[level] = np.minimum(end[level], end[parent[level]])
    return end
