"""The accelerator that a trace ran on, and what ran on the CPU beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pytest_torchprof.analysis.device_time import launched_in
from pytest_torchprof.analysis.missing import XPU_CALL
from pytest_torchprof.core.process import late
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import (
    DEVICE_KINDS,
    Kind,
)
from pytest_torchprof.trace.tree import forward_of
from pytest_torchprof.work import devices

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


#: Kernels that are compiled for compute capability 8.0 and later, and run only there.
_SINCE_AMPERE = late(
    r"ampere_|hopper_|blackwell_|sm(80|86|89|90|1[02]\d)_|cutlass_(8[069]|9\d|1[02]\d)_|nvjet"
)
#: AMD architectures for which torch has a fused attention kernel.
#: Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, the list for AOTriton.
_AMD_FUSED = {"gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1201"}

#: Dtypes of fused attention.
FUSED_TYPES = {"float", "c10::Half", "c10::BFloat16"}


#: Devices that multiply TF32 at least four times as fast as fp32, under any name: GA100, GH100 and
#: GB100. Other chips of these generations are sold with full and with half rate.
_WHOLE_RATE = {(8, 0), (9, 0), (10, 0), (10, 3)}


MATH_ATTENTION: Final = "aten::_scaled_dot_product_attention_math"
_FUSED_ATTENTION: Final = late(
    r"aten::_scaled_dot_product_(flash|efficient|cudnn|fused)_attention(?!_for_cpu)"
)


class Chip(NamedTuple):
    """``capability`` is CUDA's or HIP's, (0, 0) if unknown; ``name`` is the table's."""

    vendor: str | None
    capability: tuple[int, int]
    architecture: str | None = None
    name: str | None = None
    tf32_gain: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether the trace tells what the device supports."""
        return self.capability != (0, 0) or self.architecture is not None

    @property
    def has_tf32(self) -> bool:
        """Whether it multiplies TF32: NVIDIA's since 8.0, others by the table of devices."""
        return self.runs_tf32 or self.tf32_gain is not None

    @property
    def runs_tf32(self) -> bool:
        """Whether torch can be told to run single-precision products as TF32.

        AMD's need ``HIPBLASLT_ALLOW_TF32=1``, too. Source: aten/src/ATen/Context.cpp, 2.5 to 2.9.
        """
        return self.vendor == "nvidia" and self.capability >= (8, 0)

    @property
    def may_have_tf32(self) -> bool:
        """Whether the trace leaves open if it can."""
        return self.vendor in {"nvidia", None} and not self.is_known

    @property
    def tf32_saves(self) -> float:
        """The largest share of an fp32 product's time that TF32 saves; 0 if unknown.

        It follows from the peaks; at most half, because faster kernels are bound by memory.
        """
        gain = self.tf32_gain
        if gain is None:
            gain = 2.0 if self.capability in _WHOLE_RATE else 1.0
        return min(max(1 - 1 / gain, 0.0), 0.5)

    def fuses_attention(self, dtype: str | None) -> bool:
        """Whether torch has a fused attention kernel for such inputs on this device.

        Source: sdp_utils.cpp as above: the memory-efficient kernel supports fp32 and fp16 from 5.0
        on, bf16 from 8.0 on; no kernel supports fp64 or complex numbers.
        """
        if self.vendor == "amd":
            return self.architecture in _AMD_FUSED and dtype in FUSED_TYPES
        least = {"float": (5, 0), "c10::Half": (5, 0), "c10::BFloat16": (8, 0)}.get(dtype or "")
        return self.vendor == "nvidia" and least is not None and self.capability >= least


def on_cpu(trace: Events, rows: Ints) -> Bools:
    """Which of these operators ran on the CPU: they launched nothing, and called no runtime.

    Without any call of a runtime, a trace that lists devices has only the host's side.
    """
    launched, _ = launched_in(trace, rows, kinds=DEVICE_KINDS)
    if not trace.has(Kind.RUNTIME):
        return (launched < 0) & (not trace.metadata.get("deviceProperties"))
    calls = nesting.above(np.flatnonzero(trace.is_kind(Kind.RUNTIME)), trace.parent)
    return (launched < 0) & ~calls[rows]


def chip_of(trace: Events, device: int) -> Chip:
    """The device with this index, from the driver's properties, else from its kernels' names."""
    return trace.once(_chip_of, device)


def _chip_of(trace: Events, device: int) -> Chip:
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


def has_fused(trace: Events, device: int, dtype: str) -> bool:
    """Whether a device has a fused attention kernel for inputs of this type."""
    chip = chip_of(trace, device)
    if chip.fuses_attention(dtype):
        return True
    return not chip.is_known and dtype in FUSED_TYPES and trace.once(runs_fused, device)


def is_unknown(trace: Events, calls: Ints) -> bool:
    """Whether one of these calls ran on a device of which the trace does not say what it fuses."""
    kernel, _ = launched_in(trace, calls)
    devices = nesting.distinct(trace.device[kernel[kernel >= 0]]).tolist()
    return any(not (chip_of(trace, d).is_known or trace.once(runs_fused, d)) for d in devices)


def runs_fused(trace: Events, device: int) -> bool:
    """Whether a fused attention kernel ran on this device."""
    calls = np.flatnonzero(trace.is_kind(Kind.OP) & trace.names_where(_FUSED_ATTENTION.match))
    kernel, _ = launched_in(trace, calls)
    return bool((trace.device[kernel[kernel >= 0]] == device).any())


def in_math_attention(trace: Events, events: Ints) -> Bools:
    """Products in the math form of attention, forward and backward: other rules leave them out."""
    attention = trace.is_kind(Kind.OP) & trace.named(MATH_ATTENTION)
    found = np.zeros(len(events), bool)
    if len(events) and attention.any():
        for rows in (events, forward_of(trace, events)):
            found[rows >= 0] |= nesting.below(attention, trace.parent, rows[rows >= 0])
    return found


def device_type(trace: Events) -> str:
    """The accelerator's name in torch: ``cuda``, also for AMD, unless the trace says otherwise."""
    noted = trace.facts.device_type
    if noted is not None:
        return noted
    xpu = trace.is_kind(Kind.RUNTIME) & trace.names_where(XPU_CALL.match)
    return "xpu" if xpu.any() else "cuda"


def _properties(trace: Events, device: int) -> Mapping[str, Any]:
    """Those of the device, or of all devices if they are alike: ROCm numbers events differently."""
    listed = trace.metadata.get("deviceProperties")
    entries = [e for e in listed if isinstance(e, dict)] if isinstance(listed, list) else []
    for entry in entries:
        if _number(entry.get("id", -1)) == device:
            return entry
    first, *others = [{**entry, "id": None} for entry in entries] or [{}]
    return first if all(other == first for other in others) else {}


def _vendor(trace: Events, name: str) -> str | None:
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
