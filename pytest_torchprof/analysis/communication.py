"""Collectives: calls, sizes, bandwidth, and how much of their time is exposed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.attribution import names_fit
from pytest_torchprof.analysis.breakdown import EXPOSED, categories, device_work
from pytest_torchprof.analysis.device_time import Idle, spans_of
from pytest_torchprof.analysis.missing import cpu_time_gap, device_time_gap
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Columns, Frozen
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import (
    CollectiveArgs,
    decode,
    decode_list,
    int64_column,
    whole_number,
)
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    HOST_KINDS,
    SYNC_CALL,
    Kind,
    communicates,
    once_per_trace,
)
from pytest_torchprof.trace.nesting import among
from pytest_torchprof.trace.ranks import world_size_of
from pytest_torchprof.trace.tree import marked, operators_around, parents
from pytest_torchprof.work.kernels import CATEGORIES
from pytest_torchprof.work.operands import BY_TYPE, TABLE

if TYPE_CHECKING:
    import re
    from collections.abc import Callable

    from pytest_torchprof.analysis.rank_waits import RankCalls
    from pytest_torchprof.trace.arguments import OpArgs
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- Collectives on the device: what kind each is, and for how long nothing hid it.

CollectiveKind = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier",
    "send and receive", "reduce", "gather", "scatter", "collective",
]  # fmt: skip

#: By names of torch's process groups, of operators, and of kernels: the first that matches.
#: Sources: torch/csrc/distributed/c10d/Ops.cpp and ParamCommsUtils.hpp, NCCL's and RCCL's
#: ``ncclDevKernel_*``, vLLM's ``cross_device_reduce``, and the symmetric memory of torch.
KINDS: Final[tuple[tuple[CollectiveKind, re.Pattern[str]], ...]] = (
    ("all_reduce", late(r"(?i)all_?reduce|cross_device_reduce")),
    ("reduce_scatter", late(r"(?i)reduce_?scatter")),
    ("all_gather", late(r"(?i)all_?gather")),
    ("all_to_all", late(r"(?i)all_?to_?all|all2all|deep_ep")),
    ("broadcast", late(r"(?i)broadcast")),
    ("barrier", late(r"(?i)barrier")),
    ("send and receive", late(r"(?i)send|recv|receive|p2p")),
    ("reduce", late(r"(?i)reduce")),
    ("gather", late(r"(?i)gather")),
    ("scatter", late(r"(?i)scatter")),
)
_OTHER: Final = len(KINDS)
#: The categories of device work that computation may hide.
_HIDDEN: Final = [CATEGORIES.index(name) for name in EXPOSED]
#: NCCL's kernels that run several kinds.
_GENERAL: Final = late(r"_Generic|SendRecv")
#: What torch calls its collectives. Others may have such names and mean something else.
_OPERATORS: Final = late(r"_?c10d::|nccl:|_?c10d_functional::|symm_mem::|_C_custom_ar::|vllm::")

_DIGIT: Final = late(rb"\d")
#: Collectives of one size, of which the fastest tells how long the transfer takes.
_FEW: Final = 4
#: Above this share of their time beyond that of the fastest, they mostly wait.
_MOST: Final = 0.5


class Collectives(Frozen, frozen=True):
    """Device events that communicate, in order of time.

    ``operator`` is the innermost operator around the call that launched each, -1 if unknown;
    ``kind`` its kind; ``group`` the name of the process group and ``ranks`` its size, "" and 0 if
    unknown. ``exposed_ns`` is how long no computation ran on the device beside it, between the
    device's first computation and its last. ``gain_ns`` is the part of that for which the next
    computation had been launched, or could not be as the host waited for the device: where the host
    is late anyway, hiding the collective gains nothing. ``waits`` marks those that mostly wait for
    other ranks: of at least four of one kind and size, which take twice as long as the fastest of
    them, or more, by their sum.
    """

    event: Ints
    operator: Ints
    kind: list[CollectiveKind]
    group: list[str]
    ranks: Ints
    exposed_ns: Ints
    gain_ns: Ints
    waits: Bools

    def __len__(self) -> int:
        return len(self.event)


@once_per_trace
def collectives(trace: Events) -> Collectives:
    """The selected ones, on all devices."""
    every = trace.device_rows
    category = categories(trace, every)
    found = (category == CATEGORIES.index("communication")) & trace.selection[every]
    event, computing = every[found], every[~nesting.among(category, _HIDDEN)]
    call = trace.launch[event]
    operator = operators_around(trace, call)
    args = decode(CollectiveArgs, trace.args[event])
    # Before torch 2.4, the operator has them, if any event does.
    outer = decode(CollectiveArgs, trace.args[np.maximum(operator, 0)])
    known = (operator >= 0).tolist()
    args = [
        own if own.collective or not has else more
        for own, more, has in zip(args, outer, known, strict=True)
    ]
    number = _kinds(trace, event, operator, [one.collective for one in args])
    names: list[CollectiveKind] = [*(name for name, _ in KINDS), "collective"]
    exposed, gain = _exposed(trace, event, computing)
    world = world_size_of(trace.metadata) or 0
    return Collectives(
        event,
        operator,
        [names[one] for one in number.tolist()],
        [one.description or one.group for one in args],
        int64_column([one.ranks or world for one in args]),
        exposed,
        gain,
        _waits(trace, event, operator, number, [one.elements for one in args]),
    )


def _kinds(trace: Events, event: Ints, operator: Ints, noted: list[str]) -> Ints:
    """The index in `KINDS` of each: by its own arguments, the operators around its launch, the
    kernel's name, and any annotation around its launch.
    """
    by_name = np.array([kind_number(name) for name in trace.names] or [_OTHER], np.int64)
    own = np.append(by_name[trace.name], _OTHER)  # the last entry is that of -1
    told = own[:-1] < _OTHER
    named = told & trace.names_where(_OPERATORS.match) & trace.is_kind(Kind.OP, Kind.ANNOTATION)
    annotated = told & trace.is_kind(Kind.OP, Kind.ANNOTATION)
    of_kernel = own[event]
    general = names_fit(trace, event, _GENERAL.search)
    found = np.array([kind_number(name) if name else _OTHER for name in noted], np.int64)
    for other in (
        own[nesting.nearest(named, trace.parent, operator)],
        np.where(general, _OTHER, of_kernel),
        own[nesting.nearest(annotated, trace.parent, operator)],
        of_kernel,
    ):
        found = np.where(found < _OTHER, found, other)
    return found


def kind_number(name: str) -> int:
    """The index in `KINDS` of what this name means, or their number if it means no collective."""
    found = (number for number, (_, pattern) in enumerate(KINDS) if pattern.search(name))
    return next(found, _OTHER)


def _exposed(trace: Events, event: Ints, computing: Ints) -> tuple[Ints, Ints]:
    """Exposed ns of each of these events, and what hiding it would gain."""
    exposed, gain = np.zeros(len(event), np.int64), np.zeros(len(event), np.int64)
    host = _Waiting(trace)
    for device in nesting.distinct(trace.device[event]).tolist():
        at = np.flatnonzero(trace.device[event] == device)
        rows = computing[trace.device[computing] == device]
        if not len(rows):
            continue
        busy = Idle.of_events(trace, rows)
        begin, end = trace.ts[event[at]], trace.ts[event[at]] + trace.dur[event[at]]
        # Where several communicate at once, the time is that of the first.
        begin = np.minimum(np.maximum(begin, nesting.reached(begin, end)), end)
        exposed[at] = busy.between(begin, end)
        after = np.searchsorted(trace.ts[rows], end)
        last = after == len(rows)
        follows = rows[np.minimum(after, len(rows) - 1)]
        begin = np.maximum(begin, np.minimum(busy.since(end), end))
        free = np.where(last, 0, end - np.maximum(begin, host.ready(begin, follows)))
        gain[at] = np.clip(free, 0, exposed[at])
    return exposed, gain


class _Waiting:
    """When the host could have launched something, had it not waited for the device."""

    def __init__(self, trace: Events) -> None:
        self.trace = trace
        rows = np.flatnonzero(trace.is_kind(Kind.RUNTIME))
        rows = rows[names_fit(trace, rows, SYNC_CALL.search)]
        self.spans = Idle.of_events(trace, rows)

    def ready(self, since: Ints, events: Ints) -> Ints:
        """When each of these device events had been launched, less the host's waits since then; 0
        if the launch is unknown, as of what was launched before the recording.
        """
        call = self.trace.launch[events]
        done = np.where(call >= 0, self.trace.ts[call] + self.trace.dur[call], 0)
        return done - self.spans.busy_between(since, np.maximum(done, since))


def _waits(trace: Events, event: Ints, operator: Ints, kind: Ints, elements: list[int]) -> Bools:
    """Which of them mostly wait: see `Collectives`."""
    known: dict[object, int] = {}
    # Some versions write a list of tensors without its shapes.
    shapes = [bytes(args.dims) for args in trace.operands(np.maximum(operator, 0))]
    keys = [
        known.setdefault((one, count or shape), len(known))
        if count or (has and _DIGIT.search(shape))
        else -1
        for one, count, shape, has in zip(
            kind.tolist(), elements, shapes, (operator >= 0).tolist(), strict=True
        )
    ]
    key = np.array(keys, np.int64)
    least = np.full(len(known) + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, key, trace.dur[event])
    count, total = (np.zeros(len(known) + 1, np.int64) for _ in range(2))
    np.add.at(count, key, 1)
    np.add.at(total, key, trace.dur[event])
    mostly = (count >= _FEW) & (total - count * np.minimum(least, total) >= _MOST * total)
    mostly[-1] = False  # of unknown sizes
    found: Bools = mostly[key]
    return found


# ---- Communication between ranks, call by call: many events show a collective, which counts
# once.

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


class CommCalls(Columns, frozen=True):
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


@once_per_trace
def comm_calls(trace: Events) -> CommCalls:
    """The selected ones."""
    every = trace.whole.once(_calls)
    return every.at(np.flatnonzero(trace.selection[every.event]))


def _calls(trace: Events) -> CommCalls:
    if not communicates(trace):
        return _NO_CALLS
    found = _Found(trace)
    host = found.host_calls()
    own, own_call = found.kernels(host)
    alone = own[own_call < 0]
    loose = found.loose(host)
    event = np.sort(np.concatenate([host, loose, alone]))
    if not len(event):
        return _NO_CALLS
    begin, end, kernel, work = (np.full(len(event), -1, np.int64) for _ in range(4))
    own_call = np.where(own_call < 0, own, own_call)
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
    around = nesting.nearest(marked(trace, host), trace.parent, found.noted)
    inside = np.flatnonzero(around >= 0)
    _least(noted, np.searchsorted(event, around[inside]), found.noted[inside])
    return CommCalls(event, found.operations(event), kernel, work, noted, begin, end)


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
        self.mark_noted = marked(trace, self.noted)[:-1]
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
        marks = self.group | self.mark_noted
        # Noted ones within an operator of a group are its own; the outermost of both are calls.
        calls = self.others | nesting.outermost(self.group, parent)
        calls |= nesting.outermost(marks, parent) & self.mark_noted
        gloo = self.annotated & trace.names_where(_GLOO.match)
        rest = self.annotated & ~gloo & ~trace.names_where(_COALESCED.match)
        calls |= nesting.outermost(marks | rest | self.others, parent) & rest
        host = np.flatnonzero(calls)
        self.works = np.flatnonzero(gloo)
        self.linked = self._link(host)
        nested = nesting.nearest(marked(trace, self.works), parent, parent[self.works])
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
        linked = nesting.nearest(marked(trace, host), trace.parent, works)
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
            call = nesting.nearest(marked(trace, rows[unknown]), trace.parent, inner)
            told = dict(zip(call.tolist(), self.number[inner].tolist(), strict=True))
            for i in unknown.tolist():
                number[i] = told.get(int(rows[i]), len(KINDS))
        return number

    def kernels(self, host: Ints) -> tuple[Ints, Ints]:
        """The kernels that communicate, and their calls, -1 for none: by launch, or coalesced."""
        trace = self.trace
        if not trace.has(*DEVICE_KINDS):
            return _NONE, _NONE
        event = collectives(trace).event
        launch = trace.launch[event]
        call = nesting.nearest(marked(trace, host), trace.parent, launch)
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
        return event, call

    def operations(self, event: Ints) -> list[str]:
        """What each of these calls does."""
        trace = self.trace
        number = self._numbers(event)
        kernels = dict[int, str]()
        if trace.has(*DEVICE_KINDS):
            own = collectives(trace)
            kernels = dict(zip(own.event.tolist(), own.kind, strict=True))
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


# ---- The bytes that each call that communicates carries, their dtype, and the group of ranks.

#: By the name of a call, without its namespace: which argument is the larger of what a rank gives
#: and gets, or whether it is the part of one rank, so that all have as much as there are ranks.
#: Source: the schemas in torch/csrc/distributed/c10d/Ops.cpp and Functional.cpp.
_ARGUMENTS: Final[Mapping[str, tuple[int, bool]]] = {
    "allgather_": (1, True),
    "allgather_coalesced_": (1, True),
    "_allgather_base_": (0, False),
    "allgather_into_tensor_coalesced_": (0, False),
    "reduce_scatter_": (0, True),
    "_reduce_scatter_base_": (1, False),
    "reduce_scatter_tensor_coalesced_": (1, False),
    "gather_": (1, True),
    "scatter_": (0, True),
    "alltoall_": (1, False),
    "alltoall_base_": (1, False),
}
#: Of all others: the first argument is what the rank gives, so these get as much of each rank.
_GETS_OF_ALL: Final = frozenset({"all_gather", "gather"})
#: How ``record_param_comms`` names dtypes. Source: c10/core/ScalarType.h.
_SCALARS: Final = {
    "Byte": "uint8", "Char": "int8", "Short": "int16", "Int": "int32", "Long": "int64",
    "Half": "float16", "Float": "float32", "Double": "float64", "Bool": "bool",
    "BFloat16": "bfloat16", "ComplexHalf": "complex32", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128", "UInt16": "uint16", "UInt32": "uint32", "UInt64": "uint64",
}  # fmt: skip
_ITEM_BYTES: Final = {row.name: row.item_bytes for row in TABLE}
#: What torch writes for a group without a description.
_NAMELESS: Final = ("", "undefined")
#: No memory is as large; damaged files may say so.
_TOO_LARGE: Final = 2**50
_MOST_RANKS: Final = 2**31
#: They carry nothing.
_EMPTY: Final = "barrier"


class CommSizes(Frozen, frozen=True):
    """Of each of `comm_calls`, in the same order.

    ``size`` is what nccl-tests call so, in bytes: the larger of what a rank gives and gets, which
    is the whole of an all-gather's output and of a reduce-scatter's input; 0 of a barrier, -1 if
    unknown. ``dtype`` is torch's name, "" if unknown. ``group`` is the description of the group of
    ranks, else its name, "" if unknown; ``key`` tells groups apart; ``ranks`` is the number of its
    ranks, 0 if unknown.

    Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """

    size: Ints
    dtype: list[str]
    group: list[str]
    key: list[str]
    ranks: Ints


class _Sent(Frozen, frozen=True):
    """What an event says: elements of the call's size (-1 unknown), and dtype ("" unknown)."""

    elements: int = -1
    dtype: str = ""


