"""The text for each reason about estimates of a device's work, as in `render.reason_texts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pytest_torchprof.core.reasons import Why

OF_ESTIMATES: Final[Mapping[Why, str]] = {
    Why.NO_LAUNCHES: "starts an unknown number of kernels",
    Why.COMPILED_FOR_HOST: "was compiled for the CPU, and for a device becomes other kernels",
    Why.NO_CHIP: "no chip to estimate for (--torchprof-device=CHIP names one)",
    Why.NO_PEAK: "no peak of {chip} is known for {dtypes}",
    Why.UNKNOWN_CHIP: "no chip {name} is known (docs/devices.md lists them)",
    Why.MAYBE_META: "may be on meta or fake tensors, which have no values",
    Why.KEPT_BY_PARTS: (
        "the CPU runs {names:, } by parts, and keeps tensors that a device does not make"
    ),
    Why.PLACES_UNKNOWN: "what a marker allows at its line or module is not known: {why}",
    Why.OTHER_CHIP: (
        "bound_ms only advises: the baseline's is of {accepted}, and this one of {here}"
    ),
    Why.CHIPS_DIFFER: "bound_ms not compared: A's is of {a}, and B's of {b}",
}
