"""The value of a metric on a trace, a lower bound of it, or why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_torchprof.analysis import missing as gaps
from pytest_torchprof.analysis.communication import comm_calls, comm_sizes, rank_time
from pytest_torchprof.analysis.estimates import (
    blocks_at_peak,
    bound,
    carry_operands,
    estimated_launches,
    estimated_peak,
    has_operands,
    kept_for_backward,
    units_of,
    unknown_parts,
)
from pytest_torchprof.analysis.estimates import host_reads as reads_of
from pytest_torchprof.analysis.memory import ALLOCATORS, usage
from pytest_torchprof.analysis.missing import is_by_chance, partial_gap, work_elsewhere
from pytest_torchprof.analysis.uncounted import reason_of
from pytest_torchprof.core.unknown import Reason, Why, because
from pytest_torchprof.core.values import MissingValue, Value
from pytest_torchprof.trace.names import HOST_KINDS, Kind, uses_workers
from pytest_torchprof.work.counting import has_shapes
from pytest_torchprof.work.devices import known_chips
from pytest_torchprof.work.launches import SILENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_torchprof.analysis.uncounted import UncountedPart
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.verdict.metrics import Metric, MetricNeed
    from pytest_torchprof.work.devices import Device


# ---- What a capture must hold for a metric to be measured.


def lacking(trace: Events, needs: frozenset[MetricNeed]) -> MissingValue | None:
    """Why the capture does not hold what metrics of these needs are made of; None if it does."""
    reason = _lacking(trace, needs)
    if reason and trace.cut:
        reason = because(*Why.FILE_BREAKS_OFF, why=reason)
    return MissingValue(reason) if reason else None


def _lacking(trace: Events, needs: frozenset[MetricNeed]) -> Reason | None:
    if trace.is_live and trace.region is None:
        return because(*Why.NO_REGION)
    of_device = {"device": gaps.absent_gap, "device_memory": gaps.memory_gap}
    for need, gap in {**of_device, "calls": gaps.waits_gap}.items():
        if need in needs and (reason := trace.once(gap)):
            return reason
    if not needs.isdisjoint({"operators", "host"}):
        # Our captures record operators: where there are none, none ran.
        kinds = (Kind.OP,) if "operators" in needs else HOST_KINDS
        if trace.region is None and not trace.has(*kinds):
            return because(*Why.NO_OPERATORS)
    if "shapes" in needs and not has_shapes(trace):
        return because(*Why.NO_SHAPES)
    if "memory" in needs and not _has_memory(trace):
        return trace.facts.no_memory or because(
            "no_memory", "recorded without memory events (profile_memory=True records them)"
        )
    return None


def _has_memory(trace: Events) -> bool:
    if trace.facts.no_memory is not None:
        return False
    sizes = trace.memory.bytes
    if len(sizes):
        return bool(sizes.any())
    # Some builds of torch set the flag and record nothing, not even what could not be allocated.
    if trace.region is not None or trace.named("[OutOfMemory]").any():
        return bool(trace.metadata.get("profile_memory"))
    allocates = trace.is_kind(Kind.OP) & trace.names_where(ALLOCATORS.__contains__)
    return bool(trace.metadata.get("profile_memory")) and not allocates.any()


# ---- What a part of what ran says about the whole: lower bounds, and where there are none.


def of_whole(metric: Metric, value: Value, trace: Events) -> Value:
    """The value that events of this trace give, or what it says about all that ran."""
    value = bounded(metric, value, trace)
    return _until_the_end(metric, value) if trace.cut and metric.of_region else value


def at_least(metric: Metric, value: Value | None, reason: Reason) -> MissingValue:
    """The count of a part as a lower bound; a count of 0 is none, and what is no count neither."""
    if not isinstance(value, int) or not value:
        return MissingValue(reason)
    why = because(*Why.AT_LEAST, value=value, unit=metric.unit, why=reason)
    return MissingValue(why, value, at_least=True)


def bounded(metric: Metric, value: Value, trace: Events) -> Value:
    """The value; a lower bound if other processes or finalizers did work for the test.

    It is unknown if a thread that the test left was cut off.
    """
    if not (metric.of_region and trace.is_live):
        return value
    if (gap := trace.whole.once(work_elsewhere)) is None:
        return value
    if is_by_chance(gap) or metric.own is not None:  # a function's value may be no count
        return MissingValue(gap)
    at_hand = value if isinstance(value, int) else getattr(value, "at_hand", None)
    return MissingValue(gap, at_hand, at_least=True)


def _until_the_end(metric: Metric, value: Value) -> MissingValue:
    """The value of a file that breaks off among its events, of which any may be missing."""
    ends = because("file_ends", "the file breaks off among its events")
    if not isinstance(value, MissingValue):
        return at_least(metric, value if metric.adds_up else None, ends)
    why = because(*Why.SEVERAL, gaps=(value.reason, ends))
    return MissingValue(why, value.at_hand, at_least=value.at_least and metric.adds_up)


# ---- Measure a metric on a trace. A plain pytest run loads the table of metrics, but not this.


def value_of(metric: Metric, trace: Events) -> Value:
    """The value of the metric on this trace, or why there is none.

    If a capture lacks some device work, or the file breaks off, counts are lower bounds.
    """
    if (missing := trace.whole.once(lacking, metric.needs)) is not None:
        return missing
    return _present(metric, trace, trace.whole, partial=_is_partial(trace))


def values_of(metrics: Iterable[Metric], trace: Events) -> dict[str, Value]:
    """The same of several metrics, by name."""
    whole, partial = trace.whole, _is_partial(trace)
    values: dict[str, Value] = {}
    lacks: dict[frozenset[MetricNeed], MissingValue | None] = {}
    for metric in metrics:
        needs = metric.needs
        if needs not in lacks:
            lacks[needs] = whole.once(lacking, needs)
        values[metric.name] = lacks[needs] or _present(metric, trace, whole, partial=partial)
    return values


def values_of_table(
    trace: Events, table: Iterable[Metric], known: Mapping[str, Value]
) -> dict[str, Value]:
    """The same of a whole table, but for metrics that nobody asked for and those that are known."""
    asked = trace.facts.asked or ()
    wanted = [one for one in table if not one.on_request or one.name in asked]
    found = values_of([one for one in wanted if one.name not in known], trace)
    return {one.name: known[one.name] if one.name in known else found[one.name] for one in wanted}


def _present(metric: Metric, trace: Events, whole: Events, *, partial: bool) -> Value:
    """The value of a metric whose needs the capture meets; ``partial``: more ran than it holds."""
    if trace.scope is not None and not metric.of_region:
        return _of_test(metric, whole)
    if "device" in metric.needs and (reason := whole.once(partial_gap)):
        # More work may lower what a function of a user's finds.
        counts = metric.klass == "exact" and metric.own is None
        return at_least(metric, metric.extract(trace) if counts else None, reason)
    value = metric.extract(trace)
    return of_whole(metric, value, trace) if partial else value


def _is_partial(trace: Events) -> bool:
    return trace.cut or (trace.whole.once(work_elsewhere) is not None and trace.is_live)


def _of_test(metric: Metric, whole: Events) -> Value:
    """Why a part of a trace does not have this metric: even the whole may not have it."""
    value = value_of(metric, whole)
    if isinstance(value, MissingValue):
        return value
    return MissingValue(because(*Why.ONLY_OF_TEST))


# ---- Metrics of a device's work, estimated from operators that ran anywhere.


def host_reads(trace: Events) -> Value:
    """Reads of the host; at least, if compiled code or unknown operators may have more."""
    found = reads_of(trace)
    total = found.total
    if total and not carry_operands(trace, found.event):
        return MissingValue(because(*Why.NO_SHAPES))  # which of them are counters is not known
    parts = [
        part
        for part in unknown_parts(trace)
        if part.name not in SILENT and part.missing != Why.REPLAYED  # a graph reads nothing
    ]
    return _whole_or_part(total, parts)


def launches(trace: Events) -> Value:
    """Kernels that start at least; a lower bound of that, if some operators are unknown."""
    if not has_operands(trace):
        return MissingValue(because(*Why.NO_SHAPES))
    return _whole_or_part(estimated_launches(trace), unknown_parts(trace))


def _whole_or_part(total: int, parts: list[UncountedPart]) -> Value:
    if not parts:
        return total
    return MissingValue(reason_of(parts, total, "1"), total or None, at_least=True)


def bound_ms(trace: Events, chip: Device | Reason | None = None) -> Value:
    """The least time on a chip, by default the one that was asked for; not with unknown parts."""
    chip = chip_of(trace) if chip is None else chip
    if isinstance(chip, Reason):
        return MissingValue(chip)
    if not has_operands(trace):
        return MissingValue(because(*Why.NO_SHAPES))
    parts = unknown_parts(trace)
    if parts:
        return MissingValue(reason_of(parts, 0, "ms"))
    least = bound(trace, chip)
    if least.unrated:
        why = because(
            "no_peak",
            "no peak of {chip} is known for {dtypes}",
            chip=chip.name,
            dtypes=", ".join(least.unrated),
        )
        return MissingValue(why)
    return least.total_ms


def chip_of(trace: Events) -> Device | Reason:
    """The chip for which this trace's work is estimated, or why there is none."""
    name = trace.facts.chip
    if name is None:
        return because("no_chip", "no chip to estimate for (--torchprof-device=CHIP names one)")
    found = next((chip for chip in known_chips() if chip.name == name), None)
    return (
        because("unknown_chip", "no chip {name} is known (docs/devices.md lists them)", name=name)
        if found is None
        else found
    )


