"""A stand-in: peaks of four devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Device:
    """What a chip can do at most: dense FLOP/s by dtype, and bytes/s of its memory."""

    name: str
    peaks: Mapping[str, float]
    bandwidth_bytes_per_s: float
    memory_bytes: int = 0
    capability: tuple[int, int] | None = None
    architecture: str | None = None
    source: Sequence[str] = field(default=())


_T = 1e12
_DEVICES = {
    "H100 80GB HBM3": Device(
        "H100 SXM",
        {
            "fp64": 66.9 * _T,
            "fp32": 66.9 * _T,
            "tf32": 494.7 * _T,
            "bf16": 989.4 * _T,
            "fp16": 989.4 * _T,
            "fp8": 1978.9 * _T,
            "int8": 1978.9 * _T,
        },
        3.35e12,
    ),
    "A100-SXM4-40GB": Device(
        "A100 SXM 40GB",
        {
            "fp64": 19.5 * _T,
            "fp32": 19.5 * _T,
            "tf32": 156 * _T,
            "bf16": 312 * _T,
            "fp16": 312 * _T,
            "int8": 624 * _T,
        },
        1.555e12,
    ),
    "V100-SXM2-32GB": Device(
        "V100 SXM2", {"fp64": 7.8 * _T, "fp32": 15.7 * _T, "fp16": 125 * _T}, 0.9e12
    ),
}
_MI300X = Device(
    "MI300X",
    {
        "fp64": 163.4 * _T,
        "fp32": 163.4 * _T,
        "tf32": 653.7 * _T,
        "bf16": 1307.4 * _T,
        "fp16": 1307.4 * _T,
        "fp8": 2614.9 * _T,
        "int8": 2614.9 * _T,
    },
    5.3e12,
)


def find(properties: Mapping[str, Any], extra: Sequence[Device] = ()) -> Device | None:
    """The device of one entry of a trace's ``deviceProperties``."""
    name = str(properties.get("name", ""))
    for device in extra:
        if device.name in name:
            return device
    for key, device in _DEVICES.items():
        if key in name:
            return device
    amd = (properties.get("computeMajor"), properties.get("computeMinor")) == (9, 4)
    return _MI300X if amd and not name else None
