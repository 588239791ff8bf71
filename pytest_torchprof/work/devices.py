"""Accelerators: peaks with their sources, which one a trace was recorded on, and occupancy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from pytest_torchprof.core.errors import SettingsError, UnitError
from pytest_torchprof.core.files import opened, system_message
from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.units import parse_quantity
from pytest_torchprof.trace.arguments import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable


# ---- One accelerator, as a row of the tables.

#: Keys of `Device.peaks`, slowest first on most chips.
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")


@dataclass(frozen=True)
class Device:
    """The peak rates of one device, as torch numbers them.

    Args:
        name: the usual name.
        peaks: dense FLOP/s (`int8`: OP/s) by dtype of `DTYPES`; a missing one is unknown.
        bandwidth_bytes_per_s: of the device's own memory.
        memory_bytes: the nominal size, in units of 2**30; drivers report a little less.
        capability: of CUDA, as `(9, 0)`.
        architecture: of AMD, as `"gfx942"`.
        source: title and address of the source of the numbers.
        names: as drivers print it.
        multiprocessors: SMs or compute units of the whole device.
    """

    name: str
    peaks: Mapping[str, float] = field(hash=False)
    bandwidth_bytes_per_s: float
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None
    architecture: str | None = None
    source: str = ""
    names: tuple[str, ...] = ()
    multiprocessors: int | None = None


def make_row(
    *names: str,
    gb: int,
    gb_per_s: float,
    source: str,
    peaks: Mapping[str, float],
    cuda: tuple[int, int] | None = None,
    gfx: str | None = None,
    sms: int | None = None,
) -> Device:
    """A row of a table: memory in GiB, bandwidth in 10**9 B/s, peaks in 10**12 FLOP/s."""
    return Device(
        name=names[0],
        peaks=MappingProxyType({d: peaks[d] * 1e12 for d in DTYPES if d in peaks}),
        bandwidth_bytes_per_s=gb_per_s * 1e9,
        memory_bytes=gb * 2**30,
        capability=cuda,
        architecture=gfx,
        source=source,
        names=names,
        multiprocessors=sms,
    )


# ---- AMD's accelerators, oldest first. A name is what the driver prints, without the vendor.
#
# `fp32` and `fp64` are the matrix cores' figures where those support them. MI250 and MI250X are
# two dies in one package, and torch sees each die (GCD) as a device: their rows have half of the
# datasheet's figures. CDNA 4 has no TF32 of its own, so none is given.

_ACCELERATORS = "https://www.amd.com/en/products/accelerators/instinct"
_MI100 = (
    "AMD Instinct MI100 datasheet and CDNA whitepaper, "
    "https://www.amd.com/system/files/documents/amd-cdna-whitepaper.pdf"
)
_MI210 = f"AMD Instinct MI210 datasheet, {_ACCELERATORS}/mi200/mi210.html"
_MI250 = f"AMD Instinct MI250 datasheet, a half, {_ACCELERATORS}/mi200/mi250.html"
_MI250X = f"AMD Instinct MI250X datasheet, a half, {_ACCELERATORS}/mi200/mi250x.html"
_MI300A = f"AMD Instinct MI300A datasheet, {_ACCELERATORS}/mi300/mi300a.html"
_MI300X = f"AMD Instinct MI300X datasheet, {_ACCELERATORS}/mi300/mi300x.html"
_MI325X = f"AMD Instinct MI325X datasheet, {_ACCELERATORS}/mi300/mi325x.html"
_MI350X = f"AMD Instinct MI350X datasheet, {_ACCELERATORS}/mi350/mi350x.html"
_MI355X = f"AMD Instinct MI355X datasheet, {_ACCELERATORS}/mi350/mi355x.html"

_RX_7900_XTX = (
    "AMD Radeon RX 7900 XTX specifications, "
    "https://www.amd.com/en/products/graphics/desktops/radeon/7000-series/amd-radeon-rx-7900xtx.html"
)
_W7900 = (
    "AMD Radeon PRO W7900 specifications, "
    "https://www.amd.com/en/products/graphics/workstations/radeon-pro/w7900.html"
)
_RX_9070_XT = (
    "AMD Radeon RX 9070 XT specifications, "
    "https://www.amd.com/en/products/graphics/desktops/radeon/9000-series/amd-radeon-rx-9070xt.html"
)
_R9700 = (
    "AMD Radeon AI PRO R9700 specifications, "
    "https://www.amd.com/en/products/graphics/workstations/radeon-ai-pro/ai-9000-series/amd-radeon-ai-pro-r9700.html"
)

_CDNA3_304 = {"fp64": 163.4, "fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp16": 1307.4,
              "fp8": 2614.9, "int8": 2614.9}  # fmt: skip

# fmt: off
AMD: tuple[Device, ...] = (
    make_row("MI100", gfx="gfx908", sms=120, gb=32, gb_per_s=1228.8, source=_MI100,
             peaks={"fp64": 11.5, "fp32": 46.1, "bf16": 92.3, "fp16": 184.6, "int8": 184.6}),
    make_row("MI210", gfx="gfx90a", sms=104, gb=64, gb_per_s=1638.4, source=_MI210,
             peaks={"fp64": 45.3, "fp32": 45.3, "bf16": 181.0, "fp16": 181.0, "int8": 181.0}),
    # The driver prints one name for both packages; they differ in compute units.
    make_row("MI250 (one GCD)", "MI250", "MI250X/MI250", gfx="gfx90a", sms=104, gb=64,
             gb_per_s=1638.4, source=_MI250,
             peaks={"fp64": 45.25, "fp32": 45.25, "bf16": 181.05, "fp16": 181.05, "int8": 181.05}),
    make_row("MI250X (one GCD)", "MI250X", "MI250X/MI250", gfx="gfx90a", sms=110, gb=64,
             gb_per_s=1638.4, source=_MI250X,
             peaks={"fp64": 47.85, "fp32": 47.85, "bf16": 191.5, "fp16": 191.5, "int8": 191.5}),
    make_row("MI300A", gfx="gfx942", sms=228, gb=128, gb_per_s=5300, source=_MI300A,
             peaks={"fp64": 122.6, "fp32": 122.6, "tf32": 490.3, "bf16": 980.6, "fp16": 980.6,
                    "fp8": 1961.2, "int8": 1961.2}),
    make_row("MI300X", gfx="gfx942", sms=304, gb=192, gb_per_s=5300, peaks=_CDNA3_304,
             source=_MI300X),
    make_row("MI325X", gfx="gfx942", sms=304, gb=256, gb_per_s=6000, peaks=_CDNA3_304,
             source=_MI325X),
    make_row("MI350X", gfx="gfx950", sms=256, gb=288, gb_per_s=8000, source=_MI350X,
             peaks={"fp64": 72.1, "fp32": 144.2, "bf16": 2306.9, "fp16": 2306.9, "fp8": 4613.7,
                    "int8": 4613.7}),
    make_row("MI355X", gfx="gfx950", sms=256, gb=288, gb_per_s=8000, source=_MI355X,
             peaks={"fp64": 78.6, "fp32": 157.3, "bf16": 2516.6, "fp16": 2516.6, "fp8": 5033.2,
                    "int8": 5033.2}),

    # RDNA: fp32 assumes dual issue, the others use the matrix instructions. Drivers report pairs of
    # compute units or single ones, so their number is left out.
    make_row("Radeon PRO W7900", gfx="gfx1100", gb=48, gb_per_s=864, source=_W7900,
             peaks={"fp32": 61.3, "bf16": 122.6, "fp16": 122.6, "int8": 122.6}),
    make_row("Radeon RX 7900 XTX", gfx="gfx1100", gb=24, gb_per_s=960, source=_RX_7900_XTX,
             peaks={"fp32": 61.4, "bf16": 122.8, "fp16": 122.8, "int8": 122.8}),
    make_row("Radeon RX 9070 XT", gfx="gfx1201", gb=16, gb_per_s=640, source=_RX_9070_XT,
             peaks={"fp32": 48.7, "bf16": 195.0, "fp16": 195.0, "fp8": 389.0, "int8": 389.0}),
    make_row("Radeon AI PRO R9700", gfx="gfx1201", gb=32, gb_per_s=640, source=_R9700,
             peaks={"fp32": 47.8, "bf16": 191.0, "fp16": 191.0, "fp8": 383.0, "int8": 383.0}),
)
# fmt: on


# ---- Intel's accelerators. A name is what the driver prints.
#
# `fp64` and `fp32` are the vector engines' figures, the others the matrix engines' (XMX). The Max
# 1550 is two stacks in one package, and torch sees each stack as a device, as Level Zero reports
# them unless ``ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE`` is set: its row is half of the package. A
# device with 128 GB, which is the whole package, is unknown.

_MAX = (
    "Intel Data Center GPU Max Series Technical Overview, "
    "https://www.intel.com/content/www/us/en/developer/articles/technical/intel-data-center-gpu-max-series-overview.html"
)
_B580 = (
    "Intel Arc B580 specifications, "
    "https://www.intel.com/content/www/us/en/products/sku/241598/intel-arc-b580-graphics/specifications.html"
)

# fmt: off
INTEL: tuple[Device, ...] = (
    make_row("Data Center GPU Max 1100", "Intel(R) Data Center GPU Max 1100", gb=48,
             gb_per_s=1228.8, source=_MAX,
             peaks={"fp64": 22.2, "fp32": 22.2, "tf32": 177.8, "bf16": 355.5, "fp16": 355.5,
                    "int8": 711.1}),
    make_row("Data Center GPU Max 1550 (one stack)", "Intel(R) Data Center GPU Max 1550", gb=64,
             gb_per_s=1638.4, source=_MAX,
             peaks={"fp64": 26.2, "fp32": 26.2, "tf32": 209.7, "bf16": 419.4, "fp16": 419.4,
                    "int8": 838.9}),
    # The matrix engines' figure is stated at a higher clock.
    make_row("Arc B580", "Intel(R) Arc(TM) B580 Graphics", gb=12, gb_per_s=456, source=_B580,
             peaks={"fp32": 13.67, "bf16": 116.5, "fp16": 116.5, "int8": 233.0}),
)
# fmt: on


# ---- Find the device that a trace ran on, from the properties that the driver reports.

#: Vendor words, which some drivers print and others do not.
_MAKERS = {"nvidia", "tesla", "geforce", "amd", "instinct", "r", "tm", "corporation"}
#: What AMD's drivers append to a whole device's name: its board, or that it is a guest's.
_BOARD = late(r"^(mi\d+[ax]?(?: mi250)?)(?: mcm)?(?: oam)?(?: ac mba)?(?: vf)?$")
#: Names that a driver gives to unknown devices.
_NO_NAME = {"", "graphics device", "radeon graphics"}
#: Reported memory relative to the nominal size: less, because of ECC and firmware, or a little
#: more, where the nominal size counts in powers of 1000.
_LEAST_MEMORY, _MOST_MEMORY = 0.85, 1.08
_MOST_DIGITS = 18
_LARGEST = 2**63 - 1


class _Facts(Frozen, frozen=True):
    """What one entry of `deviceProperties` says; None where a value is missing or malformed."""

    name: str
    capability: tuple[int, int] | None
    memory_bytes: int | None
    multiprocessors: int | None


def find_among(tables: Sequence[Sequence[Device]], properties: object) -> Device | None:
    """The one device that fits, from the first table in which any does."""
    if not isinstance(properties, Mapping):
        return None
    facts = _read_facts(properties)
    nameless = facts.name in _NO_NAME
    for devices in tables:
        belong = [d for d in devices if _is_named(d, facts) or (nameless and _is_alike(d, facts))]
        candidates = [d for d in belong if _may_be(d, facts)]
        if candidates:
            return _agree(candidates)
    return None


@lru_cache(1024)  # each trace is compared with all names of all devices
def normalize_name(name: str) -> str:
    """The name without vendor, case and punctuation.

    >>> normalize_name("NVIDIA A100-SXM4-40GB"), normalize_name("Tesla T4")
    ('a100 sxm4 40gb', 't4')
    >>> normalize_name("AMD Instinct MI300X OAM"), normalize_name("NVIDIA GeForce RTX 4090 D")
    ('mi300x', 'rtx 4090 d')
    """
    words = re.split(r"[^0-9a-z]+", name.casefold())
    return _BOARD.sub(r"\1", " ".join(w for w in words if w and w not in _MAKERS))


def hip_capability(architecture: str) -> tuple[int, int] | None:
    """The compute capability that HIP reports for an architecture.

    >>> hip_capability("gfx942"), hip_capability("gfx90a"), hip_capability("gfx1100")
    ((9, 4), (9, 0), (11, 0))
    """
    match = re.fullmatch(r"gfx(\d{1,2})(\d)[0-9a-f]", architecture)
    return (int(match[1]), int(match[2])) if match else None


def _is_named(device: Device, facts: _Facts) -> bool:
    names = map(normalize_name, (device.name, *device.names))
    return facts.name != "" and facts.name in names


def _is_alike(device: Device, facts: _Facts) -> bool:
    """Whether enough is known of both to match them without a name."""
    known = facts.capability is not None and facts.memory_bytes is not None
    return known and _capability(device) is not None and device.memory_bytes is not None


def _may_be(device: Device, facts: _Facts) -> bool:
    """Whether no known property contradicts."""
    pairs = (
        (facts.capability, _capability(device)),
        (facts.multiprocessors, device.multiprocessors),
    )
    if any(given is not None and known is not None and given != known for given, known in pairs):
        return False
    if facts.memory_bytes is None or device.memory_bytes is None:
        return True
    return _LEAST_MEMORY <= facts.memory_bytes / device.memory_bytes <= _MOST_MEMORY


def _agree(devices: Sequence[Device]) -> Device | None:
    """The first, if all have the same numbers."""
    first = devices[0]
    peaks = (dict(first.peaks), first.bandwidth_bytes_per_s)
    same = all((dict(d.peaks), d.bandwidth_bytes_per_s) == peaks for d in devices)
    return first if same else None


def _capability(device: Device) -> tuple[int, int] | None:
    if device.capability is None and device.architecture is not None:
        return hip_capability(device.architecture)
    return device.capability


def _read_facts(properties: Mapping[object, object]) -> _Facts:
    name = properties.get("name")
    major = _whole(properties.get("computeMajor")) or None
    minor = _whole(properties.get("computeMinor"))
    return _Facts(
        name=normalize_name(name) if isinstance(name, str) else "",
        capability=None if major is None or minor is None else (major, minor),
        memory_bytes=_whole(properties.get("totalGlobalMem")) or None,
        multiprocessors=_whole(properties.get("numSms")) or None,
    )


def _whole(value: object) -> int | None:
    """A count given as a number or as text; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value) if len(value) <= _MOST_DIGITS else None
    if isinstance(value, float) and math.isfinite(value) and value % 1 == 0:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= _LARGEST else None