def estimated_cuda_bytes(trace: Events) -> Value:
    """The peak on a device, unless it depends on how far ahead a DataLoader's workers are.

    Nor is it known where the CPU keeps results of parts of what a device does at once.

    Where tensors are on a device, it is what was measured there.
    """
    if (missing := trace.whole.once(lacking, frozenset({"memory"}))) is not None:
        kept = trace.facts.estimated_cuda_bytes if trace.scope is None else None
        return missing if kept is None else kept
    if trace.memory.on_device.any():
        return usage(trace, on_device=True).peak_bytes
    if uses_workers(trace):
        return MissingValue(because(*Why.WORKERS_PREFETCH))
    if names := kept_for_backward(trace):
        return MissingValue(
            because(
                "kept_by_parts",
                ("the CPU runs {names:, } by parts, and keeps tensors that a device does not make"),
                names=names,
            )
        )
    return estimated_peak(trace)


def add_to_operators(rows: dict[str, dict[str, int]], trace: Events) -> None:
    """Add what each operator contributes to estimates, by name: reads, and what was asked for."""
    found, asked = reads_of(trace), trace.facts.asked or ()
    if len(found.event):
        _add(rows, trace, "host_reads", found.event, found.count)
    if "launches" in asked:
        units = units_of(trace)
        mine = trace.selection[units.event]
        _add(rows, trace, "launches", units.event[mine], units.launches[mine])
    if "estimated_cuda_bytes" in asked and not trace.memory.on_device.any():
        _add(rows, trace, "estimated_bytes", *blocks_at_peak(trace))
    if "bound_ms" in asked and not isinstance(chip := chip_of(trace), Reason):
        least = bound(trace, chip)
        _add(rows, trace, "bound_ns", least.work.event, least.ns)


