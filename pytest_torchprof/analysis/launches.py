"""Kernels that the host launched one by one, and how long the device waited for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.device_products import names_fit
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import DEVICE_KINDS, Kind
from pytest_torchprof.trace.known_names import FREE_CALL, SYNC_CALL

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_GRAPH: Final = late(r"\w*GraphLaunch")
_LOADER: Final = late(r"enumerate\(DataLoader\)#")


class Launches(Frozen, frozen=True):
    """What one device ran, in time order, and how it was launched.

    ``event`` are its events, ``gap`` the idle ns before each, ``call`` the calls that launched
    them. ``single`` marks kernels with a launch call of their own; ``pace`` is the ns between that
    call and the previous one on its thread, -1 if there is none or the host waited or loaded data
    in between; ``late`` is whether the device had nothing to do when the call returned.
    """

    event: Ints
    gap: Ints
    call: Ints
    single: Bools
    pace: Ints
    late: Bools
    busy_ns: int


def launches(trace: Events) -> dict[int, Launches]:
    """By the device's index."""
    return trace.once(_launches)


def _launches(trace: Events) -> dict[int, Launches]:
    every = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS))
    launch = trace.launch[every]
    pace = np.full(len(trace), -1, np.int64)
    pace[launch[launch >= 0]] = 0
    calls = np.flatnonzero(pace == 0)
    pace[calls] = _pace(trace, calls)
    devices = trace.device[every]
    out = {}
    for device in _distinct(devices):
        mine = devices == device
        event, call = every[mine], launch[mine]
        start = trace.ts[event]
        reach = np.maximum.accumulate(start + trace.dur[event])
        before = np.concatenate([start[:1], reach[:-1]])
        gap = np.maximum(start - before, 0)
        single = (trace.kind[event] == Kind.KERNEL) & (call >= 0)
        single &= ~names_fit(trace, call, _GRAPH.match)
        returned = np.where(call >= 0, trace.ts[call] + trace.dur[call], 0)
        busy = int(reach[-1] - start[0] - gap.sum())
        own = np.where(single, pace[call], -1)
        out[device] = Launches(event, gap, call, single, own, returned > before, busy)
    return out


def launched_at(trace: Events, event: Ints) -> Ints:
    """When the host launched these device events, in ns; their own begin where that is unknown."""
    launch = trace.launch[event]
    return np.where(launch >= 0, trace.ts[launch], trace.ts[event])


class Followed(Frozen, frozen=True):
    """Of some device events: ``alone`` if the device ran nothing else meanwhile, and ``delays`` if
    what comes next waits for them.

    What comes next does not wait if the host launched it after the event ended, and did not itself
    wait for the device then: if the event were shorter, the device would only be idle for longer.
    """

    alone: Bools
    delays: Bools


def followed(trace: Events, event: Ints) -> Followed:
    """How these device events relate to the others of their device, selected or not."""
    alone, delays = np.ones((2, len(event)), bool)
    device = trace.device[event]
    waits = trace.names_where(lambda name: SYNC_CALL.search(name) or FREE_CALL.search(name))
    every, calls = trace.device_rows, np.flatnonzero(waits)
    until = np.maximum.accumulate(trace.ts[calls] + trace.dur[calls]) if len(calls) else calls
    for number in _distinct(device):
        mine, rows = np.flatnonzero(device == number), every[trace.device[every] == number]
        at = np.searchsorted(rows, event[mine])
        begin, end = trace.ts[rows], trace.ts[rows] + trace.dur[rows]
        reach, done = np.maximum.accumulate(end), end[at]
        earlier = np.where(at > 0, reach[at - 1], begin[0])
        later = np.append(begin[1:], np.iinfo(np.int64).max)[at]
        alone[mine] = (earlier <= begin[at]) & (later >= done)
        after = np.searchsorted(begin, done)
        launch = np.append(trace.launch[rows], -1)[np.minimum(after, len(rows))]
        queued = (launch < 0) | (trace.ts[launch] <= done)
        # A call that began before the event ended, and returned after that.
        before = np.searchsorted(trace.ts[calls], done) - 1
        waited = (before >= 0) & (np.append(until, 0)[before] >= done)
        delays[mine] = queued | waited
    return Followed(alone, delays)


def _distinct(numbers: npt.NDArray[Any]) -> list[int]:
    """The same as sorting, but fast if all are equal."""
    if len(numbers) and (numbers == numbers[0]).all():
        return [int(numbers[0])]
    return nesting.distinct(numbers).tolist()  # type: ignore[no-any-return]


def _pace(trace: Events, calls: Ints) -> Ints:
    """Time since the beginning of the previous call on the same thread."""
    breaks = trace.is_kind(Kind.RUNTIME) & trace.names_where(SYNC_CALL.search)
    breaks |= trace.is_kind(Kind.ANNOTATION, Kind.OP) & trace.names_where(_LOADER.match)
    stops = np.flatnonzero(breaks)
    out = np.full(len(calls), -1, np.int64)
    for thread in _distinct(trace.thread[calls]):
        at = np.flatnonzero(trace.thread[calls] == thread)
        when = trace.ts[calls[at]]
        stopped = np.searchsorted(trace.ts[stops[trace.thread[stops] == thread]], when)
        out[at[1:]] = np.where(np.diff(stopped) > 0, -1, np.diff(when))
    return out
