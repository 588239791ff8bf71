"""Kernels grouped by name and launch shape, and how close each comes to the device's peak."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from pytest_torchprof.analysis.attribution import attribute, is_replayed
from pytest_torchprof.analysis.operators import NO_OPERATOR
from pytest_torchprof.analysis.uncounted import uncounted_events
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.values import CountedNames
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import LaunchArgs, decode, decode_part, whole_number
from pytest_torchprof.trace.names import DEVICE_KINDS, Kind
from pytest_torchprof.trace.nesting import distinct
from pytest_torchprof.work import devices
from pytest_torchprof.work.devices import DTYPES, multiprocessor, resident_blocks

if TYPE_CHECKING:
    from pytest_torchprof.analysis.attribution import AttributedWork
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.work.devices import Device


# ---- Rows of the table of kernels: which events belong to a row, and sums over them.

_Floats = npt.NDArray[np.float64]

#: What rows can be grouped by.
_WORDS: Final = ("op", "kernel", "shape")
#: Among owners, it stands for events without a runtime call.
NO_CALL: Final = -2


def parse_grouping(text: str) -> frozenset[str]:
    """The words of a grouping, such as ``"op,kernel,shape"``; ``name`` is the same as ``kernel``.

    Raises:
        ValueError: an unknown or repeated word, or ``shape`` alone.

    >>> sorted(parse_grouping("name, shape"))
    ['kernel', 'shape']
    """
    words = ["kernel" if (word := part.strip()) == "name" else word for part in text.split(",")]
    if unknown := [word for word in words if word not in _WORDS]:
        known = "must be one of name, op, or several of op, kernel, shape, as in op,kernel,shape"
        raise ValueError(f"{known}, not {unknown[0]!r}")
    if len(set(words)) < len(words):
        raise ValueError(f"must not have a part twice (name is the same as kernel): {text!r}")
    if words == ["shape"]:
        raise ValueError("must have op or kernel beside shape, as in op,kernel,shape")
    return frozenset(words)


class Grouped:
    """The device events of some work, in rows.

    ``group`` is the number of each event's row; ``owner`` the number of its operator, see
    `AttributedWork`, or `NO_CALL`; ``shape`` that of its operands, an index into ``dims``, -1 for
    none. ``whole`` numbers what a rate covers as a whole: a kernel if rows are by kernel, else an
    operator's call.
    """

    def __init__(self, trace: Events, work: AttributedWork, by: frozenset[str]) -> None:
        event = work.event
        name, copied = trace.name[event], trace.kind[event] != Kind.KERNEL
        linked = (trace.launch[event] >= 0) | (work.owner >= 0)
        self.owner: Ints = np.where(linked, work.owner, NO_CALL)
        self.shape, self.dims = np.full(len(event), -1, np.int64), list[bytes]()
        if "shape" in by:
            self.shape, self.dims = _shapes(trace, work.call)
        # An operator's copies are not in one row with its kernels.
        parts = [trace.device[event], name if "kernel" in by else np.where(copied, name, -1)]
        parts += [self.owner] if "op" in by else []
        parts += [self.shape] if "shape" in by else []
        group = np.zeros(len(event), np.int64)
        for part in parts:
            _, group = np.unique(pairs(group, part), return_inverse=True)
        self.group: Ints = group
        alone = np.arange(len(event))
        whole = alone if "kernel" in by else _calls(work.call, group)
        self.whole: Ints = np.where(copied, whole.max() + 1 + alone, whole)


def _shapes(trace: Events, calls: Ints) -> tuple[Ints, list[bytes]]:
    """For each call (-1 for none) the number of its operands' shapes, and their raw JSON."""
    distinct, at = np.unique(calls, return_inverse=True)
    number = np.full(len(distinct), -1, np.int64)
    known: dict[bytes, int] = {}
    real = np.flatnonzero(distinct >= 0)
    raws = [bytes(args.dims) for args in trace.operands(distinct[real])]
    number[real] = [known.setdefault(raw, len(known)) if raw else -1 for raw in raws]
    return number[at], list(known)


