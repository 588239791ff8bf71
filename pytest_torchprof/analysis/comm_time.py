"""For how long a rank computes, communicates, both at once, or neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.breakdown import EXPOSED, device_work
from pytest_torchprof.analysis.comm_calls import PARAMETERS, comm_calls
from pytest_torchprof.analysis.gaps import cpu_time_gap, device_time_gap
from pytest_torchprof.analysis.idle import spans_of
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.intervals import covered
from pytest_torchprof.trace.kinds import DEVICE_KINDS, HOST_KINDS, Kind
from pytest_torchprof.work.categories import CATEGORIES

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

_COMMUNICATION: Final = CATEGORIES.index("communication")
#: Operators that start communication, or wait for it.
_COMMUNICATES: Final = late(r"_?c10d(_functional\w*)?::|symm_mem::|_C_custom_ar::")


class RankTime(Frozen, frozen=True):
    """Nanoseconds of one rank, on its devices; without device events, of its operators.

    ``span_ns`` is from the first event to the end of the last, ``compute_ns`` the time in which
    anything computes, ``comm_ns`` that in which anything communicates, ``exposed_ns`` that in which
    something communicates and nothing computes, ``idle_ns`` that in which nothing happens, copies
    included. All are unions, summed over devices. ``on_device`` is whether they are of devices.
    """

    span_ns: int
    compute_ns: int
    comm_ns: int
    exposed_ns: int
    idle_ns: int
    on_device: bool


def rank_time(trace: Events) -> RankTime | Reason:
    """The times of the selected events, or why they are unknown.

    On a device, these are HolisticTraceAnalysis's: compute is what is neither communication nor a
    copy, and exposed communication its part of `breakdown`; gloo's work counts with the first
    device. On the host, an operator computes unless it communicates or waits for it, or encloses
    what does; communication is the back end's work, such as gloo's, which runs in other threads.
    """
    return trace.once(_rank_time)


def _rank_time(trace: Events) -> RankTime | Reason:
    if (trace.selection & trace.is_kind(*DEVICE_KINDS)).any():
        return trace.once(device_time_gap) or _on_devices(trace)
    return trace.once(cpu_time_gap) or _on_host(trace)


def _on_devices(trace: Events) -> RankTime:
    total = np.zeros(5, np.int64)
    spans, calls = spans_of(trace), comm_calls(trace)
    # A device that holds the tensors may leave the work to gloo.
    on_host = (calls.kernel < 0) & (calls.end >= 0)
    for number, (device, work) in enumerate(device_work(trace).items()):
        since, until = spans[device]
        start, end, category = work
        if number == 0 and on_host.any():
            more = np.full(int(on_host.sum()), _COMMUNICATION)
            start = np.append(start, np.clip(calls.begin[on_host], since, until))
            end = np.append(end, np.clip(calls.end[on_host], since, until))
            category = np.append(category, more)
        copies = nesting.among(category, [CATEGORIES.index(name) for name in EXPOSED])
        computing = ~copies & (category < len(CATEGORIES))
        total += _times(start, end, computing, category == _COMMUNICATION, until - since)
    return _of_numbers(total, on_device=True)


def _on_host(trace: Events) -> RankTime | Reason:
    calls = comm_calls(trace)
    if (calls.end < 0).any():
        untimed = int((calls.end < 0).sum())
        return because(Why.NO_COMM_TIMES, untimed=untimed, calls=len(calls))
    host = np.flatnonzero(trace.selection & trace.is_kind(*HOST_KINDS))
    if not len(host):
        return because(Why.NO_OPERATORS)
    rows = computing_operators(trace)
    start = np.concatenate([trace.ts[rows], calls.begin])
    end = np.concatenate([trace.ts[rows] + trace.dur[rows], calls.end])
    communicating = np.arange(len(start)) >= len(rows)
    since = int(min([trace.ts[host].min(), *calls.begin.tolist()]))
    until = int(max((trace.ts[host] + trace.dur[host]).max(), calls.end.max(initial=0)))
    if trace.region is not None and trace.scope is None:
        since, until = trace.region
        start, end = np.clip(start, since, until), np.clip(end, since, until)
    numbers = _times(start, end, ~communicating, communicating, until - since)
    return _of_numbers(numbers, on_device=False)


def computing_operators(trace: Events) -> Ints:
    """Operators of the host that neither communicate nor enclose what does."""
    operator = trace.is_kind(Kind.OP)
    calls = comm_calls(trace)
    names = trace.names_where(_COMMUNICATES.match) | trace.named(PARAMETERS)
    apart = names & operator
    apart[calls.event] = True
    rows = np.flatnonzero(operator & trace.selection & ~apart)
    around = nesting.above(np.flatnonzero(apart), trace.parent)
    rows = rows[~around[rows]]
    return rows[~nesting.below(apart, trace.parent, rows)]


def _of_numbers(numbers: Ints, *, on_device: bool) -> RankTime:
    span, compute, comm, exposed, idle = numbers.tolist()
    return RankTime(span, compute, comm, exposed, idle, on_device)


def _times(start: Ints, end: Ints, computing: Bools, communicating: Bools, span: int) -> Ints:
    """The numbers of `RankTime`, in order."""
    compute = _union(start, end, computing)
    both = _union(start, end, computing | communicating)
    busy = _union(start, end, np.ones(len(start), bool))
    comm = _union(start, end, communicating)
    return np.array([span, compute, comm, both - compute, max(span - busy, 0)], np.int64)


def _union(start: Ints, end: Ints, chosen: Bools) -> int:
    if not chosen.any():
        return 0
    one = np.zeros(int(chosen.sum()), np.int64)
    return int(covered(one, start[chosen], end[chosen]).busy_ns[0])
