"""Memory of a trace: live bytes, what they are for, peaks, leaks, and the allocators' totals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from math import exp, lgamma, prod
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from pytest_torchprof.core.records import Columns, Frozen
from pytest_torchprof.trace import nesting, steps
from pytest_torchprof.trace.arguments import (
    AutogradArgs,
    MemoryTotals,
    decode,
    decode_part,
    int64_column,
)
from pytest_torchprof.trace.names import (
    MODULE,
    MODULE_MARK,
    Kind,
    Names,
    events_named,
    marks_named,
    once_per_trace,
    operators_named,
)
from pytest_torchprof.trace.steps import selects_by_time
from pytest_torchprof.trace.tree import engine_steps, has_frames, marked, outermost, paths_of
from pytest_torchprof.work.operands import ELEMENT_BYTES

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events, Memory
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- Live bytes over time, from ``[memory]`` events.

#: Operators that only allocate: their bytes belong to the operator that called them.
ALLOCATORS = frozenset(
    {
        "aten::empty",
        "aten::empty_like",
        "aten::empty_strided",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::resize_",
        "aten::empty_quantized",
    }
)


OUTSIDE = "(outside operators)"
BEFORE = "(before the region)"
UNKNOWN_OWNER = "(unknown: the trace has no addresses)"

#: Names of c10's device types by number. Source: c10/core/DeviceType.h.
DEVICE_TYPES = (
    *("cpu", "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip", "fpga", "maia", "xla", "vulkan"),
    *("metal", "xpu", "mps", "meta", "hpu", "ve", "lazy", "ipu", "mtia", "privateuseone"),
)


class Usage(Frozen, frozen=True):
    """Bytes of one kind of device over the selected part of a trace, and by allocating operator.

    ``peak_bytes`` is the highest live amount above the start of the region. ``leaked_bytes`` is
    how much more is live at its end (after a garbage collection) than at its start; of operators
    and modules, whose results outlive them, what of theirs is live at the end of the capture. The
    ``*_by`` maps split these numbers by the operator that allocated; frees of earlier blocks count
    as negative.
    """

    allocated_bytes: int
    peak_bytes: int
    leaked_bytes: int
    allocated_by: dict[str, int]
    peak_by: dict[str, int]
    leaked_by: dict[str, int]


@once_per_trace
def usage(trace: Events, *, on_device: bool) -> Usage:
    """Allocated, peak and leaked bytes of the host, or of all accelerators together.

    On the host only frees of blocks allocated inside the region count. torch.profiler drops the
    frees of blocks whose allocation it has not seen, except of those that an earlier session saw,
    so counting them would make the numbers depend on the order of tests. The accelerator's
    allocator reports every free, and its running sum is what ``torch.cuda.max_memory_allocated``
    follows.
    """
    memory = trace.memory.device(on_device)
    if not len(memory.bytes):
        return Usage(0, 0, 0, {}, {}, {})
    inside, owners = selected(trace, memory), trace.whole.once(_owner_of_block, on_device)
    _, block, size = changes_of(memory, inside, on_device)
    owner = owners[block]
    left_owner, left = owner, size
    if trace.scope is not None and selects_by_time(trace):  # it ends before the capture does
        row, block, left = changes_of(memory, selected(trace.whole, memory), on_device)
        left_owner, left = owners[block[inside[row]]], left[inside[row]]
    peak, until_peak = _peak(size)
    allocation = size > 0
    return Usage(
        allocated_bytes=int(size[allocation].sum()),
        peak_bytes=peak,
        leaked_bytes=int(left.sum()),
        allocated_by=_by_owner(trace, owner[allocation], size[allocation]),
        peak_by=_by_owner(trace, owner[until_peak], size[until_peak]),
        leaked_by=_by_owner(trace, left_owner, left),
    )


def held_blocks(trace: Events, *, on_device: bool) -> tuple[Ints, Ints, Ints, Ints]:
    """The events of the selected part that allocate, each with its bytes: all, those live at the
    peak, and those that are left at the end.
    """
    memory = trace.memory.device(on_device)
    _, block, size = changes_of(memory, selected(trace, memory), on_device)
    _, until = _peak(size)
    known, number = np.unique(block[block >= 0], return_inverse=True)
    parts = [np.maximum(size, 0), np.where(np.arange(len(size)) < until.stop, size, 0), size]
    number, size_of = number.astype(np.int64), len(known)
    total, peak, left = (nesting.summed(number, part[block >= 0], size_of) for part in parts)
    return memory.event[known], total, peak, left


def _owner_of_block(whole: Events, on_device: bool) -> Ints:
    """The owner of each block; that of block -1, the last one, is -2."""
    return np.append(owners_of(whole, whole.memory.device(on_device).event), -2)


def _peak(size: Ints) -> tuple[int, slice]:
    """The highest running sum above 0, and the slice up to where it is first reached."""
    live = size.cumsum()
    top = int(live.argmax()) if len(live) else 0
    peak = max(int(live[top]), 0) if len(live) else 0
    return peak, slice(0, top + 1 if peak else 0)


def changes_of(memory: Memory, inside: Bools, on_device: bool) -> tuple[Ints, Ints, Ints]:
    """The changes of the live bytes: (row, row that allocated the block or -1, bytes), in order.

    The next event at a block's address ends it: its free, or another allocation if the free was
    not seen.
    """
    rows, size = np.arange(len(memory.bytes)), memory.bytes
    fresh = inside & (size > 0)
    if memory.addr is None:  # then a free does not identify its block
        changed = (inside & (size != 0)).nonzero()[0]
        return changed, np.where(fresh, rows, -1)[changed], size[changed]
    order = memory.addr.argsort(kind="stable")
    order = order[size[order] != 0]
    follows = memory.addr[order[1:]] == memory.addr[order[:-1]]
    before = np.full(len(rows), -1, np.int64)
    before[order[1:][follows]] = order[:-1][follows]
    ends = (before >= 0) & fresh[before]
    older = inside & (size < 0) & ~ends & on_device
    row = np.concatenate([rows[ends], rows[older], rows[fresh]])
    freed = before[ends]
    block = np.concatenate([freed, np.full(older.sum(), -1), rows[fresh]])
    change = np.concatenate([-size[freed], size[older], size[fresh]])
    in_time = row.argsort(kind="stable")  # an address is freed before it is reused
    return row[in_time], block[in_time], change[in_time]


def selected(trace: Events, memory: Memory) -> Bools:
    """Which of these allocations and frees are in the selected part of the trace."""
    if selects_by_time(trace):
        return trace.selection[memory.event]
    around = trace.enclosing(memory.event)
    return (around >= 0) & trace.selection[around] & trace.in_region[memory.event]


def owners_of(trace: Events, events: Ints) -> Ints:
    """Name of the innermost operator around each event that does not just allocate, or -1."""
    ops = trace.is_kind(Kind.OP)
    more = ops & ~trace.names_where(ALLOCATORS.__contains__)
    owner = np.full(len(events), -1, np.int64)
    around = trace.enclosing(events)
    todo = (around >= 0).nonzero()[0]
    at = around[todo]
    while len(todo):
        is_op = ops[at]
        owner[todo[is_op]] = trace.name[at[is_op]]
        up = trace.parent[at]
        left = (up >= 0) & ~more[at]
        todo, at = todo[left], up[left]
    return owner


def _by_owner(trace: Events, owner: Ints, size: Ints) -> dict[str, int]:
    names = [*trace.names, BEFORE, OUTSIDE]  # -2 and -1
    total = nesting.summed(owner, size, len(names))
    some = total.nonzero()[0]
    return {names[i]: size for i, size in zip(some.tolist(), total[some].tolist(), strict=True)}


# -------------------------------------------------------------------- peaks, device by device


@dataclass(frozen=True)
class LiveRow:
    """An operator's blocks that were live at the peak; ``count`` is None where unknown."""

    operator: str
    bytes: int
    count: int | None


