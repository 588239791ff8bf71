"""Communication between ranks, call by call: many events show a collective, which counts once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.collectives import KINDS, collectives, kind_number
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import CollectiveArgs, FormerIds, decode
from pytest_torchprof.trace.kinds import DEVICE_KINDS, Kind
from pytest_torchprof.trace.name_index import communicates

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

#: Operators of process groups: one is one call, whatever the back end makes of it.
#: Source: torch/csrc/distributed/c10d/Ops.cpp.
_GROUP: Final = late(r"c10d::")
#: The event of NCCL's and other back ends around each call, and around each wait for one.
#: Source: torch/csrc/distributed/c10d/ParamCommsUtils.hpp.
PARAMETERS: Final = "record_param_comms"
#: Annotations of back ends. Those of gloo are around the work itself, in a thread of its own.
_BACK_END: Final = late(r"(nccl|rccl|gloo|mpi|ucc|xccl|hccl|mccl)[:_]")
_GLOO: Final = late(r"(gloo|mpi|ucc):")
#: The launch of several calls at once, which were made before it.
_COALESCED: Final = late(r"(nccl|rccl|xccl):coalesced")
#: Operators that communicate without a process group's, or around one.
_OTHERS: Final = late(
    r"_?c10d_functional(_autograd)?::(?!wait|_wrap)|symm_mem::|_C_custom_ar::"
    r"|(vllm|sglang|sgl_kernel)::\w*(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)"
)
_RECEIVES: Final = late(r"(?i)recv|receive")
#: What gloo makes of an operation that it does not have.
_STANDS_IN: Final = {"reduce_scatter": "all_reduce"}
_NONE: Final = np.zeros(0, np.int64)


class CommCalls(Frozen, frozen=True):
    """The calls that communicate, in the order in which they were made.

    ``event`` is the operator of the process group, else the back end's event, else the kernel.
    ``operation`` is one of `collectives.KINDS`, where ``send`` and ``receive`` are apart if known.
    ``kernel`` is the first kernel of each, ``work`` the first annotation of the back end
    around the work, ``noted`` the first event with its parameters; -1 for none. ``begin`` and
    ``end``, in ns, are those of its kernels, or of gloo's work, which may be over long after the
    operator; -1 if the trace does not have them.
    """

    event: Ints
    operation: list[str]
    kernel: Ints
    work: Ints
    noted: Ints
    begin: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.event)


_NO_CALLS: Final = CommCalls(_NONE, [], _NONE, _NONE, _NONE, _NONE, _NONE)


def comm_calls(trace: Events) -> CommCalls:
    """The selected ones."""
    return trace.once(_selected)


def _selected(trace: Events) -> CommCalls:
    every = trace.whole.once(_calls)
    chosen = trace.selection[every.event]
    if chosen.all():
        return every
    kept = np.flatnonzero(chosen)
    return CommCalls(
        every.event[kept],
        [every.operation[i] for i in kept.tolist()],
        *(getattr(every, name)[kept] for name in ("kernel", "work", "noted", "begin", "end")),
    )


def _calls(trace: Events) -> CommCalls:
    if not communicates(trace):
        return _NO_CALLS
    found = _Found(trace)
    host = found.host_calls()
    kernels = found.kernels(host)
    alone = kernels.event[kernels.call < 0]
    loose = found.loose(host)
    event = np.sort(np.concatenate([host, loose, alone]))
    if not len(event):
        return _NO_CALLS
    begin, end, kernel, work = (np.full(len(event), -1, np.int64) for _ in range(4))
    own, own_call = kernels.event, np.where(kernels.call < 0, kernels.event, kernels.call)
    for every, calls, first in (
        (found.works, np.where(found.linked < 0, found.works, found.linked), work),
        (own, own_call, kernel),
    ):
        known = nesting.among(calls, event)
        rows, at = every[known], np.searchsorted(event, calls[known])
        timed = trace.dur[rows] > 0
        _least(first, at, rows)
        _least(begin, at[timed], trace.ts[rows][timed])
        np.maximum.at(end, at[timed], (trace.ts[rows] + trace.dur[rows])[timed])
    noted = np.full(len(event), -1, np.int64)
    around = nesting.nearest(_marked(trace, host), trace.parent, found.noted)
    inside = np.flatnonzero(around >= 0)
    _least(noted, np.searchsorted(event, around[inside]), found.noted[inside])
    return CommCalls(event, found.operations(event), kernel, work, noted, begin, end)


class _Kernels(Frozen, frozen=True):
    """Kernels that communicate, and the call of each, -1 for none."""

    event: Ints
    call: Ints


class _Found:
    """What in a trace communicates, by its kind of event."""

    def __init__(self, trace: Events) -> None:
        self.trace = trace
        on_host = trace.is_kind(Kind.OP, Kind.ANNOTATION)
        numbers = np.array([kind_number(name) for name in trace.names] or [len(KINDS)], np.int16)
        self.number = numbers[trace.name]
        told = on_host & (self.number < len(KINDS))
        self.group = told & trace.names_where(_GROUP.match)
        self.annotated = told & trace.names_where(_BACK_END.match)
        others = told & trace.names_where(_OTHERS.match)
        self.noted_number = np.full(len(trace), len(KINDS), np.int16)
        self.noted = self._noted(on_host)
        self.mark_noted = _marked(trace, self.noted)
        inner = self.group | self.annotated | self.mark_noted
        # An operator around another one that communicates is not a call of its own.
        rows = np.flatnonzero(others)
        self.others = others
        self.others[rows] = ~nesting.above(np.flatnonzero(inner | others), trace.parent)[rows]
        self.works, self.linked = _NONE, _NONE

    def _noted(self, on_host: Bools) -> Ints:
        """Events with the parameters of a call, not of a wait; old ones lack its name."""
        trace = self.trace
        rows = np.flatnonzero(on_host & trace.named(PARAMETERS))
        args = decode(CollectiveArgs, trace.args[rows])
        self.noted_number[rows] = [
            kind_number(one.collective) if one.collective else len(KINDS) for one in args
        ]
        unnamed = np.array([not one.collective for one in args], bool)
        around = nesting.above(np.flatnonzero(self.group | self.annotated), trace.parent)
        within = nesting.below(self.group, trace.parent, rows)
        return rows[np.where(unnamed, around[rows] & ~within, self.noted_number[rows] < len(KINDS))]

    def host_calls(self) -> Ints:
        """The outermost events of calls; an annotation of gloo is none if an operator made it."""
        trace, parent = self.trace, self.trace.parent
        calls = self.others | _outer(self.group, self.group, trace)
        calls |= _outer(self.mark_noted, self.group | self.mark_noted, trace)
        marks = self.group | self.mark_noted
        gloo = self.annotated & trace.names_where(_GLOO.match)
        rest = self.annotated & ~gloo & ~trace.names_where(_COALESCED.match)
        calls |= _outer(rest, marks | rest | self.others, trace)
        host = np.flatnonzero(calls)
        self.works = np.flatnonzero(gloo)
        self.linked = self._link(host)
        nested = nesting.nearest(_marked(trace, self.works), parent, parent[self.works])
        # gloo within gloo, of the same thread and work
        inner = (nested >= 0) & (trace.ts[nested] + trace.dur[nested] >= trace.ts[self.works]
                                 + trace.dur[self.works]) & (self.linked < 0)  # fmt: skip
        self.works, self.linked = self.works[~inner], self.linked[~inner]
        return host

    def loose(self, host: Ints) -> Ints:
        """Gloo's work that no operator of the trace made."""
        known = {int(self.number[row]) for row in host.tolist()} if len(host) else set[int]()
        loose = self.works[self.linked < 0]
        # If operators are recorded, what is left over is a part of an earlier call.
        started = [int(self.number[row]) not in known for row in loose.tolist()]
        return loose[np.array(started, bool)] if len(loose) else loose

    def _link(self, host: Ints) -> Ints:
        """The call of each of gloo's annotations; -1 if there is none."""
        trace, works = self.trace, self.works
        linked = nesting.nearest(_marked(trace, host), trace.parent, works)
        names = [KINDS[n][0] if n < len(KINDS) else "" for n in self._numbers(host).tolist()]
        waiting: dict[str, list[int]] = {}
        begun = trace.ts[host].tolist()
        ends = (trace.ts[host] + trace.dur[host]).tolist()
        threads = trace.thread[host].tolist()
        last: dict[str, int] = {}
        upto = 0
        for i, row in enumerate(works.tolist()):
            since, thread = int(trace.ts[row]), int(trace.thread[row])
            while upto < len(host) and begun[upto] <= since:
                waiting.setdefault(names[upto], []).append(upto)
                upto += 1
            if linked[i] >= 0:
                _drop(waiting, names, int(np.searchsorted(host, linked[i])))
                continue
            kind = KINDS[int(self.number[row])][0]
            # Sends and receives begin in the caller's thread, and end when they are done.
            queue = waiting.get(kind) or []
            here = [c for c in queue if threads[c] == thread and begun[c] <= since <= ends[c]]
            for name in (kind, *(k for k, v in _STANDS_IN.items() if v == kind)):
                queue = here or waiting.get(name) or []
                if queue:
                    last[kind] = queue[0]
                    _drop(waiting, names, queue[0])
                    break
            if kind in last:
                linked[i] = host[last[kind]]
        return linked

    def _numbers(self, rows: Ints) -> npt.NDArray[np.int16]:
        """The kind of these calls: of the event, else as noted, else of what is in it."""
        trace = self.trace
        number = np.where(
            self.number[rows] < len(KINDS), self.number[rows], self.noted_number[rows]
        )
        unknown = np.flatnonzero(number >= len(KINDS))
        if len(unknown):
            inner = np.flatnonzero(self.annotated)
            call = nesting.nearest(_marked(trace, rows[unknown]), trace.parent, inner)
            told = dict(zip(call.tolist(), self.number[inner].tolist(), strict=True))
            for i in unknown.tolist():
                number[i] = told.get(int(rows[i]), len(KINDS))
        return number

    def kernels(self, host: Ints) -> _Kernels:
        """The kernels that communicate, and their calls: by launch, by id, or coalesced."""
        trace = self.trace
        if not trace.has(*DEVICE_KINDS):
            return _Kernels(_NONE, _NONE)
        event = collectives(trace).event
        launch = trace.launch[event]
        call = nesting.nearest(_marked(trace, host), trace.parent, launch)
        self._by_id(event, call, host)
        loose = np.flatnonzero((call < 0) & (launch >= 0))
        if len(loose):
            around = nesting.nearest(
                trace.names_where(_COALESCED.match), trace.parent, launch[loose]
            )
            free = host[~nesting.among(host, call)]
            for thread in nesting.distinct(trace.thread[around[around >= 0]]).tolist():
                mine = free[trace.thread[free] == thread]
                here = np.flatnonzero((around >= 0) & (trace.thread[around] == thread))
                before = np.searchsorted(trace.ts[mine], trace.ts[around[here]], side="right") - 1
                some = before >= 0
                call[loose[here[some]]] = mine[before[some]]
        return _Kernels(event, call)

    def _by_id(self, event: Ints, call: Ints, host: Ints) -> None:
        """Link kernels without a known launch by the id of the event that launched them."""
        trace = self.trace
        lost = np.flatnonzero((call < 0) & (trace.launch[event] < 0))
        if not (len(lost) and len(host)):
            return
        inner = np.flatnonzero(self.mark_noted | self.group | self.annotated)
        around = nesting.nearest(_marked(trace, host), trace.parent, inner)
        ids = [one.correlation for one in decode(FormerIds, trace.args[inner])]
        by_id = {key: row for key, row in zip(ids, around.tolist(), strict=True) if key > 0}
        for i, one in zip(lost.tolist(), decode(FormerIds, trace.args[event[lost]]), strict=True):
            call[i] = by_id.get(one.correlation, -1)

    def operations(self, event: Ints) -> list[str]:
        """What each of these calls does."""
        trace = self.trace
        number = self._numbers(event)
        kernels = dict(zip(*_kinds_of_kernels(trace), strict=True))
        names = []
        for row, kind in zip(event.tolist(), number.tolist(), strict=True):
            name = KINDS[kind][0] if kind < len(KINDS) else kernels.get(row, "collective")
            name = kernels.get(row, name)
            if name == "send and receive":
                name = self._direction(row)
            names.append(name)
        return names

    def _direction(self, row: int) -> str:
        name = self.trace.names[int(self.trace.name[row])]
        if name == PARAMETERS:
            name = decode(CollectiveArgs, self.trace.args[np.array([row])])[0].collective
        if self.trace.kind[row] == Kind.KERNEL:
            return "send and receive"
        return "receive" if _RECEIVES.search(name) else "send"


def _kinds_of_kernels(trace: Events) -> tuple[list[int], list[str]]:
    if not trace.has(*DEVICE_KINDS):
        return [], []
    found = collectives(trace)
    return found.event.tolist(), list(found.kind)


def _outer(rows: Bools, roots: Bools, trace: Events) -> Bools:
    """Which of these events no root encloses."""
    at = np.flatnonzero(rows)
    found = np.zeros(len(rows), bool)
    found[at] = ~nesting.below(roots, trace.parent, at)
    return found


def _marked(trace: Events, rows: Ints) -> Bools:
    mark = np.zeros(len(trace), bool)
    mark[rows] = True
    return mark


def _least(into: Ints, at: Ints, values: Ints) -> None:
    """Set each to the least of its values."""
    least = np.full(len(into), np.iinfo(np.int64).max)
    np.minimum.at(least, at, values)
    known = least < np.iinfo(np.int64).max
    into[known] = np.where(into[known] < 0, least[known], np.minimum(into[known], least[known]))


def _drop(waiting: dict[str, list[int]], names: list[str], call: int) -> None:
    queue = waiting.get(names[call], [])
    if call in queue:
        queue.remove(call)
