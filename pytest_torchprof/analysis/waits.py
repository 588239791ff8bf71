"""When the host waited for the device: to read a value back, or because it was told to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof import nesting
from pytest_torchprof.analysis.products import operators_of
from pytest_torchprof.events import D2H, DEVICE_KINDS, SYNC_CALL, Kind, Trace

if TYPE_CHECKING:
    from pytest_torchprof.nesting import Bools, Ints

#: Operators proper, as torch names them; other names are annotations of users and of torch's own.
_OPERATOR: Final = re.compile(r"(?!torchprof::)\w+::")
#: Operators that hand a value to the host, whatever the driver calls their copy.
_READER: Final = re.compile(r"aten::(_local_scalar_dense|nonzero|item|is_nonzero)$")
#: Waiting for other devices is what these are for.
_COLLECTIVE: Final = re.compile(r"c10d::|nccl:|record_param_comms")
#: In this, DDP waits for the events of its own log of times.
_DDP: Final = re.compile(r"DistributedDataParallel\.forward$")
_COPY: Final = re.compile(r"\w*Memcpy")
_WHOLE_DEVICE: Final = re.compile(r"\w*(Device|Ctx)Synchronize")


@dataclass(frozen=True)
class Waits:
    """One row a wait: a copy from the device with what synchronises for it, or that alone.

    ``call`` is the call that copies, or else synchronises, -1 for a copy of which no call is known;
    ``operator`` the innermost one around it, ``last`` the call in which the host waits, -1 for
    none; ``ns`` how long it did; ``bytes`` what it copied, -1 for nothing.
    """

    call: Ints
    operator: Ints
    last: Ints
    ns: Ints
    bytes: Ints
    copies: Bools

    def __len__(self) -> int:
        return len(self.call)


def waits(trace: Trace) -> Waits:
    """All waits of the selection, copies before others."""
    return trace.once(_waits)


def _waits(trace: Trace) -> Waits:
    wait = trace.is_kind(Kind.RUNTIME) & trace.names_where(SYNC_CALL.search)
    calls = np.flatnonzero(wait & trace.selection)
    copying = trace.names_where(_COPY.match)[calls]
    sync = calls[~copying]
    inside = _operator(trace, sync)
    call, size = _copies(trace, wait, calls[copying], inside)
    operator = _operator(trace, call)

    # What synchronises in an operator that copies does so for its copies, in whatever direction.
    belongs = _at(_marked(trace, operator), inside)
    made = trace.is_kind(Kind.RUNTIME) & trace.names_where(_COPY.match) & trace.selection
    copier = _operator(trace, np.flatnonzero(made))
    belongs |= _at(_marked(trace, copier) & ~_is_reader(trace), inside)
    alone = ~belongs & ~_not_the_users(trace, sync)

    own = np.where(call >= 0, trace.dur[call], 0)
    last, shared = _shared(trace, operator, sync, inside)
    last = np.where(last >= 0, last, call)
    return Waits(
        np.concatenate([call, sync[alone]]),
        np.concatenate([operator, inside[alone]]),
        np.concatenate([last, sync[alone]]),
        np.concatenate([own + shared, trace.dur[sync[alone]]]),
        np.concatenate([size, np.full(int(alone.sum()), -1)]),
        np.arange(len(call) + int(alone.sum())) < len(call),
    )


def _copies(trace: Trace, wait: Bools, blocking: Ints, inside: Ints) -> tuple[Ints, Ints]:
    """Calls that copy from the device and that the host waits for, and their bytes.

    The host waits in a blocking call, for pageable memory (the driver copies it in steps), in an
    operator that reads a value, and where something synchronises in the same operator.
    """
    moved = trace.is_kind(Kind.MEMCPY) & trace.selection
    back = np.flatnonzero(moved & trace.names_where(D2H.search))
    pageable = trace.names_where(lambda name: "Pageable" in name)[back]
    reader = _is_reader(trace)
    # HIP names the copy of a value as one within the device.
    others = blocking[~np.isin(blocking, trace.launch[back])]
    others = others[_at(reader, _operator(trace, others))]
    call = np.concatenate([trace.launch[back], others])
    size = np.concatenate([trace.bytes[back], np.full(len(others), -1)])
    operator = _operator(trace, call)
    waited = np.concatenate([pageable, np.ones(len(others), bool)]) | _at(wait, call)
    waited |= _at(reader | _marked(trace, inside), operator)
    return call[waited], size[waited]


def _shared(trace: Trace, operator: Ints, sync: Ints, inside: Ints) -> tuple[Ints, Ints]:
    """Of each copying operator: the last call that synchronises in it, and each copy's part of
    the time of all of them; -1 and 0 for none.
    """
    groups, at, copies = np.unique(operator, return_inverse=True, return_counts=True)
    last, total = np.full(len(groups), -1, np.int64), np.zeros(len(groups), np.int64)
    mine = np.isin(inside, groups) & (inside >= 0)
    position = np.searchsorted(groups, inside[mine])
    np.maximum.at(last, position, sync[mine])
    np.add.at(total, position, trace.dur[sync[mine]])
    return last[at], (total // copies)[at]


def _not_the_users(trace: Trace, sync: Ints) -> Bools:
    """Those of collective operations and of DDP's log, and the profiler's own at its end."""
    host = trace.is_kind(Kind.OP, Kind.ANNOTATION)
    out = nesting.below(host & trace.names_where(_COLLECTIVE.match), trace.parent, sync)
    logs = nesting.below(host & trace.names_where(_DDP.match), trace.parent, sync)
    out |= logs & trace.names_where(lambda name: "EventSynchronize" in name)[sync]
    if len(sync) and trace.region is None:
        # A live capture ends its region before; other tools' traces end with it, outside anything.
        end = sync[-1]
        after = slice(end + 1, None)
        idle = not (
            trace.is_kind(Kind.RUNTIME)[after] & (trace.thread[after] == trace.thread[end])
        ).any()
        idle &= trace.parent[end] < 0 and bool((trace.launch < end).all())
        out[-1] |= idle and _WHOLE_DEVICE.match(trace.names[trace.name[end]]) is not None
    return out


def _marked(trace: Trace, events: Ints) -> Bools:
    out = np.zeros(len(trace), bool)
    out[events[events >= 0]] = True
    return out


def _is_reader(trace: Trace) -> Bools:
    return trace.is_kind(Kind.OP) & trace.names_where(_READER.match)


def _at(marks: Bools, events: Ints) -> Bools:
    """Whether each of these events is marked; -1 is not."""
    return (events >= 0) & marks[events]


def _operator(trace: Trace, calls: Ints) -> Ints:
    """The innermost operator proper around each call, or -1."""
    found = operators_of(trace, calls)
    return np.where(_at(trace.names_where(_OPERATOR.match), found), found, -1)


def idle_after(trace: Trace, ends: Ints) -> Ints:
    """How long after each of these times the device next begins something; 0 if never."""
    starts = trace.ts[np.flatnonzero(trace.is_kind(*DEVICE_KINDS))]
    if not len(starts):
        return np.zeros(len(ends), np.int64)
    at = np.searchsorted(starts, ends)
    return np.where(at < len(starts), starts[np.minimum(at, len(starts) - 1)] - ends, 0)
