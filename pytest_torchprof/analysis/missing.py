"""What a trace lacks: lost device events, work elsewhere, cut files, time without a profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pytest_torchprof.core.process import late
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import DEVICE_KINDS, LAUNCH_CALL, OTHER_DEVICES, REGION, Kind
from pytest_torchprof.trace.nesting import among

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.facts import Quantity
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- Which launches lack the kernels that they ran.

_BEGIN_CAPTURE = late(r"StreamBeginCapture")
_END_CAPTURE = late(r"StreamEndCapture")
_GRAPH = late(r"Graph(Launch|Instantiate)")
_GRAPH_LAUNCH = late(r"GraphLaunch")
_WAIT_FOR_ALL = late(r"(Device|Ctx)Synchronize")


def lost_launches(trace: Events) -> tuple[int, int]:
    """How many launch calls the region has, and how many of them lost their kernel records.

    A launch nested in another one is part of it. One that a stream captures into a graph only runs
    when the graph is launched. Of a stored trace, whose recording may have ended before a kernel
    ran, only those launches are lost that must have run before its end, see `_had_run`.
    """
    if not trace.has(Kind.RUNTIME):
        return 0, 0
    is_launch = _calls(trace, LAUNCH_CALL.search)
    launches = np.flatnonzero(is_launch & trace.in_region)
    correlation = trace.correlation
    answered = nesting.among(correlation[launches], correlation[trace.device_rows])
    mine = answered | ~captured(trace, launches)
    launches, answered = launches[mine], answered[mine]
    outer = trace.parent[launches]
    inner = (outer >= 0) & is_launch[outer]
    answered |= nesting.among(launches, outer[inner & answered])
    lost = launches[~inner & ~answered]
    if trace.region is None and len(lost) and len(trace.device_rows):
        return int((~inner).sum()), _had_run(trace, lost, launches[answered])
    return int((~inner).sum()), len(lost)


def _calls(trace: Events, named: Callable[[str], object]) -> Bools:
    return trace.is_kind(Kind.RUNTIME) & trace.names_where(named)


def captured(trace: Events, launches: Ints) -> Bools:
    """Calls made during a capture: on any thread, as backward passes launch from their own.

    A capture that ends without a beginning began before the recording.
    """
    begins, ends = (
        trace.ts[_calls(trace, named.search)] for named in (_BEGIN_CAPTURE, _END_CAPTURE)
    )
    if not (len(begins) or len(ends)):
        return np.zeros(len(launches), bool)
    at_ends = np.searchsorted(begins, ends) - np.arange(1, len(ends) + 1)
    before = -min(0, at_ends.min(initial=0))
    when = trace.ts[launches]
    found: Bools = before + np.searchsorted(begins, when) > np.searchsorted(ends, when)
    return found


def _had_run(trace: Events, lost: Ints, answered: Ints) -> int:
    """How many of these launches of a stored trace had run before the recording ended.

    If the trace has graphs but no captures, any launch may be a captured one.
    """
    if not _has_captures(trace) and _calls(trace, _GRAPH.search).any():
        lost = lost[trace.names_where(_GRAPH_LAUNCH.search)[lost]]
    if not trace.has(Kind.KERNEL):
        return len(lost)
    if not len(answered):
        return 0  # nothing links kernels to their launches
    known = trace.correlation[lost] > 0
    over = (trace.ts[lost] < trace.ts[answered].max()) | (
        trace.ts[lost] + trace.dur[lost] <= _last_wait(trace)
    )
    # A kernel without an id may be that of any launch.
    unlinked = int((trace.correlation[trace.is_kind(Kind.KERNEL)] <= 0).sum())
    return max(int((known & over).sum()) - unlinked, 0)


def _has_captures(trace: Events) -> bool:
    return any(_calls(trace, named.search).any() for named in (_BEGIN_CAPTURE, _END_CAPTURE))


def _last_wait(trace: Events) -> int:
    """When the last wait for the whole device began; -1 if there is none.

    It waits for one device only, so if several are in use, there is none.
    """
    if len(nesting.distinct(trace.device[trace.device_rows])) > 1:
        return -1
    return int(trace.ts[_calls(trace, _WAIT_FOR_ALL.search)].max(initial=-1))


# ---- Explain what a trace does not contain about the device; None where nothing is missing.

#: Calls of interfaces whose waiting calls are known by name, see `events.SYNC_CALL`.
_KNOWN_CALL = late(r"cuda|cu[A-Z]|hip|musa|xpu[A-Z]")
#: Calls of SYCL's adapters and of Level Zero, as in traces of Intel devices.
XPU_CALL = late(r"(ur|ze|pi)[A-Z]")


def device_gap(trace: Events) -> Reason | None:
    """Why the device's work is not fully known: `absent_gap` or `partial_gap`."""
    return trace.once(absent_gap) or trace.once(partial_gap)


