"""Parts of a trace without counted FLOPs: what they are, and their share of the time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.device_time import launched_ns
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.structs import Frozen
from pytest_torchprof.trace.kinds import DEVICE_KINDS, Kind

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

_NAMED, _LONGEST = 3, 60


class UncountedPart(Frozen, frozen=True):
    """An operator or a kernel by name, what is missing, and its share of the total time.

    Without a name, ``missing`` is all that there is to say.

    ``share`` is of the device's time where there is a device, else of the time of all operators.
    """

    name: str
    missing: Why
    calls: int
    share: float


def reason_of(parts: Iterable[UncountedPart], at_least: int, unit: str) -> Reason:
    """What is counted, if anything, and for each thing that is missing the parts that lack it."""
    parts = tuple(parts)
    gaps = dict.fromkeys(part.missing for part in parts)
    why = because(Why.SEVERAL, gaps=tuple(_gap(missing, parts) for missing in gaps))
    return because(Why.AT_LEAST, value=at_least, unit=unit, why=why) if at_least else why


def _gap(missing: Why, parts: Iterable[UncountedPart]) -> Reason:
    mine = [part for part in parts if part.missing == missing]
    if not mine[0].name:
        return because(missing)
    shown = tuple(_one(part) for part in mine[:_NAMED])
    if len(mine) == 1:
        return because(Why.ONE_UNCOUNTED, part=shown[0], missing=because(missing))
    left = len(mine) - len(shown)
    return because(Why.MANY_UNCOUNTED, parts=shown, left=left, missing=because(missing))


def _one(part: UncountedPart) -> Reason:
    name = part.name.removeprefix("void ").partition("<")[0].partition("(")[0] or part.name
    name = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    if part.share < 0.005:
        return because(Why.UNCOUNTED_PART, name=name, calls=part.calls)
    return because(Why.UNCOUNTED_SHARE, name=name, calls=part.calls, percent=100 * part.share)


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
    return np.where(on_device, trace.dur[events], launched_ns(trace)[events])


def whole_time(trace: Events) -> int:
    """Nanoseconds of all device events, or of all operators where there are none."""
    device = trace.selection & trace.is_kind(*DEVICE_KINDS)
    if device.any():
        return int(trace.dur[device].sum())
    return int(trace.self_ns[trace.selection & trace.is_kind(Kind.OP)].sum())
