"""The event model: the columnar `Events` of a trace, live or stored, and its allocations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from pytest_torchprof.core.records import Frozen, cached
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import (
    NO_DEVICE,
    FormerIds,
    MemoryArgs,
    OpArgs,
    decode,
    decode_list,
    device_columns,
    int64_column,
    whole_number,
)
from pytest_torchprof.trace.facts import FACTS_KEY, Facts
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    HOST_KINDS,
    REGION,
    Kind,
    NameIndex,
    index_of,
    received,
    selected_operators,
    shown_name,
    uses_workers,
    verdicts_on,
)
from pytest_torchprof.trace.nesting import distinct
from pytest_torchprof.trace.steps import selected_by
from pytest_torchprof.trace.tensors import keys_of

if TYPE_CHECKING:
    from pytest_torchprof.core.unknown import Reason
    from pytest_torchprof.trace.arguments import Arguments
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.trace.steps import Scope
    from pytest_torchprof.trace.tensors import Taken, Tensors


# ---- Allocations and frees, as columns.


class Memory(Frozen, frozen=True, dict=True):
    """Allocations (positive) and frees (negative) in time order, one row per ``[memory]`` event.

    ``addr`` is None if the trace has no addresses, as in 2021. ``place`` is (c10's number of the
    device's type, 0 for the host; the device's index, -1 for none), one pair per row.
    """

    event: Ints
    addr: Ints | None
    bytes: Ints
    place: Ints

    @classmethod
    def of(cls, rows: Ints, args: Arguments) -> Memory:
        """From the arguments of these events."""
        if not len(rows):
            return _EMPTY
        decoded = decode(MemoryArgs, args)
        addresses = [a.addr for a in decoded]
        types = int64_column([a.device_type for a in decoded])
        indices = int64_column([whole_number(a.device_id) for a in decoded])
        return cls(
            rows,
            None if None in addresses else int64_column(addresses),
            int64_column([a.bytes for a in decoded]),
            np.stack([types, indices], 1),
        )

    @cached
    def on_device(self) -> Bools:
        """Whether it is the accelerator's memory, not the host's."""
        return np.not_equal(self.place[:, 0], 0)

    @property
    def places(self) -> list[tuple[int, int]]:
        """Each place once, in order."""
        kind, index = self.place.T
        return [
            (one, other)
            for one in distinct(kind).tolist()
            for other in distinct(index[kind == one]).tolist()
        ]

    def device(self, on_device: bool) -> Memory:
        """The rows of the host's memory, or of the accelerators'."""
        if not (on_device or self.on_device.any()):
            return self
        return self.where(self.on_device == on_device)

    def where(self, keep: Bools) -> Memory:
        """Some of the rows."""
        addr = None if self.addr is None else self.addr[keep]
        return Memory(self.event[keep], addr, self.bytes[keep], self.place[keep])


_NONE: Ints = np.zeros(0, np.int64)
_EMPTY = Memory(_NONE, _NONE, _NONE, np.zeros((0, 2), np.int64))


# ---- The event model: the columnar `Events` of a trace, live or stored.
#
# A live capture and a stored file become the same `Events`; every metric, rule and table is a
# function of them. Columns are numpy arrays with one entry per event; strings are interned;
# ``args`` stay raw JSON bytes and are decoded only for the events that are needed.

#: How many operators to check for what a trace records, and how many of them first.
_SOME, _FIRST = 1000, 10

_Shared = TypeVar("_Shared")


@dataclass(frozen=True)
class Events:
    """Events as columns, in time order, and the links between them.

    ``ts`` and ``dur`` are nanoseconds (int64) on the trace's own clock; ``names[name[i]]`` is the
    name of event ``i``; ``threads[thread[i]]`` is its (pid, tid); ``args[i]`` is raw JSON or None.
    Events are in time order, longer ones first if they start together. Links are event indices, -1
    for none. ``selection`` marks the events that count: those of the measured region of a live
    capture, all of a stored trace, or a part of either, see `within`. ``warnings`` describe what
    could not be read from a stored trace, one line each; ``source`` is its file, and ``cut`` is
    whether the file is truncated among its events. ``unread``: categories without a known kind.
    ``untimed``: events whose missing or negative duration counts as 0. ``scope``: the part, if any.
    ``tensors`` identifies tensors, ``module_calls`` the outermost calls of modules, -1 for none;
    ``untold`` is why another run, which was to tell these, did not.
    """

    ts: Ints
    dur: Ints
    kind: npt.NDArray[np.int8]
    name: Ints  # int32
    thread: npt.NDArray[np.int32]
    names: Sequence[str]
    args: Arguments
    threads: Sequence[tuple[Any, Any]] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    source: str = ""
    cut: bool = False
    unread: tuple[str, ...] = ()
    untimed: tuple[int, ...] = ()
    scope: Scope | None = None
    tensors: Tensors | None = field(default=None, compare=False, repr=False)
    module_calls: Ints | None = field(default=None, compare=False, repr=False)
    untold: Reason | None = None

    def __len__(self) -> int:
        return len(self.ts)

    @cached
    def facts(self) -> Facts:
        """What a live capture knows beyond its events; all unknown for traces of other tools."""
        return Facts.read(self.metadata.get(FACTS_KEY))

    @cached
    def is_live(self) -> bool:
        """Whether a live capture recorded it, even if it was read from a file."""
        noted = self.metadata.get(FACTS_KEY)
        return isinstance(noted, dict) and bool(noted)

    # ---------------------------------------------------------------- names and kinds

    def is_kind(self, *kinds: Kind) -> Bools:
        """Events of any of these kinds."""
        first, *others = map(int, kinds)  # plain numbers, which numpy compares faster
        found: Bools = self.kind == first
        for other in others:
            found |= self.kind == other
        return found

    def has(self, *kinds: Kind) -> bool:
        """Whether there is an event of any of these kinds: a cheap check before a search."""
        return any(map(self._has.__getitem__, kinds))

    @cached
    def _has(self) -> list[bool]:
        there: list[bool] = (np.bincount(self.kind, minlength=len(Kind)) > 0).tolist()
        return there

    @cached
    def by_name(self) -> NameIndex:
        """Its events by name, for `trace.names`."""
        return index_of(self.names, self.name, self.kind)

    @cached
    def device_rows(self) -> Ints:
        """Kernels, copies and memsets."""
        return self.is_kind(*DEVICE_KINDS).nonzero()[0] if self.has(*DEVICE_KINDS) else _NONE

    def names_where(self, predicate: Callable[[str], object]) -> Bools:
        """Events whose name satisfies the predicate, which is called once per distinct name."""
        verdicts = verdicts_on(self.names, predicate)
        return np.array(verdicts)[self.name] if True in verdicts else np.zeros(len(self), bool)

    @cached
    def shown_names(self) -> tuple[list[str], Ints]:
        """Names to group by, and for each of `names` its index among them: all steps share one."""
        shown: dict[str, int] = {}
        number = [shown.setdefault(shown_name(name), len(shown)) for name in self.names]
        return list(shown), np.array(number, np.int64)

    def named(self, name: str) -> Bools:
        """Events of exactly this name."""
        if name not in self.names:
            return np.zeros(len(self), bool)
        found: Bools = self.name == self.names.index(name)  # names are distinct
        return found

    # ---------------------------------------------------------------- region and selection

    @cached
    def region(self) -> tuple[int, int] | None:
        """(start, end) in ns of the measured region of a live capture; None for other traces."""
        marks = self._region_marks[self.dur[self._region_marks] > 0]
        if not len(marks):
            return None
        return int(self.ts[marks].min()), int((self.ts[marks] + self.dur[marks]).max())

    @cached
    def _region_marks(self) -> Ints:
        marks = self.named(REGION).nonzero()[0]
        found: Ints = marks[self.kind[marks] == Kind.ANNOTATION]
        return found

    @cached
    def in_region(self) -> Bools:
        """Events of the measured region; device events by the call that launched them."""
        if self.region is None:
            return np.ones(len(self), bool)
        start, end = self.region
        inside = (self.ts >= start) & (self.ts < end)
        inside[self._region_marks] = False
        if uses_workers(self):
            inside[received(self)] = False
        if len(device := self.device_rows):
            launch = self.launch[device]
            # A kernel may start after the region: its launch decides, else its own start.
            inside[device] = np.where(launch >= 0, inside[launch], inside[device])
        return inside

    @cached
    def selection(self) -> Bools:
        """Events that count."""
        return self.in_region if self.scope is None else selected_by(self, *self.scope)

    def within(
        self, *, op: str = "", kernel: str = "", module: str = "", region: str = ""
    ) -> Events:
        """The same trace, counting only a part of it, given by one name or glob.

        That is what runs below an operator or annotation (``op``) or an ``nn.Module`` class
        (``module``), with all that it launches; all that runs, in any thread, while a
        ``record_function`` or named region is open (``region``); or kernels, copies and memsets
        themselves (``kernel``).
        """
        given = {"op": op, "kernel": kernel, "module": module, "region": region}
        return self.part(*((how, what, None) for how, what in given.items() if what))

    def lap(self, region: str, number: int) -> Events:
        """The same trace, counting only one lap of a region, from 0."""
        return self.part(("region", region, number))

    def part(self, scope: Scope) -> Events:
        """The same trace, counting only this part of it."""
        part = replace(self, scope=scope)
        own = ("scope", "selection", "_computed")
        # Reuse what does not depend on the scope.
        vars(part).update({k: v for k, v in vars(self).items() if k not in own})
        vars(part)["_whole"] = self.whole
        return part

    @property
    def whole(self) -> Events:
        """The trace without a scope: the place to cache what does not depend on one."""
        return vars(self).get("_whole", self)  # type: ignore[no-any-return]

    @cached
    def _computed(self) -> dict[Any, Any]:
        return {}

    def once(self, compute: Callable[..., _Shared], *options: Any, **named: Any) -> _Shared:
        """``compute(self, *options, **named)``, called once for each trace and options."""
        key, computed = (compute, *options, *named.items()), self._computed
        found = computed.get(key, computed)
        if found is computed:
            found = computed[key] = compute(self, *options, **named)
        return found  # type: ignore[no-any-return]

    # ---------------------------------------------------------------- nesting

    def _nest(self, *kinds: Kind) -> tuple[Ints, Ints]:
        return nesting.nest(self.ts, self.dur, self.thread, self.is_kind(*kinds))

    @cached
    def _host_nest(self) -> tuple[Ints, Ints]:
        return self._nest(*HOST_KINDS)

    @cached
    def _python_nest(self) -> tuple[Ints, Ints]:
        return self._nest(*HOST_KINDS, Kind.PYTHON)

    @property
    def parent(self) -> Ints:
        """The enclosing operator, annotation or runtime call on the same thread, or -1."""
        return self._host_nest[0]

    @property
    def depth(self) -> Ints:
        """How many such events enclose this one; -1 for events that are not on the host."""
        return self._host_nest[1]

    @property
    def frames(self) -> tuple[Ints, Ints]:
        """Like (`parent`, `depth`), but Python functions and modules count as enclosing events."""
        return self._python_nest if self.has(Kind.PYTHON) else self._host_nest

    @property
    def self_ns(self) -> Ints:
        """Duration less the duration of direct children (host events)."""
        own = self.dur.copy()
        children = (self.parent >= 0).nonzero()[0]
        np.subtract.at(own, self.parent[children], self.dur[children])
        return np.maximum(own, 0)

    def enclosing(self, events: Ints) -> Ints:
        """For events that are points in time (memory): the innermost host event around each."""
        host, end = (self.depth >= 0).nonzero()[0], self.ts + self.dur
        return nesting.enclosing(self.ts, end, self.parent, host, self.thread, events)

    def frame_around(self, events: Ints) -> Ints:
        """The same where Python functions and modules count as enclosing events, see `frames`."""
        (parent, depth), end = self.frames, self.ts + self.dur
        rows = (depth >= 0).nonzero()[0]
        return nesting.enclosing(self.ts, end, parent, rows, self.thread, events)

    # ---------------------------------------------------------------- device links

    @cached
    def _device_rows(self) -> Ints:
        """Runtime calls and device events."""
        return nesting.narrow(self.is_kind(Kind.RUNTIME, *DEVICE_KINDS).nonzero()[0])

    @cached
    def _device_columns(self) -> tuple[Ints, Ints, Ints]:
        """Of `_device_rows` alone: they are few, and only `device` is asked for often."""
        rows = self._device_rows
        ids, device, moved = device_columns(self.args[rows])
        if len(rows) and (ids < 0).all():
            former = [a.correlation for a in decode(FormerIds, self.args[rows])]
            ids = nesting.narrow(int64_column(former))
        return ids, device, moved

    def _of_all(self, column: Ints) -> Ints:
        """One of these columns, -1 for all other events."""
        out = np.full(len(self), -1, np.int64)
        out[self._device_rows] = column
        return out

    @property
    def correlation(self) -> Ints:
        """CUPTI's correlation id, which a runtime call shares with its work on the device.

        ROCm's had another name until 2024. Source: kineto's commits e624b51d and 0184822f.
        """
        return self._of_all(self._device_columns[0])

    @cached
    def device(self) -> Ints:
        """Index of the device that a device event ran on; from its process if args lack it."""
        out = self._of_all(self._device_columns[1])
        pids = int64_column([pid if isinstance(pid, int) else -1 for pid, _ in self.threads])
        unnamed = (out == NO_DEVICE).nonzero()[0]
        out[unnamed] = pids[self.thread[unnamed]]
        out[~self.is_kind(*DEVICE_KINDS)] = -1
        return nesting.narrow(out)

    @cached
    def launch(self) -> Ints:
        """For a device event, the runtime call that caused it, by correlation id; else -1."""
        out, device = np.full(len(self), -1, np.int32), self.device_rows
        if not (len(device) and self.has(Kind.RUNTIME)):
            return out
        correlation = self.correlation
        calls = (self.is_kind(Kind.RUNTIME) & (correlation > 0)).nonzero()[0]
        if len(calls):
            calls = calls[np.argsort(correlation[calls], kind="stable")]
            ids, wanted = correlation[calls], correlation[device]
            at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
            out[device] = np.where(ids[at] == wanted, calls[at], -1)
        return out

    @property
    def bytes(self) -> Ints:
        """Bytes that a copy or memset moved; -1 if unknown."""
        return self._of_all(self._device_columns[2])

    # ---------------------------------------------------------------- memory

    @cached
    def memory(self) -> Memory:
        """All allocations and frees of the trace, selected or not."""
        rows = (self.is_kind(Kind.MEMORY) & self.named("[memory]")).nonzero()[0]
        return Memory.of(rows, self.args[rows])

    # ---------------------------------------------------------------- operands

    @cached
    def records_shapes(self) -> bool:
        """Whether operators carry ``Input Dims``; true if there are no operators."""
        if self.region is not None and self.metadata.get("record_shapes"):
            return True  # a capture of ours, whose flag is reliable
        ops = self.is_kind(Kind.OP).nonzero()[0][:_SOME]
        # Usually the first of them decide.
        first, more = ops[:_FIRST], ops[_FIRST:]
        return not len(ops) or any(len(a.dims) for p in (first, more) for a in self.operands(p))

    @cached
    def has_strides(self) -> bool:
        """Whether operators carry ``Input Strides``, as torch records them since 2024."""
        ops = np.flatnonzero(self.is_kind(Kind.OP))[:_SOME]
        return any(len(a.strides) for a in self.operands(ops))

    def operands(self, events: Ints) -> list[OpArgs]:
        """The recorded operands of these calls."""
        return decode(OpArgs, self.args[events])

    def operators(self, *names: str) -> Ints:
        """Indices (int64) of the selected operators of exactly these names, in time order."""
        return selected_operators(self, *names)

    def input_shapes(self, events: Ints) -> list[list[Any]]:
        """For each of these operators, the shape of each argument: a list of sizes.

        The shape of a list of tensors is a list of shapes; that of anything else is an empty list.
        An operator without shapes in the trace has an empty list.
        """
        return [decode_list(args.dims) for args in self.operands(events)]

    def input_types(self, events: Ints) -> list[list[str]]:
        """For each of these operators, the C++ type of each argument, such as ``c10::Half``."""
        return [decode_list(args.types) for args in self.operands(events)]

    # ---------------------------------------------------------------- which tensor is which

    def taken(self, events: Ints) -> list[tuple[Taken, ...]] | None:
        """For each of these operators, the tensors among its arguments; see `Tensors`.

        None if the trace does not identify tensors: a rule then uses shapes, and asks for a capture
        that does (``wants_tensors`` of its matches).
        """
        return None if self.tensors is None else self.tensors.taken(*keys_of(self, events))

    def made(self, events: Ints) -> list[frozenset[int]] | None:
        """For each of these operators, the tensors allocated within it; None as above.

        Only tensors that a later operator takes are included.
        """
        return None if self.tensors is None else self.tensors.made(*keys_of(self, events))

    def objects(self, events: Ints) -> list[tuple[Taken, ...]] | None:
        """For each of these operators, the identity of each argument's object; None as above.

        Views are separate objects. A later object may reuse the number of a deleted one.
        """
        return None if self.tensors is None else self.tensors.objects(*keys_of(self, events))

    @property
    def could_know_tensors(self) -> bool:
        """Whether another run could identify tensors."""
        return self.tensors is None and self.region is not None


_NONE.setflags(write=False)