def pauses_gap(trace: Events) -> Reason | None:
    """Why it is not known how long the host kept an accelerator idle; None without one."""
    gap = trace.once(device_gap)
    if gap is None or gap.code != Why.NO_DEVICE.code:
        return gap
    return because(*Why.NO_DEVICE_RECORDS) if trace.metadata.get("deviceProperties") else None


def absent_gap(trace: Events) -> Reason | None:
    """There is no accelerator, or its events are unsupported or were not recorded."""
    if (noted := trace.facts.no_device) is not None:
        return noted
    if (gap := _foreign(trace)) is not None:
        return gap
    if trace.once(lost_launches)[0] or trace.in_region[trace.device_rows].any():
        return None
    if trace.once(_records_end):
        return because(*Why.NO_DEVICE_RECORDS)
    if trace.unread:
        why = Why.UNKNOWN_EVENTS if _has_accelerator(trace) else Why.ONLY_OTHER_EVENTS
        return because(*why, events=_listed(trace.unread))
    return None if _has_accelerator(trace) else because(*Why.NO_DEVICE)


def partial_gap(trace: Events) -> Reason | None:
    """Some launches or their kernels are missing, so the trace has only a part of what ran."""
    launches, lost = trace.once(lost_launches)
    if not lost:
        return (
            because(
                "device_records_end",
                "partial capture: records of the device end before the test does",
            )
            if trace.once(_records_end)
            else None
        )
    reason = because(
        "kernels_lost",
        (
            "partial capture: {lost} of {launches} launches have no kernel record; is "
            "another CUPTI client (nsys, compute-sanitizer) attached?"
        ),
        lost=lost,
        launches=launches,
    )
    return because(*Why.FILE_BREAKS_OFF, why=reason) if trace.cut else reason


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
        return because(*Why.NO_DURATIONS) if count else None
    return (
        because(
            "some_untimed",
            "no duration for {untimed} of {events: event} in this trace",
            untimed=untimed,
            events=count,
        )
        if untimed
        else None
    )


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


def _foreign(trace: Events) -> Reason | None:
    found = [category for category in trace.unread if category.lower() in OTHER_DEVICES]
    if not found:
        return None
    device = OTHER_DEVICES[found[0].lower()]
    return because(
        "unknown_device",
        ("events of {device} devices are not supported ({events: and } in this trace)"),
        device=device,
        events=_listed(found),
    )


def _has_accelerator(trace: Events) -> bool:
    return bool(trace.facts.accelerator)


def _listed(categories: Sequence[str]) -> tuple[Reason, ...]:
    """Events of these categories, and those without one."""
    named = tuple(category for category in categories if category)
    parts = [because("category", "category {names:, }", names=named)] if named else []
    parts += (
        [because("no_category", "events without a category")]
        if len(named) < len(categories)
        else []
    )
    return tuple(parts)


