"""How kernels were launched: grid, block, registers, shared memory; waves and their tail.

Kineto records these with each kernel (``CuptiActivity.cpp``). Blocks run in waves: as many at once
as fit on the device. The last wave may be empty in part, its tail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from pytest_torchprof.analysis.roofline import device_of, listed_device
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace.arguments import (
    LaunchArgs,
    decode,
    decode_part,
    whole_number,
)
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.trace.nesting import distinct
from pytest_torchprof.work.devices.occupancy import multiprocessor, resident_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.work.devices.device import Device

_Floats = npt.NDArray[np.float64]

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
    fit, threads = _fit(trace, event, block, registers, shared, extra)
    blocks = np.where(grid[:, 0] > 0, grid.prod(axis=1), -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        waves = np.where((fit.sm > 0) & (blocks > 0), blocks / (fit.sm * fit.count), np.nan)
        # Kineto's estimate is 0 where it believes that the shared memory does not suffice.
        likely = 100 * np.minimum(fit.sm, per_sm) * threads / fit.threads
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


class _Fit(Frozen, frozen=True):
    """Of each event: blocks that fit on a multiprocessor, and its properties; -1 if unknown."""

    sm: Ints
    count: Ints
    threads: Ints


def _fit(
    trace: Events, event: Ints, block: Ints, registers: Ints, shared: Ints, extra: Sequence[Device]
) -> tuple[_Fit, Ints]:
    threads = np.where(block[:, 0] > 0, block.prod(axis=1), -1)
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
    return _Fit(sm, count, most), threads
