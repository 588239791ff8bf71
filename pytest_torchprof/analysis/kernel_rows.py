"""How close each kernel comes to the device's peak, and which limit bounds it.

Rates cover the calls whose FLOPs (or bytes) are known: a kernel launched by both an operator and a
graph has the rate that it reached under the operator. Bytes are compulsory ones, so their rate is a
lower bound on the memory traffic, unless the data came from a cache: a tensor that stays in the
device's L2 cache between two kernels can be read faster than memory delivers, and then
`bandwidth_pct` is correct above 100. A trace without strides (before 2024) cannot distinguish that
from an expanded operand, so there the bytes of such a kernel are unknown. FLOPs are those of the
formula, so an algorithm that needs fewer (Winograd, FFT) can exceed 100 % of the peak; any other
kernel that does has a wrong count, and the commands that show it warn about that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from pytest_torchprof.analysis.attribution import attribute
from pytest_torchprof.analysis.operator_totals import NO_OPERATOR
from pytest_torchprof.core.counted_names import CountedNames
from pytest_torchprof.trace.kinds import DEVICE_KINDS, Kind
from pytest_torchprof.work.devices import table as devices
from pytest_torchprof.work.devices.device import DTYPES

if TYPE_CHECKING:
    from pytest_torchprof.analysis.attribution import AttributedWork
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints
    from pytest_torchprof.work.devices.device import Device

_Floats = npt.NDArray[np.float64]
Bound = Literal["compute", "memory", "latency"]

#: Below this share of both peaks, a kernel is limited by neither.
LATENCY_PCT: Final = 10.0
#: A kernel this short is bound by latency, if nothing else is known about it.
SHORT_US: Final = 10.0

#: Stands among a row's operators for events without a runtime call.
UNLINKED: Final = "(unlinked)"
_NO_CALL: Final = -2

#: Copies within one device's memory; others use a bus without a peak here.
_WITHIN = re.compile(r"DtoD|DeviceToDevice|D2D")


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
class KernelRow:
    """All calls of a kernel, a copy or a memset on one device, or all of one operator's kernels.

    ``operator`` is the operator that launched them. If there are several, or several kernels in an
    operator's row, each is listed with its calls, see `CountedNames`. `NO_OPERATOR` stands for
    launches outside of operators. ``operator`` is None if none of the events has a runtime call;
    `UNLINKED` stands for such events among others. ``flops`` and ``bytes`` are sums over the calls
    where they are known. For causal attention ``flops`` counts all pairs, the rate and
    ``compute_pct`` only those that the mask leaves.
    """

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


def kernel_work(trace: Events, extra: Sequence[Device] = ()) -> KernelWork:
    """FLOPs, bytes and percentages of peak of each device event."""
    work = _believable(trace, attribute(trace), extra)
    at_peak, at_bandwidth = _least_s(trace, work, extra)
    seconds = trace.dur[work.event] / 1e9
    with np.errstate(divide="ignore", invalid="ignore"):
        compute, bandwidth = 100 * at_peak / seconds, 100 * at_bandwidth / seconds
    for pct in (compute, bandwidth):
        pct[seconds <= 0] = np.nan
    return KernelWork(work.event, work.flops, work.done, work.bytes, compute, bandwidth)


def kernel_rows(
    trace: Events, *, by: Literal["name", "op"] = "name", extra: Sequence[Device] = ()
) -> list[KernelRow]:
    """A row for each device and kernel, or each device and operator, the longest first.

    By operator, a rate covers all device time of its calls, helpers included; its copies and
    memsets are separate rows, by name. ``extra``: devices in addition to the built-in ones.
    """
    work = _believable(trace, attribute(trace), extra)
    event = work.event
    if not len(event):
        return []
    device, name, dur = trace.device[event], trace.name[event], trace.dur[event]
    copied = trace.kind[event] != Kind.KERNEL
    # An operator's copies are not in one row with its kernels.
    linked = (trace.launch[event] >= 0) | (work.owner >= 0)
    owner = np.where(linked, work.owner, _NO_CALL)
    what = name if by == "name" else _pairs(np.where(copied, name, -1), owner)
    _, place = np.unique(device, return_inverse=True)
    _, group = np.unique(_pairs(place, what), return_inverse=True)
    table = _Table(group, dur)
    whole = _calls(work.call, group) if by == "op" else np.arange(len(event))
    whole = np.where(copied, whole.max() + 1 + np.arange(len(event)), whole)

    at_peak, at_bandwidth = _least_s(trace, work, extra)
    done, done_ns = table.known(work.done, work.done >= 0, whole)
    moved, moved_ns = table.known(work.bytes, work.bytes >= 0, whole)
    peak_s, peak_ns = table.known(at_peak, ~np.isnan(at_peak), whole)
    width_s, width_ns = table.known(at_bandwidth, ~np.isnan(at_bandwidth), whole)
    total_flops, total_bytes = table.exact(work.flops), table.exact(work.bytes)

    rows = []
    shown, _ = trace.shown_names
    kernels, owners = table.parts(name), table.parts(owner)
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
            )
        )
    return rows


def masked_kernels(trace: Events) -> tuple[int, int, int]:
    """How many attention kernels do less than their FLOPs because of a mask; for how many the
    mask's share is unknown; for how many it is unknown whether there is a mask.
    """
    work = attribute(trace)
    unknown = (work.done < 0) & (work.flops >= 0)
    less = (work.done < work.flops) & ~unknown
    return int(less.sum()), int(unknown.sum()), int(work.mask_unknown.sum())


def _operators(parts: Sequence[tuple[int, int]], shown: Sequence[str]) -> str | None:
    if [number for number, _ in parts] == [_NO_CALL]:
        return None
    other = {-1: NO_OPERATOR, _NO_CALL: UNLINKED}
    return CountedNames([(other.get(i) or shown[i], count) for i, count in parts])


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


# ---------------------------------------------------------------------------------------- peaks


def _least_s(
    trace: Events, work: AttributedWork, extra: Sequence[Device]
) -> tuple[_Floats, _Floats]:
    """Seconds that each event's FLOPs, and its bytes, take at the device's peak; NaN if unknown."""
    numbers, at = np.unique(trace.device[work.event], return_inverse=True)
    found = [_device(trace, int(number), extra) for number in numbers]
    peaks = np.array(
        [[d.peaks.get(key, np.nan) if d else np.nan for key in (*DTYPES, "")] for d in found]
    ).reshape(-1, len(DTYPES) + 1)  # the last is of dtype -1
    widths = np.array([d.bandwidth_bytes_per_s if d else np.nan for d in found], float)
    done, moved = work.done.astype(float), work.bytes.astype(float)
    done[work.done < 0] = moved[work.bytes < 0] = np.nan
    copies = trace.kind[work.event] == Kind.MEMCPY
    within = trace.names_where(_WITHIN.search)[work.event]
    moved[copies & ~within] = np.nan
    moved[copies & within] *= 2  # its bytes are read and written
    least: tuple[_Floats, _Floats] = (done / peaks[at, work.dtype], moved / widths[at])
    return least


def _believable(trace: Events, work: AttributedWork, extra: Sequence[Device]) -> AttributedWork:
    """Without bytes that the device cannot have moved, for traces without strides.

    They cannot distinguish an expanded operand, which is read once, from a full one.
    """
    if trace.has_strides or not len(work.event):
        return work
    _, at_bandwidth = _least_s(trace, work, extra)
    too_many = at_bandwidth > trace.dur[work.event] / 1e9  # False for NaN
    too_many &= trace.kind[work.event] == Kind.KERNEL
    return replace(work, bytes=np.where(too_many, -1, work.bytes))


def _device(trace: Events, number: int, extra: Sequence[Device]) -> Device | None:
    """The device with this number. ROCm numbers events differently: then all must be alike."""
    listed: Any = trace.metadata.get("deviceProperties")
    entries = [e for e in listed if isinstance(e, dict)] if isinstance(listed, list) else []
    mine = [e for e in entries if e.get("id") == number]
    first, *others = [devices.find(e, extra) for e in mine or entries] or [None]
    return first if all(other == first for other in others) else None


# --------------------------------------------------------------------------------------- groups


class _Table:
    """Sums over groups of device events, which are numbered from 0."""

    def __init__(self, group: Ints, dur: Ints) -> None:
        self.group, self.dur = group, dur
        self.count = int(group.max()) + 1
        self.calls = np.bincount(group, minlength=self.count)
        self.ns = self._sum(dur)
        self.first = np.full(self.count, len(group), np.int64)
        np.minimum.at(self.first, group, np.arange(len(group)))

    def _sum(self, values: Ints) -> Ints:
        total = np.zeros(self.count, np.int64)
        np.add.at(total, self.group, values)
        return total

    def by_time(self) -> Ints:
        """Groups, the longest first, then in order of appearance."""
        return np.lexsort((self.first, -self.ns))

    def known(self, values: _Floats | Ints, known: Bools, whole: Ints) -> tuple[_Floats, _Floats]:
        """Sums of the known values, and ns of all events of each `whole` with a known value."""
        counted = np.zeros(int(whole.max()) + 1, bool)
        counted[whole[known]] = True
        time = np.where(counted[whole], self.dur, 0)
        values = np.where(known, values, 0)
        return self._floats(values), self._floats(time)

    def _floats(self, values: _Floats | Ints) -> _Floats:
        return np.asarray(np.bincount(self.group, values, self.count), np.float64)

    def exact(self, values: Ints) -> list[int | None]:
        """Sums of the values that are not negative; None where there are none."""
        known = values >= 0
        some = np.bincount(self.group, known, self.count) > 0
        totals = self._sum(np.where(known, values, 0)).tolist()
        return [total if any_ else None for total, any_ in zip(totals, some.tolist(), strict=True)]

    def parts(self, label: Ints) -> list[list[tuple[int, int]]]:
        """For each group its labels with their calls, the label with most of its time first."""
        _, first, at = np.unique(_pairs(self.group, label), return_index=True, return_inverse=True)
        calls, ns = np.bincount(at), np.bincount(at, self.dur)
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.count)]
        for i in np.lexsort((first, -ns)).tolist():
            found[int(self.group[first[i]])].append((int(label[first[i]]), int(calls[i])))
        return found


def _calls(call: Ints, group: Ints) -> Ints:
    """Numbers of operator calls within their row; an event without one is its own."""
    alone = np.where(call >= 0, call, -1 - np.arange(len(call)))
    _, number = np.unique(_pairs(group, alone), return_inverse=True)
    return number


def _pairs(a: Ints, b: Ints) -> Ints:
    """One number for each pair, in the order of pairs."""
    low = b.min()
    pairs: Ints = a * (b.max() - low + 1) + (b - low)
    return pairs