@dataclass(frozen=True)
class PeakMemory:
    """The highest live amount of one device above its start, and its parts.

    ``at_ms`` is the time from the trace's first event to the peak, None if the amount was never
    above the start. ``rows`` add up to ``peak_bytes``, largest first. On an accelerator, freeing
    blocks from before the trace (or before a live capture's region) lowers the amount: the row
    `BEFORE` has negative bytes and counts those blocks.
    """

    device: str
    peak_bytes: int
    at_ms: float | None
    rows: list[LiveRow]


def memory_of_devices(trace: Events) -> Iterator[tuple[str, Memory]]:
    """The name and the events of the host, if it has any, then of each accelerator by index."""
    for place in trace.memory.places:
        memory = trace.memory.where((trace.memory.place == place).all(axis=1))
        if memory.bytes.any():
            yield device_name(*place), memory


def memory_peaks(trace: Events) -> list[PeakMemory]:
    """The host first, then each accelerator by index; none for a trace without memory events.

    Blocks are followed as in `usage`. Where the events have no addresses, as in 2021, the amount
    is known, but not its parts.
    """
    return [_peak_of(trace, memory, device) for device, memory in memory_of_devices(trace)]


def live_at_start(trace: Events) -> dict[str, int | None]:
    """Bytes that were live on each device before the first change in the selected part.

    This is the count of the accelerator's allocator: ``Total Allocated`` of the first event less
    its ``Bytes``. None where the trace lacks it, and for the host, whose allocator counts only
    from the start of a profiler (c10/core/CPUAllocator.cpp).
    """
    found: dict[str, int | None] = {}
    for device, memory in memory_of_devices(trace):
        rows = selected(trace, memory).nonzero()[0][:1]
        if len(rows):
            total = decode(MemoryTotals, trace.args[memory.event[rows]])[0].allocated
            start = total - int(memory.bytes[rows[0]])
            known = memory.on_device[0] and total >= 0 and start >= 0
            found[device] = start if known else None
    return found


def device_name(device_type: int, device_id: int) -> str:
    """The device as torch names it, from c10's number of its type and its index."""
    known = 0 <= device_type < len(DEVICE_TYPES)
    name = DEVICE_TYPES[device_type] if known else f"device type {device_type}"
    return f"{name}:{device_id}" if device_type and device_id >= 0 else name


def _peak_of(trace: Events, memory: Memory, device: str) -> PeakMemory:
    on_device = bool(memory.on_device[0])
    row, block, size = changes_of(memory, selected(trace, memory), on_device)
    peak, until = _peak(size)
    if not peak:
        return PeakMemory(device, 0, None, [])
    at = int(trace.ts[memory.event[row[until][-1]]] - trace.ts[0])
    if memory.addr is None:
        return PeakMemory(device, peak, at / 1e6, [LiveRow(UNKNOWN_OWNER, peak, None)])
    owner = np.append(owners_of(trace, memory.event), -2)[block[until]]
    amount = _by_owner(trace, owner, size[until])
    blocks = _by_owner(trace, owner, np.sign(size[until]))
    rows = [LiveRow(name, amount[name], abs(blocks.get(name, 0))) for name in amount]
    return PeakMemory(device, peak, at / 1e6, sorted(rows, key=lambda r: (-r.bytes, r.operator)))


