"""Device events with numbers that tell which is which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pytest_torchprof.trace.names import DEVICE_KINDS

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


@dataclass
class Known:
    """Work of device events as a test knows it."""

    event: Ints
    flops: Ints
    done: Ints
    bytes: Ints
    compute_pct: npt.NDArray[np.float64]
    bandwidth_pct: npt.NDArray[np.float64]


def by_index(trace: Events) -> Known:
    """Of each device event in time order: flops 1000, 1001, …, bytes 0, 1, …, nothing unknown."""
    event = np.flatnonzero(trace.is_kind(*DEVICE_KINDS))
    number = np.arange(len(event))
    return Known(event, 1000 + number, 1000 + number, number, number / 8, number / 3)
