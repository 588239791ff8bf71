"""What the host did while a device was idle: each part of each gap is given to one cause.

A gap ends when the device begins an event. Until the call that launched this event returned, the
host was late, and what its thread did is the cause; from then on the work was queued.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.host_causes import Cause, Host
from pytest_torchprof.analysis.idle import spans_of
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: A device that has work starts it within this time, unless something holds it up: in 96 public
#: traces with gaps, 99 % of such delays are below 10 us, and only five have any of 100 us or more.
_STALL_NS: Final = 100_000
#: How many gaps are explained at once, and with how many events in their time if there are more.
_AT_ONCE: Final = 1024
_EVENTS_AT_ONCE: Final = 2**13
_WAITS: Final = (int(Cause.COMMUNICATING), int(Cause.WAITING), int(Cause.COPYING))


class IdleParts(Frozen, frozen=True):
    """Parts of gaps, as arrays of one length: ``ns`` of each ``gap`` (numbered from 0) of a
    ``device`` are given to a ``cause`` (a number of `Cause`), in order of gaps, then causes.

    ``event`` is what the host did: the wait, the fetch, the outermost operator, the innermost
    Python function; or, where it did nothing that the trace shows, the outermost operator that came
    next, and -1 for none. Of work that was launched and not started, it is the call in which the
    host waited meanwhile, or else the operator that launched the work.
    """

    device: Ints
    gap: Ints
    cause: npt.NDArray[np.int8]
    event: Ints
    ns: Ints


def idle_parts(trace: Events, *, causes_only: bool = False) -> IdleParts:
    """All idle time of the devices, between the first event of each and its last.

    ``causes_only``: without events, which takes far less memory; these are not kept.
    """
    return _idle_parts(trace, causes_only=True) if causes_only else trace.once(_idle_parts)


def _idle_parts(trace: Events, *, causes_only: bool = False) -> IdleParts:
    gaps, host = _gaps(trace), Host(trace)
    merged = _of_causes if causes_only else _merged
    kinds = (np.int64, np.int64, np.int8, np.int64, np.int64)
    columns: list[list[npt.NDArray[Any]]] = [[np.zeros(0, kind)] for kind in kinds]
    # Some at a time: most of what the host did is soon summed up.
    for at, stop in _pieces(trace, *gaps[:2]):
        some = merged(_parts_of(trace, host, [column[at:stop] for column in gaps], at))
        for column, name in zip(columns, IdleParts.__struct_fields__, strict=True):
            column.append(getattr(some, name))
    del host
    whole = []
    while columns:  # each is released once it is joined
        whole.append(nesting.narrow(np.concatenate(columns.pop(0))))
    return IdleParts(*whole)


def _pieces(trace: Events, device: Ints, begin: Ints) -> Iterator[tuple[int, int]]:
    """From which gap to which, of one device and not too many events."""
    place = trace.ts.searchsorted(begin)
    at = 0
    while at < len(place):
        stop = min(at + _AT_ONCE, int(device.searchsorted(device[at], side="right")))
        stop = at + max(1, int(place[at:stop].searchsorted(place[at] + _EVENTS_AT_ONCE)))
        yield at, stop
        at = stop


def _merged(parts: IdleParts) -> IdleParts:
    """Parts of one gap with the same cause and event become one."""
    if not len(parts.ns):
        return parts
    # One number for all columns: sorting by several takes much longer.
    width = int(parts.event.max()) + 2
    key = (parts.gap * len(Cause) + parts.cause) * width + parts.event + 1
    order = key.argsort(kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(key[order]) != 0))
    ns = np.add.reduceat(parts.ns[order], first)
    mine = order[first]
    return IdleParts(parts.device[mine], parts.gap[mine], parts.cause[mine], parts.event[mine], ns)


def _of_causes(parts: IdleParts) -> IdleParts:
    nothing = np.full(len(parts.ns), -1, np.int64)
    return _merged(IdleParts(parts.device, parts.gap, parts.cause, nothing, parts.ns))


def _parts_of(trace: Events, host: Host, gaps: Sequence[Ints], number: int) -> IdleParts:
    """The parts of these gaps, of which the first one has this number."""
    device, begin, end, first = gaps
    launch = trace.launch[first]
    known = launch >= 0
    # When the host had launched the event that ends the gap.
    ready = np.where(known, trace.ts[launch] + trace.dur[launch], begin)
    ready = np.clip(ready, begin, end)
    thread = np.where(known, trace.thread[launch], -1).astype(np.int64)

    host.begin_at(int(begin[0]))
    gap, event, since, until = host.did(thread, begin, ready)
    # Without operators in the trace, nothing tells what the host did between calls.
    silent = int(Cause.PYTHON if trace.has(Kind.OP) else Cause.UNKNOWN)
    cause = np.where(event >= 0, host.cause[event], silent)
    event = np.where(event >= 0, host.shown[event], host.shown[launch[gap]])
    cause, event, ns, part = _with_waits(trace, gap, cause, event, since, until)
    gap = gap[part]

    queued = np.flatnonzero(end > ready)
    gap = np.concatenate([gap, queued])
    ns_queued = end[queued] - ready[queued]
    ns = np.concatenate([ns, ns_queued])
    late_ = np.where(ns_queued >= _STALL_NS, int(Cause.STALLED), int(Cause.QUEUED))
    later = np.where(known[queued], late_, int(Cause.UNKNOWN))
    cause = np.concatenate([cause, later]).astype(np.int8)
    shown = np.where(known[queued], host.shown[launch[queued]], -1)
    stalled = np.flatnonzero(later == int(Cause.STALLED))
    mine = queued[stalled]
    waited = _waited(host, thread[mine], ready[mine], end[mine])
    shown[stalled] = np.where(waited >= 0, waited, shown[stalled])
    event = np.concatenate([event, shown]).astype(np.int64)
    return IdleParts(device[gap], gap + number, cause, event, ns)


def _waited(host: Host, thread: Ints, begin: Ints, end: Ints) -> Ints:
    """The call in which the host waited for half of these times or more, -1 for none."""
    gap, event, since, until = host.did(thread, begin, end)
    waits = (event >= 0) & nesting.among(host.cause[event], _WAITS)
    waits &= 2 * (until - since) >= (end - begin)[gap]
    found = np.full(len(begin), -1, np.int64)
    found[gap[waits]] = host.shown[event[waits]]
    return found


def _gaps(trace: Events) -> tuple[Ints, Ints, Ints, Ints]:
    """Of each gap: the device, begin and end in ns, and the event that ends it.

    Gaps are between the first selected event of a device and its last, and in them the device runs
    nothing, selected or not.
    """
    every = trace.device_rows
    chosen = trace.selection[every]
    parts = []
    for device in nesting.distinct(trace.device[every[chosen]]).tolist():
        mine = trace.device[every] == device
        event = every[mine]
        since, until = spans_of(trace)[device]
        reach = np.maximum.accumulate(trace.ts[event] + trace.dur[event])
        begin, end = reach[:-1], trace.ts[event[1:]]
        gap = np.flatnonzero((end > begin) & (begin >= since) & (end <= until))
        first = event[gap + 1]
        parts.append((np.full(len(gap), device, np.int64), begin[gap], end[gap], first))
    if not parts:
        none = np.zeros(0, np.int64)
        return none, none, none, none
    device_, begin, end, first_ = (np.concatenate(column) for column in zip(*parts, strict=True))
    return device_, begin, end, first_


def _with_waits(
    trace: Events, gap: Ints, cause: npt.NDArray[np.int8], event: Ints, since: Ints, until: Ints
) -> tuple[npt.NDArray[Any], Ints, Ints, Ints]:
    """Cause, event and ns of each part, and which of the given ones it is of.

    While the host waited, it could not run ahead: what it then needs to launch more counts as the
    wait's, up to the time that it waited.
    """
    ns = until - since
    waits = cause == int(Cause.WAITING)
    everything = np.arange(len(gap))
    if not waits.any():
        return cause, event, ns, everything
    # Parts are in order of gaps and time.
    last = np.maximum.accumulate(np.where(waits, everything, -1))
    soft = (cause == int(Cause.LAUNCHING)) | (cause == int(Cause.PYTHON))
    after = soft & (last >= 0) & (gap[last] == gap)
    spent = np.cumsum(np.where(after, ns, 0))
    earlier = spent - np.where(after, ns, 0) - spent[np.maximum(last, 0)]
    waited = trace.dur[np.where(waits, event, 0)[np.maximum(last, 0)]]
    taken = np.where(after, np.clip(waited - earlier, 0, ns), 0)
    more = np.flatnonzero(taken)
    return (
        np.concatenate([cause, np.full(len(more), int(Cause.WAITING))]),
        np.concatenate([event, event[last[more]]]),
        np.concatenate([ns - taken, taken[more]]),
        np.concatenate([everything, more]),
    )
