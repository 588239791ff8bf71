"""Metrics of a device's work, estimated from operators that ran anywhere."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pytest_torchprof.analysis.device_bound import bound
from pytest_torchprof.analysis.estimated_launches import (
    estimated_launches,
    has_operands,
    units_of,
    unknown_parts,
)
from pytest_torchprof.analysis.estimated_memory import (
    blocks_at_peak,
    estimated_peak,
    kept_for_backward,
)
from pytest_torchprof.analysis.host_reads import host_reads as reads_of
from pytest_torchprof.analysis.live_bytes import usage
from pytest_torchprof.analysis.uncounted_parts import reason_of
from pytest_torchprof.core.reasons import Reason, Why, because
from pytest_torchprof.core.results import MissingValue, Value
from pytest_torchprof.trace.regions import uses_workers
from pytest_torchprof.verdict.needs import lacking
from pytest_torchprof.work.devices.table import DEVICES
from pytest_torchprof.work.host_reads import SILENT

if TYPE_CHECKING:
    from pytest_torchprof.analysis.uncounted_parts import UncountedPart
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Ints
    from pytest_torchprof.work.devices.device import Device


#: In a graph, the host can read nothing.
_READ_NOTHING: Final = frozenset({Why.MAYBE_META, Why.REPLAYED})


def host_reads(trace: Events) -> Value:
    """Reads of the host; at least, if compiled code or unknown operators may have more."""
    total = reads_of(trace).total
    if total and not has_operands(trace):
        return MissingValue(because(Why.NO_SHAPES))  # which of them are counters is not known
    parts = [
        part
        for part in unknown_parts(trace)
        if part.name not in SILENT and part.missing not in _READ_NOTHING
    ]
    return _whole_or_part(total, parts)


def launches(trace: Events) -> Value:
    """Kernels that start at least; a lower bound of that, if some operators are unknown."""
    if not has_operands(trace):
        return MissingValue(because(Why.NO_SHAPES))
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
        return MissingValue(because(Why.NO_SHAPES))
    parts = unknown_parts(trace)
    if parts:
        return MissingValue(reason_of(parts, 0, "ms"))
    least = bound(trace, chip)
    if least.unrated:
        why = because(Why.NO_PEAK, chip=chip.name, dtypes=", ".join(least.unrated))
        return MissingValue(why)
    return least.total_ms


def chip_of(trace: Events) -> Device | Reason:
    """The chip for which this trace's work is estimated, or why there is none."""
    name = trace.facts.chip
    if name is None:
        return because(Why.NO_CHIP)
    found = next((chip for chip in DEVICES if chip.name == name), None)
    return because(Why.UNKNOWN_CHIP, name=name) if found is None else found


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
        return MissingValue(because(Why.WORKERS_PREFETCH))
    if names := kept_for_backward(trace):
        return MissingValue(because(Why.KEPT_BY_PARTS, names=names))
    return estimated_peak(trace)


def estimates_for(trace: Events, chip: Device | None) -> dict[str, Value]:
    """All estimates of a stored trace, asked for or not; ``chip`` as for `bound_ms`."""
    from pytest_torchprof.verdict.measuring import values_of
    from pytest_torchprof.verdict.metrics import METRICS, ON_REQUEST

    rows = [METRICS[name] for name in ON_REQUEST]
    if chip is not None:
        of_chip = partial(bound_ms, chip=chip)
        rows = [row._replace(extract=of_chip) if row.name == "bound_ms" else row for row in rows]
    return values_of(rows, trace)


def add_to_operators(rows: dict[str, dict[str, int]], trace: Events) -> None:
    """Add what each operator contributes to the estimates that were asked for, by name."""
    asked = trace.facts.asked or ()
    if "host_reads" in asked:
        found = reads_of(trace)
        _add(rows, trace, "host_reads", found.event, found.count)
    if "launches" in asked:
        units = units_of(trace)
        mine = trace.selection[units.event]
        _add(rows, trace, "launches", units.event[mine], units.launches[mine])
    if "estimated_cuda_bytes" in asked and not trace.memory.on_device.any():
        _add(rows, trace, "estimated_bytes", *blocks_at_peak(trace))
    chip = chip_of(trace)
    if "bound_ms" in asked and not isinstance(chip, Reason):
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
