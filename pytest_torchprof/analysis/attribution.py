"""Attribute FLOPs and compulsory bytes of operators to kernels, each counted once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import decode_part, int64_column
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    FREE_CALL,
    REGION,
    SYNC_CALL,
    Kind,
    once_of_whole,
    once_per_trace,
)
from pytest_torchprof.trace.tree import marked, operators_around, parents
from pytest_torchprof.work import flops as masks
from pytest_torchprof.work.bytes import TRAFFIC, compulsory_bytes
from pytest_torchprof.work.counting import (
    by_call,
    counts_flops,
    distinct_calls,
    formula_calls,
    op_flops,
)
from pytest_torchprof.work.devices import DTYPES
from pytest_torchprof.work.flops import FORMULAS, MASKS
from pytest_torchprof.work.kernels import (
    FP32_KERNEL,
    INPUT_GRADIENT,
    TF32_KERNEL,
    WEIGHT_GRADIENT,
    is_main,
)
from pytest_torchprof.work.operands import (
    ELEMENT_BYTES,
    Operands,
    UnknownOperandError,
    UnreadValues,
    peak_of,
)

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.work.counting import Call


# ---- Attribute FLOPs and compulsory bytes of operators to kernels, each counted once.
#
# FLOPs are those of the operator that counts, as everywhere else (`redispatch`). Bytes are those
# of the innermost operator, because a convolution's bias is added by a separate kernel. An
# operator's number goes only to its main kernels: those named after matrix products, convolutions
# or attention (`MAIN_KERNEL`). Without any, FLOPs go to the kernels with the longest one's name,
# and bytes to all of its kernels. Several kernels share a number by their time, so that all reach
# the same rate; but the two products of a convolution's backward pass are as much work, on the
# same three tensors. What a graph replays has no numbers, because the launch is outside of
# operators; nor have the FLOPs of what is around such a launch a kernel. Copies and memsets
# record the bytes they moved.

_GRAPH: Final = late(r"GraphLaunch")
_LIST: Final = b"TensorList"
#: Element types in kernel names, for operators on lists of tensors.
_OPAQUE: Final = late(r"OpaqueType<(\d+)")
_ELEMENT: Final = late(r"(?:CatArray\w*|Functor\w*)<(?:([\w:]+), )?([\w:]+)[,>]")


class AttributedWork(Frozen, frozen=True):
    """Per device event of the selection, as arrays of one length.

    ``event`` are event indices. ``call`` is the innermost operator around the launch, ``owner`` the
    number of its name (else the annotation's) in `Events.shown_names`; -1 for none. ``flops`` and
    ``bytes`` are -1 where unknown. ``done`` are the FLOPs that the kernel is rated by, those that a
    causal mask leaves, -1 where unknown; ``mask_unknown`` is whether the trace
    does not say if there is a mask. ``dtype`` is an index into `DTYPES`, -1 where there are no
    FLOPs or no types.
    """

    event: Ints
    call: Ints
    owner: Ints
    flops: Ints
    done: Ints
    mask_unknown: Bools
    bytes: Ints
    dtype: Ints


@once_per_trace
def attribute(trace: Events) -> AttributedWork:
    """The operator that launched each device event, and the work it had to do."""
    event = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS))
    launch = trace.launch[event]
    above = parents(trace, launch)
    call, named = operators_around(trace, above), callers_of(trace, event)
    has_formula = trace.names_where(FORMULAS.__contains__) & trace.is_kind(Kind.OP)
    counted, typed = (
        nesting.nearest(which, trace.parent, above)
        for which in (counts_flops(trace) | (op_flops(trace) > 0), has_formula)
    )
    owner = np.where(named >= 0, trace.shown_names[1][trace.name[named]], -1)

    replays = is_replayed(trace, launch)
    working = (trace.kind[event] == Kind.KERNEL) & ~replays
    main = trace.names_where(is_main)[event]
    # Which of a backward pass's two products a kernel computes: 1 or 2, 0 for neither.
    products = INPUT_GRADIENT.search, WEIGHT_GRADIENT.search
    part = np.select([trace.names_where(of)[event] for of in products], [1, 2], 0)
    none = np.full(len(event), -1, np.int64)

    flops = none.copy()
    rows = np.flatnonzero(working & (counted >= 0) & ~nesting.among(counted, counted[replays]))
    name, dur = trace.name[event[rows]], trace.dur[event[rows]]
    given = op_flops(trace)[counted[rows]]
    flops[rows] = _shares(counted[rows], dur, main[rows], part[rows], given, name)

    done, mask_unknown = _masked(trace, flops, counted)

    moved = np.where(trace.kind[event] == Kind.KERNEL, -1, trace.bytes[event])
    rows = np.flatnonzero(working & (call >= 0))
    owners, values = _traffic(trace, call[rows])
    rows, owners, values = rows[owners >= 0], owners[owners >= 0], values[owners >= 0]
    moved[rows] = _shares(owners, trace.dur[event[rows]], main[rows], part[rows], values)

    dtype = none.copy()
    rows = np.flatnonzero(flops >= 0)
    dtype[rows] = _dtypes(trace, typed[rows], event[rows])
    return AttributedWork(event, call, owner, flops, done, mask_unknown, moved, dtype)


def is_replayed(trace: Events, launch: Ints) -> Bools:
    """Whether these launches (-1 for none) are of a graph of kernels."""
    return (launch >= 0) & trace.names_where(_GRAPH.search)[launch]


def replayed(trace: Events) -> int:
    """How many kernels of the selection a graph launched: their operators are unknown."""
    kernels = np.flatnonzero(trace.selection & trace.is_kind(Kind.KERNEL))
    return int(is_replayed(trace, trace.launch[kernels]).sum())


def callers_of(trace: Events, device: Ints) -> Ints:
    """The innermost operator (else annotation) around the call behind each device event, or -1."""
    annotations = trace.is_kind(Kind.ANNOTATION) & ~trace.named(REGION)
    above = parents(trace, trace.launch[device])
    operators = operators_around(trace, above)
    notes = nesting.nearest(annotations, trace.parent, above)
    owners: Ints = np.where(operators >= 0, operators, notes)
    return owners


def _shares(
    owner: Ints, dur: Ints, main: Bools, side: Ints, value: Ints, name: Ints | None = None
) -> Ints:
    """Each kernel's share of its owner's value, -1 for kernels without a share.

    Without a main kernel: the kernels named like the longest one, or all if there are no names.
    Where each main kernel is on ``side`` 1 or 2, and there are both, each side has one half.
    """
    groups, at = np.unique(owner, return_inverse=True)
    count = len(groups)
    has_main = np.bincount(at, main, count) > 0
    order = np.lexsort((dur, at))  # the longest of each group comes last
    last = np.searchsorted(at[order], np.arange(count), side="right") - 1
    rest = np.ones(len(owner), bool) if name is None else name == name[order[last]][at]
    part = np.where(has_main[at], main, rest)
    weight = np.where(part, np.maximum(dur, 1), 0).astype(np.float64)
    ones, twos, none = (np.bincount(at, weight * (side == one), count) for one in (1, 2, 0))
    halved = (has_main & (ones > 0) & (twos > 0) & (none == 0))[at]
    weight[halved] /= np.where(side == 1, ones[at], twos[at])[halved]
    share = np.rint(value * (weight / np.bincount(at, weight, count)[at])).astype(np.int64)
    # Rounding must not add or lose any: the longest part takes the remainder.
    order = np.lexsort((weight, at))
    longest = order[np.searchsorted(at[order], np.arange(count), side="right") - 1]
    share[longest] = 0
    given = nesting.summed(at, share, count)
    share[longest] = value[longest] - given
    return np.where(part, share, -1)


def _masked(trace: Events, flops: Ints, counted: Ints) -> tuple[Ints, Bools]:
    """The FLOPs of each kernel that its mask leaves; and where the trace does not say."""
    done, mask_unknown = flops.copy(), np.zeros(len(flops), bool)
    rows = np.flatnonzero((flops >= 0) & trace.names_where(MASKS.__contains__)[counted])
    parts = by_call(trace, counted[rows], _left_by_mask, float)
    known = by_call(
        trace, counted[rows], lambda name, call: masks.is_known(name, call.concrete), bool
    )
    done[rows] = np.where(parts < 0, -1, np.rint(flops[rows] * parts))
    mask_unknown[rows] = ~known
    return done, mask_unknown


def _left_by_mask(name: str, call: Operands) -> float:
    share = masks.share(name, call.dims, call.types, call.concrete)
    return -1 if share is None else share


def _traffic(trace: Events, call: Ints) -> tuple[Ints, Ints]:
    """For the innermost operators around kernels: the operator whose bytes they moved, how many.

    That is the operator itself if it has a number, else the nearest one around it that has one,
    unless parts of that one have numbers too.
    """
    amounts = call_bytes(trace)
    first, owner = amounts[call], call.copy()
    known = nesting.above(call[first >= 0], trace.parent) | (amounts < 0)
    silent = np.flatnonzero(first < 0)
    owner[silent] = nesting.nearest(~known, trace.parent, trace.parent[call[silent]])
    return owner, amounts[owner]


def item_bytes(kernel: str) -> int:
    """Element size of a kernel on lists of tensors, 0 if its name does not tell."""
    if opaque := _OPAQUE.search(kernel):
        return int(opaque[1])
    element = _ELEMENT.search(kernel)
    known = (ELEMENT_BYTES.get(one or "", 0) for one in (element.groups() if element else ()))
    return next(filter(None, known), 0)


def _dtypes(trace: Events, typed: Ints, kernels: Ints) -> Ints:
    """The dtype that each kernel computed in: its operator's first tensor's, or TF32."""
    code = by_call(trace, typed, lambda _, call: peak_of(call))
    single = code == DTYPES.index("fp32")
    allowed = trace.facts.allow_tf32 is True
    fast = trace.names_where(
        lambda name: TF32_KERNEL.search(name) or (allowed and not FP32_KERNEL.search(name))
    )
    return np.where(single & fast[kernels], DTYPES.index("tf32"), code)


# ---- The compulsory bytes of every call.


@once_of_whole
def call_bytes(trace: Events) -> Ints:
    """The compulsory bytes of each operator with a rule (nested or not), -1 elsewhere."""
    others = distinct_calls(trace, trace.names_where(_BYTES_ONLY.__contains__))
    parts = [_of_calls(trace, *calls) for calls in (formula_calls(trace), others)]
    found = np.full(len(trace), -1, np.int64)
    for rows, amounts in parts:
        found[rows] = amounts
    return found


def _of_calls(trace: Events, rows: Ints, number: Ints, calls: Sequence[Call]) -> tuple[Ints, Ints]:
    """These operators, and the bytes of each, by the numbers of their calls."""
    if not len(rows):
        return rows, rows
    names, lists = trace.names, [_LIST in types for _, _, types, _, _ in calls]
    # The size of a list's elements is another one each time.
    found = []
    for is_list, (name, dims, types, concrete, strides) in zip(lists, calls, strict=True):
        size: int | None = -1
        if not is_list:
            size = _bytes_by_tensors(names[name], dims, types, strides)
            if size is None:
                size = _bytes_with_values(names[name], dims, types, concrete, strides)
        found.append(size)
    amounts = int64_column(found)[number]
    if True in lists:
        at = np.array(lists)[number].nonzero()[0]
        those = [calls[one] for one in number[at].tolist()]
        sizes = _item_sizes(trace, rows[at], [dims for _, dims, *_ in those])
        for i, (name, *parts), item in zip(at.tolist(), those, sizes, strict=True):
            amounts[i] = _bytes_with_values(names[name], *parts, item=item) if item else -1
    return rows, amounts


#: Operators whose bytes are known, and which have no formula for FLOPs.
_BYTES_ONLY: Final = TRAFFIC.keys() - FORMULAS.keys()
_MOST_KNOWN: Final = 10_000


@lru_cache(maxsize=_MOST_KNOWN)
def _bytes_by_tensors(name: str, dims: bytes, types: bytes, strides: bytes) -> int | None:
    """The bytes of a call from its recorded tensors, -1 if unknown; None if values tell.

    Cached, as tests repeat calls; their values change, like those of an optimizer's steps.
    """
    values = UnreadValues()
    shapes, kinds, steps = map(decode_part, (dims, types, strides))
    count = compulsory_bytes(name, shapes, kinds, steps, values)
    if values.asked:
        return None
    return -1 if count is None else count


@lru_cache(maxsize=_MOST_KNOWN)
def _bytes_with_values(
    name: str, dims: bytes, types: bytes, concrete: bytes, strides: bytes, item: int | None = None
) -> int:
    """The same where values tell; ``item`` is the size of a list's elements."""
    shapes, kinds, steps, values = map(decode_part, (dims, types, strides, concrete))
    count = compulsory_bytes(name, shapes, kinds, steps, values, item)
    return -1 if count is None else count


def _item_sizes(trace: Events, events: Ints, shapes: Iterable[bytes]) -> list[int]:
    """Element sizes of calls on lists of tensors, whose types a trace lacks; 0 where unknown.

    A kernel's name tells, or the one block that a call on the host allocates for its result.
    """
    sizes = np.zeros(len(trace), np.int64)
    wanted = marked(trace, events)
    device = trace.device_rows
    kernels = device[trace.kind[device] == Kind.KERNEL]
    callers = nesting.nearest(wanted, trace.parent, parents(trace, trace.launch[kernels]))
    for call, kernel in zip(callers.tolist(), kernels.tolist(), strict=True):
        if call >= 0:
            sizes[call] = item_bytes(trace.names[trace.name[kernel]])
    memory = trace.memory.device(on_device=False)
    made = (memory.bytes > 0).nonzero()[0]
    around = nesting.nearest(wanted, trace.parent, trace.enclosing(memory.event[made]))
    blocks: dict[int, list[int]] = {}
    for call, size in zip(around.tolist(), memory.bytes[made].tolist(), strict=True):
        blocks.setdefault(call, []).append(size)
    found = []
    for event, dims in zip(events.tolist(), shapes, strict=True):
        size = int(sizes[event])
        if not size and len(own := blocks.get(event, [])) == 1:
            size = _size_of(own[0], decode_part(dims))
        found.append(size)
    return found


def _size_of(block: int, dims: Any) -> int:
    """The element size if this block holds all elements of the first list and nothing else."""
    try:
        count = Operands(dims, None, None).list_elements(0)
    except (UnknownOperandError, LookupError, TypeError):
        return 0
    size, rest = divmod(block, count) if count else (0, 0)
    return size if not rest and size in ELEMENT_BYTES.values() else 0


# ---- Matrix products that ran on a device: sizes, operands, and kernels.

#: Operators that are one call of a matrix library each -> the position of their two matrices.
#: ``linear``, ``matmul`` and ``einsum`` enclose them.
PRODUCTS: Final = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::addmm": 1,
    "aten::addmm_": 1,
    "aten::_addmm_activation": 1,
    "aten::baddbmm": 1,
    "aten::baddbmm_": 1,
}