# ---- Where in a training step a moment is: forward, backward, optimizer's step, ``zero_grad``.

#: torch's annotations around an optimizer's work.
OPTIMIZER_STEP: Final = Names(r"Optimizer\.step#")
ZERO_GRAD: Final = Names(r"Optimizer\.zero_grad#")
#: The autograd node that stores a gradient: it keeps the first one and adds any further one.
ACCUMULATE: Final = "torch::autograd::AccumulateGrad"

#: The end of what does not end in the trace.
NEVER: Final = np.iinfo(np.int64).max


class Moments(Columns, frozen=True):
    """What encloses some events that are points in time; event indices, -1 for none.

    ``root`` is the outermost operator, ``node`` a step of the autograd engine, ``step`` and
    ``zeroing`` are annotations of an optimizer.
    """

    root: Ints
    node: Ints
    step: Ints
    zeroing: Ints


def moments_of(trace: Events, events: Ints) -> Moments:
    """What encloses these events."""
    around = trace.enclosing(events)
    kinds = (
        outermost(trace),
        engine_steps(trace),
        events_named(trace, OPTIMIZER_STEP),
        events_named(trace, ZERO_GRAD),
    )
    return Moments(*[nesting.nearest(marked(trace, rows), trace.parent, around) for rows in kinds])


class BackwardPasses(Frozen, frozen=True):
    """The backward passes of a trace, numbered by what comes before them.

    A pass ends with the next operator or optimizer's annotation that the main thread runs outside
    the autograd engine. ``cuts`` are these moments, in ns; pass ``i`` ends at ``cuts[i]``.
    """

    cuts: Ints

    def of(self, ts: Ints) -> Ints:
        """The number of the pass that contains each of these moments within the engine."""
        return self.cuts.searchsorted(ts, side="right")

    def end(self, number: Ints) -> Ints:
        """When each of these passes ends, in ns; NEVER for the last one, if nothing follows."""
        return np.append(self.cuts, NEVER)[number]


@once_per_trace
def backward_passes(trace: Events) -> BackwardPasses:
    """The backward passes of a trace."""
    engine = marked(trace, engine_steps(trace))
    other = outermost(trace)
    other = other[~engine[other]]
    marks = events_named(trace, OPTIMIZER_STEP, ZERO_GRAD)
    rows = np.concatenate([other, marks])
    if not len(rows):
        return BackwardPasses(rows)
    main = np.bincount(trace.thread[rows]).argmax()  # loaders and engines have fewer
    return BackwardPasses(np.sort(trace.ts[rows[trace.thread[rows] == main]]))


def accumulations(trace: Events) -> Ints:
    """The operators that store a leaf's gradient, in time order."""
    return operators_named(trace, ACCUMULATE)


def are_differentiated(trace: Events, roots: Ints) -> Bools:
    """Which of these outermost operators made a node that a backward pass of the trace has run.

    An operator has the ``Sequence number`` of the next node when it begins, so its nodes have the
    numbers from there to that of the next outermost operator of its thread. Threads count on their
    own, so that several threads with a forward pass may be taken for each other.
    """
    if not len(roots) or not len(engine_steps(trace)):
        return np.zeros(len(roots), bool)
    return trace.once(_differentiated)[roots]


def _differentiated(trace: Events) -> Bools:
    found = np.zeros(len(trace) + 1, bool)  # the last entry is that of -1
    nodes = engine_steps(trace)
    rows = outermost(trace)
    rows = rows[~marked(trace, nodes)[rows]]
    ran = np.sort(_sequence(trace, nodes))
    first = _sequence(trace, rows)
    rows, first = rows[first >= 0], first[first >= 0]
    for mine in nesting.by_thread(trace.thread[rows]):
        begin = first[mine]
        end = np.append(begin[1:], NEVER)
        end = np.where(end < begin, NEVER, end)
        some = ran.searchsorted(end) > ran.searchsorted(begin)
        found[rows[mine]] = some
    return found


def _sequence(trace: Events, rows: Ints) -> Ints:
    """Sequence numbers of operators, -1 for none."""
    args = decode(AutogradArgs, trace.args[rows])
    return int64_column([a.sequence for a in args])


def are_in_modules(trace: Events, events: Ints) -> Bools:
    """Which of these events happened while an ``nn.Module`` was called, on their thread.

    All false in a trace without Python functions.
    """
    calls = trace.is_kind(Kind.PYTHON) & trace.names_where(MODULE.match)
    calls |= trace.names_where(lambda name: name.startswith(MODULE_MARK))
    rows = calls.nonzero()[0]
    found = np.zeros(len(events), bool)
    if not (len(rows) and len(events)):
        return found
    for mine in nesting.by_thread(trace.thread[events]):
        here = rows[trace.thread[rows] == trace.thread[events[mine[0]]]]
        if len(here):
            latest = np.maximum.accumulate(trace.ts[here] + trace.dur[here])
            when = trace.ts[events[mine]]
            at = trace.ts[here].searchsorted(when, side="right") - 1
            found[mine] = (at >= 0) & (latest[at] >= when)
    return found