def _calls(call: Ints, group: Ints) -> Ints:
    """Numbers of operator calls within their row; an event without one is its own."""
    alone = np.where(call >= 0, call, -1 - np.arange(len(call)))
    _, number = np.unique(pairs(group, alone), return_inverse=True)
    found: Ints = number
    return found


def pairs(a: Ints, b: Ints) -> Ints:
    """One number for each pair, in the order of pairs."""
    low = b.min()
    both: Ints = a * (b.max() - low + 1) + (b - low)
    return both


class Sums:
    """Sums over groups of device events, which are numbered from 0."""

    def __init__(self, group: Ints, dur: Ints) -> None:
        self.group, self.dur = group, dur
        self.count = int(group.max()) + 1
        self.calls = np.bincount(group, minlength=self.count)
        self.ns = self._sum(dur)
        self.first = np.full(self.count, len(group), np.int64)
        np.minimum.at(self.first, group, np.arange(len(group)))

    def _sum(self, values: Ints) -> Ints:
        return nesting.summed(self.group, values, self.count)

    def by_time(self) -> Ints:
        """Groups, the longest first, then in order of appearance."""
        return np.lexsort((self.first, -self.ns))

    def known(self, values: _Floats | Ints, known: Bools, whole: Ints) -> tuple[_Floats, _Floats]:
        """Sums of the known values, and ns of all events of each `whole` with a known value."""
        time = np.where(nesting.among(whole, whole[known]), self.dur, 0)
        return self.total(np.where(known, values, 0)), self.total(time)

    def complete(self, known: Bools, whole: Ints) -> Bools:
        """Groups in which each `whole` has a known value."""
        found: Bools = self.total(~nesting.among(whole, whole[known])) == 0
        return found

    def total(self, values: _Floats | Ints | Bools) -> _Floats:
        """The sum of a value of each event."""
        return np.asarray(np.bincount(self.group, values, self.count), np.float64)

    def exact(self, values: Ints) -> list[int | None]:
        """Sums of the values that are not negative; None where there are none."""
        known = values >= 0
        some = np.bincount(self.group, known, self.count) > 0
        totals = self._sum(np.where(known, values, 0)).tolist()
        return [total if any_ else None for total, any_ in zip(totals, some.tolist(), strict=True)]

    def same(self, values: _Floats | Ints) -> Bools:
        """Groups in which all events have an equal value; NaN equals none."""
        first = values[self.first][self.group]
        found: Bools = self.total(values != first) == 0
        return found

    def parts(self, label: Ints) -> list[list[tuple[int, int]]]:
        """For each group its labels with their calls, the label with most of its time first."""
        _, first, at = np.unique(pairs(self.group, label), return_index=True, return_inverse=True)
        calls, ns = np.bincount(at), np.bincount(at, self.dur)
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.count)]
        for i in np.lexsort((first, -ns)).tolist():
            found[int(self.group[first[i]])].append((int(label[first[i]]), int(calls[i])))
        return found


# ---- The least time that the device needs for a kernel's work, and why it is unknown for others.
#
# The roofline of Williams, Waterman and Patterson (2009),
# https://doi.org/10.1145/1498765.1498785: a kernel takes at least its FLOPs at the peak of its
# dtype, and at least its bytes at the bandwidth of the memory. An operator without a formula does
# little arithmetic, so its bytes alone count; where the FLOPs of a product are unknown, or the
# bytes of one with known FLOPs, so is the roofline.

#: Copies within one device's memory; others use a bus without a peak here.
_WITHIN = re.compile(r"DtoD|DeviceToDevice|D2D")


class NoRoof(IntEnum):
    """Why the roofline time of a device event is unknown."""

    COPY = 1  #: it moves data over a bus without a peak here
    REPLAYED = 2  #: a graph launched it
    UNLINKED = 3  #: it has no runtime call
    NO_OPERATOR = 4  #: launched outside of operators
    HELPER = 5  #: the work of its operator is that of other kernels
    NO_FLOPS = 6  #: its operator multiplies, but nobody knows how much
    NO_BYTES = 7  #: its FLOPs are known
    NO_WORK = 8  #: neither is known
    NO_PEAK = 9  #: of the device, or for the dtype