# ---- NVIDIA's accelerators for data centers, oldest first. A name is what the driver prints.
#
# Where a datasheet prints only the sparse figure, the dense one is half of it. The tests have the
# clocks behind the numbers and recompute them from the number of multiprocessors.

_V100 = (
    "NVIDIA V100 Tensor Core GPU datasheet, "
    "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
)
_P100 = (
    "NVIDIA Tesla P100 datasheet, "
    "https://images.nvidia.com/content/tesla/pdf/nvidia-tesla-p100-datasheet.pdf"
)
_DGX_STATION = (
    "NVIDIA DGX Station datasheet, a quarter, "
    "https://images.nvidia.com/content/newsletters/email/pdf/DGX-Station-WS.pdf"
)
_T4 = (
    "NVIDIA T4 datasheet, "
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf"
)
_A10 = (
    "NVIDIA A10 datasheet, "
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf"
)
_A10G = (
    "NVIDIA A10G datasheet of AWS, "
    "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf"
)
_A16 = (
    "NVIDIA A16 datasheet, a quarter, "
    "https://images.nvidia.com/content/Solutions/data-center/vgpu/nvidia-a16-datasheet.pdf"
)
_A2 = (
    "NVIDIA A2 datasheet, "
    "https://www.nvidia.com/content/dam/en-zz/solutions/data-center/a2/pdf/a2-datasheet.pdf"
)
_A800 = (
    "NVIDIA A800 datasheet, as the A100's but for NVLink, "
    "https://www.nvidia.com/en-us/products/workstations/a800/"
)
_A30 = (
    "NVIDIA A30 datasheet, "
    "https://www.nvidia.com/content/dam/en-zz/Solutions/data-center/products/a30-gpu/pdf/a30-datasheet.pdf"
)
_A40 = (
    "NVIDIA A40 datasheet, "
    "https://images.nvidia.com/content/Solutions/data-center/a40/nvidia-a40-datasheet.pdf"
)
_A100 = (
    "NVIDIA A100 Tensor Core GPU datasheet, "
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_L4 = "NVIDIA L4 Tensor Core GPU datasheet, https://www.nvidia.com/en-us/data-center/l4/"
_L40 = "NVIDIA L40 datasheet, https://www.nvidia.com/en-us/data-center/l40/"
_L40S = "NVIDIA L40S datasheet, https://www.nvidia.com/en-us/data-center/l40s/"
_HOPPER = (
    "NVIDIA H100 Tensor Core GPU Architecture whitepaper, "
    "https://resources.nvidia.com/en-us-tensor-core"
)
_H800 = (
    "ThinkSystem NVIDIA H800 PCIe product guide, "
    "https://lenovopress.lenovo.com/lp1814-thinksystem-nvidia-h800-pcie-gen5-gpu"
)
_H800_SXM = "NVIDIA H100 whitepaper, but for fp64, https://resources.nvidia.com/en-us-tensor-core"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet, https://www.nvidia.com/en-us/data-center/h100/"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet, https://www.nvidia.com/en-us/data-center/h200/"
_GH200 = (
    "NVIDIA GH200 Grace Hopper Superchip datasheet, "
    "https://www.nvidia.com/en-us/data-center/grace-hopper-superchip/"
)
_HGX = "NVIDIA HGX specifications, an eighth, https://www.nvidia.com/en-us/data-center/hgx/"
_GB200 = (
    "NVIDIA GB200 NVL72 specifications, half a superchip, "
    "https://www.nvidia.com/en-us/data-center/gb200-nvl72/"
)

_GB300 = (
    "NVIDIA GB300 NVL72 specifications, half a superchip, "
    "https://www.nvidia.com/en-us/data-center/gb300-nvl72/"
)

_V100_SXM2 = {"fp64": 7.8, "fp32": 15.7, "fp16": 125.0}
_V100_PCIE = {"fp64": 7.0, "fp32": 14.0, "fp16": 112.0}
_GA100 = {"fp64": 19.5, "fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0, "int8": 624.0}
_GH100 = {"fp64": 66.9, "fp32": 66.9, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9,
          "int8": 1978.9}  # fmt: skip
_GH100_PCIE = {"fp64": 51.2, "fp32": 51.2, "tf32": 378.0, "bf16": 756.0, "fp16": 756.0,
               "fp8": 1513.0, "int8": 1513.0}  # fmt: skip
_GH100_LATER = {"fp64": 67.0, "fp32": 67.0, "tf32": 494.5, "bf16": 989.5, "fp16": 989.5,
                "fp8": 1979.0, "int8": 1979.0}  # fmt: skip
_GH100_NVL = {"fp64": 60.0, "fp32": 60.0, "tf32": 417.5, "bf16": 835.5, "fp16": 835.5,
              "fp8": 1670.5, "int8": 1670.5}  # fmt: skip

# fmt: off
NVIDIA: tuple[Device, ...] = (
    # Pascal has no tensor cores; fp16 runs at twice the rate of fp32.
    make_row("P100-SXM2-16GB", cuda=(6, 0), sms=56, gb=16, gb_per_s=732, source=_P100,
             peaks={"fp64": 5.3, "fp32": 10.6, "fp16": 21.2}),
    make_row("P100-PCIE-16GB", cuda=(6, 0), sms=56, gb=16, gb_per_s=732, source=_P100,
             peaks={"fp64": 4.7, "fp32": 9.3, "fp16": 18.7}),

    # Volta. Tensor cores support only fp16.
    make_row("V100-SXM2-16GB", cuda=(7, 0), sms=80, gb=16, gb_per_s=900, peaks=_V100_SXM2,
             source=_V100),
    make_row("V100-SXM2-32GB", cuda=(7, 0), sms=80, gb=32, gb_per_s=900, peaks=_V100_SXM2,
             source=_V100),
    make_row("V100-PCIE-16GB", cuda=(7, 0), sms=80, gb=16, gb_per_s=900, peaks=_V100_PCIE,
             source=_V100),
    make_row("V100-PCIE-32GB", cuda=(7, 0), sms=80, gb=32, gb_per_s=900, peaks=_V100_PCIE,
             source=_V100),
    make_row("V100-DGXS-16GB", cuda=(7, 0), sms=80, gb=16, gb_per_s=900, peaks=_V100_SXM2,
             source=_DGX_STATION),
    make_row("V100-DGXS-32GB", cuda=(7, 0), sms=80, gb=32, gb_per_s=900, peaks=_V100_SXM2,
             source=_DGX_STATION),
    make_row("V100S-PCIE-32GB", cuda=(7, 0), sms=80, gb=32, gb_per_s=1134, source=_V100,
             peaks={"fp64": 8.2, "fp32": 16.4, "fp16": 130.0}),

    # Turing.
    make_row("T4", cuda=(7, 5), sms=40, gb=16, gb_per_s=320, source=_T4,
             peaks={"fp32": 8.1, "fp16": 65.0, "int8": 130.0}),

    # Ampere.
    # PG509 is the SXM4 module's board as some clouds report it: -200 with 40 GB, -210 with 80.
    make_row("A100-SXM4-40GB", "A100-SXM-40GB", "A100-PG509-200", "PG509-200",
             "A100-PG509", cuda=(8, 0), sms=108, gb=40, gb_per_s=1555, peaks=_GA100, source=_A100),
    make_row("A100-PCIE-40GB", cuda=(8, 0), sms=108, gb=40, gb_per_s=1555, peaks=_GA100,
             source=_A100),
    make_row("A100-SXM4-80GB", "A100-SXM-80GB", "PG509-210", "A100-PG509-210", "A100-PG509",
             cuda=(8, 0), sms=108, gb=80, gb_per_s=2039, peaks=_GA100, source=_A100),
    make_row("A100 80GB PCIe", "A100-PCIE-80GB", cuda=(8, 0), sms=108, gb=80, gb_per_s=1935,
             peaks=_GA100, source=_A100),
    make_row("A800-SXM4-40GB", cuda=(8, 0), sms=108, gb=40, gb_per_s=1555, peaks=_GA100,
             source=_A800),
    make_row("A800 40GB Active", cuda=(8, 0), sms=108, gb=40, gb_per_s=1555, peaks=_GA100,
             source=_A800),
    make_row("A800-SXM4-80GB", cuda=(8, 0), sms=108, gb=80, gb_per_s=2039, peaks=_GA100,
             source=_A800),
    make_row("A800 80GB PCIe", cuda=(8, 0), sms=108, gb=80, gb_per_s=1935, peaks=_GA100,
             source=_A800),
    make_row("A30", cuda=(8, 0), sms=56, gb=24, gb_per_s=933, source=_A30,
             peaks={"fp64": 10.3, "fp32": 10.3, "tf32": 82.0, "bf16": 165.0, "fp16": 165.0,
                    "int8": 330.0}),
    make_row("A10", cuda=(8, 6), sms=72, gb=24, gb_per_s=600, source=_A10,
             peaks={"fp32": 31.2, "tf32": 62.5, "bf16": 125.0, "fp16": 125.0, "int8": 250.0}),
    make_row("A10G", cuda=(8, 6), sms=80, gb=24, gb_per_s=600, source=_A10G,
             peaks={"fp32": 35.0, "tf32": 35.0, "bf16": 70.0, "fp16": 70.0, "int8": 140.0}),
    # Four on a board, each a separate device.
    make_row("A16 (one of four)", "A16", cuda=(8, 6), sms=10, gb=16, gb_per_s=200, source=_A16,
             peaks={"fp32": 4.5, "tf32": 9.0, "bf16": 17.9, "fp16": 17.9, "int8": 35.9}),
    make_row("A2", cuda=(8, 6), sms=10, gb=16, gb_per_s=200, source=_A2,
             peaks={"fp32": 4.5, "tf32": 9.0, "bf16": 18.0, "fp16": 18.0, "int8": 36.0}),
    make_row("A40", cuda=(8, 6), sms=84, gb=48, gb_per_s=696, source=_A40,
             peaks={"fp32": 37.4, "tf32": 74.8, "bf16": 149.7, "fp16": 149.7, "int8": 299.3}),

    # Ada.
    make_row("L4", cuda=(8, 9), sms=58, gb=24, gb_per_s=300, source=_L4,
             peaks={"fp32": 30.3, "tf32": 60.0, "bf16": 121.0, "fp16": 121.0, "fp8": 242.5,
                    "int8": 242.5}),
    make_row("L40", cuda=(8, 9), sms=142, gb=48, gb_per_s=864, source=_L40,
             peaks={"fp32": 90.5, "tf32": 90.5, "bf16": 181.05, "fp16": 181.05, "fp8": 362.0,
                    "int8": 362.0}),
    make_row("L40S", cuda=(8, 9), sms=142, gb=48, gb_per_s=864, source=_L40S,
             peaks={"fp32": 91.6, "tf32": 183.0, "bf16": 362.05, "fp16": 362.05, "fp8": 733.0,
                    "int8": 733.0}),

    # Hopper. The whitepaper prints dense figures, the later datasheets sparse ones.
    make_row("H100 SXM", "H100 80GB HBM3", cuda=(9, 0), sms=132, gb=80, gb_per_s=3352,
             peaks=_GH100, source=_HOPPER),
    make_row("H100 PCIe", "H100 80GB HBM2e", cuda=(9, 0), sms=114, gb=80, gb_per_s=2039,
             peaks=_GH100_PCIE, source=_HOPPER),
    make_row("H100 NVL", cuda=(9, 0), sms=132, gb=94, gb_per_s=3900, peaks=_GH100_NVL,
             source=_H100),
    # Export version: NVLink is slower, and there is almost no fp64.
    make_row("H800 SXM", "H800", cuda=(9, 0), sms=132, gb=80, gb_per_s=3352, source=_H800_SXM,
             peaks={**_GH100, "fp64": 1.0}),
    make_row("H800 PCIe", cuda=(9, 0), sms=114, gb=80, gb_per_s=2039, source=_H800,
             peaks={**_GH100_PCIE, "fp64": 0.8}),
    make_row("H200", cuda=(9, 0), sms=132, gb=141, gb_per_s=4800, peaks=_GH100_LATER,
             source=_H200),
    make_row("H200 NVL", cuda=(9, 0), sms=132, gb=141, gb_per_s=4800, peaks=_GH100_NVL,
             source=_H200),
    # The driver reports the Grace side's memory, 120 or 480 GB, beside 96 GB of HBM3.
    make_row("GH200 96GB", "GH200 480GB", "GH200 120GB", cuda=(9, 0), sms=132, gb=96,
             gb_per_s=4000, peaks=_GH100_LATER, source=_GH200),
    make_row("GH200 144GB", "GH200 144G HBM3e", cuda=(9, 0), sms=132, gb=144, gb_per_s=4900,
             peaks=_GH100_LATER, source=_GH200),

    # Blackwell.
    make_row("B200", cuda=(10, 0), sms=148, gb=180, gb_per_s=7700, source=_HGX,
             peaks={"fp64": 37.0, "fp32": 75.0, "tf32": 1125.0, "bf16": 2250.0, "fp16": 2250.0,
                    "fp8": 4500.0, "int8": 4500.0}),
    make_row("GB200", cuda=(10, 0), gb=186, gb_per_s=8000, source=_GB200,
             peaks={"fp64": 40.0, "fp32": 80.0, "tf32": 1250.0, "bf16": 2500.0, "fp16": 2500.0,
                    "fp8": 5000.0, "int8": 5000.0}),
    # int8 is a small fraction of B200's, and sources disagree.
    make_row("B300", "B300 SXM6 AC", cuda=(10, 3), sms=148, gb=288, gb_per_s=8000, source=_HGX,
             peaks={"fp64": 1.25, "fp32": 75.0, "tf32": 1125.0, "bf16": 2250.0, "fp16": 2250.0,
                    "fp8": 4500.0}),
    # int8: see B300.
    make_row("GB300", cuda=(10, 3), gb=288, gb_per_s=8000, source=_GB300,
             peaks={"fp64": 1.4, "fp32": 80.0, "tf32": 1250.0, "bf16": 2500.0, "fp16": 2500.0,
                    "fp8": 5000.0}),
)
# fmt: on


# ---- NVIDIA's GeForce and TITAN cards, oldest first. A name is what the driver prints.
#
# Tensor cores of GeForce cards run at half the rate with fp32 accumulation, so TF32 is no faster
# than fp32. Where no whitepaper lists a card, its figures are computed from the chip's rates at
# the boost clock that the vendor states; the tests have both. Laptop chips have other clocks and
# are left out, and so are boards that share a name and differ in bandwidth (RTX 3060 Ti).

_TURING = (
    "NVIDIA Turing GPU Architecture whitepaper, "
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/design-visualization/technologies/turing-architecture/NVIDIA-Turing-Architecture-Whitepaper.pdf"
)
_GA102 = (
    "NVIDIA Ampere GA102 GPU Architecture whitepaper, "
    "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
)
_GEFORCE_30 = (
    "GeForce RTX 30 series specifications and GA102 whitepaper, "
    "https://www.nvidia.com/en-us/geforce/graphics-cards/30-series/"
)
_ADA = (
    "NVIDIA Ada GPU Architecture whitepaper, "
    "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
)
_GEFORCE_40 = (
    "GeForce RTX 40 series specifications and Ada whitepaper, "
    "https://www.nvidia.com/en-us/geforce/graphics-cards/40-series/"
)
_RTX_BLACKWELL = (
    "NVIDIA RTX Blackwell GPU Architecture whitepaper, "
    "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
)
_GEFORCE_50 = (
    "GeForce RTX 50 series specifications and RTX Blackwell whitepaper, "
    "https://www.nvidia.com/en-us/geforce/graphics-cards/50-series/"
)

# fmt: off
GEFORCE: tuple[Device, ...] = (
    # Turing. Tensor cores support fp16, at half the rate with fp32 accumulation, and int8.
    make_row("GeForce RTX 2080 Ti", cuda=(7, 5), sms=68, gb=11, gb_per_s=616, source=_TURING,
             peaks={"fp32": 13.4, "fp16": 53.8, "int8": 215.2}),
    # TITANs run at the full rate.
    make_row("TITAN RTX", cuda=(7, 5), sms=72, gb=24, gb_per_s=672, source=_TURING,
             peaks={"fp32": 16.3, "fp16": 130.5, "int8": 261.0}),

    # Ampere.
    make_row("GeForce RTX 3060", cuda=(8, 6), sms=28, gb=12, gb_per_s=360, source=_GEFORCE_30,
             peaks={"fp32": 12.74, "tf32": 12.74, "bf16": 25.48, "fp16": 25.48, "int8": 101.9}),
    make_row("GeForce RTX 3070", cuda=(8, 6), sms=46, gb=8, gb_per_s=448, source=_GA102,
             peaks={"fp32": 20.31, "tf32": 20.31, "bf16": 40.63, "fp16": 40.63, "int8": 162.5}),
    make_row("GeForce RTX 3070 Ti", cuda=(8, 6), sms=48, gb=8, gb_per_s=608, source=_GEFORCE_30,
             peaks={"fp32": 21.75, "tf32": 21.75, "bf16": 43.5, "fp16": 43.5, "int8": 174.0}),
    make_row("GeForce RTX 3080 10GB", "GeForce RTX 3080", cuda=(8, 6), sms=68, gb=10, gb_per_s=760,
             source=_GA102,
             peaks={"fp32": 29.77, "tf32": 29.77, "bf16": 59.54, "fp16": 59.54, "int8": 238.1}),
    make_row("GeForce RTX 3080 12GB", "GeForce RTX 3080", cuda=(8, 6), sms=70, gb=12, gb_per_s=912,
             source=_GEFORCE_30,
             peaks={"fp32": 30.64, "tf32": 30.64, "bf16": 61.29, "fp16": 61.29, "int8": 245.1}),
    make_row("GeForce RTX 3080 Ti", cuda=(8, 6), sms=80, gb=12, gb_per_s=912, source=_GEFORCE_30,
             peaks={"fp32": 34.1, "tf32": 34.1, "bf16": 68.2, "fp16": 68.2, "int8": 272.8}),
    make_row("GeForce RTX 3090", cuda=(8, 6), sms=82, gb=24, gb_per_s=936, source=_GA102,
             peaks={"fp64": 0.556, "fp32": 35.6, "tf32": 35.6, "bf16": 71.0, "fp16": 71.0,
                    "int8": 285.0}),
    make_row("GeForce RTX 3090 Ti", cuda=(8, 6), sms=84, gb=24, gb_per_s=1008, source=_ADA,
             peaks={"fp32": 40.0, "tf32": 40.0, "bf16": 79.99, "fp16": 79.99, "int8": 320.0}),

    # Ada. A later RTX 4070 board of the same name has GDDR6 at 480 GB/s.
    make_row("GeForce RTX 4060", cuda=(8, 9), sms=24, gb=8, gb_per_s=272, source=_GEFORCE_40,
             peaks={"fp32": 15.11, "tf32": 15.11, "bf16": 30.23, "fp16": 30.23, "fp8": 60.46,
                    "int8": 120.9}),
    make_row("GeForce RTX 4060 Ti 8GB", "GeForce RTX 4060 Ti", cuda=(8, 9), sms=34,
             gb=8, gb_per_s=288, source=_GEFORCE_40,
             peaks={"fp32": 22.06, "tf32": 22.06, "bf16": 44.13, "fp16": 44.13, "fp8": 88.26,
                    "int8": 176.5}),
    make_row("GeForce RTX 4060 Ti 16GB", "GeForce RTX 4060 Ti", cuda=(8, 9), sms=34,
             gb=16, gb_per_s=288, source=_GEFORCE_40,
             peaks={"fp32": 22.06, "tf32": 22.06, "bf16": 44.13, "fp16": 44.13, "fp8": 88.26,
                    "int8": 176.5}),
    make_row("GeForce RTX 4070", cuda=(8, 9), sms=46, gb=12, gb_per_s=504.2, source=_GEFORCE_40,
             peaks={"fp32": 29.15, "tf32": 29.15, "bf16": 58.29, "fp16": 58.29, "fp8": 116.6,
                    "int8": 233.2}),
    make_row("GeForce RTX 4070 SUPER", cuda=(8, 9), sms=56, gb=12, gb_per_s=504.2,
             source=_GEFORCE_40,
             peaks={"fp32": 35.48, "tf32": 35.48, "bf16": 70.96, "fp16": 70.96, "fp8": 141.9,
                    "int8": 283.9}),
    make_row("GeForce RTX 4070 Ti", cuda=(8, 9), sms=60, gb=12, gb_per_s=504.2, source=_GEFORCE_40,
             peaks={"fp32": 40.09, "tf32": 40.09, "bf16": 80.18, "fp16": 80.18, "fp8": 160.4,
                    "int8": 320.7}),
    make_row("GeForce RTX 4070 Ti SUPER", cuda=(8, 9), sms=66, gb=16, gb_per_s=672.3,
             source=_GEFORCE_40,
             peaks={"fp32": 44.1, "tf32": 44.1, "bf16": 88.2, "fp16": 88.2, "fp8": 176.4,
                    "int8": 352.8}),
    make_row("GeForce RTX 4080", cuda=(8, 9), sms=76, gb=16, gb_per_s=716.8, source=_ADA,
             peaks={"fp32": 48.74, "tf32": 48.74, "bf16": 97.47, "fp16": 97.47, "fp8": 194.9,
                    "int8": 389.9}),
    make_row("GeForce RTX 4080 SUPER", cuda=(8, 9), sms=80, gb=16, gb_per_s=736.3,
             source=_GEFORCE_40,
             peaks={"fp32": 52.22, "tf32": 52.22, "bf16": 104.4, "fp16": 104.4, "fp8": 208.9,
                    "int8": 417.8}),
    make_row("GeForce RTX 4090 D", cuda=(8, 9), sms=114, gb=24, gb_per_s=1008, source=_GEFORCE_40,
             peaks={"fp32": 73.54, "tf32": 73.54, "bf16": 147.1, "fp16": 147.1, "fp8": 294.2,
                    "int8": 588.3}),
    make_row("GeForce RTX 4090", cuda=(8, 9), sms=128, gb=24, gb_per_s=1008, source=_ADA,
             peaks={"fp64": 1.29, "fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp16": 165.2,
                    "fp8": 330.3, "int8": 660.6}),

    # Blackwell. The higher of the whitepaper's two fp8 figures: block-scaled fp8 runs at full rate,
    # with fp32 accumulation too, and torch's scaled matmul reaches it.
    make_row("GeForce RTX 5060", cuda=(12, 0), sms=30, gb=8, gb_per_s=448, source=_GEFORCE_50,
             peaks={"fp32": 19.18, "tf32": 19.18, "bf16": 38.35, "fp16": 38.35, "fp8": 153.4,
                    "int8": 153.4}),
    make_row("GeForce RTX 5060 Ti 8GB", "GeForce RTX 5060 Ti", cuda=(12, 0), sms=36,
             gb=8, gb_per_s=448, source=_GEFORCE_50,
             peaks={"fp32": 23.7, "tf32": 23.7, "bf16": 47.41, "fp16": 47.41, "fp8": 189.6,
                    "int8": 189.6}),
    make_row("GeForce RTX 5060 Ti 16GB", "GeForce RTX 5060 Ti", cuda=(12, 0), sms=36,
             gb=16, gb_per_s=448, source=_GEFORCE_50,
             peaks={"fp32": 23.7, "tf32": 23.7, "bf16": 47.41, "fp16": 47.41, "fp8": 189.6,
                    "int8": 189.6}),
    make_row("GeForce RTX 5070", cuda=(12, 0), sms=48, gb=12, gb_per_s=672, source=_RTX_BLACKWELL,
             peaks={"fp32": 30.87, "tf32": 30.87, "bf16": 61.73, "fp16": 61.73, "fp8": 246.9,
                    "int8": 246.9}),
    make_row("GeForce RTX 5070 Ti", cuda=(12, 0), sms=70, gb=16, gb_per_s=896,
             source=_RTX_BLACKWELL,
             peaks={"fp32": 43.94, "tf32": 43.94, "bf16": 87.88, "fp16": 87.88, "fp8": 351.5,
                    "int8": 351.5}),
    make_row("GeForce RTX 5080", cuda=(12, 0), sms=84, gb=16, gb_per_s=960, source=_RTX_BLACKWELL,
             peaks={"fp32": 56.28, "tf32": 56.28, "bf16": 112.6, "fp16": 112.6, "fp8": 450.2,
                    "int8": 450.2}),
    make_row("GeForce RTX 5090", cuda=(12, 0), sms=170, gb=32, gb_per_s=1792,
             source=_RTX_BLACKWELL,
             peaks={"fp64": 1.64, "fp32": 104.8, "tf32": 104.8, "bf16": 209.5, "fp16": 209.5,
                    "fp8": 838.0, "int8": 838.0}),
)
# fmt: on


# ---- NVIDIA's workstation cards, oldest first. A name is what the driver prints.
#
# Their tensor cores run at the full rate with fp32 accumulation. Where no whitepaper lists a
# card, its figures are computed from the chip's rates at the clock of the datasheet's fp32
# figure; the tests have both. Laptop chips have other clocks and are left out.

_RTX_A = (
    "NVIDIA RTX A series datasheets and GA102 whitepaper, "
    "https://www.nvidia.com/en-us/products/workstations/"
)
_RTX_ADA = (
    "NVIDIA RTX Ada Generation datasheets and Ada whitepaper, "
    "https://www.nvidia.com/en-us/products/workstations/"
)
_ADA_PRO = (
    "NVIDIA Ada Lovelace Professional GPU Architecture whitepaper, "
    "https://images.nvidia.com/aem-dam/en-zz/Solutions/technologies/NVIDIA-ADA-GPU-PROVIZ-Architecture-Whitepaper_1.1.pdf"
)
_RTX_PRO = (
    "NVIDIA RTX PRO 6000 Blackwell datasheets and RTX Blackwell whitepaper, "
    "https://www.nvidia.com/en-us/products/workstations/professional-desktop-gpus/rtx-pro-6000/"
)
_RTX_PRO_SERVER = (
    "NVIDIA RTX PRO 6000 Blackwell Server Edition specifications, "
    "https://www.nvidia.com/en-us/data-center/rtx-pro-6000-blackwell-server-edition/"
)

# fmt: off
WORKSTATION: tuple[Device, ...] = (
    # Turing.
    make_row("Quadro RTX 6000", cuda=(7, 5), sms=72, gb=24, gb_per_s=672, source=_TURING,
             peaks={"fp32": 16.3, "fp16": 130.5, "int8": 261.0}),
    make_row("Quadro RTX 8000", cuda=(7, 5), sms=72, gb=48, gb_per_s=672, source=_TURING,
             peaks={"fp32": 16.3, "fp16": 130.5, "int8": 261.0}),

    # Ampere.
    make_row("RTX A4000", cuda=(8, 6), sms=48, gb=16, gb_per_s=448, source=_RTX_A,
             peaks={"fp32": 19.17, "tf32": 38.34, "bf16": 76.68, "fp16": 76.68, "int8": 153.4}),
    make_row("RTX A4500", cuda=(8, 6), sms=56, gb=20, gb_per_s=640, source=_RTX_A,
             peaks={"fp32": 23.65, "tf32": 47.31, "bf16": 94.62, "fp16": 94.62, "int8": 189.2}),
    make_row("RTX A5000", cuda=(8, 6), sms=64, gb=24, gb_per_s=768, source=_RTX_A,
             peaks={"fp32": 27.77, "tf32": 55.54, "bf16": 111.1, "fp16": 111.1, "int8": 222.2}),
    make_row("RTX A5500", cuda=(8, 6), sms=80, gb=24, gb_per_s=768, source=_RTX_A,
             peaks={"fp32": 34.1, "tf32": 68.2, "bf16": 136.4, "fp16": 136.4, "int8": 272.8}),
    make_row("RTX A6000", cuda=(8, 6), sms=84, gb=48, gb_per_s=768, source=_GA102,
             peaks={"fp32": 38.7, "tf32": 77.4, "bf16": 154.8, "fp16": 154.8, "int8": 309.7}),

    # Ada.
    make_row("RTX 2000 Ada Generation", cuda=(8, 9), sms=22, gb=16, gb_per_s=224, source=_RTX_ADA,
             peaks={"fp32": 12.0, "tf32": 23.99, "bf16": 47.98, "fp16": 47.98, "fp8": 95.97,
                    "int8": 95.97}),
    make_row("RTX 4000 SFF Ada Generation", cuda=(8, 9), sms=48, gb=20, gb_per_s=280,
             source=_RTX_ADA,
             peaks={"fp32": 19.17, "tf32": 38.34, "bf16": 76.68, "fp16": 76.68, "fp8": 153.4,
                    "int8": 153.4}),
    make_row("RTX 4000 Ada Generation", cuda=(8, 9), sms=48, gb=20, gb_per_s=360, source=_RTX_ADA,
             peaks={"fp32": 26.73, "tf32": 53.45, "bf16": 106.9, "fp16": 106.9, "fp8": 213.8,
                    "int8": 213.8}),
    make_row("RTX 4500 Ada Generation", cuda=(8, 9), sms=60, gb=24, gb_per_s=432, source=_RTX_ADA,
             peaks={"fp32": 39.63, "tf32": 79.26, "bf16": 158.5, "fp16": 158.5, "fp8": 317.0,
                    "int8": 317.0}),
    make_row("RTX 5000 Ada Generation", cuda=(8, 9), sms=100, gb=32, gb_per_s=576, source=_RTX_ADA,
             peaks={"fp32": 65.28, "tf32": 130.6, "bf16": 261.1, "fp16": 261.1, "fp8": 522.2,
                    "int8": 522.2}),
    make_row("RTX 5880 Ada Generation", cuda=(8, 9), sms=110, gb=48, gb_per_s=960, source=_RTX_ADA,
             peaks={"fp32": 69.27, "tf32": 138.5, "bf16": 277.1, "fp16": 277.1, "fp8": 554.2,
                    "int8": 554.2}),
    make_row("RTX 6000 Ada Generation", cuda=(8, 9), sms=142, gb=48, gb_per_s=960, source=_ADA_PRO,
             peaks={"fp32": 91.1, "tf32": 182.1, "bf16": 364.2, "fp16": 364.2, "fp8": 728.5,
                    "int8": 728.5}),

    # Blackwell.
    make_row("RTX PRO 6000 Blackwell Workstation Edition", cuda=(12, 0), sms=188,
             gb=96, gb_per_s=1792, source=_RTX_PRO,
             peaks={"fp32": 126.0, "tf32": 251.9, "bf16": 503.8, "fp16": 503.8, "fp8": 1008.0,
                    "int8": 1008.0}),
    make_row("RTX PRO 6000 Blackwell Max-Q Workstation Edition", cuda=(12, 0), sms=188,
             gb=96, gb_per_s=1792, source=_RTX_PRO,
             peaks={"fp32": 109.7, "tf32": 219.5, "bf16": 438.9, "fp16": 438.9, "fp8": 877.9,
                    "int8": 877.9}),
    # Its page states rounded figures, sparse ones for the tensor cores: 4 PFLOP/s of fp4.
    make_row("RTX PRO 6000 Blackwell Server Edition", cuda=(12, 0), sms=188, gb=96, gb_per_s=1597,
             source=_RTX_PRO_SERVER,
             peaks={"fp32": 120.0, "tf32": 250.0, "bf16": 500.0, "fp16": 500.0, "fp8": 1000.0,
                    "int8": 1000.0}),
)
# fmt: on


# ---- Read a user's file of additional accelerators.

#: A file that describes chips, or chips.
Peaks = str | Path | Sequence[Device]
_Value = TypeVar("_Value")

_KEYS = (
    "name",
    "match",
    "capability",
    "architecture",
    "memory",
    "multiprocessors",
    "bandwidth",
    "peaks",
    "source",
)
#: No table of devices is this large, and some special files never end.
_LARGEST_COUNT = 2**24
#: Characters of a wrong value that an error shows.
_WIDEST = 40
_EXAMPLE = '{"name": "X1", "bandwidth": "3.35 TB/s", "peaks": {"bf16": "989.4 TFLOP/s"}}'


def as_chips(peaks: Peaks) -> tuple[Device, ...]:
    """The chips themselves, or those of the file; it raises the same as `read_peaks`."""
    return read_peaks(Path(peaks)) if isinstance(peaks, str | Path) else tuple(peaks)


def read_peaks(path: Path) -> tuple[Device, ...]:
    """Read the devices of a JSON file: one object, or a list of them.

    ```json
    {
      "name": "Example X1",
      "match": ["Example X1", "Example X1 PCIe"],
      "capability": "9.0",
      "architecture": "gfx942",
      "memory": "80 GiB",
      "multiprocessors": 132,
      "bandwidth": "3.35 TB/s",
      "peaks": {"fp32": "66.9 TFLOP/s", "bf16": "989.4 TFLOP/s", "int8": "1979 TOP/s"},
      "source": "datasheet of May"
    }
    ```

    `name`, `bandwidth` and `peaks` are required. `match` is the name as the driver prints it, where
    that is not `name`. If given, `capability` (CUDA), `architecture` (AMD), `memory` and
    `multiprocessors` must fit the trace too, and identify the device where the trace has no name. A
    number without a unit is in FLOP/s, B/s or B. Peaks are dense, for one or more of fp64, fp32,
    tf32, bf16, fp16, fp8, int8.

    Raises:
        SettingsError: the file cannot be read, is not JSON, or holds an impossible value.
    """
    try:
        with opened(path) as file:
            document = msgspec.json.decode(file.read(_LARGEST_COUNT))
    except OSError as error:
        what = f"the device peaks {path} cannot be read"
        raise SettingsError(what, system_message(error), "name a JSON file") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SettingsError(
            f"the device peaks {path} are not JSON", str(error), f"write {_EXAMPLE}"
        ) from None
    entries = document if isinstance(document, list) else [document]
    if not entries:
        raise SettingsError(f"{path} lists no device", "an empty list", f"write {_EXAMPLE}")
    return tuple(
        _Entry(f"{path}, device {number}", entry).device()
        for number, entry in enumerate(entries, start=1)
    )


class _Entry:
    """One device in the file; `place` begins every error message."""

    def __init__(self, place: str, entry: object) -> None:
        self.place = place
        self.entry = self._table(entry, _KEYS, "")
        for key in ("name", "bandwidth", "peaks"):
            if key not in self.entry:
                raise SettingsError(f"{place}: no {key}", self._has(), f"write {_EXAMPLE}")

    def device(self) -> Device:
        name = self._text("name", self.entry["name"])
        return Device(
            name=name,
            peaks=self._peaks(self.entry["peaks"]),
            bandwidth_bytes_per_s=self._quantity("bandwidth", self.entry["bandwidth"], "B/s"),
            memory_bytes=self._optional("memory", self._memory),
            capability=self._optional("capability", self._capability),
            architecture=self._optional("architecture", self._architecture),
            source=self._optional("source", self._text) or self.place,
            names=self._optional("match", self._names) or (name,),
            multiprocessors=self._optional("multiprocessors", self._count),
        )

    def _optional(self, key: str, read: Callable[[str, object], _Value]) -> _Value | None:
        value = self.entry.get(key)
        return None if value is None else read(key, value)

    def _table(self, value: object, known: tuple[str, ...], key: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self._refusal(key, value, f"write an object with {', '.join(known)}")
        for word in value:
            if word not in known:
                import difflib

                close = difflib.get_close_matches(word[:40], known, n=3)
                hint = f"did you mean {' or '.join(close)}?" if close else f"use {', '.join(known)}"
                raise SettingsError(f"{self._at(key)}unknown key", _shown(word), hint)
        return value

    def _peaks(self, value: object) -> Mapping[str, float]:
        peaks = self._table(value, DTYPES, "peaks")
        if not peaks:
            raise self._refusal("peaks", value, f"give one or more of {', '.join(DTYPES)}")
        return MappingProxyType({dtype: self._peak(dtype, rate) for dtype, rate in peaks.items()})

    def _peak(self, dtype: str, rate: object) -> float:
        unit = "OP/s" if dtype == "int8" else "FLOP/s"
        return self._quantity(f"peaks.{dtype}", rate, unit)

    def _memory(self, key: str, value: object) -> int:
        return int(self._quantity(key, value, "B"))

    def _quantity(self, key: str, value: object, unit: str) -> float:
        if value is None or isinstance(value, bool | list | dict):
            raise self._refusal(key, value, f"write a number in {unit}, or a string with its unit")
        try:
            quantity = parse_quantity(value, unit)
        except UnitError as error:
            raise SettingsError(self._at(key) + error.what, error.found, error.next_step) from None
        if quantity < 1:
            raise self._refusal(key, value, "write what the datasheet says")
        return quantity

    def _names(self, key: str, value: object) -> tuple[str, ...]:
        names = value if isinstance(value, list) else [value]
        if not names:
            raise self._refusal(key, value, "write the names that the driver prints")
        return tuple(self._text(key, name) for name in names)

    def _text(self, key: str, value: object) -> str:
        if isinstance(value, str) and value.strip() and value.isprintable():
            return value.strip()
        raise self._refusal(key, value, "write a line of text")

    def _capability(self, key: str, value: object) -> tuple[int, int]:
        # A number would do for 9.0, but would turn 10.10 into 10.1.
        match = (
            re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})", value) if isinstance(value, str) else None
        )
        if match is None:
            raise self._refusal(key, value, 'write it as a string, "9.0"')
        return int(match[1]), int(match[2])

    def _architecture(self, key: str, value: object) -> str:
        if isinstance(value, str) and re.fullmatch(r"gfx[0-9]{2,4}[0-9a-f]", value):
            return value
        raise self._refusal(key, value, 'write it as "gfx942"')

    def _count(self, key: str, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31:
            return value
        raise self._refusal(key, value, "write a whole number above 0")

    def _refusal(self, key: str, value: object, next_step: str) -> SettingsError:
        return SettingsError(f"{self._at(key)}this cannot be", _shown(value), next_step)

    def _at(self, key: str) -> str:
        return f"{self.place}: {key}: " if key else f"{self.place}: "

    def _has(self) -> str:
        return f"it has {', '.join(self.entry)}" if self.entry else "it is empty"


def _shown(value: object) -> str:
    """A value as JSON, shortened."""
    if value and isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    import json

    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"


# ---- Peak rates of accelerators: dense compute by dtype and memory bandwidth, with sources.
#
# A peak is the bound on a GEMM of that dtype as the vendor states it, *without* structured
# sparsity (datasheets often print twice that): the matrix units' figure where they support the
# dtype, the vector units' elsewhere. So `fp64` and `tf32` are the tensor cores' figures where
# there are any; `fp32` is the vector figure on NVIDIA, whose tensor cores do not support fp32,
# and the matrix cores' figure on AMD CDNA. `fp16` and `fp8` are with fp32 accumulation, which is
# torch's default and which most GeForce cards do at half the rate. A dtype without a number from
# the vendor has none here: unknown, never a guess.

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


# ---- What a limit's ``on`` names: a chip, a compute capability, or a type of device.

#: Types of devices, as torch calls them; ROCm's are ``cuda`` too.
TYPES: Final = ("cpu", "cuda", "xpu", "mps")
#: A compute capability as CUDA's compilers write it, or an architecture of AMD's.
_CAPABILITY = late(r"^(sm_\d{2,3}[a-z]?|gfx[0-9a-f]{3,4})$")
#: ``sm_90a`` is ``sm_90`` with instructions that later chips lack.
_ARCHITECTURE_ONLY = late(r"^(sm_\d+)[a-z]$")


def check_target(on: str) -> None:
    """Check that this names a device of the table, a compute capability, or a type.

    Raises:
        SettingsError: it does not.
    """
    if on in TYPES or _CAPABILITY.match(on) or _chips(on):
        return
    from difflib import get_close_matches

    names = {word for device in DEVICES for word in (device.name, *device.name.split()[:1])}
    alike = get_close_matches(on, sorted({*names, *TYPES}), cutoff=0.5)
    raise SettingsError(
        f"on={on!r} is no chip of the table of devices, no compute capability such as sm_90, "
        f"and none of {', '.join(TYPES)}. "
        + (f"Did you mean {' or '.join(alike)}?" if alike else "docs/devices.md lists the chips.")
    )


def chip_named(text: str) -> Device:
    """The one device of the table with this name, or of which it is the beginning.

    Of several with the same rates, the first in the table.

    Raises:
        SettingsError: there is none, with the near matches, or there are several.

    >>> chip_named("H100 SXM").name, chip_named("v100-sxm2-32gb").name
    ('H100 SXM', 'V100-SXM2-32GB')
    """
    found = _chips(text)
    if not found:
        from difflib import get_close_matches

        names = sorted({word for one in DEVICES for word in (one.name, *one.name.split()[:1])})
        alike = get_close_matches(text, names, cutoff=0.5)
        raise SettingsError(
            f"no chip {text!r} is known",
            "",
            f"did you mean {' or '.join(alike)}?" if alike else "docs/devices.md lists the chips",
        )
    if (
        len(found) > 1
        and len({(*one.peaks.items(), one.bandwidth_bytes_per_s) for one in found}) > 1
    ):
        names = [one.name for one in found]
        raise SettingsError(f"{text!r} is one of {', '.join(names)}", "", "name one of them")
    return found[0]


def is_of_chip(on: str, chip: str | None) -> bool | None:
    """Whether a limit for these devices is one for this chip of the table; None if not for chips.

    >>> is_of_chip("H100", "H100 SXM"), is_of_chip("H100", "T4"), is_of_chip("sm_90", "T4")
    (True, False, None)
    """
    named = [] if on in TYPES else _chips(on)
    return any(one.name == chip for one in named) if named else None


def as_chip(device: object) -> Device:
    """The device itself, or the one with this name; it raises the same as `chip_named`.

    Raises:
        TypeError: neither a device nor a name.
    """
    if not isinstance(device, str | Device):
        given = type(device).__name__
        raise TypeError(f'a device is a name, such as "H100 SXM", or a Device; not {given}')
    return chip_named(device) if isinstance(device, str) else device


def is_on(
    on: str, device_type: str | None, device: str | None, capability: Callable[[], str | None]
) -> bool:
    """Whether a limit for these devices is in force on this machine.

    ``device_type`` and ``device`` are torch's type of accelerator and its name as the driver prints
    it, None without one; ``capability`` gives its compute capability or architecture.

    >>> is_on("H100", "cuda", "NVIDIA H100 80GB HBM3", lambda: "sm_90")
    True
    >>> is_on("cpu", None, None, lambda: None), is_on("A10", "cuda", "NVIDIA A100", lambda: None)
    (True, False)
    """
    if on in TYPES:
        return on == (device_type or "cpu")
    if device is None:
        return False
    if _CAPABILITY.match(on):
        return capability() == _ARCHITECTURE_ONLY.sub(r"\1", on)
    name, chips = normalize_name(device), _chips(on)
    exact = any(normalize_name(on) in _names(one) for one in chips)
    if not exact and _begins(name, normalize_name(on)):
        return True  # of the family, but not in the table
    return any(name in _names(one) for one in chips)


def _chips(on: str) -> list[Device]:
    """The devices of this name, or else all whose names begin with these words."""
    wanted = normalize_name(on)
    if not wanted:
        return []
    exact = [one for one in DEVICES if wanted in _names(one)]
    return exact or [one for one in DEVICES if any(_begins(n, wanted) for n in _names(one))]


def _names(device: Device) -> Iterable[str]:
    return [normalize_name(name) for name in (device.name, *device.names)]


def _begins(name: str, words: str) -> bool:
    return f"{name} ".startswith(f"{words} ")


# ---- How many blocks of a kernel fit on a multiprocessor of an NVIDIA GPU at the same time.
#
# All formulas and constants are those of NVIDIA's occupancy calculator, ``cuda_occupancy.h`` of
# CUDA 13.0 (`cudaOccMaxActiveBlocksPerMultiprocessor`): the least of the limits by warps,
# registers, shared memory and blocks. The result is an upper bound: a smaller carve-out of shared
# memory, or clusters of blocks that must fit together, can leave room for fewer.

if TYPE_CHECKING:
    _Ints = npt.NDArray[np.int64]

#: Registers are allocated to a warp in this unit, since compute capability 3.0.
_REGISTERS_UNIT: Final = 256
#: Warps of other sizes belong to other vendors, for which nothing here is known.
_WARP: Final = 32
#: Larger values of a property are not believed.
_LARGEST_UNITS: Final = 2**31 - 1


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
    return value if 0 < value <= _LARGEST_UNITS else None


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