class Product(NamedTuple):
    """(batch x) M x K times (batch x) K x N: ``sizes`` are those of M, N and K.

    ``types`` are the C++ types of the two matrices. ``rows`` holds the dimensions that are
    contiguous in memory, along which a matrix library loads whole vectors, with the distances
    between the starts of the rows along them, in elements. The result is new and contiguous along
    N. In a trace without strides, a matrix may be contiguous along M or K, with unknown distances.
    """

    types: tuple[str, str]
    batch: int | None
    sizes: Mapping[str, int]
    rows: Mapping[str, frozenset[int]]

    @property
    def shapes(self) -> str:
        """In the usual notation: ``8x97x64 @ 8x64x97``."""
        batch = "" if self.batch is None else f"{self.batch}x"
        m, n, k = self.sizes.values()
        return f"{batch}{m}x{k} @ {batch}{k}x{n}"


class DeviceProducts(Frozen, frozen=True):
    """Selected product operators that launched kernels themselves, and those kernels.

    ``event`` are the operators; ``which`` gives the index of each in ``distinct``: its name and
    what it multiplies, None if unknown. ``kernel`` are all their kernels, ``at`` the position in
    ``event`` of each one's operator.
    """

    event: Ints
    which: Ints
    distinct: list[tuple[str, Product | None]]
    kernel: Ints
    at: Ints

    def __len__(self) -> int:
        return len(self.event)

    def kernel_ns(self, trace: Events) -> Ints:
        """Device time of each operator's kernels."""
        found = np.bincount(self.at, trace.dur[self.kernel], len(self))
        return found.astype(np.int64)

    def device(self, trace: Events) -> Ints:
        """Index of the device that each operator's kernels ran on, the last one if they differ."""
        found = np.full(len(self), -1, np.int64)
        found[self.at] = trace.device[self.kernel]
        return found

    def any_kernel(self, trace: Events, predicate: Callable[[str], object]) -> Bools:
        """Operators with a kernel whose name satisfies the predicate."""
        marked = names_fit(trace, self.kernel, predicate)
        return np.bincount(self.at, marked, len(self)) > 0