class Roof(Frozen, frozen=True):
    """Of each device event: seconds at the peak, at the bandwidth, and the greater; NaN if unknown.

    ``why`` is a `NoRoof`, or 0 where ``least_s`` is known.
    """

    at_peak_s: _Floats
    at_bandwidth_s: _Floats
    least_s: _Floats
    why: Ints


def believable_work(trace: Events, extra: Sequence[Device]) -> AttributedWork:
    """Work without bytes that the device cannot have moved, for traces without strides.

    They cannot distinguish an expanded operand, which is read once, from a full one.
    """
    work = attribute(trace)
    if trace.has_strides or not len(work.event):
        return work
    _, at_bandwidth = least_seconds(trace, work, extra)
    too_many = at_bandwidth > trace.dur[work.event] / 1e9  # False for NaN
    too_many &= trace.kind[work.event] == Kind.KERNEL
    return replace(work, bytes=np.where(too_many, -1, work.bytes))


def least_seconds(
    trace: Events, work: AttributedWork, extra: Sequence[Device]
) -> tuple[_Floats, _Floats]:
    """Seconds that each event's FLOPs, and its bytes, take at the device's peak; NaN if unknown."""
    numbers, at = np.unique(trace.device[work.event], return_inverse=True)
    found = [device_of(trace, int(number), extra) for number in numbers]
    peaks = np.array(
        [[d.peaks.get(key, np.nan) if d else np.nan for key in (*DTYPES, "")] for d in found]
    ).reshape(-1, len(DTYPES) + 1)  # the last is of dtype -1
    widths = np.array([d.bandwidth_bytes_per_s if d else np.nan for d in found], float)
    done, moved = work.done.astype(float), work.bytes.astype(float)
    done[work.done < 0] = moved[work.bytes < 0] = np.nan
    over_bus, copies = _over_bus(trace, work), trace.kind[work.event] == Kind.MEMCPY
    moved[over_bus] = np.nan
    moved[copies & ~over_bus] *= 2  # its bytes are read and written
    least: tuple[_Floats, _Floats] = (done / peaks[at, work.dtype], moved / widths[at])
    return least


def _over_bus(trace: Events, work: AttributedWork) -> Bools:
    copies = trace.kind[work.event] == Kind.MEMCPY
    found: Bools = copies & ~trace.names_where(_WITHIN.search)[work.event]
    return found


def roof_of(trace: Events, work: AttributedWork, extra: Sequence[Device]) -> Roof:
    """The least time of each device event, or why it is unknown."""
    at_peak, at_bandwidth = least_seconds(trace, work, extra)
    has_flops, has_bytes = work.flops >= 0, work.bytes >= 0
    unsaid = unclear(trace, work) | (has_flops & (work.done < 0))
    launch = trace.launch[work.event]
    with_work = nesting.distinct(work.call[(has_flops | has_bytes) & (work.call >= 0)])
    idle = ~has_flops & ~has_bytes
    # The first that holds.
    reasons = (
        (_over_bus(trace, work), NoRoof.COPY),
        (idle & is_replayed(trace, launch), NoRoof.REPLAYED),
        (idle & (launch < 0), NoRoof.UNLINKED),
        (idle & (work.call < 0), NoRoof.NO_OPERATOR),
        (unsaid, NoRoof.NO_FLOPS),
        (idle & nesting.among(work.call, with_work), NoRoof.HELPER),
        (idle, NoRoof.NO_WORK),
        (has_flops & ~has_bytes, NoRoof.NO_BYTES),
        (np.isnan(at_bandwidth) | (has_flops & np.isnan(at_peak)), NoRoof.NO_PEAK),
    )
    conditions, codes = zip(*reasons, strict=True)
    why = np.select(conditions, [int(code) for code in codes], 0)
    least = np.where(why == 0, np.fmax(at_peak, at_bandwidth), np.nan)
    return Roof(at_peak, at_bandwidth, least, why)


def unclear(trace: Events, work: AttributedWork) -> Bools:
    """Kernels without FLOPs that, or below something that, may multiply nobody knows how much."""
    unknown, launch = uncounted_events(trace), trace.launch[work.event]
    found: Bools = (trace.kind[work.event] == Kind.KERNEL) & (work.flops < 0)
    found &= unknown[work.event] | (nesting.nearest(unknown, trace.parent, launch) >= 0)
    return found


