"""The one event model: a columnar `Trace`, however it was come by.

A live capture and a stored file become the same `Trace`; every metric, rule and table is a function
of it. Columns are numpy arrays of one entry an event; strings are interned; ``args`` stay raw JSON
bytes and are decoded only for the events a question touches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_torchprof.flops import FORMULAS, flops

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: The annotation around the measured region of a live capture.
REGION = "torchprof::call"

#: The metadata key under which a live capture keeps what the events do not say.
FACTS_KEY = "torchprof"


class Kind(IntEnum):
    """What an event is, from Kineto's category (of any year) and name."""

    OTHER = 0
    OP = 1
    ANNOTATION = 2
    RUNTIME = 3
    KERNEL = 4
    MEMCPY = 5
    MEMSET = 6
    MEMORY = 7
    PYTHON = 8
    CUDA_SYNC = 9
    GPU_ANNOTATION = 10


#: Kineto's category, lower case, to `Kind`. Categories of 2021 are capitalised ``Operator`` etc.
#: Source: libkineto/include/ActivityType.h, and 231 real traces of 2021 to 2026.
KINDS: Mapping[str, Kind] = {
    "cpu_op": Kind.OP,
    "operator": Kind.OP,
    "user_annotation": Kind.ANNOTATION,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "hip_runtime": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "xpu_driver": Kind.RUNTIME,
    "mtia_runtime": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME,
    "privateuse1_driver": Kind.RUNTIME,
    "runtime": Kind.RUNTIME,
    "kernel": Kind.KERNEL,
    "concurrent_kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
    "cpu_instant_event": Kind.MEMORY,
    "python_function": Kind.PYTHON,
    "cuda_sync": Kind.CUDA_SYNC,
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
}

HOST_KINDS = (Kind.OP, Kind.ANNOTATION, Kind.RUNTIME)
DEVICE_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)

#: Calls in which the host waits for the device: explicit synchronisation, and copies without
#: ``Async`` in their name, which return when the copy is done.
SYNC_CALL = re.compile(
    r"^(cuda|hip|musa|xpu)(Device|Stream|Event)Synchronize"
    r"|^cu(Ctx|Stream|Event)Synchronize"
    r"|^(cuda|hip|cu)Memcpy(?!.*(Async|Peer))"
)
#: Calls that put a kernel (or a graph of them) on a stream.
LAUNCH_CALL = re.compile(
    r"LaunchKernel|LaunchCooperativeKernel|GraphLaunch|ModuleLaunch|urEnqueueKernelLaunch"
)
H2D = re.compile(r"HtoD|HostToDevice|M2D")
D2H = re.compile(r"DtoH|DeviceToHost|D2M")
MODULE = re.compile(r"^nn\.Module: (\w+?)_\d+$")


class _DeviceArgs(msgspec.Struct, gc=False):
    correlation: int = -1
    stream: int | str | None = None
    device: int | None = None
    bytes: int = 0


class _OpArgs(msgspec.Struct, gc=False):
    dims: Any = msgspec.field(name="Input Dims", default=None)
    types: Any = msgspec.field(name="Input type", default=None)
    concrete: Any = msgspec.field(name="Concrete Inputs", default=None)


class _MemoryArgs(msgspec.Struct, gc=False):
    addr: int = msgspec.field(name="Addr", default=0)
    bytes: int = msgspec.field(name="Bytes", default=0)
    device_type: int = msgspec.field(name="Device Type", default=0)
    device_id: int = msgspec.field(name="Device Id", default=-1)


_DEVICE_ARGS = msgspec.json.Decoder(_DeviceArgs, strict=False)
_OP_ARGS = msgspec.json.Decoder(_OpArgs, strict=False)
_MEMORY_ARGS = msgspec.json.Decoder(_MemoryArgs, strict=False)


@dataclass(frozen=True)
class Memory:
    """Allocations (positive) and frees (negative) in time order, one row an ``[memory]`` event."""

    event: Ints
    addr: Ints
    bytes: Ints
    on_device: Bools

    def device(self, on_device: bool) -> Memory:  # noqa: FBT001 - the one property that splits it
        """The rows of the host's memory, or of the accelerator's."""
        keep = self.on_device == on_device
        return Memory(self.event[keep], self.addr[keep], self.bytes[keep], self.on_device[keep])