@once_per_trace
def comm_sizes(trace: Events) -> CommSizes:
    """The sizes and groups of the selected calls."""
    calls = comm_calls(trace)
    noted = _noted(trace, calls.kernel, calls.noted)
    own = trace.operands(calls.event)
    marks = _marks(trace, calls.event, calls.work)
    inner = trace.operands(np.maximum(marks, 0))
    only = _only_group(trace.metadata)
    size = np.full(len(calls), -1, np.int64)
    ranks = np.zeros(len(calls), np.int64)
    dtypes, groups, keys = list[str](), list[str](), list[str]()
    for i, (args, event, mark, operation) in enumerate(
        zip(noted, own, inner, calls.operation, strict=True)
    ):
        name = _short_name(trace, calls.event[i])
        group, key = args.description, f"{args.group} {args.members}".strip()
        if group in _NAMELESS:
            group = args.group
        count = args.ranks
        if not group and only is not None:
            group, key, count = only[0], only[1], count or only[2]
        ranks[i] = count = min(max(count, 0), _MOST_RANKS)
        known = [
            _of_parameters(args, operation, count),
            _of_operands(name, operation, event, count),
        ]
        if marks[i] >= 0:
            known.append(_of_operands("", operation, mark, count))
        elements = next((one.elements for one in known if one.elements >= 0), -1)
        dtype = next((one.dtype for one in known if one.dtype), "")
        if operation == _EMPTY:
            size[i] = 0
        elif elements >= 0 and dtype in _ITEM_BYTES:
            carried = elements * _ITEM_BYTES[dtype]
            size[i] = carried if carried < _TOO_LARGE else -1
        dtypes.append("" if operation == _EMPTY else dtype)
        groups.append(group)
        keys.append(key)
    return CommSizes(size, dtypes, _apart(groups, keys), keys, ranks)


