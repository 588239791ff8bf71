"""How many blocks of a kernel fit on a multiprocessor of an NVIDIA GPU at the same time.

All formulas and constants are those of NVIDIA's occupancy calculator, ``cuda_occupancy.h`` of CUDA
13.0 (`cudaOccMaxActiveBlocksPerMultiprocessor`): the least of the limits by warps, registers,
shared memory and blocks. The result is an upper bound: a smaller carve-out of shared memory, or
clusters of blocks that must fit together, can leave room for fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace.arguments import whole_number

if TYPE_CHECKING:
    from pytest_torchprof.work.devices.device import Device

    _Ints = npt.NDArray[np.int64]

#: Registers are allocated to a warp in this unit, since compute capability 3.0.
_REGISTERS_UNIT: Final = 256
#: Warps of other sizes belong to other vendors, for which nothing here is known.
_WARP: Final = 32
#: Larger values of a property are not believed.
_LARGEST: Final = 2**31 - 1


class Multiprocessor(Frozen, frozen=True):
    """What one multiprocessor has, and how many of them there are.

    Attributes:
        count: multiprocessors of the device.
        capability: the compute capability, such as ``(9, 0)``.
        threads: that can be resident at once.
        registers: of 32 bits.
        shared_bytes: shared memory.
    """

    count: int
    capability: tuple[int, int]
    threads: int
    registers: int
    shared_bytes: int

    @property
    def most_blocks(self) -> int | None:
        """The most resident blocks of any size; None for an unknown capability."""
        major, minor = self.capability
        known = _MOST_BLOCKS.get(self.capability, _MOST_BLOCKS.get((major, -1)))
        return known if minor >= 0 else None


#: Resident blocks by compute capability; -1 stands for other minor numbers.
#: Source: `cudaOccMaxBlocksPerMultiprocessor`.
_MOST_BLOCKS: Final[Mapping[tuple[int, int], int]] = {
    (5, -1): 32,
    (6, -1): 32,
    (7, -1): 32,
    (7, 5): 16,
    (8, -1): 16,
    (8, 0): 32,
    (8, 9): 24,
    (9, -1): 32,
    (10, -1): 32,
    (10, 1): 24,
    (11, -1): 32,
    (11, 0): 24,
    (12, -1): 24,
}


def multiprocessor(properties: object, device: Device | None = None) -> Multiprocessor | None:
    """The multiprocessor that one entry of Kineto's `deviceProperties` describes.

    Args:
        properties: of the driver.
        device: a row of the table of devices, for the number of multiprocessors if it is missing.

    Returns:
        None where a property is missing or malformed, and for devices of other vendors.
    """
    if not isinstance(properties, Mapping) or (device is not None and device.architecture):
        return None
    count = _positive(properties, "numSms") or (device and device.multiprocessors)
    threads = _positive(properties, "maxThreadsPerMultiprocessor")
    registers = _positive(properties, "regsPerMultiprocessor")
    shared = _positive(properties, "sharedMemPerMultiprocessor")
    major, minor = (whole_number(properties.get(f"compute{part}")) for part in ("Major", "Minor"))
    if not (count and threads and registers and shared):
        return None
    if _positive(properties, "warpSize") != _WARP or (major, -1) not in _MOST_BLOCKS:
        return None
    return Multiprocessor(count, (major, minor), threads, registers, shared)


def _positive(properties: Mapping[Any, Any], key: str) -> int | None:
    value = whole_number(properties.get(key))
    return value if 0 < value <= _LARGEST else None


def resident_blocks(
    sm: Multiprocessor, threads: _Ints, registers: _Ints, shared_bytes: _Ints
) -> _Ints:
    """How many blocks fit on one multiprocessor at the same time, for each of several launches.

    Args:
        sm: the multiprocessor.
        threads: of a block.
        registers: of a thread.
        shared_bytes: of a block, static and dynamic.

    Returns:
        0 where not even one block fits by these numbers, and -1 where one of them is negative, or
        0 for threads or registers.

    >>> h100 = Multiprocessor(132, (9, 0), 2048, 65536, 233472)
    >>> blocks = [np.array(values) for values in ([128, 384, 1024], [32, 168, 64], [0, 100_000, 0])]
    >>> resident_blocks(h100, *blocks).tolist()
    [16, 1, 1]
    """
    most = sm.most_blocks
    known = (threads > 0) & (registers > 0) & (shared_bytes >= 0)
    if most is None:
        return np.full(len(threads), -1, np.int64)
    major, minor = sm.capability
    warps = -(-np.maximum(threads, 1) // _WARP)
    by_warps = sm.threads // _WARP // warps
    # Each partition of the multiprocessor has its own registers, for whole warps.
    partitions = 2 if (major, minor) == (6, 0) else 4
    per_warp = _rounded_up(np.maximum(registers, 1) * _WARP, _REGISTERS_UNIT)
    by_registers = sm.registers // partitions // per_warp * partitions // warps
    # The driver reserves 1 KiB of each block's shared memory since compute capability 8.0.
    reserved, unit = (1024, 128) if major >= 8 else (0, 256)
    per_block = _rounded_up(np.maximum(shared_bytes, 0) + reserved, unit)
    by_shared = np.where(per_block > 0, sm.shared_bytes // np.maximum(per_block, 1), most)
    fit = np.minimum(np.minimum(by_warps, by_registers), np.minimum(by_shared, most))
    return np.where(known, fit, -1)


def _rounded_up(values: _Ints, unit: int) -> _Ints:
    rounded: _Ints = -(-values // unit) * unit
    return rounded