# ---- What blocks of memory are for: parameters, gradients, optimizer state, activations,
# temporaries.
#
# torch's own profiler (``torch/profiler/_memory_profiler.py``) follows tensors from operator to
# operator. A stored trace has no tensors, only blocks: when and in which operator they were
# allocated and freed. What follows from that is told, and everything else is unknown.


class Category(IntEnum):
    """What a block is for. ``BEFORE`` is what was live before the trace, and not told apart."""

    PARAMETERS = 0
    GRADIENTS = 1
    OPTIMIZER_STATE = 2
    ACTIVATIONS = 3
    TEMPORARIES = 4
    UNKNOWN = 5
    BEFORE = 6

    @property
    def label(self) -> str:
        """For people."""
        return _LABELS.get(self, self.name.lower().replace("_", " "))


_LABELS = {Category.BEFORE: "live before"}

#: The allocator of CUDA rounds sizes up to this, and leaves at most the other unused in a block of
#: a larger size. Source: kMinBlockSize, kSmallSize and should_split in
#: c10/cuda/CUDACachingAllocator.
_ROUNDED, _UNSPLIT = 512, 2**20
#: No block is that large.
_UNREAL = 2**60


class Lives(Frozen, frozen=True):
    """Blocks of one device, in the order of their allocation, and the frees of older ones.

    ``allocated`` and ``freed`` are events, ``born`` and ``died`` their times in ns. ``died`` is
    NEVER for what the trace does not free. ``freed`` is -1 for that, and where the free was not
    seen, only the next allocation at the address. ``older`` are events that freed a block from
    before the trace or its measured region.
    """

    allocated: Ints
    freed: Ints
    born: Ints
    died: Ints
    bytes: Ints
    older: Ints
    on_device: bool


def lives_of(trace: Events, memory: Memory, row: Ints, block: Ints, size: Ints) -> Lives:
    """The lives of one device's blocks, from its `changes_of` the live bytes."""
    end = np.full(len(memory.bytes), -1, np.int64)
    ends = (size < 0) & (block >= 0)
    end[block[ends]] = row[ends]
    born = row[size > 0]
    end = end[born]
    seen = (end >= 0) & (memory.bytes[end] < 0)
    return Lives(
        memory.event[born],
        np.where(seen, memory.event[end], -1),
        trace.ts[memory.event[born]],
        np.where(end >= 0, trace.ts[memory.event[end]], NEVER),
        memory.bytes[born],
        memory.event[row[(size < 0) & (block < 0)]],
        bool(memory.on_device[0]),
    )


def categories_of(trace: Events, lives: Lives) -> tuple[Ints, Ints]:
    """The `Category` of each block, and of each older one.

    A block that outlives the operator that allocated it is told by where it was allocated and
    freed, by the first of these that holds:

    - in a backward pass: a temporary if it is gone when the pass ends. Else a gradient if a leaf of
      the pass has this size, and no more blocks than leaves have it, or if ``zero_grad`` frees it.
    - in an optimizer's step: a temporary if it is gone when the step ends. Else optimizer state if
      it outlives the next step, too, or the trace.
    - elsewhere: a temporary if the operator that allocated it frees it. An activation if a
      backward pass frees it, or runs a node of that operator. A parameter if it is older
      than all activations, lives through all backward passes, and has the size of a leaf, as do no
      more blocks than leaves; only if there are such blocks for all leaves. An activation if an
      ``nn.Module`` allocated it.

    Older blocks are gradients if ``zero_grad`` frees them, and activations if a backward pass does.
    """
    count = len(lives.born)
    freed = (lives.freed >= 0).nonzero()[0]
    every = moments_of(trace, np.concatenate([lives.allocated, lives.freed[freed], lives.older]))
    start, older = every.at(slice(count)), every.at(slice(count + len(freed), None))
    ended = np.full(count, -1, np.int64)
    ended[freed] = count + np.arange(len(freed))
    end = Moments(*[np.where(ended >= 0, column[ended], -1) for column in every.columns()])
    found = np.full(count, Category.UNKNOWN, np.int64)
    leaves = trace.once(_leaves)
    backward = start.node >= 0
    stepping = ~backward & (start.step >= 0)
    forward = ~backward & ~stepping
    _in_backward(trace, lives, end, leaves, backward.nonzero()[0], found)
    _in_steps(trace, lives, start, stepping.nonzero()[0], found)
    gone = forward & (start.root >= 0) & (end.root == start.root)
    found[gone] = Category.TEMPORARIES
    saved = forward & ~gone
    saved &= (end.node >= 0) | are_differentiated(trace, start.root)
    found[saved] = Category.ACTIVATIONS
    rest = (forward & ~gone & ~saved).nonzero()[0]
    first = lives.born[saved].min(initial=NEVER)
    found[rest[_are_parameters(trace, lives, leaves, rest, first)]] = Category.PARAMETERS
    rest = rest[found[rest] == Category.UNKNOWN]
    found[rest[are_in_modules(trace, lives.allocated[rest])]] = Category.ACTIVATIONS
    before = np.where(older.node >= 0, Category.ACTIVATIONS, Category.BEFORE)
    return found, np.where(older.zeroing >= 0, Category.GRADIENTS, before)