def _noted(trace: Events, kernel: Ints, noted: Ints) -> list[CollectiveArgs]:
    """The parameters of each call: of its kernel, else of the event around the call."""
    of_kernel = decode(CollectiveArgs, trace.args[np.maximum(kernel, 0)])
    of_event = decode(CollectiveArgs, trace.args[np.maximum(noted, 0)])
    nothing = CollectiveArgs()
    return [
        first if k >= 0 and first.collective else second if n >= 0 else nothing
        for first, second, k, n in zip(
            of_kernel, of_event, kernel.tolist(), noted.tolist(), strict=True
        )
    ]


def _marks(trace: Events, event: Ints, work: Ints) -> Ints:
    """The back end's annotation of each call, -1 for none; it has the tensors' dtypes."""
    inner = np.flatnonzero(trace.names_where(lambda name: name.startswith(_MARKS)))
    call = nesting.nearest(marked(trace, event), trace.parent, parents(trace, inner))
    inner, call = inner[call >= 0], call[call >= 0]
    first = np.full(len(event), -1, np.int64)
    _least(first, event.searchsorted(call), inner)
    return np.where(work < 0, first, work)


def _short_name(trace: Events, event: np.integer[Any]) -> str:
    name: str = trace.names[int(trace.name[event])]
    return name.rpartition("::")[2]


