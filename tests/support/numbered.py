"""Device events with numbers that tell which is which."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.kernels import KernelWork
from pytest_torchprof.trace.names import DEVICE_KINDS

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events


def by_index(trace: Events) -> KernelWork:
    """Of each device event in time order: flops 1000, 1001, …, bytes 0, 1, …, nothing unknown."""
    event = np.flatnonzero(trace.is_kind(*DEVICE_KINDS))
    number = np.arange(len(event))
    return KernelWork(event, 1000 + number, 1000 + number, number, number / 8, number / 3)
