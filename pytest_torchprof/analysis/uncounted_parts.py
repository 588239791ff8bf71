"""Parts of a trace without counted FLOPs: what they are, and their share of the time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace.kinds import DEVICE_KINDS, Kind

if TYPE_CHECKING:
    from pytest_torchprof.core.reasons import Why
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints


class UncountedPart(Frozen, frozen=True):
    """An operator or a kernel by name, what is missing, and its share of the total time.

    Without a name, ``missing`` is all that there is to say.

    ``share`` is of the device's time where there is a device, else of the time of all operators.
    """

    name: str
    missing: Why
    calls: int
    share: float


def named(
    trace: Events, events: Ints, names: tuple[str, ...], missing: Why
) -> Iterable[UncountedPart]:
    """A part for each of these names, all of the same calls."""
    if not len(events):
        return
    whole = whole_time(trace)
    share = int(time_of(trace, events).sum()) / whole if whole else 0.0
    for name in dict.fromkeys(names):
        yield UncountedPart(name, missing, len(events), min(share, 1.0))


def by_name(trace: Events, events: Ints, missing: Callable[[int], Why]) -> list[UncountedPart]:
    """A part for each name among these events; ``missing`` is asked for the first of each."""
    if not len(events):
        return []
    names, first, at = np.unique(trace.name[events], return_index=True, return_inverse=True)
    spent = np.bincount(at, time_of(trace, events)).tolist()
    calls = np.bincount(at).tolist()
    whole = whole_time(trace)
    return [
        UncountedPart(trace.names[name], missing(int(events[i])), n, ns / whole if whole else 0.0)
        for name, i, n, ns in zip(names.tolist(), first.tolist(), calls, spent, strict=True)
    ]


def time_of(trace: Events, events: Ints) -> Ints:
    """Nanoseconds of each event on the device, or on the host where there is no device."""
    if not (trace.has(*DEVICE_KINDS) and trace.selection[trace.device_rows].any()):
        return trace.dur[events]
    on_device = trace.is_kind(*DEVICE_KINDS)[events]
    return np.where(on_device, trace.dur[events], trace.once(launched_ns)[events])


def whole_time(trace: Events) -> int:
    """Nanoseconds of all device events, or of all operators where there are none."""
    device = trace.selection & trace.is_kind(*DEVICE_KINDS)
    if device.any():
        return int(trace.dur[device].sum())
    return int(trace.self_ns[trace.selection & trace.is_kind(Kind.OP)].sum())
