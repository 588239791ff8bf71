"""Explain what a trace does not contain about the device; None where nothing is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.analysis.lost_launches import lost_launches
from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.kinds import DEVICE_KINDS, OTHER_DEVICES, Kind

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints

#: Calls of interfaces whose waiting calls are known by name, see `events.SYNC_CALL`.
_KNOWN_CALL = late(r"cuda|cu[A-Z]|hip|musa|xpu[A-Z]")
#: Calls of SYCL's adapters and of Level Zero, as in traces of Intel devices.
XPU_CALL = late(r"(ur|ze|pi)[A-Z]")
_GRAPH_LAUNCH = late(r"GraphLaunch")


def device_gap(trace: Events) -> Reason | None:
    """Why the device's work is not fully known: `absent_gap` or `partial_gap`."""
    return trace.once(absent_gap) or trace.once(partial_gap)


def absent_gap(trace: Events) -> Reason | None:
    """There is no accelerator, or its events are unsupported or were not recorded."""
    if (noted := trace.facts.no_device) is not None:
        return noted
    if (gap := _foreign(trace)) is not None:
        return gap
    if trace.once(lost_launches)[0] or _device_ran(trace):
        return None
    if trace.once(_records_end):
        return because(Why.NO_DEVICE_RECORDS)
    if trace.unread:
        why = Why.UNKNOWN_EVENTS if _has_accelerator(trace) else Why.ONLY_OTHER_EVENTS
        return because(why, events=_listed(trace.unread))
    return None if _has_accelerator(trace) else because(Why.NO_DEVICE)


def partial_gap(trace: Events) -> Reason | None:
    """Some launches or their kernels are missing, so the trace has only a part of what ran."""
    launches, lost = trace.once(lost_launches)
    if not lost:
        return because(Why.DEVICE_RECORDS_END) if trace.once(_records_end) else None
    reason = because(Why.KERNELS_LOST, lost=lost, launches=launches)
    return because(Why.FILE_BREAKS_OFF, why=reason) if trace.cut else reason


def device_time_gap(trace: Events) -> Reason | None:
    """Why the times of the device's events are not all there is: `partial_gap`, or untimed ones."""
    return trace.once(partial_gap) or trace.once(_untimed_gap, *DEVICE_KINDS)


def cpu_time_gap(trace: Events) -> Reason | None:
    """Why self times have no sum: calls count, as their time is not that of their operators."""
    return trace.once(_untimed_gap, Kind.OP, Kind.RUNTIME)


def _untimed_gap(trace: Events, *kinds: Kind) -> Reason | None:
    if not trace.untimed:
        return None
    events = trace.selection & trace.is_kind(*kinds)
    count, untimed = int(events.sum()), int(events[list(trace.untimed)].sum())
    if untimed == count:
        return because(Why.NO_DURATIONS) if count else None
    return because(Why.SOME_UNTIMED, untimed=untimed, events=count) if untimed else None


def memory_gap(trace: Events) -> Reason | None:
    """There is no accelerator, or the profiler does not see its allocator.

    Torch records its memory even if nothing else is recorded.
    """
    if trace.memory.on_device.any():
        return None
    if _has_accelerator(trace) and _foreign(trace) is None:
        return trace.facts.no_device_memory
    return trace.once(absent_gap)


def _records_end(trace: Events) -> bool:
    """Whether the device's records end too early: a call of the capture's own is not among them.

    It comes after the region, so a capture that has it was not cut off before.
    """
    if not trace.facts.awaited or trace.region is None:
        return False
    calls = trace.whole.is_kind(Kind.RUNTIME)
    return not bool((trace.ts[calls] >= trace.region[1]).any())


def _device_ran(trace: Events) -> bool:
    return bool(trace.in_region[trace.device_rows].any())


def _foreign(trace: Events) -> Reason | None:
    found = [category for category in trace.unread if category.lower() in OTHER_DEVICES]
    if not found:
        return None
    device = OTHER_DEVICES[found[0].lower()]
    return because(Why.UNKNOWN_DEVICE, device=device, events=_listed(found))


def _has_accelerator(trace: Events) -> bool:
    return bool(trace.facts.accelerator)


def _listed(categories: Sequence[str]) -> tuple[Reason, ...]:
    """Events of these categories, and those without one."""
    named = tuple(category for category in categories if category)
    parts = [because(Why.CATEGORY, names=named)] if named else []
    parts += [because(Why.NO_CATEGORY)] if len(named) < len(categories) else []
    return tuple(parts)


def waits_gap(trace: Events) -> Reason | None:
    """Why the calls in which the host waits for the device are unknown.

    They are known even where kernels are missing: calls are recorded separately.

    Source: libkineto/src/plugin/xpupti/XpuptiActivityApi.cpp, which enables only the calls of class
    PTI_API_CLASS_GPU_OPERATION_CORE.
    """
    if trace.once(_records_end):
        return trace.once(device_gap)
    called: list[int] = []
    if trace.has(Kind.RUNTIME):
        called = nesting.distinct(trace.name[trace.is_kind(Kind.RUNTIME)]).tolist()
    calls = [trace.names[number] for number in called]
    device_type = trace.facts.device_type
    if (gap := _foreign(trace)) is not None:
        return gap
    if device_type == "xpu" or any(map(XPU_CALL.match, calls)):
        return because(Why.NO_WAITS_ON_XPU)
    if any(map(_KNOWN_CALL.match, calls)):
        return None
    if calls:
        return because(Why.UNKNOWN_WAITS, call=calls[0])
    if (gap := trace.once(device_gap)) is not None:
        return gap
    if device_type is not None and device_type != "cuda":
        return because(Why.UNKNOWN_WAITS_OF, device=device_type)
    return because(Why.NO_CALLS) if trace.has(*DEVICE_KINDS) else None


def _kernels(trace: Events) -> Ints:
    return np.flatnonzero(trace.selection & trace.is_kind(Kind.KERNEL))


def blind_kernels(trace: Events, concern: Callable[[str], object]) -> Reason | None:
    """Why the operators of some kernels with these names are unknown.

    A graph launched them, or the trace has no operators at all.
    """
    if not (trace.has(Kind.KERNEL) and len(kernels := trace.once(_kernels))):
        return None
    kernels = kernels[trace.names_where(concern)[kernels]]
    launch = trace.launch[kernels]
    graph = (launch >= 0) & trace.names_where(_GRAPH_LAUNCH.search)[launch]
    if count := int(graph.sum()):
        return because(Why.KERNELS_FROM_GRAPHS, count=count)
    if len(kernels) and not trace.has(Kind.OP):
        return because(Why.KERNELS_ALONE)
    return None