def _in_backward(
    trace: Events, lives: Lives, end: Moments, leaves: Leaves, rows: Ints, found: Ints
) -> None:
    passes = backward_passes(trace)
    number = passes.of(lives.born[rows])
    over = lives.died[rows] <= passes.end(number)
    over &= lives.died[rows] < NEVER
    found[rows[over]] = Category.TEMPORARIES
    rows, number = rows[~over], number[~over]
    ours, _ = _matched(number, lives.bytes[rows], leaves, lives.on_device)
    found[rows[ours | (end.zeroing[rows] >= 0)]] = Category.GRADIENTS


def _in_steps(trace: Events, lives: Lives, start: Moments, rows: Ints, found: Ints) -> None:
    steps = events_named(trace, OPTIMIZER_STEP)
    begins, ends = trace.ts[steps], trace.ts[steps] + trace.dur[steps]
    own = start.step[rows]
    end = trace.ts[own] + trace.dur[own]
    following = np.append(ends, NEVER)[begins.searchsorted(end)]
    died = lives.died[rows]
    found[rows[died >= following]] = Category.OPTIMIZER_STATE
    found[rows[died <= end]] = Category.TEMPORARIES


# -------------------------------------------------------------------- leaves and their sizes


class Leaves(Frozen, frozen=True):
    """The leaves whose gradients backward passes have stored: a pass and a size for each.

    ``sized`` is whether the trace has shapes; otherwise all sizes are 0.
    """

    number: Ints
    bytes: Ints
    sized: bool


def _leaves(trace: Events) -> Leaves:
    rows = accumulations(trace)
    number = backward_passes(trace).of(trace.ts[rows])
    sizes = np.array([_bytes(args.dims, args.types) for args in trace.operands(rows)], np.int64)
    known = sizes > 0
    if not known.any():
        return Leaves(number, np.zeros(len(rows), np.int64), sized=False)
    return Leaves(number[known], sizes[known], sized=True)


def _bytes(dims: bytes, types: bytes) -> int:
    """Of the first operand; 0 if unknown."""
    shapes, kinds = decode_part(bytes(dims)), decode_part(bytes(types))
    if not (isinstance(shapes, list) and isinstance(kinds, list) and shapes and kinds):
        return 0
    shape, kind = shapes[0], kinds[0]
    if not (isinstance(kind, str) and isinstance(shape, list)):
        return 0
    if not all(type(size) is int and 0 < size < _UNREAL for size in shape):
        return 0
    size = prod(shape) * ELEMENT_BYTES.get(kind, 0)
    return size if size < _UNREAL else 0