def _add(
    rows: dict[str, dict[str, int]], trace: Events, column: str, events: Ints, amounts: Any
) -> None:
    names, at = np.unique(trace.name[events], return_inverse=True)
    sums = np.bincount(at, amounts, len(names))
    for name, total in zip(names.tolist(), sums.tolist(), strict=True):
        row = rows.get(trace.names[name])
        if row is not None and total > 0:
            row[column] = round(total)


# ---- Metrics of communication between ranks, of a trace in which there may be some.


def collectives(trace: Events) -> Value:
    """How many calls communicate."""
    return len(comm_calls(trace))


def comm_bytes(trace: Events) -> Value:
    """The bytes that they carry: the sum of `CommSizes.size`; a lower bound if some are unknown."""
    size = comm_sizes(trace).size
    known = int(size[size >= 0].sum())
    unsized = np.flatnonzero(size < 0)
    if not len(unsized):
        return known
    event = comm_calls(trace).event[unsized[0]]
    reason = because(
        *Why.NO_COMM_SIZES,
        unsized=len(unsized),
        calls=len(size),
        name=trace.names[trace.name[event]],
    )
    return MissingValue(reason, known or None, at_least=True)


def comm_ms(trace: Events) -> Value:
    """`RankTime.comm_ns`."""
    return _time(trace, "comm_ns")


def exposed_comm_ms(trace: Events) -> Value:
    """`RankTime.exposed_ns`."""
    return _time(trace, "exposed_ns")


def _time(trace: Events, what: str) -> Value:
    if not len(comm_calls(trace)):
        return 0.0
    found = rank_time(trace)
    if isinstance(found, Reason):
        return MissingValue(found)
    return float(getattr(found, what)) / 1e6