@once_per_trace
def device_products(trace: Events) -> DeviceProducts:
    """Matrix products of the selection that ran on a device."""
    if not any(name in PRODUCTS for name in trace.names):
        none = np.zeros(0, np.int64)
        return DeviceProducts(none, none, [], none, none)
    kernels = np.flatnonzero(trace.selection & trace.is_kind(Kind.KERNEL))
    call = operators_around(trace, trace.launch[kernels])
    own = names_fit(trace, call, PRODUCTS.__contains__)
    event, at = np.unique(call[own], return_inverse=True)
    return DeviceProducts(event, *_read(trace, event), kernels[own], at)


def names_fit(trace: Events, events: Ints, predicate: Callable[[str], object]) -> Bools:
    """Whether the name of each of these events satisfies the predicate; False for -1."""
    verdicts = np.fromiter(map(bool, map(predicate, trace.names)), bool, len(trace.names))
    named: Bools = verdicts[trace.name[events]] if len(verdicts) else np.zeros(len(events), bool)
    return (events >= 0) & named


def _read(trace: Events, events: Ints) -> tuple[Ints, list[tuple[str, Product | None]]]:
    known: dict[tuple[int, bytes, bytes, bytes], int] = {}
    names = trace.name[events].tolist()
    which = [
        known.setdefault((name, bytes(a.dims), bytes(a.types), bytes(a.strides)), len(known))
        for name, a in zip(names, trace.operands(events), strict=True)
    ]
    distinct = []
    for number, *parts in known:
        name, (dims, types, strides) = trace.names[number], map(decode_part, parts)
        distinct.append((name, _product(dims, types, strides, PRODUCTS[name])))
    return np.array(which, np.int64), distinct


