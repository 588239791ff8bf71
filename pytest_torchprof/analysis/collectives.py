"""Collectives on the device: what kind each is, and for how long nothing hid it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from pytest_torchprof.analysis.breakdown import EXPOSED, categories
from pytest_torchprof.analysis.device_products import names_fit
from pytest_torchprof.analysis.idle import Idle
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import CollectiveArgs, decode, int64_column
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.known_names import SYNC_CALL
from pytest_torchprof.trace.ranks import world_size_of
from pytest_torchprof.trace.tree import operators_around
from pytest_torchprof.work.categories import CATEGORIES

if TYPE_CHECKING:
    import re

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints

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


def collectives(trace: Events) -> Collectives:
    """The selected ones, on all devices."""
    return trace.once(_collectives)


def _collectives(trace: Events) -> Collectives:
    every = trace.device_rows
    category = categories(trace, every)
    found = (category == CATEGORIES.index("communication")) & trace.selection[every]
    event, computing = every[found], every[_are_computing(category)]
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


def _are_computing(category: Ints) -> Bools:
    return ~nesting.among(category, [CATEGORIES.index(name) for name in EXPOSED])


def _kinds(trace: Events, event: Ints, operator: Ints, noted: list[str]) -> Ints:
    """The index in `KINDS` of each: by its own arguments, the operators around its launch, the
    kernel's name, and any annotation around its launch.
    """
    by_name = np.array([kind_number(name) for name in trace.names] or [_OTHER], np.int64)
    told = by_name[trace.name] < _OTHER
    named = told & trace.names_where(_OPERATORS.match) & trace.is_kind(Kind.OP, Kind.ANNOTATION)
    annotated = told & trace.is_kind(Kind.OP, Kind.ANNOTATION)
    of_kernel = by_name[trace.name[event]]
    general = names_fit(trace, event, _GENERAL.search)
    found = np.array([kind_number(name) if name else _OTHER for name in noted], np.int64)
    for other in (
        _by(trace, by_name, nesting.nearest(named, trace.parent, operator)),
        np.where(general, _OTHER, of_kernel),
        _by(trace, by_name, nesting.nearest(annotated, trace.parent, operator)),
        of_kernel,
    ):
        found = np.where(found < _OTHER, found, other)
    return found


def _by(trace: Events, by_name: Ints, rows: Ints) -> Ints:
    return np.where(rows >= 0, by_name[trace.name[rows]], _OTHER)


def kind_number(name: str) -> int:
    """The index in `KINDS` of what this name means, or their number if it means no collective."""
    for number, (_, pattern) in enumerate(KINDS):
        if pattern.search(name):
            return number
    return _OTHER


def _exposed(trace: Events, event: Ints, computing: Ints) -> tuple[Ints, Ints]:
    """Exposed ns of each of these events, and what hiding it would gain."""
    exposed, gain = np.zeros(len(event), np.int64), np.zeros(len(event), np.int64)
    host = _Waiting(trace)
    for device in nesting.distinct(trace.device[event]).tolist():
        at = np.flatnonzero(trace.device[event] == device)
        rows = computing[trace.device[computing] == device]
        if not len(rows):
            continue
        busy, _ = Idle.around(trace.ts[rows], trace.ts[rows] + trace.dur[rows])
        begin, end = trace.ts[event[at]], trace.ts[event[at]] + trace.dur[event[at]]
        # Where several communicate at once, the time is that of the first.
        before = np.concatenate([begin[:1], np.maximum.accumulate(end)[:-1]])
        begin = np.minimum(np.maximum(begin, before), end)
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
        self.spans, _ = Idle.around(trace.ts[rows], trace.ts[rows] + trace.dur[rows])

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
