"""What a device would gain if the host did not do something: its exposed work, and its idle time.

Waits, launches and copies cost a device only what nothing hides. So a stretch of the host's time is
worth the exposed time of what was launched in it, and the time in it in which no device ran
anything because the host was late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.breakdown import EXPOSED, categories
from pytest_torchprof.analysis.gaps import device_gap
from pytest_torchprof.analysis.idle import Idle, spans_of
from pytest_torchprof.analysis.launches import launched_at
from pytest_torchprof.analysis.unprofiled_time import slowdown_share
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.work.categories import CATEGORIES

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


class Gain(Frozen, frozen=True):
    """What stretches of the host's time are worth to the devices.

    ``at``: when device events were launched (their own start if that is unknown), in order;
    ``before``: the exposed time in ns of all that were launched earlier, one more than of ``at``,
    of several devices the mean; ``late``: when some device was busy or had work queued. Idle time
    counts from ``since`` to ``until``, and the share ``slowed`` of it: the profiler slows the host.
    """

    at: Ints
    before: Ints
    late: Idle
    since: int
    until: int
    slowed: float

    def between(self, begin: Ints, end: Ints) -> Ints:
        """Nanoseconds for each stretch from ``begin`` up to ``end``; 0 for stretches that end
        before they begin.

        Those of disjoint stretches add up to at most the devices' busy and idle time.
        """
        exposed = self.before[self.at.searchsorted(end)] - self.before[self.at.searchsorted(begin)]
        idle = self.late.between(*(np.clip(t, self.since, self.until) for t in (begin, end)))
        worth: Ints = np.maximum(exposed + (idle * self.slowed).astype(np.int64), 0)
        return worth


class Elapsed:
    """What stretches of time are worth where the host's time counts: their lengths."""

    def between(self, begin: Ints, end: Ints) -> Ints:
        """Nanoseconds for each stretch."""
        length: Ints = np.maximum(end - begin, 0)
        return length


def gain(trace: Events) -> Gain | Elapsed:
    """What the device would gain where all of its work is known, else the time that elapsed."""
    return trace.once(_gain)


def _gain(trace: Events) -> Gain | Elapsed:
    event = trace.device_rows[trace.selection[trace.device_rows]]
    if not trace.dur[event].any() or trace.once(device_gap):
        return Elapsed()
    devices = spans_of(trace)
    at = launched_at(trace, event)
    order = np.argsort(at, kind="stable")
    exposed = exposed_ns(trace, event)[order]
    before = np.concatenate([[0], np.cumsum(exposed)]) // len(devices)
    part = trace.scope is not None
    times = [time for span in devices.values() for time in span]
    far = np.iinfo(np.int64)
    return Gain(
        at[order],
        before,
        trace.whole.once(_late),
        min(times) if part else int(far.min),
        max(times) if part else int(far.max),
        slowdown_share(trace),
    )


def exposed_ns(trace: Events, event: Ints) -> Ints:
    """How long each of these device events, in order of time, ran while none of them that takes
    precedence did: computation before communication and copies, then the earlier one.

    For all events of a device, they add up to its busy time.
    """
    exposed = np.zeros(len(event), np.int64)
    hidden = nesting.among(categories(trace, event), [CATEGORIES.index(name) for name in EXPOSED])
    device = trace.device[event]
    for one in nesting.distinct(device).tolist():
        first, second = ((device == one) & (hidden == later) for later in (False, True))
        begin, end = trace.ts[event], trace.ts[event] + trace.dur[event]
        exposed[first] = _own(begin[first], end[first])
        exposed[second] = _own(begin[second], end[second])
        if first.any() and second.any():
            computing, _ = Idle.around(begin[first], end[first])
            begin = np.maximum(begin[second], end[second] - exposed[second])
            exposed[second] -= computing.busy_between(begin, end[second])
    return exposed


def _own(begin: Ints, end: Ints) -> Ints:
    """The part of each interval, in order of their begins, that no earlier one covers."""
    if not len(begin):
        return begin
    before = np.concatenate([begin[:1], np.maximum.accumulate(end)[:-1]])
    own: Ints = np.maximum(end - np.maximum(begin, before), 0)
    return own


def _late(trace: Events) -> Idle:
    """When some device was busy, or would have been if it had begun its next event when the host
    had launched it.
    """
    rows = trace.device_rows
    begin, end = trace.ts[rows], trace.ts[rows] + trace.dur[rows]
    busy, first = Idle.around(begin, end)
    launch = trace.launch[rows[first]]
    ready = np.where(launch >= 0, trace.ts[launch] + trace.dur[launch], busy.start)
    ready = np.minimum(ready, busy.start)
    ready[1:] = np.maximum(ready[1:], busy.end[:-1])
    ready[:1] = busy.start[:1]
    return Idle.of_spans(ready, busy.end, busy.begins)