def _allocated(sizes: Ints, on_device: bool) -> Ints:
    return -(-sizes // _ROUNDED) * _ROUNDED if on_device else sizes


def _matched(number: Ints, sizes: Ints, leaves: Leaves, on_device: bool) -> tuple[Bools, Ints]:
    """Which blocks have the size of a leaf of their pass, as no more blocks have than leaves; and
    for each leaf, how many more blocks than leaves have its pass and size.
    """
    wanted = _allocated(leaves.bytes, on_device)
    known = nesting.distinct(wanted)
    if not len(known):
        return np.zeros(len(sizes), bool), wanted
    at = known.searchsorted(sizes, side="right") - 1
    if leaves.sized:
        most = np.where(on_device & (known[at] > _UNSPLIT), _UNSPLIT, 0)
        fits = (at >= 0) & (sizes - known[at] <= most)
    else:
        fits = np.ones(len(sizes), bool)
    keys = np.concatenate([number[fits], leaves.number]) * len(known)
    keys += np.concatenate([at[fits], known.searchsorted(wanted)])
    _, group = np.unique(keys, return_inverse=True)
    there, asked = group[: fits.sum()], group[fits.sum() :]
    blocks, count = (np.bincount(part, minlength=len(keys)) for part in (there, asked))
    found = fits.copy()
    found[fits] = (blocks <= count)[there]
    return found, (blocks - count)[asked]


def _are_parameters(trace: Events, lives: Lives, leaves: Leaves, rows: Ints, first: int) -> Bools:
    """``first``: when the first activation was allocated."""
    found = np.zeros(len(rows), bool)
    if not leaves.sized:
        return found
    when = trace.ts[accumulations(trace)]
    born, died = lives.born[rows], lives.died[rows]
    through = (born < min(first, when.min())) & (died > when.max())
    sizes = lives.bytes[rows[through]]
    mine, more = _matched(np.zeros_like(sizes), sizes, _most(leaves), lives.on_device)
    if (more >= 0).all():
        found[through] = mine
    return found


def _most(leaves: Leaves) -> Leaves:
    """As many leaves of each size as the pass with most of them has."""
    keys, count = np.unique(np.stack([leaves.bytes, leaves.number]), axis=1, return_counts=True)
    sizes, at = np.unique(keys[0], return_inverse=True)
    most = np.zeros(len(sizes), np.int64)
    np.maximum.at(most, at, count)
    every = np.repeat(sizes, most)
    return Leaves(np.zeros_like(every), every, leaves.sized)


def parameters_before(trace: Events, lives: Lives, categories: Ints) -> int:
    """Bytes of parameters that were live before the trace; 0 if that cannot be told.

    A parameter is where its gradient is. If one backward pass has stored a new gradient on this
    device for each of its leaves, their sizes are those of the parameters. None are from before if
    the trace has allocated some.
    """
    leaves = trace.once(_leaves)
    if not leaves.sized or (categories == Category.PARAMETERS).any():
        return 0
    rows = (categories == Category.GRADIENTS).nonzero()[0]
    number = backward_passes(trace).of(lives.born[rows])
    _, more = _matched(number, lives.bytes[rows], leaves, lives.on_device)
    wanted = _allocated(leaves.bytes, lives.on_device)
    _, one = np.unique(leaves.number, return_inverse=True)
    total, other = (np.bincount(one, weights=of).astype(np.int64) for of in (wanted, more != 0))
    return int(total[other == 0].max(initial=0))


# ---- Memory that grows from step to step.

#: Levels that are exchangeable rise as often as not. Below this probability growth is clear: five
#: levels in ascending order have 1 in 5! = 0.8 %.
_CHANCE: Final = 0.01
#: The least number of steps: the first warms up, and its end is the first level.
LEAST_STEPS: Final = 5
#: How many levels to hold at once.
_TABLE: Final = 1_000_000


@dataclass(frozen=True)
class LeakRow:
    """Blocks of one allocating operator (and stack, if recorded) that pile up from step to step.

    ``bytes`` and ``blocks`` are how much more of them was live at the end of the last step than at
    the end of the first, ``bytes_per_step`` is their mean growth. ``blocks`` is 0 if blocks were
    replaced by larger ones. ``steps`` is how many steps that took, the first one not included.
    """

    device: str
    operator: str
    bytes: int
    bytes_per_step: float
    blocks: int
    steps: int
    #: Python functions, outermost first, joined by ``;``; None where not recorded.
    stack: str | None = None


class StepMoments(Frozen, frozen=True):
    """Between which moments to look for leaks: what ends then, and when, in ns, ascending."""

    name: str
    ends: Ints


@once_per_trace
def step_moments(trace: Events) -> StepMoments:
    """The ends of the steps, of the optimizer's if there are none; without a name if of neither."""
    found = steps.steps_of(trace, steps.step_name_of(trace))
    chosen = trace.selection[found.event]
    if len(found):
        return StepMoments(found.name, np.sort(found.end[chosen]))
    updates = marks_named(trace, OPTIMIZER_STEP)
    updates = updates[trace.selection[updates]]
    name = "Optimizer.step" if len(updates) else ""
    return StepMoments(name, np.sort(trace.ts[updates] + trace.dur[updates]))


def memory_leaks(trace: Events) -> list[LeakRow] | None:
    """What grows from step to step, the most bytes first.

    None with fewer steps than `LEAST_STEPS`, and if the trace has no addresses of blocks.

    The level of an operator's blocks at the ends of steps, from the first one on, never falls and
    rises in at least a third of the steps, early ones, middle ones and late ones. That it
    rises is not chance: in random order, the levels would be ascending with a probability of the
    product of the factorials of how often each level occurs, by the factorial of their number
    (a permutation test), which is below 1 %. If the trace has stacks, each of them is tested, too.
    """
    ends = step_moments(trace).ends
    if len(ends) < LEAST_STEPS or trace.memory.addr is None or not len(trace.memory.event):
        return None
    found = [
        leak
        for device, memory in memory_of_devices(trace)
        for leak in _leaks(trace, device, memory, ends)
    ]
    return sorted(found, key=lambda leak: (-leak.bytes, leak.device, leak.operator))


def _leaks(trace: Events, device: str, memory: Memory, ends: Ints) -> Iterator[LeakRow]:
    row, block, size = changes_of(memory, selected(trace, memory), bool(memory.on_device[0]))
    step = ends.searchsorted(trace.ts[memory.event[row]])
    known = (block >= 0) & (step < len(ends))
    block, size, step = block[known], size[known], step[known]
    owner = owners_of(trace, memory.event)
    for number, level, count in _growing(owner[block], size, step, len(ends)):
        operator = trace.names[number] if number >= 0 else OUTSIDE
        mine = owner[block] == number
        rows = [_row(device, operator, level, count)]
        if has_frames(trace):
            path, text = _stacks(trace, memory.event[block[mine]])
            by_stack = _growing(path, size[mine], step[mine], len(ends))
            rows = [_row(device, operator, of, n, text(one)) for one, of, n in by_stack] or rows
        yield from rows


def _row(device: str, operator: str, level: Ints, count: Ints, stack: str | None = None) -> LeakRow:
    grown, steps = int(level[-1] - level[0]), len(level) - 1
    return LeakRow(device, operator, grown, grown / steps, int(count[-1] - count[0]), steps, stack)


def _growing(key: Ints, size: Ints, step: Ints, steps: int) -> Iterator[tuple[int, Ints, Ints]]:
    """Keys that grow, with their bytes and blocks at the end of each step."""
    keys, at = np.unique(key, return_inverse=True)
    net = nesting.summed(at[step > 0], size[step > 0], len(keys))
    some = (net > 0).nonzero()[0]
    width = max(_TABLE // steps, 1)
    for first in range(0, len(some), width):
        part = some[first : first + width]
        place = np.full(len(keys), -1, np.int64)
        place[part] = np.arange(len(part))
        mine = (place[at] >= 0).nonzero()[0]
        where = place[at[mine]], step[mine]
        level, count = np.zeros((2, len(part), steps), np.int64)
        np.add.at(level, where, size[mine])
        np.add.at(count, where, np.sign(size[mine]))
        level, count = level.cumsum(1), count.cumsum(1)
        for i in _clear(level).nonzero()[0].tolist():
            yield int(keys[part[i]]), level[i], count[i]


def _clear(level: Ints) -> Bools:
    """Which rows of levels grow clearly, see `memory_leaks`."""
    change = np.diff(level, axis=1)
    found: Bools = np.all(change >= 0, axis=1)
    for part in np.array_split(change, 3, axis=1):
        found &= 3 * (part > 0).sum(axis=1) >= part.shape[1]
    rows = found.nonzero()[0]
    found[rows] = [_chance(one) <= _CHANCE for one in level[rows]]
    return found


def _chance(level: Ints) -> float:
    """The probability that levels in random order are ascending.

    >>> round(1 / _chance(np.array([1, 2, 3, 4, 5]))), round(1 / _chance(np.array([1, 1, 2])))
    (120, 3)
    """
    _, ties = np.unique(level, return_counts=True)
    return exp(sum(lgamma(tie + 1) for tie in ties.tolist()) - lgamma(len(level) + 1))


def _stacks(trace: Events, events: Ints) -> tuple[Ints, Callable[[int], str | None]]:
    """The path of Python functions around each of these events, as a number, and its text."""
    path, text = paths_of(trace, list(trace.names), ";")
    around = trace.frame_around(events)
    return np.where(around >= 0, path[around], -1), text


# ---- The level of live memory over time, by what it is for.


@dataclass(frozen=True)
class MemoryPoint:
    """The live bytes of one device at a moment; the parts add up to ``live_bytes``.

    ``at_ms`` counts from the trace's first event. ``live_bytes`` is all that the allocator had
    given out, if the trace has its totals; otherwise what was live above the start, and
    ``before_bytes`` is what was freed of blocks from before, as a negative number.
    """

    device: str
    at_ms: float
    live_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    activations_bytes: int
    temporaries_bytes: int
    unknown_bytes: int
    before_bytes: int


@dataclass(frozen=True)
class DeviceMemory:
    """One device's memory at its peak, and what its allocator recorded; None where it did not.

    ``live_bytes`` and its parts are as in `MemoryPoint`, at the moment of the peak.
    ``max_allocated_bytes`` and ``max_reserved_bytes`` are absolute peaks, as
    ``torch.cuda.max_memory_allocated`` and ``max_memory_reserved`` have them.
    ``fragmentation_bytes`` is reserved less allocated memory when most is allocated,
    ``max_fragmentation_bytes`` the most at any moment: blocks that the allocator keeps but has not
    given out. The host's allocator records no totals since the process began, and reserves nothing.
    """

    device: str
    live_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_state_bytes: int
    activations_bytes: int
    temporaries_bytes: int
    unknown_bytes: int
    before_bytes: int
    max_allocated_bytes: int | None = None
    max_reserved_bytes: int | None = None
    fragmentation_bytes: int | None = None
    max_fragmentation_bytes: int | None = None


class Series(Frozen, frozen=True):
    """All changes of a device's live bytes in time order: when (ns), the bytes, what they are for.

    ``start`` has the bytes of each `Category` before the first change.
    """

    device: str
    ts: Ints
    size: Ints
    category: Ints
    start: Ints
    memory: Memory

    @property
    def top(self) -> int:
        """How many changes there are up to the first highest level; 0 for the start."""
        level = self.size.cumsum()
        top = int(level.argmax()) if len(level) else 0
        return top + 1 if len(level) and level[top] > 0 else 0

    def after(self, count: int) -> list[int]:
        """The bytes of each category after this many changes."""
        total = self.start.copy()
        np.add.at(total, self.category[:count], self.size[:count])
        return total.tolist()  # type: ignore[no-any-return]


@once_per_trace
def series_of(trace: Events) -> list[Series]:
    """One for each device: the host first, then each accelerator by index."""
    starts = live_at_start(trace)
    return [_series(trace, *one, starts.get(one[0])) for one in memory_of_devices(trace)]


def _series(trace: Events, device: str, memory: Memory, start: int | None) -> Series:
    inside = selected(trace, memory)
    row, block, size = changes_of(memory, inside, bool(memory.on_device[0]))
    first = np.zeros(len(Category), np.int64)
    first[Category.BEFORE] = start or 0
    ts = trace.ts[memory.event[row]]
    if memory.addr is None:
        unknown = np.full(len(row), Category.UNKNOWN, np.int64)
        return Series(device, ts, size, unknown, first, memory)
    lives = lives_of(trace, memory, row, block, size)
    blocks, older = categories_of(trace, lives)
    if start is None:
        older = np.full(len(older), Category.BEFORE)
    of_row = np.full(len(memory.bytes), Category.BEFORE, np.int64)
    of_row[row[size > 0]] = blocks
    category = of_row[np.where(block >= 0, block, row)]
    freed = (size < 0) & (block < 0)
    category[freed] = older
    if start is not None:
        np.subtract.at(first, older, size[freed])
        first[Category.BEFORE] = start + size[freed][older != Category.BEFORE].sum()
        kept = first[Category.BEFORE] + size[freed][older == Category.BEFORE].sum()
        parameters = parameters_before(trace, lives, blocks)
        if parameters <= kept:
            first[Category.PARAMETERS] = parameters
            first[Category.BEFORE] -= parameters
    return Series(device, ts, size, category, first, memory)


def memory_timeline(trace: Events, points: int = 0) -> list[MemoryPoint]:
    """The level of each device after each change, or at this many moments.

    A moment stands for an equal share of the time between a device's first and last change: it is
    that of the highest level there, the first of several. Shares without a change have none. Of a
    part of the trace, only the time from its first allocation or free to its last one counts.

    Raises:
        ValueError: ``points`` is negative.
    """
    if points < 0:
        raise ValueError(f"a timeline of {points} moments: give 0 for all changes, or a number")
    found = []
    for series in series_of(trace):
        begin = int(trace.ts[0])
        rows = _timeline_moments(series, _changes_in(trace, series), points)
        for at, parts in zip(series.ts[rows].tolist(), _levels(series, rows), strict=True):
            found.append(MemoryPoint(series.device, (at - begin) / 1e6, sum(parts), *parts))
    return found


def _levels(series: Series, rows: Ints) -> list[list[int]]:
    """The bytes of each category after each of these changes."""
    columns = [
        start + np.where(series.category == category, series.size, 0).cumsum()[rows]
        for category, start in enumerate(series.start.tolist())
    ]
    return np.stack(columns, 1).tolist()  # type: ignore[no-any-return]


def _changes_in(trace: Events, series: Series) -> Ints:
    """The changes while the selected part ran: what it allocated may be freed after it."""
    events = series.memory.event[selected(trace, series.memory)]
    if not len(events):
        return np.zeros(0, np.int64)
    times = trace.ts[events]
    inside: Ints = ((series.ts >= times.min()) & (series.ts <= times.max())).nonzero()[0]
    return inside


def _timeline_moments(series: Series, rows: Ints, points: int) -> Ints:
    if not points or len(rows) <= points:
        return rows
    ts = series.ts[rows]
    span = max(int(ts[-1] - ts[0]), 1)
    share = np.minimum((ts - ts[0]) * points // span, points - 1)
    order = np.lexsort((rows, -series.size.cumsum()[rows], share))
    first = np.diff(share[order], prepend=-1) > 0
    return np.sort(rows[order[first]])


def device_memory(trace: Events) -> list[DeviceMemory]:
    """Each device at its peak, the host first; none for a trace without memory events."""
    found = []
    for series in series_of(trace):
        parts = series.after(series.top)
        totals = _totals(trace, series.memory)
        found.append(DeviceMemory(series.device, sum(parts), *parts, *totals))
    return found


def _totals(trace: Events, memory: Memory) -> tuple[int | None, ...]:
    """Highest allocated and reserved memory; the difference at the former, and at most."""
    inside = selected(trace, memory).nonzero()[0]
    if not memory.on_device[0] or not len(inside):
        return None, None, None, None
    rows = np.arange(max(int(inside[0]) - 1, 0), len(memory.event))
    args = decode(MemoryTotals, trace.args[memory.event[rows]])
    allocated, reserved = (
        int64_column([getattr(a, name) for a in args]) for name in ("allocated", "reserved")
    )
    rest = inside - rows[0]
    most = None
    if (allocated[rest] >= 0).all():
        before = int(allocated[rest[0]] - memory.bytes[inside[0]])
        most = max(before, int(allocated[rest].max()))
    known = rest if rows[0] == inside[0] else np.append(0, rest)  # the level before counts, too
    if (reserved[known] < 0).any() or not reserved[known].any():
        return most, None, None, None
    highest = int(reserved[known].max())
    free = reserved[rest] - allocated[rest]
    if most is None or (free < 0).any():
        return most, highest, None, None
    return most, highest, int(free[allocated[rest].argmax()]), int(free.max())


# ---- The highest totals of the accelerators' allocators, from ``[memory]`` events.


@once_per_trace
def highest_total(trace: Events, what: Literal["allocated", "reserved"]) -> int | None:
    """The highest ``Total Allocated`` or ``Total Reserved`` in the selection, in bytes.

    It is what `torch.cuda.max_memory_allocated` and `torch.cuda.max_memory_reserved` say after a
    reset at the region's start; with several devices, of all together. None if no event in the
    whole trace has a total: then nothing was allocated or freed, and the level is not recorded.
    Before a device's first event in the selection its level is that after its last earlier event,
    else that before its next one. Of reserved memory only the level after that one is recorded.
    """
    memory = trace.memory
    rows = memory.on_device.nonzero()[0]
    if not len(rows):
        return None
    events = memory.event[rows]
    total = trace.whole.once(_allocator_totals)[what]
    if (total < 0).any():
        return None
    counts = selected(trace, memory.where(memory.on_device))
    begin = _begin(trace)
    start, change = 0, np.zeros(len(rows), np.int64)
    for place in memory.where(memory.on_device).places:
        mine = (memory.place[rows] == place).all(axis=1).nonzero()[0]
        inside = mine[counts[mine]]
        earlier = mine[trace.ts[events[mine]] < begin]
        if len(earlier):
            level = int(total[earlier[-1]])
        else:
            own = int(memory.bytes[rows[mine[0]]]) if what == "allocated" else 0
            level = max(int(total[mine[0]]) - own, 0)
        start += level
        change[inside] = np.diff(total[inside], prepend=level)
    return start + max(int(change.cumsum().max()), 0)


def _begin(trace: Events) -> int:
    """When the selection begins, in ns: with the region, or with its first event."""
    if trace.scope is None and trace.region is not None:
        return trace.region[0]
    chosen = trace.selection.nonzero()[0]
    return int(trace.ts[chosen].min()) if len(chosen) else 0


def _allocator_totals(trace: Events) -> dict[str, Ints]:
    """What the accelerators' allocators recorded at each event."""
    memory = trace.memory
    found = decode(MemoryTotals, trace.args[memory.event[memory.on_device]])
    return {
        "allocated": int64_column([totals.allocated for totals in found]),
        "reserved": int64_column([totals.reserved for totals in found]),
    }
