"""When the host waited for the device, to read a value or to synchronize."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.attribution import names_fit
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Columns
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import (
    D2H,
    DEVICE_KINDS,
    LAUNCH_CALL,
    SYNC_CALL,
    Kind,
    Names,
    once_per_trace,
)
from pytest_torchprof.trace.tree import operators_around, within_named

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Operators as torch names them; other names are annotations, by users or by torch.
_OPERATOR: Final = late(r"(?!torchprof::)\w+::")
#: Operators that return a value to the host, whatever the driver calls their copy.
_READER: Final = late(r"aten::(_local_scalar_dense|nonzero|item|is_nonzero)$")
#: These exist to wait for other devices.
_COLLECTIVE: Final = Names(r"c10d::|nccl:|record_param_comms")
#: Here DDP waits for the events of its own time log.
_DDP: Final = Names(r"DistributedDataParallel\.forward$")
_COPY: Final = late(r"\w*Memcpy")
_STREAM: Final = late(r"\w*StreamSynchronize")
_EVENT: Final = late(r"\w*EventSynchronize")
#: After these, no earlier device work is left.
_OF_ALL: Final = late(r"\w*(Device|Ctx)Synchronize")


class Waits(Columns, frozen=True):
    """One row per wait: a copy from the device with its synchronization, or a synchronization
    alone.

    Some synchronizing calls are left out, since they delay nothing: those after the device's last
    work (except copies, which the host waits for anyway), and those with nothing launched before,
    or since the last one that waited for everything.

    ``call`` is the call that copies, or else synchronizes, -1 for a copy without a known call;
    ``operator`` the innermost one around it; ``last`` the call in which the host waits, -1 for
    none; ``ns`` how long it waited; ``bytes`` what it copied, -1 for nothing.
    """

    call: Ints
    operator: Ints
    last: Ints
    ns: Ints
    bytes: Ints
    copies: Bools

    def __len__(self) -> int:
        return len(self.call)


@once_per_trace
def waits(trace: Events) -> Waits:
    """All waits of the selection, copies before others."""
    calls = np.flatnonzero(trace.selection & trace.is_kind(Kind.RUNTIME))
    copying = calls[names_fit(trace, calls, _COPY.match)]
    waiting = names_fit(trace, calls, SYNC_CALL.search) & ~names_fit(trace, calls, _COPY.match)
    sync = calls[waiting]
    inside = _operator(trace, sync)
    copied = _copied_before(trace, calls, sync)
    call, size = _copies(trace, copying, inside, copied)
    operator = _operator(trace, call)
    # Synchronization in an operator that copies is for its copies, in either direction.
    copier = _operator(trace, copying)
    copier = copier[~names_fit(trace, copier, _READER.match)]
    belongs = nesting.among(inside, np.concatenate([operator, copier])) & (inside >= 0)
    alone = ~belongs & (copied < 0) & ~_not_the_users(trace, sync)
    alone &= (inside >= 0) | _is_before_work(trace, sync, call)
    alone &= _has_work(trace, sync)

    own = np.where(call >= 0, trace.dur[call], 0)
    last, shared = _shared(trace, operator, sync, inside)
    own += _joined(call, copied, trace.dur[sync], 0)
    last = np.where(last >= 0, last, _joined(call, copied, sync, -1))
    last = np.where(last >= 0, last, call)
    return Waits(
        np.concatenate([call, sync[alone]]),
        np.concatenate([operator, inside[alone]]),
        np.concatenate([last, sync[alone]]),
        np.concatenate([own + shared, trace.dur[sync[alone]]]),
        np.concatenate([size, np.full(int(alone.sum()), -1)]),
        np.arange(len(call) + int(alone.sum())) < len(call),
    )


def _copied_before(trace: Events, calls: Ints, sync: Ints) -> Ints:
    """Outside of operators: the copying call just before each stream synchronization, or -1.

    Where torch waits for a copy, it makes no other call in between.
    """
    if trace.has(Kind.OP) or not len(sync):
        return np.full(len(sync), -1, np.int64)
    order = calls[np.lexsort((trace.ts[calls], trace.thread[calls]))]
    before = np.full(len(trace), -1, np.int64)
    before[order[1:]] = np.where(np.diff(trace.thread[order]) == 0, order[:-1], -1)
    found = before[sync]
    copies = names_fit(trace, sync, _STREAM.match) & names_fit(trace, found, _COPY.match)
    return np.where(copies, found, -1)


def _joined(call: Ints, copied: Ints, of_sync: Ints, other: int) -> Ints:
    """For each copying call, what belongs to the synchronization just after it."""
    if not (copied >= 0).any():
        return np.full(len(call), other)
    after = dict(zip(copied.tolist(), of_sync.tolist(), strict=True)) | {-1: other}
    return np.array([after.get(one, other) for one in call.tolist()], np.int64)


def _copies(trace: Events, copying: Ints, inside: Ints, copied: Ints) -> tuple[Ints, Ints]:
    """Calls that copy from the device and that the host waits for, and their bytes.

    The host waits in a blocking call, for pageable memory (the driver copies it in steps), in an
    operator that reads a value, and where the same operator synchronizes or, outside of operators,
    the next call does.
    """
    moved = np.flatnonzero(trace.selection & trace.is_kind(Kind.MEMCPY))
    back = moved[names_fit(trace, moved, D2H.search)]
    pageable = names_fit(trace, back, lambda name: "Pageable" in name)
    # HIP labels the copy of a value as one within the device.
    others = copying[names_fit(trace, copying, SYNC_CALL.search)]
    others = others[~nesting.among(others, trace.launch[back])]
    others = others[names_fit(trace, _operator(trace, others), _READER.match)]
    call = np.concatenate([trace.launch[back], others])
    size = np.concatenate([trace.bytes[back], np.full(len(others), -1)])
    operator = _operator(trace, call)
    waited = np.concatenate([pageable, np.ones(len(others), bool)])
    waited |= names_fit(trace, call, SYNC_CALL.search) | names_fit(trace, operator, _READER.match)
    waited |= nesting.among(operator, inside) & (operator >= 0)
    waited |= nesting.among(call, copied) & (call >= 0)
    return call[waited], size[waited]


def _shared(trace: Events, operator: Ints, sync: Ints, inside: Ints) -> tuple[Ints, Ints]:
    """For each copying operator: the last synchronizing call in it, and each copy's share of the
    time of all of them; -1 and 0 for none.
    """
    groups, at, copies = np.unique(operator, return_inverse=True, return_counts=True)
    last, total = np.full(len(groups), -1, np.int64), np.zeros(len(groups), np.int64)
    mine = nesting.among(inside, groups) & (inside >= 0)
    position = np.searchsorted(groups, inside[mine])
    np.maximum.at(last, position, sync[mine])
    np.add.at(total, position, trace.dur[sync[mine]])
    return last[at], (total // copies)[at]


def _not_the_users(trace: Events, sync: Ints) -> Bools:
    """Waits of collective operations and of DDP's log."""
    of_log = names_fit(trace, sync, _EVENT.match)
    return within_named(trace, sync, _COLLECTIVE) | within_named(trace, sync, _DDP) & of_log