@dataclass(frozen=True)
class Trace:
    """Events as columns, in time order, and the links between them.

    ``ts`` and ``dur`` are nanoseconds (int64) on the trace's own clock; ``names[name[i]]`` is the
    name of event ``i``; ``thread`` is an interned (pid, tid). Links are event indices, -1 for none.
    ``selection`` marks the events that count: those of the measured region of a live capture, all
    of a stored trace, or a part of either, see `within`.
    """

    ts: Ints
    dur: Ints
    kind: npt.NDArray[np.int8]
    name: npt.NDArray[np.int32]
    thread: npt.NDArray[np.int32]
    names: Sequence[str]
    args: Sequence[bytes | memoryview | msgspec.Raw | None]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    scope: tuple[str, str] | None = None

    def __len__(self) -> int:
        return len(self.ts)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What a live capture knew and events do not say; empty for a trace of another tool."""
        facts = self.metadata.get(FACTS_KEY)
        return facts if isinstance(facts, dict) else {}

    # ---------------------------------------------------------------- names and kinds

    def is_kind(self, *kinds: Kind) -> Bools:
        """Events of any of these kinds."""
        return np.isin(self.kind, np.array(kinds, np.int8))

    def names_where(self, predicate: Callable[[str], object]) -> Bools:
        """Events whose name satisfies the predicate, which is asked once for each distinct name."""
        verdicts = np.fromiter((bool(predicate(n)) for n in self.names), bool, len(self.names))
        return verdicts[self.name] if len(self.names) else np.zeros(len(self), bool)

    def named(self, name: str) -> Bools:
        """Events of exactly this name."""
        return self.names_where(name.__eq__)

    # ---------------------------------------------------------------- region and selection

    @cached_property
    def region(self) -> tuple[int, int] | None:
        """(start, end) in ns of the measured region of a live capture; None for other traces."""
        marks = np.flatnonzero(self.is_kind(Kind.ANNOTATION) & self.named(REGION))
        if not len(marks):
            return None
        return int(self.ts[marks].min()), int((self.ts[marks] + self.dur[marks]).max())

    @cached_property
    def in_region(self) -> Bools:
        """Events of the measured region; device events by the call that launched them."""
        if self.region is None:
            return np.ones(len(self), bool)
        start, end = self.region
        inside = (self.ts >= start) & (self.ts < end)
        inside &= ~(self.is_kind(Kind.ANNOTATION) & self.named(REGION))
        device = np.flatnonzero(self.is_kind(*DEVICE_KINDS))
        launch = self.launch[device]
        # A kernel may start after the region has ended: its launch decides, else its own start.
        inside[device] = np.where(launch >= 0, inside[launch], inside[device])
        return inside

    @cached_property
    def selection(self) -> Bools:
        """Events that count."""
        if self.scope is None:
            return self.in_region
        how, what = self.scope
        if how == "op":
            roots = self.named(what) & self.is_kind(Kind.OP, Kind.ANNOTATION)
            parent, depth = self.parent, self.depth
        else:
            roots = self.is_kind(Kind.PYTHON) & self.names_where(
                lambda n: (m := MODULE.match(n)) is not None and m[1] == what
            )
            parent, depth = self._python_nest
        below = _spread(roots, parent, depth)
        device = np.flatnonzero(self.is_kind(*DEVICE_KINDS))
        launch = self.launch[device]
        below[device] = (launch >= 0) & below[launch]
        return below & self.in_region

    def within(self, *, op: str | None = None, module: str | None = None) -> Trace:
        """The same trace, counting only what ran below this operator or ``nn.Module`` class."""
        scope = ("op", op) if op is not None else ("module", module or "")
        return replace(self, scope=scope)

    # ---------------------------------------------------------------- nesting

    @cached_property
    def _host_nest(self) -> tuple[Ints, Ints]:
        return _nest(self, np.flatnonzero(self.is_kind(*HOST_KINDS)))

    @cached_property
    def _python_nest(self) -> tuple[Ints, Ints]:
        return _nest(self, np.flatnonzero(self.is_kind(*HOST_KINDS, Kind.PYTHON)))

    @property
    def parent(self) -> Ints:
        """The enclosing operator, annotation or runtime call on the same thread, or -1."""
        return self._host_nest[0]

    @property
    def depth(self) -> Ints:
        """How many such events enclose this one; -1 for events that are not of the host."""
        return self._host_nest[1]

    @cached_property
    def self_ns(self) -> Ints:
        """Duration less the duration of direct children (host events)."""
        own = self.dur.copy()
        children = np.flatnonzero(self.parent >= 0)
        np.subtract.at(own, self.parent[children], self.dur[children])
        return np.maximum(own, 0)

    def enclosing(self, events: Ints) -> Ints:
        """For events that are points in time (memory): the innermost host event around each."""
        return _enclosing(self, events)

    # ---------------------------------------------------------------- device links

    @cached_property
    def _device_args(self) -> dict[int, _DeviceArgs]:
        rows = np.flatnonzero(self.is_kind(Kind.RUNTIME, *DEVICE_KINDS))
        return {int(i): _decode(_DEVICE_ARGS, self.args[i], _DeviceArgs) for i in rows}

    @cached_property
    def correlation(self) -> Ints:
        """CUPTI's correlation id, which a runtime call shares with what it put on the device."""
        out = np.full(len(self), -1, np.int64)
        for i, args in self._device_args.items():
            out[i] = args.correlation
        return out

    @cached_property
    def launch(self) -> Ints:
        """For a device event, the runtime call that caused it, by correlation id; else -1."""
        out = np.full(len(self), -1, np.int64)
        calls = np.flatnonzero(self.is_kind(Kind.RUNTIME) & (self.correlation > 0))
        device = np.flatnonzero(self.is_kind(*DEVICE_KINDS))
        if len(calls) and len(device):
            calls = calls[np.argsort(self.correlation[calls], kind="stable")]
            ids = self.correlation[calls]
            at = np.minimum(np.searchsorted(ids, self.correlation[device]), len(ids) - 1)
            hit = ids[at] == self.correlation[device]
            out[device] = np.where(hit, calls[at], -1)
        return out

    @cached_property
    def bytes(self) -> Ints:
        """Bytes that a copy or memset moved; 0 for other events."""
        out = np.zeros(len(self), np.int64)
        for i, args in self._device_args.items():
            out[i] = args.bytes
        return out

    # ---------------------------------------------------------------- memory

    @cached_property
    def memory(self) -> Memory:
        """All allocations and frees of the trace, selected or not."""
        rows = np.flatnonzero(self.is_kind(Kind.MEMORY) & self.named("[memory]"))
        args = [_decode(_MEMORY_ARGS, self.args[i], _MemoryArgs) for i in rows]
        n = len(args)
        return Memory(
            rows,
            np.fromiter((a.addr for a in args), np.int64, n),
            np.fromiter((a.bytes for a in args), np.int64, n),
            np.fromiter((a.device_type != 0 for a in args), bool, n),
        )

    # ---------------------------------------------------------------- FLOPs

    @cached_property
    def has_shapes(self) -> bool:
        """Whether operators carry ``Input Dims``: the trace says so, or one of them does."""
        if self.metadata.get("record_shapes"):
            return True
        ops = np.flatnonzero(self.is_kind(Kind.OP))
        return any(b"Input Dims" in bytes(raw) for i in ops if (raw := self.args[i]) is not None)

    @cached_property
    def op_flops(self) -> Ints:
        """FLOPs of the outermost operator that has a formula; 0 inside it, and elsewhere."""
        out = np.zeros(len(self), np.int64)
        known: dict[tuple[int, bytes], int | None] = {}
        candidates = np.flatnonzero(self.is_kind(Kind.OP) & self.names_where(FORMULAS.__contains__))
        counted = np.zeros(len(self), bool)
        for i in candidates[np.argsort(self.depth[candidates], kind="stable")]:
            if _has_ancestor(self.parent, counted, int(i)):
                continue
            raw = self.args[i]
            if raw is None:
                continue
            args = _decode(_OP_ARGS, raw, _OpArgs)
            key = (int(self.name[i]), repr((args.dims, args.types, args.concrete)).encode())
            if key not in known:
                name = self.names[self.name[i]]
                known[key] = flops(name, args.dims, args.types, args.concrete)
            value = known[key]
            if value is not None:
                counted[i] = True
                out[i] = value
        return out


