"""Peak rates of accelerators: dense compute by dtype and memory bandwidth, with sources.

A peak is the bound on a GEMM of that dtype as the vendor states it, *without* structured sparsity
(datasheets often print twice that): the matrix units' figure where they support the dtype, the
vector units' elsewhere. So `fp64` and `tf32` are the tensor cores' figures where there are any;
`fp32` is the vector figure on NVIDIA, whose tensor cores do not support fp32, and the matrix cores'
figure on AMD CDNA. `fp16` and `fp8` are with fp32 accumulation, which is torch's default and which
most GeForce cards do at half the rate. A dtype without a number from the vendor has none here:
unknown, never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_torchprof.work.devices.amd import AMD
from pytest_torchprof.work.devices.device import DTYPES, Device
from pytest_torchprof.work.devices.intel import INTEL
from pytest_torchprof.work.devices.match import find_among
from pytest_torchprof.work.devices.nvidia_datacenter import NVIDIA
from pytest_torchprof.work.devices.nvidia_geforce import GEFORCE
from pytest_torchprof.work.devices.nvidia_workstation import WORKSTATION
from pytest_torchprof.work.devices.user_devices import read_peaks

__all__ = ["DEVICES", "DTYPES", "Device", "find", "read_peaks"]

#: The built-in accelerators.
DEVICES: tuple[Device, ...] = (*NVIDIA, *WORKSTATION, *GEFORCE, *AMD, *INTEL)


def find(properties: object, extra: Sequence[Device] = ()) -> Device | None:
    """Return the device that one entry of a trace's `deviceProperties` describes, or None.

    The name decides, as drivers print it, in full: a laptop or export variant is not the big chip.
    Everything else in the entry must fit too, so a slice of a device (MIG, a compute partition) is
    unknown. Only where the name is empty or generic do compute capability and memory size decide,
    with the number of multiprocessors where it is known, and only if all devices that fit have the
    same peaks.

    Args:
        properties: Kineto's keys: `name`, `totalGlobalMem`, `computeMajor`, `computeMinor`,
            `numSms`. Each may be missing, a string, or anything else.
        extra: devices that take precedence over the table, usually from `read_peaks`.
    """
    return find_among((extra, DEVICES), properties)