def _is_before_work(trace: Events, sync: Ints, read: Ints) -> Bools:
    """Whether a device did anything that was launched after each call.

    If its launch is unknown, work counts if it began after the call. ``read`` are the calls that
    copy back, for which the host waits.
    """
    device = np.flatnonzero(trace.in_region & trace.is_kind(*DEVICE_KINDS))
    launch = trace.launch[device]
    known = launch[launch >= 0]
    calls = trace.in_region & trace.is_kind(Kind.RUNTIME) & trace.names_where(LAUNCH_CALL.search)
    given = np.concatenate([trace.ts[known[~nesting.among(known, read)]], trace.ts[calls]])
    begun = trace.ts[device[launch < 0]]
    never = np.iinfo(np.int64).min
    begin, end = trace.ts[sync], trace.ts[sync] + trace.dur[sync]
    after: Bools = (begin < given.max(initial=never)) | (end < begun.max(initial=never))
    return after


def _has_work(trace: Events, sync: Ints) -> Bools:
    """Whether a device was given work before each call, since the last one that waited for all.

    Work with an unknown launch may have been given before.
    """
    if not len(sync):
        return np.zeros(0, bool)
    runtime = trace.is_kind(Kind.RUNTIME)
    own = trace.launch[trace.device_rows]
    calls = runtime & trace.names_where(lambda n: LAUNCH_CALL.search(n) or _COPY.match(n))
    given = np.sort(np.concatenate([trace.ts[own[own >= 0]], trace.ts[calls]]))
    loose = np.sort(trace.ts[trace.device_rows[own < 0]])
    over = np.sort(trace.ts[runtime & trace.names_where(_OF_ALL.match)])
    begin, end = trace.ts[sync], trace.ts[sync] + trace.dur[sync]
    never = np.iinfo(np.int64).min
    since = np.concatenate([[never], over])[np.searchsorted(over, begin)]
    last = np.concatenate([[never], given])[np.searchsorted(given, begin)]
    begun = np.concatenate([[never], loose])[np.searchsorted(loose, end)]
    found: Bools = np.maximum(last, begun) > since
    return found


def _operator(trace: Events, calls: Ints) -> Ints:
    """The innermost operator (not annotation) around each call, or -1."""
    found = operators_around(trace, calls)
    return np.where(names_fit(trace, found, _OPERATOR.match), found, -1)
