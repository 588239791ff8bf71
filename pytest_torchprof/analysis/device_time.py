"""When the accelerator was busy, and when it was idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.core.records import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import DEVICE_KINDS, Kind, once_of_whole, once_per_trace
from pytest_torchprof.trace.steps import chosen_steps

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


# ---- When no device was busy, and how much of that falls into waits of the host.


class Idle(Frozen, frozen=True):
    """Disjoint spans in which some device was busy, in ns: ``start`` and ``end``, in order.

    ``before`` is the busy time before each. ``begins`` are the starts of all device events.
    """

    start: Ints
    end: Ints
    before: Ints
    begins: Ints

    @classmethod
    def around(cls, begin: Ints, end: Ints) -> Idle:
        """Of events in order of their begins."""
        reach = np.maximum.accumulate(end)
        first = np.flatnonzero(np.append(True, begin[1:] > reach[:-1])[: len(begin)])
        last = np.append(first[1:], len(begin))[: len(first)] - 1
        return cls.of_spans(begin[first], reach[last], begin)

    @classmethod
    def of_events(cls, trace: Events, rows: Ints) -> Idle:
        """Of these events of a trace."""
        return cls.around(trace.ts[rows], trace.ts[rows] + trace.dur[rows])

    @classmethod
    def of_spans(cls, start: Ints, end: Ints, begins: Ints) -> Idle:
        """Of disjoint busy spans, in order."""
        return cls(start, end, np.cumsum(end - start) - (end - start), begins)

    def between(self, begin: Ints, end: Ints) -> Ints:
        """How long no device was busy between two times.

        The time before the first device event and after the last one does not count as idle.
        """
        if not len(self.start):
            return np.zeros(len(begin), np.int64)
        begin, end = (np.clip(times, self.start[0], self.end[-1]) for times in (begin, end))
        idle: Ints = np.maximum(end - begin - self.busy_between(begin, end), 0)
        return idle

    def since(self, times: Ints) -> Ints:
        """When the device ended what it ran before it began something at these times; the times
        themselves where that is the first.
        """
        at = np.searchsorted(self.start, times, side="left") - 1
        return np.where(at >= 0, np.minimum(self.end[np.maximum(at, 0)], times), times)

    def next_begin(self, times: Ints) -> Ints:
        """When a device next starts an event; the time itself if never."""
        if not len(self.begins):
            return times
        at = np.searchsorted(self.begins, times)
        return np.where(
            at < len(self.begins), self.begins[np.minimum(at, len(self.begins) - 1)], times
        )

    def busy_between(self, begin: Ints, end: Ints) -> Ints:
        """How long some device was busy between two times."""
        if not len(self.start):
            return np.zeros(len(begin), np.int64)
        begin, end = (np.clip(times, self.start[0], self.end[-1]) for times in (begin, end))
        return self._busy(end) - self._busy(begin)

    def _busy(self, times: Ints) -> Ints:
        at = np.searchsorted(self.start, times, side="right") - 1
        inside = np.minimum(times, self.end[at]) - self.start[at]
        return self.before[at] + inside


@once_of_whole
def idle(trace: Events) -> Idle:
    """Over all devices of the trace together: idle when none of them is busy."""
    return Idle.of_events(trace, trace.device_rows)


@once_of_whole
def idle_of(trace: Events, device: int) -> Idle:
    """One device of the whole trace, whatever is selected: another step keeps it busy, too."""
    return Idle.of_events(trace, trace.device_rows[trace.device[trace.device_rows] == device])


@once_per_trace
def spans_of(trace: Events) -> dict[int, tuple[int, int]]:
    """By device (-1 if unknown) the span of its selected events, in ns.

    That of steps begins when the device ended what it ran before: what it waits for until it begins
    a step, such as data, belongs to that step.
    """
    own = trace.device_rows[trace.selection[trace.device_rows]]
    spans = {}
    for device in nesting.distinct(trace.device[own]).tolist():
        mine = own[trace.device[own] == device]
        since = trace.ts[mine[:1]]
        if chosen_steps(trace) is not None:
            since = idle_of(trace, device).since(since)
        spans[device] = int(since[0]), int((trace.ts[mine] + trace.dur[mine]).max())
    return spans


def idle_by_waits(trace: Events, begin: Ints, end: Ints) -> Ints:
    """How long no device was busy during each wait of the host, and after it until a device starts
    an event or the host waits again. No time counts twice.
    """
    out = np.zeros(len(begin), np.int64)
    if not len(begin):
        return out
    found = idle(trace)
    order = np.lexsort((end, begin))
    since, until = begin[order], np.maximum(end, begin)[order]
    after = np.append(since[1:], np.iinfo(np.int64).max)
    until = np.minimum(found.next_begin(until), np.maximum(after, until))
    since = np.minimum(np.maximum(since, nesting.reached(since, until)), until)
    out[order] = found.between(since, until)
    return out


# ---- When the accelerator was busy.


class DeviceTime(Frozen, frozen=True):
    """Nanoseconds over the selected device events.

    ``self_ns`` is their sum, ``busy_ns`` the length of the union of their intervals, ``idle_ns``
    the time in their span (`spans_of`) in which the device ran nothing, selected or not. Both cover
    all streams of a device together, and are summed over devices.
    """

    self_ns: int
    busy_ns: int
    idle_ns: int


@once_per_trace
def device_time(trace: Events) -> DeviceTime:
    """Sum, union and gaps of kernels, copies and memsets."""
    events = trace.device_rows[trace.selection[trace.device_rows]]
    busy = idle = 0
    for device, span in spans_of(trace).items():
        mine = events[trace.device[events] == device]  # in time order, as all events
        busy += int(nesting.uncovered(trace.ts[mine], trace.ts[mine] + trace.dur[mine]).sum())
        idle += int(idle_of(trace, device).between(*np.array(span).reshape(2, 1))[0])
    return DeviceTime(int(trace.dur[events].sum()), busy, idle)


def measured_ns(trace: Events) -> int:
    """The span of the devices' events, or without a device of all events, in ns, at least 1.

    That of several devices is their mean.
    """
    spans = list(spans_of(trace).values())
    if not spans:
        rows = np.flatnonzero(trace.selection)
        ends = trace.ts[rows] + trace.dur[rows]
        spans = [(int(trace.ts[rows].min()), int(ends.max()))] if len(rows) else [(0, 0)]
    return max(sum(end - begin for begin, end in spans) // len(spans), 1)


def launched_ns(trace: Events) -> Ints:
    """The device time of all that each host event launched; 0 for other events."""
    below, device = np.zeros(len(trace), np.int64), trace.device_rows
    if not len(device):
        return below
    device = device[trace.selection[device] & (trace.launch[device] >= 0)]
    np.add.at(below, trace.launch[device], trace.dur[device])
    for level in reversed([*nesting.levels(trace.depth)]):
        np.add.at(below, trace.parent[level], below[level])
    return below


def launched_in(
    trace: Events, events: Ints, end: Ints | None = None, kinds: tuple[Kind, ...] = (Kind.KERNEL,)
) -> tuple[Ints, Ints]:
    """For each of these host events: a kernel that it launched, -1 for none; their time.

    ``end``: until when, in ns, if not until the end of each event. ``kinds``: of device events, if
    not only kernels.
    """
    first, below = np.full(len(events), -1, np.int64), np.zeros(len(events), np.int64)
    if not trace.has(*kinds):
        return first, below
    kernels = np.flatnonzero(trace.selection & trace.is_kind(*kinds) & (trace.launch >= 0))
    kernels = kernels[np.argsort(trace.launch[kernels], kind="stable")]
    thread, called = trace.thread[trace.launch[kernels]], trace.ts[trace.launch[kernels]]
    start = trace.ts[events]
    end = start + trace.dur[events] if end is None else end
    for one in nesting.distinct(trace.thread[events]):
        asked, mine = np.flatnonzero(trace.thread[events] == one), kernels[thread == one]
        when = called[thread == one]
        since, until = np.searchsorted(when, start[asked]), np.searchsorted(when, end[asked])
        total = np.concatenate([[0], np.cumsum(trace.dur[mine])])
        below[asked] = total[until] - total[since]
        some = until > since
        first[asked[some]] = mine[since[some]]
    return first, below


def took_ns(trace: Events, events: Ints) -> Ints:
    """For each of these host events the time of what it launched on a device, else its own."""
    first, below = launched_in(trace, events, kinds=DEVICE_KINDS)
    found: Ints = np.where(first >= 0, below, trace.dur[events])
    return found