class Unroofed(Frozen, frozen=True):
    """Device events without a roofline time: how many, and their ns, by reason and in all."""

    by_reason: Mapping[NoRoof, tuple[int, int]]
    count: int
    ns: int
    all_count: int
    all_ns: int


def unroofed(trace: Events, extra: Sequence[Device] = ()) -> Unroofed:
    """Which device events of the selection have no roofline time, most time first."""
    work = believable_work(trace, extra)
    dur = trace.dur[work.event]
    if not len(dur):
        return Unroofed({}, 0, 0, 0, 0)
    why = roof_of(trace, work, extra).why
    count = np.bincount(why, minlength=len(NoRoof) + 1)
    ns = nesting.summed(why, dur, len(count))
    order = sorted(NoRoof, key=lambda reason: (-ns[reason], -count[reason]))
    found = {reason: (int(count[reason]), int(ns[reason])) for reason in order if count[reason]}
    lacking = why > 0
    return Unroofed(found, int(lacking.sum()), int(dur[lacking].sum()), len(dur), int(dur.sum()))


# ------------------------------------------------------------------------------------- devices


def listed_device(trace: Events, number: int) -> list[dict[str, Any]]:
    """The entries of `deviceProperties` for a device: its own, or else all.

    ROCm numbers events differently, so there all entries must be alike.
    """
    listed: Any = trace.metadata.get("deviceProperties")
    entries = [e for e in listed if isinstance(e, dict)] if isinstance(listed, list) else []
    return [e for e in entries if e.get("id") == number] or entries


def device_of(trace: Events, number: int, extra: Sequence[Device]) -> Device | None:
    """The device with this number."""
    entries = listed_device(trace, number)
    first, *others = [devices.find(e, extra) for e in entries] or [None]
    return first if all(other == first for other in others) else None


#: A kernel at this share of its roof is as good as kernels get.
REACHABLE: Final = 0.7


def ms_to_gain(total_ms: float, roofline_ms: float | None) -> float | None:
    """What a kernel at 70 % of its roof would save, at least 0; None if the roof is unknown.

    >>> ms_to_gain(10.0, 3.5), ms_to_gain(4.0, 3.5), ms_to_gain(4.0, None)
    (5.0, 0.0, None)
    """
    return None if roofline_ms is None else max(total_ms - roofline_ms / REACHABLE, 0.0)


# ---- How kernels were launched: grid, block, registers, shared memory; waves and their tail.
#
# Kineto records these with each kernel (``CuptiActivity.cpp``). Blocks run in waves: as many at
# once as fit on the device. The last wave may be empty in part, its tail.

#: The most blocks that a launch can have along x; all other numbers are smaller. Source: CUDA's
#: programming guide, technical specifications per compute capability.
_LARGEST: Final = 2**31 - 1
#: … and in all: beyond, they are not believed, and would not fit into the column.
_MOST_BLOCKS: Final = 2**62
_NONE: Final = (-1, -1, -1)
#: A recorded occupancy is a whole number of percent, so it is off by no more than this, and a
#: little for what Kineto computes in single precision.
_ROUNDED_PCT: Final = 0.51


class Launched(Frozen, frozen=True):
    """The launches of device events; -1 and NaN where unknown, as for copies.

    ``grid`` and ``block`` have three columns. ``occupancy_pct`` is Kineto's estimate: resident
    threads in percent of the most that a multiprocessor can have. ``waves`` are blocks by the
    blocks that fit on the device at once.
    """

    grid: Ints
    block: Ints
    registers: Ints
    shared_bytes: Ints
    occupancy_pct: _Floats
    blocks_per_sm: _Floats
    warps_per_sm: _Floats
    waves: _Floats