def waits_gap(trace: Events) -> Reason | None:
    """The calls in which the host waits for the device, which are known on CUDA and ROCm.

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
        return because(
            "no_waits_on_xpu",
            ("on XPU, torch's profiler records what the host submits, but not when it waits"),
        )
    if any(map(_KNOWN_CALL.match, calls)):
        return None
    if calls:
        return because(
            "unknown_waits",
            ("it is not known which calls wait for this device ({call} is one of its calls)"),
            call=calls[0],
        )
    if (gap := trace.once(device_gap)) is not None:
        return gap
    if device_type is not None and device_type != "cuda":
        return because(
            "unknown_waits_of",
            "it is not known which calls wait for {device} devices",
            device=device_type,
        )
    return (
        because("no_calls", "the device's driver calls were not recorded")
        if trace.has(*DEVICE_KINDS)
        else None
    )


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
        return because(
            "kernels_from_graphs",
            "{count: kernel} ran from graphs, without their operators",
            count=count,
        )
    if len(kernels) and not trace.has(Kind.OP):
        return because("kernels_alone", "kernels were recorded without their operators")
    return None


# ---- Work for a test outside its trace: other processes, threads that are left, late finalizers.

_GLOO = "gloo:"


def work_elsewhere(trace: Events) -> Reason | None:
    """Why numbers of a live capture are lower bounds; None if it is complete."""
    if trace.region is None:
        return None
    if (recorded := trace.facts.elsewhere) is not None:
        return recorded
    if _left(trace):
        return because(*Why.THREAD_LEFT)
    # Operators on the test's thread after the region, where we collect garbage.
    late = trace.is_kind(Kind.OP) & (trace.ts >= trace.region[1])
    if not late.any() or not among(trace.thread[late], _own_threads(trace)).any():
        return None
    return because(
        "finalizers",
        "finalizers (__del__) of garbage collected after the measured run called operators, and "
        "when that happens is not reproducible",
    )


def is_by_chance(reason: Reason) -> bool:
    """Whether how much was counted is chance, so that it is no lower bound to compare."""
    return reason.code == Why.THREAD_LEFT.code


def _left(trace: Events) -> bool:
    """Whether a thread worked beyond the end of the region, or was left without being idle."""
    if trace.region is None or not trace.has(Kind.OP):
        return False
    ops = trace.is_kind(Kind.OP)
    over = ops & (trace.ts + trace.dur > trace.region[1])
    ids = trace.facts.left_threads or ()
    left = [at for at, (_, tid) in enumerate(trace.threads) if tid in ids]
    beyond = not bool(among(trace.thread[over], _own_threads(trace)).all())
    return beyond or bool(among(trace.thread[ops], left).any())


def _own_threads(trace: Events) -> Ints:
    """The thread of the region."""
    return trace.thread[trace.is_kind(Kind.ANNOTATION) & trace.named(REGION)]


def frees_unseen(trace: Events) -> bool:
    """Whether gloo's threads worked, which free tensors: torch's profiler may not see those frees.

    Measured on 20 runs of one step of DDP: the last use of a bucket or of a work's result is now
    and then on such a thread, and its bytes then look live for ever.
    """
    return any(name.startswith(_GLOO) for name in trace.names)


# ---- How long the test takes without the profiler, from its timed rounds.


def wall_ns(trace: Events) -> float | None:
    """The median of the rounds; None if none were timed, and for traces of other tools."""
    return _median_ns(trace.facts.wall_ms) or None


def slowdown_share(trace: Events) -> float:
    """The region's time without the profiler, as a share of its profiled time, at most 1."""
    wall, region = wall_ns(trace), trace.region
    if wall is None or region is None:
        return 1.0
    return min(wall / max(region[1] - region[0], 1), 1.0)


def _median_ns(quantity: Quantity | None) -> float | None:
    if quantity is None or quantity.median is None or quantity.median < 0:
        return None
    return quantity.median * 1e6