def _decode(decoder: msgspec.json.Decoder[Any], raw: Any, empty: type[Any]) -> Any:
    """Decoded args; the empty struct where a foreign tool wrote something else."""
    if raw is None:
        return empty()
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return empty()


def _has_ancestor(parent: Ints, marked: Bools, event: int) -> bool:
    above = int(parent[event])
    while above >= 0:
        if marked[above]:
            return True
        above = int(parent[above])
    return False


def _levels(depth: Ints) -> Iterator[Ints]:
    """Event indices of depth 1, then 2, …: parents before their children."""
    for level in range(1, int(depth.max(initial=0)) + 1):
        yield np.flatnonzero(depth == level)


def _spread(roots: Bools, parent: Ints, depth: Ints) -> Bools:
    """The roots and everything nested below them."""
    out = roots.copy()
    for level in _levels(depth):
        out[level] |= out[parent[level]]
    return out


def _nest(trace: Trace, rows: Ints) -> tuple[Ints, Ints]:
    """Parent and depth by interval nesting on each thread, as (parent, depth), -1 where none.

    The depth of an event is the number of intervals of its thread open at its start; its parent is
    the last event of the depth above that started before it, and is still open.
    """
    parent = np.full(len(trace), -1, np.int64)
    depth = np.full(len(trace), -1, np.int64)
    if not len(rows):
        return parent, depth
    for thread in np.unique(trace.thread[rows]):
        mine = rows[trace.thread[rows] == thread]
        # Doubled time makes room to hold an empty interval open for itself alone.
        start = 2 * trace.ts[mine]
        end = 2 * (trace.ts[mine] + trace.dur[mine]) + (trace.dur[mine] <= 0)
        order = np.lexsort((-end, start))
        mine, start, end = mine[order], start[order], end[order]
        level = np.arange(len(mine)) - np.searchsorted(np.sort(end), start, side="right")
        level = np.maximum(level, 0)
        above = np.full(len(mine), -1, np.int64)
        previous = np.flatnonzero(level == 0)
        for d in range(1, int(level.max(initial=0)) + 1):
            here = np.flatnonzero(level == d)
            at = np.searchsorted(previous, here) - 1
            above[here] = np.where(at >= 0, previous[np.maximum(at, 0)], -1)
            previous = here
        # Where intervals only overlap, climb to one that is still open.
        closed = np.flatnonzero((above >= 0) & (end[above] <= start))
        while len(closed):
            above[closed] = above[above[closed]]
            closed = closed[(above[closed] >= 0) & (end[above[closed]] <= start[closed])]
        for d in range(1, int(level.max(initial=0)) + 1):
            here = np.flatnonzero(level == d)
            level[here] = np.where(above[here] >= 0, level[above[here]] + 1, 0)
        parent[mine] = np.where(above >= 0, mine[above], -1)
        depth[mine] = level
    return parent, depth


def _enclosing(trace: Trace, events: Ints) -> Ints:
    out = np.full(len(events), -1, np.int64)
    host = np.flatnonzero(trace.depth >= 0)
    for thread in np.unique(trace.thread[events]):
        mine = np.flatnonzero(trace.thread[events] == thread)
        rows = host[trace.thread[host] == thread]
        if not len(rows):
            continue
        rows = rows[np.lexsort((trace.depth[rows], trace.ts[rows]))]
        at = np.searchsorted(trace.ts[rows], trace.ts[events[mine]], side="right") - 1
        found = np.where(at >= 0, rows[np.maximum(at, 0)], -1)
        when = trace.ts[events[mine]]
        ended = np.flatnonzero((found >= 0) & (trace.ts[found] + trace.dur[found] < when))
        while len(ended):
            found[ended] = trace.parent[found[ended]]
            gone = trace.ts[found[ended]] + trace.dur[found[ended]] < when[ended]
            ended = ended[(found[ended] >= 0) & gone]
        out[mine] = found
    return out