def _product(dims: Any, types: Any, strides: Any, first: int) -> Product | None:
    """What a call multiplies; None where the trace does not say, or is inconsistent.

    >>> product = _product([[3, 97, 64], [3, 64, 97]], ["c10::Half", "c10::Half"], None, 0)
    >>> product.shapes, {name: sorted(rows) for name, rows in product.rows.items()}
    ('3x97x64 @ 3x64x97', {'N': [97], 'M': [], 'K': []})
    """
    dims, types, strides = (_pair(part, first) for part in (dims, types, strides))
    try:
        (*batch, m, k), (*others, inner, n) = dims
    except (TypeError, ValueError):
        return None
    numbers = [*batch, m, k, *others, inner, n]
    if (
        len(types) < 2
        or inner != k
        or len(batch) != len(others)
        or any(type(size) is not int for size in numbers)
    ):
        return None
    known = len(strides) == 2 and all(isinstance(own, list) and len(own) >= 2 for own in strides)
    left, right = (*strides,) if known else (None, None)
    depth, sizes = batch[0] if batch else None, {"M": m, "N": n, "K": k}
    rows: dict[str, frozenset[int]] = {"N": frozenset([n])}
    for matrix, names in ((left, "MK"), (right, "KN")):
        for name, apart in _rows(matrix, names, sizes):
            rows[name] = rows.get(name, frozenset()) | apart
    return Product((str(types[0]), str(types[1])), depth, sizes, rows)


