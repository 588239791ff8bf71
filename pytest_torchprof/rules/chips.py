"""What the rules have to know of the accelerator that a trace ran on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_torchprof.analysis.gaps import XPU_CALL
from pytest_torchprof.core.late import late
from pytest_torchprof.trace.kinds import Kind
from pytest_torchprof.work.devices import table as devices

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Trace

#: Kernels that are compiled for compute capability 8.0 and later, and run nowhere else.
_SINCE_AMPERE = late(
    r"ampere_|hopper_|blackwell_|sm(80|86|89|90|1[02]\d)_|cutlass_(8[069]|9\d|1[02]\d)_|nvjet"
)
#: Architectures of AMD for which torch has a fused attention.
#: Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, the list for AOTriton.
_AMD_FUSED = {"gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1201"}

#: What fused attention computes in.
FUSED_TYPES = {"float", "c10::Half", "c10::BFloat16"}


UNKNOWN_CHIP = "the trace does not say which device it ran on"

#: Chips that multiply TF32 at least four times as fast as fp32, whatever they are called: GA100,
#: GH100 and GB100. The others of a generation are sold at full and at half rate.
_WHOLE_RATE = {(8, 0), (9, 0), (10, 0), (10, 3)}


class Chip(NamedTuple):
    """``capability`` is CUDA's or HIP's, (0, 0) where unknown; ``name`` that of the table."""

    vendor: str | None
    capability: tuple[int, int]
    architecture: str | None = None
    name: str | None = None
    tf32_gain: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether a trace tells what the chip can do."""
        return self.capability != (0, 0) or self.architecture is not None

    @property
    def has_tf32(self) -> bool:
        """Whether single-precision products can run as TF32."""
        return self.vendor == "nvidia" and self.capability >= (8, 0)

    @property
    def may_have_tf32(self) -> bool:
        """Whether a trace leaves it open if they can."""
        return self.vendor in {"nvidia", None} and not self.is_known

    @property
    def tf32_saves(self) -> float:
        """The part of an fp32 product's time that TF32 saves at most; 0 where nobody knows.

        By the peaks; a half at most, for memory bounds what is faster.
        """
        gain = self.tf32_gain
        if gain is None:
            gain = 2.0 if self.capability in _WHOLE_RATE else 1.0
        return min(max(1 - 1 / gain, 0.0), 0.5)

    def fuses_attention(self, dtype: str | None) -> bool:
        """Whether torch has a fused attention for such inputs on this chip.

        Source: sdp_utils.cpp as above: the memory-efficient one takes fp32 and fp16 since 5.0, bf16
        since 8.0; nothing takes fp64 or complex numbers.
        """
        if self.vendor == "amd":
            return self.architecture in _AMD_FUSED and dtype in FUSED_TYPES
        least = {"float": (5, 0), "c10::Half": (5, 0), "c10::BFloat16": (8, 0)}.get(dtype or "")
        return self.vendor == "nvidia" and least is not None and self.capability >= least


def chip_of(trace: Trace, device: int) -> Chip:
    """The chip of this index, from what the driver said, else from the kernels that ran on it."""
    return trace.once(_chip_of, device)


def _chip_of(trace: Trace, device: int) -> Chip:
    properties = _properties(trace, device)
    vendor = _vendor(trace, str(properties.get("name", "")))
    known = devices.find(properties)
    major = _number(properties.get("computeMajor"))
    if major:
        capability = (major, _number(properties.get("computeMinor")))
    elif known is not None and known.capability is not None:
        capability = known.capability
    elif vendor == "nvidia" and any(map(_SINCE_AMPERE.search, trace.names)):
        capability = (8, 0)
    else:
        capability = (0, 0)
    architecture = known.architecture if known is not None else None
    if architecture is None and vendor == "amd":
        architecture = {(9, 4): "gfx942", (9, 5): "gfx950"}.get(capability)
    if known is None or not {"fp32", "tf32"} <= set(known.peaks):
        return Chip(vendor, capability, architecture, known.name if known else None)
    gain = known.peaks["tf32"] / known.peaks["fp32"]
    return Chip(vendor, capability, architecture, known.name, gain)


def device_type(trace: Trace) -> str:
    """What torch calls the accelerator: ``cuda``, also of AMD's, where nothing says another."""
    noted = trace.facts.get("device_type")
    if isinstance(noted, str):
        return noted
    xpu = trace.is_kind(Kind.RUNTIME) & trace.names_where(XPU_CALL.match)
    return "xpu" if xpu.any() else "cuda"


def _properties(trace: Trace, device: int) -> Mapping[str, Any]:
    listed = trace.metadata.get("deviceProperties")
    entries = [e for e in listed if isinstance(e, dict)] if isinstance(listed, list) else []
    for entry in entries:
        if _number(entry.get("id", -1)) == device:
            return entry
    return {}


def _vendor(trace: Trace, name: str) -> str | None:
    """By the calls of its runtime, else by the driver's name for it."""
    calls = trace.is_kind(Kind.RUNTIME)
    if (calls & trace.names_where(lambda n: n.startswith("hip"))).any():
        return "amd"
    if (calls & trace.names_where(re.compile(r"cuda|cu[A-Z]").match)).any():
        return "nvidia"
    words = {"nvidia": r"NVIDIA|Tesla|GeForce|Quadro", "amd": r"AMD|Radeon|Instinct"}
    found = [vendor for vendor, known in words.items() if re.search(known, name)]
    return found[0] if found else None


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0
