"""How close each kernel comes to the device's peak, and which limit bounds it.

Rates cover the calls whose FLOPs (or bytes) are known: a kernel launched by both an operator and a
graph has the rate that it reached under the operator. Bytes are compulsory ones, so their rate is a
lower bound on the memory traffic, unless the data came from a cache: a tensor that stays in the
device's L2 cache between two kernels can be read faster than memory delivers, and then
`bandwidth_pct` is correct above 100. A trace without strides (before 2024) cannot distinguish that
from an expanded operand, so there the bytes of such a kernel are unknown. FLOPs are those of the
formula, so an algorithm that needs fewer (Winograd, FFT) can exceed 100 % of the peak; any other
kernel that does has a wrong count, and the commands that show it warn about that.

The arithmetic intensity is FLOPs by bytes over the kernels where both are known. The roofline time
of a row is the sum of its kernels' (see `roofline`), and unknown if that of one of them is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.attribution import attribute
from pytest_torchprof.analysis.kernel_groups import NO_CALL, Grouped, Sums, parse_grouping
from pytest_torchprof.analysis.launch_shapes import Launched, launched, tail_of
from pytest_torchprof.analysis.operator_totals import NO_OPERATOR
from pytest_torchprof.analysis.roofline import (
    believable_work,
    least_seconds,
    ms_to_gain,
    roof_of,
    unclear,
)
from pytest_torchprof.core.counted_names import CountedNames
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace.arguments import decode_part
from pytest_torchprof.trace.kinds import DEVICE_KINDS

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.work.devices.device import Device

_Floats = npt.NDArray[np.float64]
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