def _pair(part: Any, first: int) -> list[Any]:
    return part[first : first + 2] if isinstance(part, list) else []


def _rows(
    strides: list[int] | None, names: str, sizes: Mapping[str, int]
) -> Iterator[tuple[str, frozenset[int]]]:
    """Along which dimensions of a matrix its rows lie, and the distances of rows and batches.

    torch copies a matrix if neither dimension is contiguous, or if its rows overlap.
    """
    if strides is None:
        yield from ((name, frozenset()) for name in names)
        return
    turned = strides[-1] != 1 and strides[-2] == 1
    name = names[0] if turned else names[1]
    own, apart = (strides[-2], strides[-1]) if turned else (strides[-1], strides[-2])
    copied = own != 1 or apart < sizes[name]
    yield name, frozenset([sizes[name]] if copied else [apart, *strides[:-2]])


# ---- Kernels that the host launched one by one, and how long the device waited for each.

_LOADER: Final = late(r"enumerate\(DataLoader\)#")


class Launches(Frozen, frozen=True):
    """What one device ran, in time order, and how it was launched.

    ``event`` are its events, ``gap`` the idle ns before each, ``call`` the calls that launched
    them. ``single`` marks kernels with a launch call of their own; ``pace`` is the ns between that
    call and the previous one on its thread, -1 if there is none or the host waited or loaded data
    in between; ``late`` is whether the device had nothing to do when the call returned.
    """

    event: Ints
    gap: Ints
    call: Ints
    single: Bools
    pace: Ints
    late: Bools
    busy_ns: int


