"""Fix copies between pinned memory and an AMD device, which ROCm records as copies on the device.

The call that made the copy tells the direction: ``hipMemcpyKind`` is among its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.trace.arguments import CopyArgs, decode
from pytest_torchprof.trace.kinds import Kind

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

_WITHIN: Final = late(r"DtoD|DeviceToDevice")
_CALL: Final = "hipMemcpy"
#: Names as ROCm writes them for known directions, by ``hipMemcpyKind``.
#: Source: HIP's hip/driver_types.h: 1 is hipMemcpyHostToDevice, 2 is hipMemcpyDeviceToHost.
_NAMES: Final[Mapping[str, str]] = {
    "1": "Memcpy HtoD (Host -> Device)",
    "2": "Memcpy DtoH (Device -> Host)",
    "hipMemcpyHostToDevice": "Memcpy HtoD (Host -> Device)",
    "hipMemcpyDeviceToHost": "Memcpy DtoH (Device -> Host)",
}


def with_directions(trace: Events) -> Events:
    """The trace with such copies named by their direction; any other trace unchanged."""
    if not any(name.startswith(_CALL) for name in trace.names):
        return trace
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & trace.names_where(_WITHIN.search))
    copies = copies[trace.launch[copies] >= 0]
    calls = trace.launch[copies]
    made = trace.names_where(lambda name: name.startswith(_CALL))[calls]
    copies, calls = copies[made], calls[made]
    names = {name: number for number, name in enumerate(trace.names)}
    column = trace.name.copy()
    for copy, args in zip(copies.tolist(), decode(CopyArgs, trace.args[calls]), strict=True):
        if (name := _NAMES.get(str(args.kind))) is not None:
            column[copy] = names.setdefault(name, len(names))
    return replace(trace, name=column, names=list(names))
