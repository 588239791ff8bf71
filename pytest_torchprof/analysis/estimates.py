"""What a device would do, from operators that ran anywhere: time, launches, memory, reads."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.analysis.memory import changes_of, selected
from pytest_torchprof.analysis.moved_bytes import counted_bytes
from pytest_torchprof.analysis.uncounted import (
    ATTENTION,
    COMPILED,
    UncountedPart,
    by_name,
    forms,
    host_only,
    in_script,
    named,
    packages,
    ran_on_host,
    replayed_parts,
    whole_time,
)
from pytest_torchprof.analysis.uncounted import (
    REGION as COMPILED_REGION,
)
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Columns, Frozen
from pytest_torchprof.core.unknown import Why
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    REGION,
    Kind,
    Names,
    events_named,
    once_of_whole,
    once_per_trace,
    operators_named,
)
from pytest_torchprof.trace.nesting import among, distinct
from pytest_torchprof.trace.tree import (
    marked,
    operators_around,
    outermost,
)
from pytest_torchprof.work import flops as masks
from pytest_torchprof.work.counting import (
    by_call,
    counts_flops,
    key_of,
    only_shapes,
    op_flops,
    operands_of,
    unknown_flops,
)
from pytest_torchprof.work.devices import DTYPES
from pytest_torchprof.work.launches import (
    READS,
    TO_PYTHON,
    count_launches,
    count_long_list,
    count_reads,
    is_long_list,
    is_part,
    launches_of,
    may_move,
)
from pytest_torchprof.work.operands import Operands, peak_of

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.work.devices import Device


# ---- Kernels that a device would start at least for the operators of a trace, whatever ran them.
#
# A count is taken at the outermost operator at which devices part, see `work.launches`;
# these operators are the *units* of an estimate. Left out is what is on the host by design: a
# DataLoader's work, and the counters of steps that optimizers keep there.

_FETCH: Final = Names(r"enumerate\(DataLoader\)#")
#: The step of one of torch's optimizers; LBFGS reads its losses.
_STEP: Final = Names(r"Optimizer\.step#(?!LBFGS)")


class Units(Frozen, frozen=True):
    """Operators that count, in time order, and the kernels that each would start.

    ``launches`` has those of operators nested in one, too, where they add to its own.
    ``covers`` marks all events within which nothing else counts, by the chain of ``parent``.
    ``loose`` are those of them within which the CPU may move more bytes than a device.
    """

    event: Ints
    launches: Ints
    covers: Bools
    parent: Ints
    loose: Bools


class _Covered(NamedTuple):
    """What decides which operators are units: marks of events, ``parent`` as in `Units`."""

    ops: Bools
    table: Bools
    foreign: Bools
    unknown: Bools
    loose: Bools
    covers: Bools
    parent: Ints


def estimated_launches(trace: Events) -> int:
    """Kernels that a device would start at least for the selected operators, as far as known."""
    units = units_of(trace)
    return int(units.launches[trace.selection[units.event]].sum())


@once_of_whole
def _covered(trace: Events) -> _Covered:
    ops = trace.is_kind(Kind.OP) & ~only_shapes(trace) & ~on_host(trace)
    table = ops & trace.names_where(_covers)
    unknown = ops & trace.names_where(_is_unknown)
    foreign = unknown & ~trace.names_where(_is_torchs)
    whole = forms(trace)
    loose = (unknown & ~foreign) | (whole.whole & ops)
    if ran_on_host(trace):  # how another library works on the CPU says nothing of a device
        loose |= foreign
    loose[whole.steps] = True
    return _Covered(ops, table, foreign, unknown, loose, table | loose, _parents(trace))


@once_of_whole
def units_of(trace: Events) -> Units:
    """The units of the whole trace, whatever is selected."""
    ops, table, foreign, _, loose, covers, parent = _covered(trace)
    whole = forms(trace)
    rows = {name: launches_of(name) for name in trace.names}
    adds = ops & trace.names_where(lambda name: (row := rows[name]) is not None and row.nested)
    every = (covers | adds).nonzero()[0]
    counted = every[~nesting.below(covers, parent, every)]
    # A composite of nothing else is one itself: torch names some after what they call.
    own = ops & trace.names_where(lambda name: is_part(name) and "::" in name and may_move(name))
    own &= ~covers & ~nesting.above(counted[_moves(trace, counted)], trace.parent)
    leaves = own.nonzero()[0]
    leaves = leaves[~nesting.below(covers, parent, leaves)]
    leaves = leaves[~nesting.above(leaves, trace.parent)[leaves]]
    found = nesting.distinct(np.append(counted, leaves))
    launches = np.zeros(len(trace), np.int64)
    launches[found] = _counts(trace, found)
    # Another library's operator may compute nothing, unless operators of torch do so within it.
    launches[foreign & ~nesting.above(table.nonzero()[0], trace.parent)] = 0
    launches[foreign & ~loose] = 0
    launches[whole.steps] = 0
    launches[whole.counted] = whole.launches
    return Units(found, launches[found], covers, parent, loose)


@once_of_whole
def _unknown_operators(trace: Events) -> Ints:
    """Operators of which nobody knows what they start: at least one kernel, if they compute."""
    if not any(map(_is_unknown, trace.names)):
        return np.zeros(0, np.int64)
    known = _covered(trace)
    rows = known.unknown.nonzero()[0]
    return rows[~nesting.below(known.covers, known.parent, rows)]


@once_of_whole
def has_operands(trace: Events) -> bool:
    """Whether calls that start kernels carry their operands; true if there are none."""
    return carry_operands(trace, units_of(trace).event)


def carry_operands(trace: Events, rows: Ints) -> bool:
    """Whether any of these calls carries its operands; true if there are none."""
    has = by_call(trace, rows, lambda _, call: bool(call.dims), bool)
    return not len(rows) or bool(has.any())


@once_per_trace
def unknown_parts(trace: Events) -> list[UncountedPart]:
    """What is selected and starts an unknown number of kernels, the longest first."""
    unknown = _unknown_operators(trace)
    parts = [
        *by_name(trace, unknown[trace.selection[unknown]], lambda _: Why.NO_LAUNCHES),
        *compiled_parts(trace),
        *in_script(trace),
        *packages(trace),
        *replayed_parts(trace),
    ]
    parts.sort(key=lambda part: (-part.share, part.name))
    return parts


def compiled_parts(trace: Events) -> Iterable[UncountedPart]:
    """What torch.compile made, which runs as other kernels on another device.

    On a device, its share is of what is launched there beside the units, which count.
    """
    calls = trace.selection & trace.names_where(
        lambda name: bool(key_of(name)) or name.startswith(COMPILED_REGION)
    )
    rows = np.flatnonzero(nesting.outermost(calls, trace.parent))
    if not (len(rows) and trace.has(*DEVICE_KINDS)):
        yield from named(trace, rows, (COMPILED,), Why.COMPILED_FOR_HOST)
        return
    known = calls.copy()
    known[units_of(trace).event] = True
    device = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS))
    around = nesting.nearest(known, trace.parent, trace.launch[device])
    lost = device[(around >= 0) & calls[around]]
    if len(lost) or not launched_ns(trace)[rows].all():
        share = int(trace.dur[lost].sum()) / max(whole_time(trace), 1)
        yield UncountedPart(COMPILED, Why.LOOPS, len(rows), share)


def is_compiled(trace: Events) -> Bools:
    """All that runs in compiled code."""
    roots = trace.names_where(lambda name: key_of(name) or name.startswith(COMPILED_REGION))
    return nesting.with_nested(roots, trace.parent, trace.depth) if roots.any() else roots


# -------------------------------------------------------------------- which operators count


def _is_torchs(name: str) -> bool:
    return name.startswith("aten::")


def _parents(trace: Events) -> Ints:
    """The parents of all events, without those of checks that devices make, too, within a whole."""
    checks = operators_named(trace, "aten::_linalg_check_errors")
    if not len(checks):
        return trace.parent
    parent = trace.parent.copy()
    parent[checks] = -1
    return parent


@lru_cache(maxsize=10_000)
def _covers(name: str) -> bool:
    """Whether nothing that is nested in it counts."""
    row = launches_of(name)
    if row is None or row.nested:
        return False
    return row.count != 0 and not is_part(name)


@lru_cache(maxsize=10_000)
def _is_unknown(name: str) -> bool:
    """Whether nobody knows what it starts."""
    return launches_of(name) is None and not is_part(name)


def _moves(trace: Events, events: Ints) -> Bools:
    found: Bools = trace.names_where(may_move)[events]
    return found


@once_of_whole
def on_host(trace: Events) -> Bools:
    """What is no work of a device: loading data, optimizers' counters of steps, and checks that
    only the CPU makes.
    """
    roots = marked(trace, events_named(trace, _FETCH))[:-1]
    roots[host_only(trace)] = True
    steps = events_named(trace, _STEP)
    if len(steps):
        adds = (trace.is_kind(Kind.OP) & trace.named("aten::add_")).nonzero()[0]
        adds = adds[nesting.below(marked(trace, steps)[:-1], trace.parent, adds)]
        roots[adds[_on_a_number(trace, adds)]] = True
    if not roots.any():
        return roots
    return nesting.with_nested(roots, trace.parent, trace.depth)


def _on_a_number(trace: Events, rows: Ints) -> Bools:
    """Which of these calls have a tensor without dimensions as their first operand."""
    return by_call(trace, rows, lambda _, call: bool(call.dims) and call.dims[0] == [], bool)


# -------------------------------------------------------------------- numbers


def _counts(trace: Events, events: Ints) -> Ints:
    """The kernels of each of these calls."""
    if not len(events):
        return events
    counts = by_call(trace, events, _count)
    # Of longer lists than torch records, the CPU shows the tensors one by one.
    long = events[by_call(trace, events, is_long_list, bool)]
    parts = zip(long.tolist(), map(operands_of, trace.operands(long)), strict=True)
    counts[among(events, long)] = [_of_parts(trace, *one) for one in parts]
    return counts


def _of_parts(trace: Events, event: int, call: Operands) -> int:
    """Kernels of a call on a long list, from the tensors of the calls that it is made of."""
    inside = (trace.parent[event + 1 :] == event).nonzero()[0] + event + 1
    inside = inside[trace.kind[inside] == Kind.OP]
    names, count = np.unique(trace.name[inside], return_counts=True)
    if not len(names):
        return 1
    parts = inside[trace.name[inside] == names[count.argmax()]]
    shapes = [operands_of(args).dims for args in trace.operands(parts)]
    firsts = [dims[0] if isinstance(dims, list) and dims else [] for dims in shapes]
    return count_long_list(trace.names[trace.name[event]], call, firsts)


def _count(name: str, call: Operands) -> int:
    row = launches_of(name)
    return 1 if row is None else count_launches(row, call)


# ---- The least time that a chip needs for the operators of a trace, whatever ran them.
#
# For each operator the greatest of three: its FLOPs at the chip's peak for their dtype, its
# compulsory bytes at the bandwidth of the chip's memory (together the roofline of Williams,
# Waterman and Patterson (2009), https://doi.org/10.1145/1498765.1498785), and the shortest time
# of the kernels that it starts. Operators do not overlap in this sum. It is a lower bound, not a
# prediction: it leaves out what the host does, waits, copies to and from the host, and operators
# with unknown work but for their launches. Data that a cache serves may come faster than the
# memory allows.

_Floats = npt.NDArray[np.float64]

Limit = Literal["compute", "memory", "launch"]
LIMITS: Final[tuple[Limit, ...]] = ("launch", "memory", "compute")

#: The shortest kernels of public traces of V100 to B300 and MI300X take this long.
KERNEL_NS: Final = 600

_FP32, _TF32 = DTYPES.index("fp32"), DTYPES.index("tf32")


class Work(Columns, frozen=True):
    """What each unit must do: operators in time order, and their launches, FLOPs, and bytes.

    ``flops`` has a column for each of `DTYPES` and one for those of other dtypes; those that a mask
    hides, or that a faster algorithm saves, do not count. ``all_flops`` are those of the metric.
    ``bytes`` are -1 where unknown, and so are ``all_flops`` where those of a product are.
    """

    event: Ints
    launches: Ints
    flops: _Floats
    all_flops: Ints
    bytes: Ints


class Bound(Frozen, frozen=True):
    """The least time of each selected unit on a chip, in ns, and which of `LIMITS` holds.

    ``unrated`` are the dtypes of `DTYPES` whose peak is unknown, so that their FLOPs take no time.
    """

    work: Work
    ns: _Floats
    limit: Ints
    unrated: tuple[str, ...] = ()

    @property
    def total_ms(self) -> float:
        """The sum, in ms; the same in any order."""
        return math.fsum(self.ns.tolist()) / 1e6


@once_per_trace
def bound(trace: Events, chip: Device) -> Bound:
    """The least time of the selected operators on this chip."""
    every = trace.whole.once(_work)
    mine = trace.selection[every.event]
    work = every.at(mine)
    rates = np.array([chip.peaks.get(dtype, math.inf) for dtype in (*DTYPES, "")])
    if _TF32_PEAK not in chip.peaks:
        rates[_TF32] = rates[_FP32]
    parts = np.stack(
        [
            work.launches * float(KERNEL_NS),
            np.maximum(work.bytes, 0) / chip.bandwidth_bytes_per_s * 1e9,
            (work.flops / rates).sum(axis=1) * 1e9,
        ]
    )
    used = work.flops.any(axis=0) & np.isinf(rates)
    unrated = tuple(dtype for dtype, missing in zip(DTYPES, used.tolist(), strict=False) if missing)
    return Bound(work, parts.max(axis=0, initial=0.0), parts.argmax(axis=0), unrated)


_TF32_PEAK: Final = "tf32"


# -------------------------------------------------------------------- what each unit must do


def _work(trace: Events) -> Work:
    units = units_of(trace)
    flops, moved = op_flops(trace), counted_bytes(trace)
    host = on_host(trace)
    with_flops = (counts_flops(trace) & ~host).nonzero()[0]
    with_bytes = ((moved >= 0) & ~host & ~units.loose).nonzero()[0]
    with_bytes = with_bytes[~nesting.below(units.loose, trace.parent, with_bytes)]
    silent = (unknown_flops(trace) & ~host).nonzero()[0]
    rows = np.concatenate([units.event, with_flops, with_bytes, silent])
    root = nesting.outermost(marked(trace, rows)[:-1], trace.parent)
    event = root.nonzero()[0]
    number = np.full(len(trace), -1, np.int64)
    number[event] = np.arange(len(event))

    def of(rows: Ints) -> Ints:
        """The unit that each of these is, or is nested in."""
        found: Ints = number[nesting.nearest(root, trace.parent, rows)]
        return found

    launches = nesting.summed(of(units.event), units.launches, len(event))
    all_flops = nesting.summed(of(with_flops), flops[with_flops], len(event))
    all_flops[of(silent)] = -1
    table = np.zeros((len(event), len(DTYPES) + 1))
    np.add.at(table, (of(with_flops), _dtypes(trace, with_flops)), _needed(trace, with_flops))
    bytes_ = np.full(len(event), -1, np.int64)
    known = of(with_bytes)
    bytes_[known] = 0
    np.add.at(bytes_, known, moved[with_bytes])
    return Work(event, launches, table, all_flops, bytes_)


def _dtypes(trace: Events, rows: Ints) -> Ints:
    """The column of the dtype in which each of these computes: that of its first tensor.

    Products of fp32 may be rounded to TF32, which is faster, unless the capture knows better;
    convolutions of fp32 are, by default.
    """
    tf32 = trace.facts.allow_tf32 is not False
    return by_call(trace, rows, lambda name, call: _dtype(name, call, tf32=tf32))


def _dtype(name: str, call: Operands, *, tf32: bool) -> int:
    found = peak_of(call, len(DTYPES))
    return _TF32 if found == _FP32 and (tf32 or "conv" in name) else found


def _needed(trace: Events, rows: Ints) -> _Floats:
    """The FLOPs of each of these, without those that a mask hides."""
    needed: _Floats = op_flops(trace)[rows] * by_call(trace, rows, _share, float)
    return needed


def _share(name: str, call: Operands) -> float:
    if name not in masks.MASKS:
        return 1.0
    left = masks.share(name, call.dims, call.types, call.concrete)
    return 0.5 if left is None else left


# ---- The least time of a trace's operators on a chip, operator by operator.


@dataclass(frozen=True)
class BoundRow:
    """All calls of an operator on a chip.

    ``flops`` and ``bytes`` are None if those of some call are unknown: its part of ``bound_ms`` is
    then that of what is known, such as its launches. ``limit`` is what takes most of ``bound_ms``;
    ``share`` is its share of the bound of all.
    """

    device: str
    operator: str
    calls: int
    flops: int | None
    bytes: int | None
    bound_ms: float
    limit: Limit
    share: float | None

    ADDS_UP: ClassVar = ("calls", "flops", "bytes", "bound_ms")


def bound_rows(trace: Events, chip: Device) -> list[BoundRow]:
    """A row for each operator, the largest bound first."""
    found = bound(trace, chip)
    work, total = found.work, found.total_ms
    names, at = np.unique(trace.name[work.event], return_inverse=True)
    count = len(names)
    ns = np.bincount(at, found.ns, count)
    by_limit = np.stack([np.bincount(at, found.ns * (found.limit == i), count) for i in range(3)])
    flops = nesting.summed(at, np.maximum(work.all_flops, 0), count)
    unsaid = np.bincount(at, work.all_flops < 0, count) > 0
    moved = nesting.summed(at, np.maximum(work.bytes, 0), count)
    unknown = np.bincount(at, work.bytes < 0, count) > 0
    calls = np.bincount(at, minlength=count)
    idle = ns == 0
    rows = [
        BoundRow(
            chip.name,
            trace.names[name],
            int(calls[i]),
            None if unsaid[i] else int(flops[i]),
            None if unknown[i] else int(moved[i]),
            float(ns[i]) / 1e6,
            LIMITS[int(by_limit[:, i].argmax())],
            float(ns[i]) / 1e6 / total if total else None,
        )
        for i, name in enumerate(names.tolist())
        if not idle[i]
    ]
    return sorted(rows, key=lambda row: (-row.bound_ms, row.operator))


# ---- The peak that a device's caching allocator would have, from the allocations on the host.
#
# Each block is as large as the allocator makes it. Source: c10/cuda/CUDACachingAllocator.cpp,
# ``round_size``, ``get_allocation_size`` and ``should_split``, and c10/core/AllocatorConfig.h:
# sizes are multiples of 512 B; blocks of up to 1 MiB are cut from buffers of 2 MiB, those below
# 10 MiB from buffers of 20 MiB, larger ones from one that is a multiple of 2 MiB; and what is
# left of a large buffer becomes part of the block unless it is more than 1 MiB. It is the best
# case: every block is cut from a buffer of its own size, none from an old one that is larger.
#
# What an operator that a device runs in its own way allocates and frees before it returns is left
# out: it is scratch of the CPU's libraries, some of it per thread.

_SMALLEST: Final = 512
_MIB: Final = 2**20
_LARGE: Final = 10 * _MIB
_MEMORY_STEP: Final = 2 * _MIB


def block_bytes(size: Ints) -> Ints:
    """Bytes of the block that an allocation of this size gets.

    >>> block_bytes(np.array([0, 1, 512, 513, 10 * 2**20, 11 * 2**20 + 1])).tolist()
    [0, 512, 512, 1024, 10485760, 12582912]
    """
    rounded = -(-size // _SMALLEST) * _SMALLEST
    buffer = -(-rounded // _MEMORY_STEP) * _MEMORY_STEP
    whole = (rounded >= _LARGE) & (buffer - rounded <= _MIB)
    return np.where(whole, buffer, rounded)


def estimated_peak(trace: Events) -> int:
    """The highest live bytes above the start, in blocks, of the selected allocations."""
    return int(max(trace.once(_changes)[1].cumsum().max(initial=0), 0))


def blocks_at_peak(trace: Events) -> tuple[Ints, Ints]:
    """Operators that allocated what is live at this peak, each as a device would run it, and the
    bytes of their blocks.
    """
    owner, blocks = trace.once(_changes)
    if not len(blocks):
        return owner, blocks
    until = int(blocks.cumsum().argmax()) + 1
    known = owner[:until] >= 0
    return owner[:until][known], blocks[:until][known]


def _changes(trace: Events) -> tuple[Ints, Ints]:
    """In order, each change of the live bytes in blocks, and the operator whose block changes."""
    memory = trace.memory.device(on_device=False)
    if not len(memory.bytes):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    inside = selected(trace, memory)
    around = trace.enclosing(memory.event)
    inside &= ~((around >= 0) & on_host(trace)[around])
    row, block, change = changes_of(memory, inside, on_device=False)
    kept = ~_is_scratch(trace, around, row, block)
    blocks = np.sign(change[kept]) * block_bytes(np.abs(change[kept]))
    made = np.where(block[kept] >= 0, around[block[kept]], -1)
    whole = _outermost_unit(trace, made)
    return np.where(whole >= 0, whole, operators_around(trace, made)), blocks


def others_only_help(trace: Events) -> bool:
    """Whether other threads than the region's run operators only while it is within one itself.

    Threads among which torch divides the work of an operator do: their blocks are scratch of it.
    """
    marks = trace.named(REGION).nonzero()[0]
    if not len(marks):
        return False
    calls = outermost(trace)
    calls = calls[trace.selection[calls]]
    main = trace.thread[calls] == trace.thread[marks[0]]
    mine, others = calls[main], calls[~main]
    if not len(mine):
        return not len(others)
    at = mine[np.maximum(np.searchsorted(trace.ts[mine], trace.ts[others], side="right") - 1, 0)]
    starts = trace.ts[at] <= trace.ts[others]
    ends = trace.ts[others] + trace.dur[others] <= trace.ts[at] + trace.dur[at]
    return bool((starts & ends).all())


def kept_for_backward(trace: Events) -> tuple[str, ...]:
    """Operators of which the CPU keeps blocks that a device does not make: parts of wholes.

    They are those with steps in the backward pass, and attention from which more than its result
    is left.
    """
    whole = forms(trace)
    found = distinct(whole.of[trace.selection[whole.of]])
    memory = trace.memory.device(on_device=False)
    math = whole.whole & trace.named(ATTENTION)
    if len(memory.bytes) and math.any():
        around = trace.enclosing(memory.event)
        row, block, _ = changes_of(memory, selected(trace, memory), on_device=False)
        outer = nesting.nearest(math, trace.parent, around)
        freed = (row != block) & (block >= 0)
        left = np.zeros(len(around), np.int64)
        left[row[row == block]] = 1
        left[block[freed][outer[row[freed]] == outer[block[freed]]]] = 0
        left = np.bincount(outer[outer >= 0], left[outer >= 0], len(trace))
        found = distinct(np.append(found, np.flatnonzero(left > 1)))
    return tuple(dict.fromkeys(trace.names[n] for n in trace.name[found].tolist()))


def _is_scratch(trace: Events, around: Ints, row: Ints, block: Ints) -> Bools:
    """Changes by blocks that the call which allocated them frees, too, below a unit of launches.

    ``around`` has the event around each allocation and free, ``row`` and ``block`` those that
    change, and that allocated what changes.
    """
    unit = _outermost_unit(trace, around)
    freed = (row != block) & (block >= 0)
    owner = unit[row[freed]]
    mine = (owner >= 0) & (owner == unit[block[freed]])
    scratch = np.zeros(len(around), bool)
    scratch[block[freed][mine]] = True
    # An address that is used again without a free has a row that is both.
    return scratch[block] & (block >= 0)


def _outermost_unit(trace: Events, events: Ints) -> Ints:
    """The outermost unit of launches around each of these, or -1."""
    top = nesting.outermost(units_of(trace).covers, trace.parent)
    return nesting.nearest(top, trace.parent, events)


# ---- Where the host would wait for values, if the tensors of a trace were on a device.
#
# Left out is what is on the host by design: what a DataLoader and its sampler do, seeds that were
# just drawn, and the counters of steps that optimizers keep there.

#: How torch's optimizers count a step: each parameter's counter, or all at once.
_COUNTS: Final = ("aten::add_", "aten::_foreach_add_")
#: With one argument it calls `nonzero`, and with three it reads nothing.
_POSITIONS: Final = "aten::where"
_REDUCES: Final = late(
    r"aten::(linalg_(vector_)?norm|norm|sum|mean|max|min|amax|amin|dot|prod|any|all|std|var)$"
)


class HostReads(Columns, frozen=True):
    """The operators that read, in time order, and how often each does."""

    event: Ints
    count: Ints

    @property
    def total(self) -> int:
        """All reads."""
        return int(self.count.sum())


@once_per_trace
def host_reads(trace: Events) -> HostReads:
    """The reads of the selected operators."""
    found = _all_reads(trace)
    return found.at(trace.selection[found.event])


@once_of_whole
def _all_reads(trace: Events) -> HostReads:
    rows, lists = operators_named(trace, *READS), _to_python(trace)
    if not (len(rows) or len(lists)):
        return HostReads(rows, rows)
    host = on_host(trace)
    rows, lists = rows[~host[rows]], lists[~host[lists]]
    if len(rows):
        known = _covered(trace)
        covers = known.covers & ~trace.names_where(_may_be_a_read)
        rows = rows[~nesting.below(covers, known.parent, rows)]
        rows = nesting.outermost(marked(trace, rows)[:-1], trace.parent).nonzero()[0]
        rows = rows[~_is_counter(trace, rows) & ~_is_seed(trace, rows) & ~_is_filler(trace, rows)]
    event = np.concatenate([rows, lists])
    count = np.concatenate([by_call(trace, rows, count_reads), np.ones(len(lists), np.int64)])
    order = np.argsort(event, kind="stable")
    kept = order[count[order] > 0]
    return HostReads(event[kept], count[kept])


def _may_be_a_read(name: str) -> bool:
    return name in READS or name == _POSITIONS


def _is_counter(trace: Events, rows: Ints) -> Bools:
    """An optimizer's own counters, which are on the host unless it is told otherwise.

    It reads them once it has counted. What a closure reads comes before that, and what is read of
    parameters or gradients was reduced to one number just before.
    """
    found = np.zeros(len(rows), bool)
    steps = events_named(trace, _STEP)
    if not (len(steps) and len(rows)):
        return found
    is_step = marked(trace, steps)[:-1]
    scalars = trace.named("aten::_local_scalar_dense")[rows]
    mine = np.flatnonzero(scalars & nesting.below(is_step, trace.parent, rows))
    counts = operators_named(trace, *_COUNTS)
    counts = counts[_on_a_number(trace, counts) | trace.named("aten::_foreach_add_")[counts]]
    counts = counts[nesting.below(is_step, trace.parent, counts)]
    if not (len(mine) and len(counts)):
        return found
    begun = np.full(len(trace), np.iinfo(np.int64).max)
    of = nesting.nearest(is_step, trace.parent, counts)
    np.minimum.at(begun, of, trace.ts[counts])
    read = rows[mine]
    later = trace.ts[read] > begun[nesting.nearest(is_step, trace.parent, read)]
    before = _operator_before(trace, _outermost_operators(trace, read))
    reduced = trace.names_where(_REDUCES.match)[before] & (before >= 0)
    found[mine[later & ~reduced]] = True
    return found


def _is_filler(trace: Events, rows: Ints) -> Bools:
    """A number that a mask writes: only one on the host is read for that."""
    scalars = trace.named("aten::_local_scalar_dense")[rows]
    return scalars & nesting.below(trace.named("aten::_index_put_impl_"), trace.parent, rows)


def _is_seed(trace: Events, rows: Ints) -> Bools:
    """A number that was drawn just before, as samplers and loaders draw their seeds."""
    drawn = operators_named(trace, "aten::random_")
    seeds = marked(trace, drawn[_on_a_number(trace, drawn)])
    before = _operator_before(trace, _outermost_operators(trace, rows))
    return seeds[before]


def _outermost_operators(trace: Events, rows: Ints) -> Ints:
    """The outermost operator around each of these."""
    return nesting.nearest(marked(trace, outermost(trace)), trace.parent, rows)


def _operator_before(trace: Events, rows: Ints) -> Ints:
    """The operator of the same thread and parent that begins before each of these; -1 for none."""
    ops = trace.is_kind(Kind.OP).nonzero()[0]
    key = np.lexsort((ops, trace.parent[ops], trace.thread[ops]))
    order = ops[key]
    place = np.full(len(trace), -1, np.int64)
    place[order] = np.arange(len(order))
    at = place[rows] - 1
    before = order[np.maximum(at, 0)]
    same = (at >= 0) & (trace.parent[before] == trace.parent[rows])
    same &= trace.thread[before] == trace.thread[rows]
    return np.where(same, before, -1)


def _to_python(trace: Events) -> Ints:
    """The ends of `tolist` and `numpy`, outside of operators."""
    first, second = TO_PYTHON
    rows = operators_named(trace, second)
    if not len(rows):
        return rows
    ops = trace.is_kind(Kind.OP)
    above = trace.parent[rows]
    rows = rows[(above < 0) | ~ops[above]]
    before = _operator_before(trace, rows)
    return rows[trace.named(first)[before] & (before >= 0)]