@once_per_trace
def launches(trace: Events) -> dict[int, Launches]:
    """By the device's index."""
    every = np.flatnonzero(trace.selection & trace.is_kind(*DEVICE_KINDS))
    launch = trace.launch[every]
    pace = np.full(len(trace), -1, np.int64)
    pace[launch[launch >= 0]] = 0
    calls = np.flatnonzero(pace == 0)
    pace[calls] = _pace(trace, calls)
    devices = trace.device[every]
    out = {}
    for device in nesting.distinct(devices).tolist():
        mine = devices == device
        event, call = every[mine], launch[mine]
        start = trace.ts[event]
        end = start + trace.dur[event]
        before = nesting.reached(start, end)
        gap = np.maximum(start - before, 0)
        single = (trace.kind[event] == Kind.KERNEL) & (call >= 0)
        single &= ~is_replayed(trace, call)
        returned = np.where(call >= 0, trace.ts[call] + trace.dur[call], 0)
        busy = int(nesting.uncovered(start, end).sum())
        own = np.where(single, pace[call], -1)
        out[device] = Launches(event, gap, call, single, own, returned > before, busy)
    return out


def launched_at(trace: Events, event: Ints) -> Ints:
    """When the host launched these device events, in ns; their own begin where that is unknown."""
    launch = trace.launch[event]
    return np.where(launch >= 0, trace.ts[launch], trace.ts[event])


class Followed(Frozen, frozen=True):
    """Of some device events: ``alone`` if the device ran nothing else meanwhile, and ``delays`` if
    what comes next waits for them.

    What comes next does not wait if the host launched it after the event ended, and did not itself
    wait for the device then: if the event were shorter, the device would only be idle for longer.
    """

    alone: Bools
    delays: Bools


def followed(trace: Events, event: Ints) -> Followed:
    """How these device events relate to the others of their device, selected or not."""
    alone, delays = np.ones((2, len(event)), bool)
    device = trace.device[event]
    waits = trace.names_where(lambda name: SYNC_CALL.search(name) or FREE_CALL.search(name))
    every, calls = trace.device_rows, np.flatnonzero(waits)
    until = np.maximum.accumulate(trace.ts[calls] + trace.dur[calls]) if len(calls) else calls
    for number in nesting.distinct(device).tolist():
        mine, rows = np.flatnonzero(device == number), every[trace.device[every] == number]
        at = np.searchsorted(rows, event[mine])
        begin, end = trace.ts[rows], trace.ts[rows] + trace.dur[rows]
        reach, done = np.maximum.accumulate(end), end[at]
        earlier = np.where(at > 0, reach[at - 1], begin[0])
        later = np.append(begin[1:], np.iinfo(np.int64).max)[at]
        alone[mine] = (earlier <= begin[at]) & (later >= done)
        after = np.searchsorted(begin, done)
        launch = np.append(trace.launch[rows], -1)[np.minimum(after, len(rows))]
        queued = (launch < 0) | (trace.ts[launch] <= done)
        # A call that began before the event ended, and returned after that.
        before = np.searchsorted(trace.ts[calls], done) - 1
        waited = (before >= 0) & (np.append(until, 0)[before] >= done)
        delays[mine] = queued | waited
    return Followed(alone, delays)


def _pace(trace: Events, calls: Ints) -> Ints:
    """Time since the beginning of the previous call on the same thread."""
    breaks = trace.is_kind(Kind.RUNTIME) & trace.names_where(SYNC_CALL.search)
    breaks |= trace.is_kind(Kind.ANNOTATION, Kind.OP) & trace.names_where(_LOADER.match)
    stops = np.flatnonzero(breaks)
    out = np.full(len(calls), -1, np.int64)
    for thread in nesting.distinct(trace.thread[calls]).tolist():
        at = np.flatnonzero(trace.thread[calls] == thread)
        when = trace.ts[calls[at]]
        stopped = np.searchsorted(trace.ts[stops[trace.thread[stops] == thread]], when)
        out[at[1:]] = np.where(np.diff(stopped) > 0, -1, np.diff(when))
    return out
