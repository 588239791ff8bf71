"""Traces of particular chips, with the properties that their drivers report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from support.trace_builder import LATENCY_NS, TraceBuilder
from support.trace_styles import STYLES

if TYPE_CHECKING:
    from support.trace_styles import Event


class _Chip(NamedTuple):
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    gib: float
    vendor: str = "nvidia"


CHIPS = {
    "H100": _Chip("NVIDIA H100 80GB HBM3", (9, 0), 132, 79.2),
    "A100": _Chip("NVIDIA A100-SXM4-40GB", (8, 0), 108, 39.4),
    "V100": _Chip("Tesla V100-SXM2-32GB", (7, 0), 80, 31.7),
    "T4": _Chip("Tesla T4", (7, 5), 40, 14.6),
    "RTX 2080 Ti": _Chip("NVIDIA GeForce RTX 2080 Ti", (7, 5), 68, 10.8),
    "MI300X": _Chip("AMD Instinct MI300X", (9, 4), 304, 191.7, "amd"),
    "MI210": _Chip("AMD Instinct MI210", (9, 0), 104, 64.0, "amd"),
}
_SLOW_NS = 1_000_000
#: What operators lack in traces of torch before 2.3.
_STRIDES = "Input Strides"


class Gpu(TraceBuilder):
    """A trace of one of `CHIPS`; ``styles`` are names out of `STYLES`."""

    def __init__(self, chip: str = "H100", *styles: str, strides: bool = True) -> None:
        self.chip, self.styles, self.strides = CHIPS[chip], styles, strides
        super().__init__(self.chip.name, self.chip.capability, vendor=self.chip.vendor)

    def _on_device(
        self, cat: str, name: str, us: float, stream: int, call: Event | None, args: Any
    ) -> int:
        """A call that takes long has done something else before it reaches the device."""
        if call and call["dur"] > _SLOW_NS:
            begin = call["ts"] + call["dur"] - LATENCY_NS
            self._streams[stream] = max(self._streams.get(stream, 0), begin)
        return super()._on_device(cat, name, us, stream, call, args)

    def document(self) -> Event:
        document = super().document()
        for entry in document["deviceProperties"]:
            entry |= {"numSms": self.chip.multiprocessors}
            entry |= {"totalGlobalMem": int(self.chip.gib * 2**30)}
        if not self.strides:
            for event in document["traceEvents"]:
                event.get("args", {}).pop(_STRIDES, None)
        for style in self.styles:
            document = STYLES[style](document)
        return document
