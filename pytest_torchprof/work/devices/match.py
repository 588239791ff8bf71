"""Find the device that a trace ran on, from the properties that the driver reports."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.structs import Frozen

if TYPE_CHECKING:
    from pytest_torchprof.work.devices.device import Device

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
