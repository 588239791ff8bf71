"""The least time that a chip needs for the operators of a trace, whatever ran them.

For each operator the greatest of three: its FLOPs at the chip's peak for their dtype, its
compulsory bytes at the bandwidth of the chip's memory (together the roofline of Williams, Waterman
and Patterson (2009), https://doi.org/10.1145/1498765.1498785), and the shortest time of the kernels
that it starts. Operators do not overlap in this sum. It is a lower bound, not a prediction: it
leaves out what the host does, waits, copies to and from the host, and operators with unknown work
but for their launches. Data that a cache serves may come faster than the memory allows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.estimated_launches import on_host, operands_of, units_of
from pytest_torchprof.analysis.moved_bytes import counted_bytes
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.arguments import alike
from pytest_torchprof.work import masks
from pytest_torchprof.work.counting import counts_flops, op_flops, unknown_flops
from pytest_torchprof.work.devices.device import DTYPES
from pytest_torchprof.work.dtypes import PEAK

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.work.devices.device import Device
    from pytest_torchprof.work.operands import Operands

_Floats = npt.NDArray[np.float64]

Limit = Literal["compute", "memory", "launch"]
LIMITS: Final[tuple[Limit, ...]] = ("launch", "memory", "compute")

#: The shortest kernels of public traces of V100 to B300 and MI300X take this long.
KERNEL_NS: Final = 600

_FP32, _TF32 = DTYPES.index("fp32"), DTYPES.index("tf32")


class Work(Frozen, frozen=True):
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


def bound(trace: Events, chip: Device) -> Bound:
    """The least time of the selected operators on this chip."""
    return trace.once(_bound, chip)


def _bound(trace: Events, chip: Device) -> Bound:
    every = trace.whole.once(_work)
    mine = trace.selection[every.event]
    work = Work(*(getattr(every, name)[mine] for name in Work.__struct_fields__))
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
    marked = np.zeros(len(trace), bool)
    silent = (unknown_flops(trace) & ~host).nonzero()[0]
    for rows in (units.event, with_flops, with_bytes, silent):
        marked[rows] = True
    rows = marked.nonzero()[0]
    root = marked.copy()
    root[rows[nesting.below(marked, trace.parent, rows)]] = False
    event = root.nonzero()[0]
    number = np.full(len(trace), -1, np.int64)
    number[event] = np.arange(len(event))

    def of(rows: Ints) -> Ints:
        """The unit that each of these is, or is nested in."""
        found: Ints = number[_outermost(trace, root, rows)]
        return found

    launches = np.zeros(len(event), np.int64)
    np.add.at(launches, of(units.event), units.launches)
    all_flops = np.zeros(len(event), np.int64)
    np.add.at(all_flops, of(with_flops), flops[with_flops])
    all_flops[of(silent)] = -1
    table = np.zeros((len(event), len(DTYPES) + 1))
    np.add.at(table, (of(with_flops), _dtypes(trace, with_flops)), _needed(trace, with_flops))
    bytes_ = np.full(len(event), -1, np.int64)
    known = of(with_bytes)
    bytes_[known] = 0
    np.add.at(bytes_, known, moved[with_bytes])
    return Work(event, launches, table, all_flops, bytes_)


def _outermost(trace: Events, root: npt.NDArray[np.bool_], rows: Ints) -> Ints:
    return nesting.nearest(root, trace.parent, rows)


def _dtypes(trace: Events, rows: Ints) -> Ints:
    """The column of the dtype in which each of these computes: that of its first tensor.

    Products of fp32 may be rounded to TF32, which is faster, unless the capture knows better;
    convolutions of fp32 are, by default.
    """
    tf32 = trace.facts.allow_tf32 is not False
    found = _by_kind(trace, rows, lambda name, call: _dtype(name, call, tf32=tf32))
    return found.astype(np.int64)


def _dtype(name: str, call: Operands, *, tf32: bool) -> int:
    types = call.types if isinstance(call.types, list) else []
    found = next((PEAK[t] for t in types if str(t) in PEAK), len(DTYPES))
    return _TF32 if found == _FP32 and (tf32 or "conv" in name) else found


def _needed(trace: Events, rows: Ints) -> _Floats:
    """The FLOPs of each of these, without those that a mask hides."""
    needed: _Floats = op_flops(trace)[rows] * _by_kind(trace, rows, _share)
    return needed


def _share(name: str, call: Operands) -> float:
    if name not in masks.MASKS:
        return 1.0
    left = masks.share(name, call.dims, call.types, call.concrete)
    return 0.5 if left is None else left


def _by_kind(trace: Events, rows: Ints, ask: Callable[[str, Operands], float]) -> _Floats:
    """What ``ask`` says of each call, asked once for those that are alike."""
    if not len(rows):
        return np.zeros(0)
    kinds, firsts, _ = alike(trace.name[rows], trace.args[rows])
    first = rows[firsts]
    found = [
        ask(trace.names[name], operands_of(args))
        for name, args in zip(trace.name[first].tolist(), trace.operands(first), strict=True)
    ]
    return np.array(found, float)[kinds]
