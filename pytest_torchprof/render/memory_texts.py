"""Memory in words: categories at the peak, the allocator's totals, and what grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.analysis.block_categories import Category
from pytest_torchprof.analysis.memory_leaks import LEAST_STEPS
from pytest_torchprof.core.units import format_quantity, plural
from pytest_torchprof.places.libraries import Owner, frame_of, owner_of
from pytest_torchprof.trace.tree import has_frames

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_torchprof.analysis.memory_leaks import LeakRow, Moments
    from pytest_torchprof.analysis.memory_timeline import DeviceMemory
    from pytest_torchprof.trace.events import Events


def _size(number: float) -> str:
    return format_quantity(number, "B")


def device_lines(device: DeviceMemory) -> Iterator[str]:
    """What was live at the peak, largest first, and what the allocator recorded."""
    parts = [(getattr(device, f"{one.name.lower()}_bytes"), one) for one in Category]
    some = sorted((-size, one) for size, one in parts if size)
    shown = ", ".join(f"{one.label} {_size(-size)}" for size, one in some)
    if shown:
        yield f"{device.device} at the peak: {shown}"
    allocated, reserved = device.max_allocated_bytes, device.max_reserved_bytes
    if allocated is None:
        return
    line = f"{device.device} allocator: at most {_size(allocated)} allocated"
    line += f", {_size(reserved)} reserved" if reserved is not None else ""
    free, most = device.fragmentation_bytes, device.max_fragmentation_bytes
    if free is not None and most is not None:
        line += f"; fragmentation {_size(free)} at the peak, at most {_size(most)}"
    yield line


def unknown_hint(trace: Events, devices: Sequence[DeviceMemory]) -> str:
    """What would tell more, if most of what a trace has allocated is unknown; else empty."""
    told = [(device.unknown_bytes, device.live_bytes - device.before_bytes) for device in devices]
    if not any(2 * unknown > whole > 0 for unknown, whole in told):
        return ""
    if trace.memory.addr is None:
        return "unknown: the trace has no addresses, so a free does not identify its block"
    more = "record_shapes" if not trace.records_shapes else ""
    more = more or ("with_stack" if not has_frames(trace) else "")
    return f"unknown: a trace with {more}=True may tell more" if more else ""


def leak_lines(leaks: Sequence[LeakRow] | None, moments: Moments) -> Iterator[str]:
    """What grows from step to step, or that nothing does, or why that is unknown."""
    count = len(moments.ends)
    if leaks is None:
        yield f"growth between steps: not checked: {_why_unchecked(moments)}"
        return
    where = f"{plural(count - 1, 'step')} after the first {moments.name}"
    if not leaks:
        yield f"nothing grows from step to step in {where}"
    for leak in leaks:
        blocks = f"{plural(leak.blocks, 'block')} more" if leak.blocks else "in larger blocks"
        place = _place(leak.stack)
        at = f", {place}" if place else ""
        yield (
            f"grows from step to step: {leak.operator} on {leak.device}: "
            f"{_size(leak.bytes_per_step)} a step, {_size(leak.bytes)} ({blocks}) in {where}{at}"
        )


def _why_unchecked(moments: Moments) -> str:
    """Why leaks are unknown.

    >>> from pytest_torchprof.analysis.memory_leaks import Moments
    >>> import numpy as np
    >>> _why_unchecked(Moments("ProfilerStep*", np.zeros(3)))
    '3 steps (ProfilerStep*), at least 5 are needed'
    """
    if not moments.name:
        return "no steps (annotate them with record_function, or give the profiler a schedule)"
    if len(moments.ends) < LEAST_STEPS:
        count = plural(len(moments.ends), "step")
        return f"{count} ({moments.name}), at least {LEAST_STEPS} are needed"
    return "the trace has no addresses, so a free does not identify its block"


def _place(stack: str | None) -> str:
    """The innermost function of the user's, and where it begins."""
    for name in reversed((stack or "").split(";")):
        frame = frame_of(name)
        if frame is not None and owner_of(frame.file) == Owner.USER:
            return f"in {frame.called} of {frame.location}"
    return ""
