"""Sentences about a trace: its metrics, the ranks of a job, memory, and what is not measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pytest_torchprof.analysis.memory import LEAST_STEPS, Category
from pytest_torchprof.core import values as results
from pytest_torchprof.core.records import Frozen
from pytest_torchprof.core.units import format_quantity, plural
from pytest_torchprof.places.place import Owner, frame_of, owner_of
from pytest_torchprof.render.table import Rows, cell, fields_of, heading
from pytest_torchprof.trace.tree import has_frames
from pytest_torchprof.verdict.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_torchprof.analysis.memory import DeviceMemory, LeakRow, StepMoments
    from pytest_torchprof.analysis.rank_waits import Mismatch, RankWaits, Signature
    from pytest_torchprof.core.values import Number, Value
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.ranks import RankSource
    from pytest_torchprof.verdict.parts import RankTable


# ---- What the user can do.

HOW_TO_LEAVE_OUT = "@pytest.mark.torchprof(enabled=False) leaves the test out"


# ---- Metrics of a trace as a table: values, or the reasons why there are none, in words.


class NotMeasured(Frozen, frozen=True):
    """A metric without a value, and why.

    Attributes:
        reason: in words.
        at_hand: a number that is not reproducible, if there is one.
        at_least: the true value is ``at_hand`` or more.
    """

    reason: str
    at_hand: int | None = None
    at_least: bool = False


@dataclasses.dataclass(frozen=True)
class MetricRow:
    """One metric of a trace: its value in ``unit``, or None and the reason."""

    metric: str
    value: float | None
    unit: str
    klass: str
    reason: str | None = None


def metric_rows(metrics: Mapping[str, Value]) -> Rows[MetricRow]:
    """Metrics as a table, with the reason of each that was not measured."""
    rows = []
    for name, value in metrics.items():
        metric = METRICS[name]
        shown = shown_value(value)
        known, reason = (None, shown.reason) if isinstance(shown, NotMeasured) else (shown, None)
        rows.append(MetricRow(name, known, metric.unit, metric.klass, reason))
    return Rows(rows, fields_of(MetricRow))


def shown_value(value: Value) -> Number | NotMeasured:
    """The value, or the reason in words."""
    if not isinstance(value, results.MissingValue):
        return value
    return NotMeasured(value.reason.text, value.at_hand, value.at_least)


# ---- Sentences about the ranks of a job, for the notes of tables.

#: How many ranks, or pairs of ranks, a note names.
_SHOWN: Final = 8
#: Less is no imbalance worth a line.
_LEAST: Final = 0.005


def compared(found: RankWaits) -> Iterator[str]:
    """What was compared between ranks, on which clocks, and what was not."""
    if found.collectives:
        shift = int(abs(found.shift_ns).max())
        apart = 0 if found.apart_ns is None else found.apart_ns
        clocks = "one clock" if not shift else f"clocks shifted by up to {_ns(shift)}"
        yield (
            f"wait: {plural(found.collectives, 'collective')} of several ranks compared, on "
            f"{clocks}; their ends are within {_ns(apart)}, in the median"
        )
    else:
        yield "no wait: no collective of several ranks with known times to compare"
    for one in found.mismatches[:_SHOWN]:
        yield _mismatch(one)
    if (more := len(found.mismatches) - _SHOWN) > 0:
        yield f"… and {plural(more, 'more rank')} whose collectives do not match"


def stragglers(table: RankTable) -> Iterator[str]:
    """For whom the others wait, and who waits for whom, the longest first."""
    found = table.found
    if found is None or not found.collectives:
        return
    column = {rank: i for i, rank in enumerate(found.ranks)}
    late = [rank for rank, ms in table.waited_for_ms.items() if ms > 0]
    late.sort(key=lambda rank: -table.waited_for_ms[rank])
    for rank in late[:_SHOWN]:
        at = column[rank]
        yield (
            f"the others wait {cell('_ms', table.waited_for_ms[rank])} for rank {rank}, the last at"
            f" {found.last[at]} of {plural(int(found.met[at]), 'collective')}"
        )
    for row in table.waits[:_SHOWN] if len(found.ranks) > 2 else ():
        yield f"rank {row.rank} waits {cell('_ms', row.wait_ms)} for rank {row.for_rank}"
    if (more := len(table.waits) - _SHOWN) > 0 and len(found.ranks) > 2:
        yield f"… and {plural(more, 'more pair')}, in --format json"


def imbalances(table: RankTable) -> Iterator[str]:
    """What one rank has more of than the mean."""
    for row in table.imbalance:
        name = heading(row.field)
        if row.over_mean < _LEAST:
            yield f"{name}: the same on all ranks, within 0.5 %"
        else:
            over = cell("share", row.over_mean)
            yield (
                f"{name}: rank {row.rank} has the most, {cell(row.field, row.largest)}, {over} "
                "above the mean"
            )


def sources(of_rank: Mapping[int, RankSource]) -> str:
    """What the ranks are from."""
    by_source: dict[str, list[int]] = {}
    for rank, source in of_rank.items():
        by_source.setdefault(source, []).append(rank)
    words = {"order": "the order of the files", "metadata": "the metadata"}
    words |= {"file name": "the names of the files", "folder name": "the names of the folders"}
    parts = [
        words[source] + (f" (of {_listed(ranks)})" if len(by_source) > 1 else "")
        for source, ranks in by_source.items()
    ]
    return f"ranks are from {', '.join(parts)}"


def missing(ranks: Sequence[int], world_size: int) -> str:
    """Which ranks of the job have no trace; empty if all have one."""
    left = sorted({*range(world_size)} - {*ranks})
    if not left:
        return ""
    return f"no trace of {len(left)} of {world_size} ranks: {_listed(left)}"


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN]))
    more = len(ranks) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _mismatch(one: Mismatch) -> str:
    group = f" of the group {one.group}" if one.group else ""
    own, others = _call(one.own), _call(one.others)
    return (
        f"rank {one.rank} is not compared with the others{group}: its collective {one.number} is "
        f"{own}, theirs is {others}"
    )


def _call(signature: Signature | None) -> str:
    if signature is None:
        return "missing"
    operation, dtype, size = signature
    parts = [operation]
    if size is not None:
        parts.append("of unknown size" if size < 0 else f"of {cell('bytes', size)}")
    if dtype:
        parts.append(f"({dtype})")
    return " ".join(parts)


def _ns(ns: int) -> str:
    return cell("_ms", ns / 1e6)


# ---- Memory in words: categories at the peak, the allocator's totals, and what grows.


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


def leak_lines(leaks: Sequence[LeakRow] | None, moments: StepMoments) -> Iterator[str]:
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


def _why_unchecked(moments: StepMoments) -> str:
    """Why leaks are unknown.

    >>> from pytest_torchprof.analysis.memory import StepMoments
    >>> import numpy as np
    >>> _why_unchecked(StepMoments("ProfilerStep*", np.zeros(3)))
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
