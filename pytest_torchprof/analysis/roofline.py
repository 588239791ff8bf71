"""The least time that the device needs for a kernel's work, and why it is unknown for others.

The roofline of Williams, Waterman and Patterson (2009), https://doi.org/10.1145/1498765.1498785: a
kernel takes at least its FLOPs at the peak of its dtype, and at least its bytes at the bandwidth of
the memory. An operator without a formula does little arithmetic, so its bytes alone count; where
the FLOPs of a product are unknown, or the bytes of one with known FLOPs, so is the roofline.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from pytest_torchprof.analysis.attribution import attribute, is_replayed
from pytest_torchprof.analysis.uncounted_flops import uncounted_events
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.work.devices import table as devices
from pytest_torchprof.work.devices.device import DTYPES

if TYPE_CHECKING:
    from pytest_torchprof.analysis.attribution import AttributedWork
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.work.devices.device import Device

_Floats = npt.NDArray[np.float64]

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
    ns = np.zeros(len(count), np.int64)
    np.add.at(ns, why, dur)
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