_MARKS: Final = ("nccl:", "rccl:", "xccl:", "gloo:", "mpi:", "ucc:")


def _of_parameters(args: CollectiveArgs, operation: str, ranks: int) -> _Sent:
    """What ``record_param_comms`` says."""
    if not args.collective:
        return _Sent()
    dtype = _SCALARS.get(args.dtype, args.dtype.lower())
    given, got = args.elements, args.out_elements
    if operation == "gather":
        return _Sent(max(got, given * ranks), dtype) if ranks else _Sent(dtype=dtype)
    if operation == "scatter":
        return _Sent(max(given, got * ranks), dtype) if ranks else _Sent(dtype=dtype)
    if operation in ("all_gather", "reduce_scatter"):
        return _Sent(max(given, got), dtype)
    return _Sent(got if operation == "receive" else given, dtype)


def _of_operands(name: str, operation: str, args: OpArgs, ranks: int) -> _Sent:
    """What the recorded shapes say, if they do."""
    dims = decode_list(args.dims)
    types = [one if isinstance(one, str) else "" for one in decode_list(args.types)]
    at, partial = _ARGUMENTS.get(name, (0, operation in _GETS_OF_ALL))
    if at >= len(dims):
        return _Sent()
    kind = types[at] if at < len(types) else ""
    if kind == "TensorList":
        lists = dims[at]
        known = isinstance(lists, list) and bool(lists) and all(map(_is_shape, lists))
        elements = sum(map(prod, lists)) if known else -1
        dtype = ""
    else:
        # An annotation lists its tensors one by one.
        chosen = dims if not name else dims[at : at + 1]
        kinds = {*(types if not name else types[at : at + 1])}
        known = bool(kind) and all(map(_is_shape, chosen)) and len(kinds) == 1
        elements = sum(map(prod, chosen)) if known else -1
        found = BY_TYPE.get(kind)
        dtype = found.name if found else kind.removeprefix("c10::")
    if (name and partial) or (not name and operation in _GETS_OF_ALL):
        elements = elements * ranks if elements >= 0 and ranks else -1
    elif not name and operation in ("reduce_scatter", "scatter", "send", "receive"):
        # What a back end works on may be the part or the whole.
        elements = elements if operation in ("send", "receive") else -1
    return _Sent(elements, dtype)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _config(metadata: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The groups of the job that the trace lists: torch writes them since 2.4."""
    info = metadata.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    groups = listed if isinstance(listed, list) else []
    return [group for group in groups if isinstance(group, dict)]


def _only_group(metadata: Mapping[str, Any]) -> tuple[str, str, int] | None:
    """Label, key and size of the group, if there is just one."""
    groups = _config(metadata)
    if len(groups) != 1:
        return None
    name = str(groups[0].get("pg_name", ""))
    described = str(groups[0].get("pg_desc", ""))
    ranks = groups[0].get("ranks")
    members = str(ranks) if isinstance(ranks, list) else ""
    label = name if described in _NAMELESS else described
    return label, f"{name} {members}".strip(), max(whole_number(groups[0].get("pg_size")), 0)


def _apart(groups: list[str], keys: list[str]) -> list[str]:
    """The labels, with the group's name where two groups have the same."""
    known: dict[str, set[str]] = {}
    for group, key in zip(groups, keys, strict=True):
        known.setdefault(group, set()).add(key)
    return [
        f"{group} {key.partition(' ')[0]}" if len(known[group]) > 1 and group else group
        for group, key in zip(groups, keys, strict=True)
    ]


# ---- The rows of `torchprof collectives`: calls that communicate, by what they carry.

#: Bus bandwidth divided by algorithm bandwidth, of ``n`` ranks.
#: Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, and the functions
#: ``*GetBw`` in its ``src``.
BUS_FACTORS: Final[Mapping[str, Callable[[int], float]]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
    "send": lambda _: 1.0,
    "receive": lambda _: 1.0,
}
#: Those whose factor does not depend on the number of ranks.
_ANY_NUMBER: Final = frozenset({"broadcast", "reduce", "send", "receive"})


@dataclass(frozen=True)
class CollectiveRow:
    """Calls of one operation in one group of ranks, with one size and dtype.

    ``size`` is what one call carries, in bytes: the larger of what a rank gives and gets (see
    `CommSizes`), and ``bytes`` that of all calls. ``total_ms`` is the sum of their durations on the
    device, or of gloo's work, including the wait for other ranks. ``algbw_gb_per_s`` is ``bytes``
    by ``total_ms``, in 10⁹ bytes a second; ``busbw_gb_per_s`` is that times `BUS_FACTORS`, which
    compares with the links' own bandwidth whatever the number of ranks. ``wait_ms`` is the wait of
    the earliest rank for the last one, summed over the calls, where traces of several ranks tell.
    None is unknown.
    """

    ADDS_UP: ClassVar = ("calls", "bytes", "total_ms")

    operation: str
    group: str | None
    size: int | None
    dtype: str | None
    calls: int
    bytes: int | None
    total_ms: float | None
    algbw_gb_per_s: float | None
    busbw_gb_per_s: float | None
    wait_ms: float | None


def collective_rows(trace: Events) -> list[CollectiveRow]:
    """The rows of the selected calls, the longest first; those of unknown length come last.

    ``wait_ms`` is None: one trace does not tell it, see `waits_by_row`.
    """
    calls, sizes = comm_calls(trace), comm_sizes(trace)
    groups: dict[tuple[str, str, str, int], list[int]] = {}
    for i, key in enumerate(
        zip(calls.operation, sizes.group, sizes.dtype, sizes.size.tolist(), strict=True)
    ):
        groups.setdefault(key, []).append(i)
    duration = np.where(calls.end >= 0, calls.end - calls.begin, -1)
    rows = list[CollectiveRow]()
    for (operation, group, dtype, size), members in groups.items():
        at = np.array(members, np.int64)
        timed = bool((duration[at] >= 0).all())
        total_ns = int(duration[at].sum())
        carried = size * len(at) if size >= 0 else None
        rate = carried / total_ns if carried and timed and total_ns else None
        rows.append(
            CollectiveRow(
                operation,
                group or None,
                size if size >= 0 else None,
                dtype or None,
                len(at),
                carried,
                total_ns / 1e6 if timed else None,
                rate,
                _bus(operation, sizes.ranks[at], rate),
                None,
            )
        )
    return sorted(
        rows, key=lambda row: -1.0 if row.total_ms is None else row.total_ms, reverse=True
    )


#: What tells the rows of a trace apart.
ROW_KEY: Final = ("operation", "group", "size", "dtype")


def waits_by_row(calls: RankCalls, earliest_ns: Ints) -> dict[tuple[object, ...], float | None]:
    """The ``wait_ms`` of the rows of these calls, by the fields of `ROW_KEY`.

    ``earliest_ns``: of each call, the wait of the rank that began it first, -1 if unknown; see
    `RankWaits`.
    """
    found: dict[tuple[object, ...], float | None] = {}
    numbers: dict[tuple[object, ...], list[int]] = {}
    for number, kind in enumerate(calls.kinds):
        size = kind.size if kind.size >= 0 else None
        key = (kind.operation, kind.group or None, size, kind.dtype or None)
        numbers.setdefault(key, []).append(number)
    for row, mine in numbers.items():
        waits = earliest_ns[among(calls.kind, mine)]
        found[row] = None if (waits < 0).any() else int(waits.sum()) / 1e6
    return found


def _bus(operation: str, ranks: Ints, rate: float | None) -> float | None:
    if rate is None or operation not in BUS_FACTORS:
        return None
    count = int(ranks.max())
    if operation not in _ANY_NUMBER and (count < 1 or int(ranks.min()) != count):
        return None
    return rate * BUS_FACTORS[operation](count)


# ---- For how long a rank computes, communicates, both at once, or neither.

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


@once_per_trace
def rank_time(trace: Events) -> RankTime | Reason:
    """The times of the selected events, or why they are unknown.

    On a device, these are HolisticTraceAnalysis's: compute is what is neither communication nor a
    copy, and exposed communication its part of `breakdown`; gloo's work counts with the first
    device. On the host, an operator computes unless it communicates or waits for it, or encloses
    what does; communication is the back end's work, such as gloo's, which runs in other threads.
    """
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
        copies = nesting.among(category, _HIDDEN)
        computing = ~copies & (category < len(CATEGORIES))
        total += _times(start, end, computing, category == _COMMUNICATION, until - since)
    return _of_numbers(total, on_device=True)


def _on_host(trace: Events) -> RankTime | Reason:
    calls = comm_calls(trace)
    if (calls.end < 0).any():
        untimed = int((calls.end < 0).sum())
        return because(
            "no_comm_times",
            ("the trace does not say when {untimed} of {calls} calls that communicate were done"),
            untimed=untimed,
            calls=len(calls),
        )
    host = np.flatnonzero(trace.selection & trace.is_kind(*HOST_KINDS))
    if not len(host):
        return because(*Why.NO_OPERATORS)
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
    compute, comm, both = (
        nesting.union_ns(start[which], end[which])
        for which in (computing, communicating, computing | communicating)
    )
    idle = max(span - nesting.union_ns(start, end), 0)
    return np.array([span, compute, comm, both - compute, idle], np.int64)