def launched(trace: Events, event: Ints, extra: Sequence[Device] = ()) -> Launched:
    """How each of these device events was launched."""
    kernels = np.flatnonzero(trace.kind[event] == Kind.KERNEL)
    args = decode(LaunchArgs, trace.args[event[kernels]])
    count = len(event)

    def whole(values: list[int]) -> Ints:
        column = np.full(count, -1, np.int64)
        column[kernels] = [value if 0 <= value <= _LARGEST else -1 for value in values]
        return column

    def real(values: list[float]) -> _Floats:
        column = np.full(count, np.nan)
        column[kernels] = values
        column[column < 0] = np.nan
        return column

    def sizes(raws: list[bytes]) -> Ints:
        known = {raw: _three(decode_part(raw)) for raw in set(raws)}
        columns = np.full((count, 3), -1, np.int64)
        columns[kernels] = np.array([known[raw] for raw in raws], np.int64).reshape(-1, 3)
        return columns

    grid, block = sizes([bytes(a.grid) for a in args]), sizes([bytes(a.block) for a in args])
    registers, shared = whole([a.registers for a in args]), whole([a.shared for a in args])
    per_sm, warps = real([a.blocks_per_sm for a in args]), real([a.warps_per_sm for a in args])
    threads = np.where(block[:, 0] > 0, block.prod(axis=1), -1)
    fit, count_of, most = _fit(trace, event, threads, registers, shared, extra)
    blocks = np.where(grid[:, 0] > 0, grid.prod(axis=1), -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        waves = np.where((fit > 0) & (blocks > 0), blocks / (fit * count_of), np.nan)
        # Kineto's estimate is 0 where it believes that the shared memory does not suffice.
        likely = 100 * np.minimum(fit, per_sm) * threads / most
    occupancy = real([a.occupancy for a in args])
    occupancy[(occupancy == 0) & ~(likely <= _ROUNDED_PCT)] = np.nan
    return Launched(grid, block, registers, shared, occupancy, per_sm, warps, waves)


def multiprocessors(trace: Events, number: int, extra: Sequence[Device] = ()) -> int | None:
    """How many multiprocessors a device has, by its driver, else by the table of devices."""
    found = {whole_number(entry.get("numSms")) for entry in listed_device(trace, number)}
    known = found.pop() if len(found) == 1 else -1
    if known > 0:
        return known
    device = device_of(trace, number, extra)
    return device.multiprocessors if device is not None else None


def tail_of(waves: float | None) -> float | None:
    """The share of the last wave that is empty; None if the waves are unknown.

    >>> tail_of(1.25), tail_of(2.0), tail_of(0.1), tail_of(None)
    (0.75, 0.0, 0.9, None)
    """
    return None if waves is None else float(-(-waves // 1) - waves)


def _three(value: Any) -> tuple[int, int, int]:
    """Sizes along x, y and z; three times -1 for anything else."""
    x, y, z = map(whole_number, value if isinstance(value, list) and len(value) == 3 else _NONE)
    fine = min(x, y, z) > 0 and max(x, y, z) <= _LARGEST and x * y * z <= _MOST_BLOCKS
    return (x, y, z) if fine else _NONE


def _fit(
    trace: Events,
    event: Ints,
    threads: Ints,
    registers: Ints,
    shared: Ints,
    extra: Sequence[Device],
) -> tuple[Ints, Ints, Ints]:
    """For each event: blocks that fit on a multiprocessor, how many of these the device has, and
    the most threads of one; -1 if unknown.
    """
    sm, count, most = np.full((3, len(event)), -1, np.int64)
    for number in distinct(trace.device[event]).tolist():
        found = {
            multiprocessor(entry, device_of(trace, number, extra))
            for entry in listed_device(trace, number)
        }
        first = found.pop() if len(found) == 1 else None
        if first is None:
            continue
        mine = np.flatnonzero(trace.device[event] == number)
        sm[mine] = resident_blocks(first, threads[mine], registers[mine], shared[mine])
        count[mine], most[mine] = first.count, first.threads
    return sm, count, most


# ---- How close each kernel comes to the device's peak, and which limit bounds it.
#
# Rates cover the calls whose FLOPs (or bytes) are known: a kernel launched by both an operator
# and a graph has the rate that it reached under the operator. Bytes are compulsory ones, so their
# rate is a lower bound on the memory traffic, unless the data came from a cache: a tensor that
# stays in the device's L2 cache between two kernels can be read faster than memory delivers, and
# then `bandwidth_pct` is correct above 100. A trace without strides (before 2024) cannot
# distinguish that from an expanded operand, so there the bytes of such a kernel are unknown.
# FLOPs are those of the formula, so an algorithm that needs fewer (Winograd, FFT) can exceed 100
# % of the peak; any other kernel that does has a wrong count, and the commands that show it warn
# about that.
#
# The arithmetic intensity is FLOPs by bytes over the kernels where both are known. The roofline
# time of a row is the sum of its kernels' (see `roofline`), and unknown if that of one of them
# is.

Bound = Literal["compute", "memory", "latency"]

#: Below this share of both peaks, a kernel is limited by neither.
LATENCY_PCT: Final = 10.0
#: A kernel this short is bound by latency, if nothing else is known about it.
SHORT_US: Final = 10.0

#: Stands among a row's operators for events without a runtime call.
UNLINKED: Final = "(unlinked)"


@dataclass(frozen=True)
class KernelWork:
    """Per device event of the selection, in time order: its work and how fast it was.

    ``flops`` and ``bytes`` are -1, percentages NaN, where unknown; ``done`` are the FLOPs that the
    percentage is based on, those that a causal mask leaves.
    """

    event: Ints
    flops: Ints
    done: Ints
    bytes: Ints
    compute_pct: _Floats
    bandwidth_pct: _Floats


@dataclass(frozen=True)
class OperatorCalls:
    """How many device events of a row an operator launched; None stands for no runtime call."""

    operator: str | None
    calls: int


@dataclass(frozen=True)
class KernelRow:
    """All calls of a kernel, a copy or a memset on one device, or all of one operator's kernels.

    ``operator`` is the operator that launched them. If there are several, or several kernels in an
    operator's row, each is listed with its calls, see `CountedNames`. `NO_OPERATOR` stands for
    launches outside of operators. ``operator`` is None if none of the events has a runtime call;
    `UNLINKED` stands for such events among others. ``flops`` and ``bytes`` are sums over the calls
    where they are known; FLOPs are 0 for what computes no products. For causal attention ``flops``
    counts all pairs, the rate, ``compute_pct``, ``arithmetic_intensity`` and ``roofline_ms`` only
    those that the mask leaves.
    """

    ADDS_UP: ClassVar = ("calls", "total_ms", "flops", "bytes", "ms_to_gain")

    device: int | None
    kernel: str
    operator: str | None
    calls: int
    total_ms: float
    mean_us: float
    flops: int | None
    tflops_per_s: float | None
    bytes: int | None
    gb_per_s: float | None
    compute_pct: float | None
    bandwidth_pct: float | None
    bound: Bound | None
    #: ``kernel`` in a few words, as tables show it; `Trace.kernels` fills it.
    kernel_short: str | None = None
    #: The operators of ``operator`` with their calls, the one with most time first.
    operators: tuple[OperatorCalls, ...] = ()
    #: ``Input Dims`` of the operator, where grouped by shape.
    shapes: Any = None
    #: FLOPs by bytes. This and all fields below are filled for two or more words of a grouping.
    arithmetic_intensity: float | None = None
    #: The least time for the FLOPs and bytes at the peaks of the device.
    roofline_ms: float | None = None
    #: What reaching 70 % of the roof would save.
    ms_to_gain: float | None = None
    #: Blocks along x, y and z. This and all fields below are None where the calls differ.
    grid: tuple[int, int, int] | None = None
    #: Threads of a block along x, y and z.
    block: tuple[int, int, int] | None = None
    registers_per_thread: int | None = None
    #: Static and dynamic shared memory of a block.
    shared_memory_bytes: int | None = None
    #: Kineto's estimate of resident threads, in percent of the most that are possible.
    occupancy_pct: float | None = None
    #: All blocks by all multiprocessors, as Kineto records it.
    blocks_per_sm: float | None = None
    #: All warps by all multiprocessors, as Kineto records it.
    warps_per_sm: float | None = None
    #: Blocks by the blocks that fit on the device at once.
    waves: float | None = None
    #: The share (0 to 1) of the last wave that is empty.
    tail: float | None = None


#: Fields that only rows of a finer grouping have.
FINE_FIELDS: Final = (
    "shapes", "arithmetic_intensity", "roofline_ms", "ms_to_gain", "grid", "block",
    "registers_per_thread", "shared_memory_bytes", "occupancy_pct", "blocks_per_sm", "warps_per_sm",
    "waves", "tail",
)  # fmt: skip


def kernel_work(trace: Events, extra: Sequence[Device] = ()) -> KernelWork:
    """FLOPs, bytes and percentages of peak of each device event."""
    work = believable_work(trace, extra)
    at_peak, at_bandwidth = least_seconds(trace, work, extra)
    seconds = trace.dur[work.event] / 1e9
    with np.errstate(divide="ignore", invalid="ignore"):
        compute, bandwidth = 100 * at_peak / seconds, 100 * at_bandwidth / seconds
    for pct in (compute, bandwidth):
        pct[seconds <= 0] = np.nan
    return KernelWork(work.event, work.flops, work.done, work.bytes, compute, bandwidth)


class Unsized(Frozen, frozen=True):
    """Device events that move an unknown number of bytes: how many of ``every``, and what the
    others move.
    """

    count: int
    every: int
    known_bytes: int


def unsized(trace: Events, extra: Sequence[Device] = ()) -> Unsized:
    """Why the sum of the bytes of a trace's device events is only a lower bound, if it is."""
    work = believable_work(trace, extra)
    known = work.bytes >= 0
    return Unsized(int((~known).sum()), len(known), int(work.bytes[known].sum()))


def kernel_rows(
    trace: Events, *, by: str = "name", extra: Sequence[Device] = ()
) -> list[KernelRow]:
    """A row for each device and group of a grouping (see `parse_grouping`), the longest first.

    Without kernels in the grouping, a rate covers all device time of an operator's calls, helpers
    included; its copies and memsets are separate rows, by name. ``extra``: devices in addition to
    the built-in ones.

    Raises:
        ValueError: there is no such grouping.
    """
    words = parse_grouping(by)
    work = believable_work(trace, extra)
    event = work.event
    if not len(event):
        return []
    device, name = trace.device[event], trace.name[event]
    grouped = Grouped(trace, work, words)
    whole, table = grouped.whole, Sums(grouped.group, trace.dur[event])

    roof = roof_of(trace, work, extra)
    done, done_ns = table.known(work.done, work.done >= 0, whole)
    moved, moved_ns = table.known(work.bytes, work.bytes >= 0, whole)
    peak_s, peak_ns = table.known(roof.at_peak_s, ~np.isnan(roof.at_peak_s), whole)
    width_s, width_ns = table.known(roof.at_bandwidth_s, ~np.isnan(roof.at_bandwidth_s), whole)
    flops = np.where((work.flops < 0) & ~unclear(trace, work), 0, work.flops)
    total_flops, total_bytes = table.exact(flops), table.exact(work.bytes)

    fine: list[dict[str, Any]] = [{}] * table.count
    if len(words) > 1:
        shapes = [decode_part(raw) for raw in grouped.dims]
        launches = _launch_fields(table, launched(trace, event, extra))
        limits = _roof_fields(table, work.done, work.bytes, roof.least_s, whole)
        number = grouped.shape[table.first].tolist()
        fine = [
            {"shapes": shapes[i] if i >= 0 else None, **limit, **launch}
            for i, limit, launch in zip(number, limits, launches, strict=True)
        ]

    rows = []
    shown, _ = trace.shown_names
    kernels, owners = table.parts(name), table.parts(grouped.owner)
    for g in table.by_time().tolist():
        total_ns, calls = int(table.ns[g]), int(table.calls[g])
        compute = _ratio(peak_s[g] * 1e11, peak_ns[g])
        bandwidth = _ratio(width_s[g] * 1e11, width_ns[g])
        mean_us = total_ns / calls / 1e3
        rows.append(
            KernelRow(
                device=number if (number := int(device[table.first[g]])) >= 0 else None,
                kernel=CountedNames([(trace.names[i], n) for i, n in kernels[g]]),
                operator=_operators(owners[g], shown),
                calls=calls,
                total_ms=total_ns / 1e6,
                mean_us=mean_us,
                flops=total_flops[g],
                tflops_per_s=_ratio(done[g] / 1e3, done_ns[g]),
                bytes=total_bytes[g],
                gb_per_s=_ratio(moved[g], moved_ns[g]),
                compute_pct=compute,
                bandwidth_pct=bandwidth,
                bound=_bound(compute, bandwidth, mean_us),
                operators=tuple(
                    OperatorCalls(None if i == NO_CALL else _name(i, shown), n)
                    for i, n in owners[g]
                ),
                **fine[g],
            )
        )
    return rows


def _roof_fields(
    table: Sums, done: Ints, moved: Ints, least_s: _Floats, whole: Ints
) -> list[dict[str, Any]]:
    """For each row what the roofline says."""
    both = (done >= 0) & (moved >= 0)
    work, size = table.total(np.where(both, done, 0)), table.total(np.where(both, moved, 0))
    complete = table.complete(~np.isnan(least_s), whole)
    least_ms = table.total(np.nan_to_num(least_s)) * 1e3
    rows = []
    for g in range(table.count):
        roof = float(least_ms[g]) if complete[g] else None
        gain = ms_to_gain(int(table.ns[g]) / 1e6, roof)
        intensity = float(work[g] / size[g]) if size[g] > 0 else None
        rows.append({"arithmetic_intensity": intensity, "roofline_ms": roof, "ms_to_gain": gain})
    return rows


def _launch_fields(table: Sums, launches: Launched) -> list[dict[str, Any]]:
    """For each row how its kernels were launched, as far as all of them were launched alike."""

    def shared(values: _Floats | Ints) -> list[Any]:
        first = values[table.first]
        known = table.same(values) & (first >= 0)  # False for NaN
        return [one if fine else None for one, fine in zip(first.tolist(), known, strict=True)]

    def sizes(columns: Ints) -> list[tuple[int, int, int] | None]:
        three = zip(*(shared(column) for column in columns.T), strict=True)
        return [None if None in size else size for size in three]

    columns = {
        "grid": sizes(launches.grid),
        "block": sizes(launches.block),
        "registers_per_thread": shared(launches.registers),
        "shared_memory_bytes": shared(launches.shared_bytes),
        "occupancy_pct": shared(launches.occupancy_pct),
        "blocks_per_sm": shared(launches.blocks_per_sm),
        "warps_per_sm": shared(launches.warps_per_sm),
        "waves": (waves := shared(launches.waves)),
        "tail": [tail_of(one) for one in waves],
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def masked_kernels(trace: Events) -> tuple[int, int, int]:
    """How many attention kernels do less than their FLOPs because of a mask; for how many the
    mask's share is unknown; for how many it is unknown whether there is a mask.
    """
    work = attribute(trace)
    unknown = (work.done < 0) & (work.flops >= 0)
    less = (work.done < work.flops) & ~unknown
    return int(less.sum()), int(unknown.sum()), int(work.mask_unknown.sum())


def _operators(parts: Sequence[tuple[int, int]], shown: Sequence[str]) -> str | None:
    if [number for number, _ in parts] == [NO_CALL]:
        return None
    return CountedNames([(_name(i, shown), count) for i, count in parts])


def _name(number: int, shown: Sequence[str]) -> str:
    return {-1: NO_OPERATOR, NO_CALL: UNLINKED}.get(number) or shown[number]


def unlinked_events(trace: Events) -> int:
    """How many device events of the selection have no runtime call."""
    events = trace.selection & trace.is_kind(*DEVICE_KINDS)
    return int((trace.launch[events] < 0).sum())


def _bound(compute: float | None, bandwidth: float | None, mean_us: float) -> Bound | None:
    """The nearer roof, or neither: above the ridge point, the compute share is the greater.

    An elementwise kernel has no counted FLOPs, and few in reality. A kernel far below one roof may
    be near the other, unless it is too short for either.
    """
    known = [pct for pct in (compute, bandwidth) if pct is not None]
    if not known:
        return None
    if max(known) < LATENCY_PCT:
        return "latency" if len(known) == 2 or mean_us < SHORT_US else None
    if bandwidth is None:
        return None
    return "compute" if compute is not None and compute >= bandwidth else "memory"


def _ratio(amount: float, time: float) -> float | None:
    return float(amount / time) if time > 0 and not np.isnan(amount) else None
