"""`torchprof bound`: what a chip would at least have to do for a trace's operators."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_torchprof.analysis.estimates import (
    BoundRow,
    bound_rows,
    fusions,
    has_operands,
    unknown_parts,
)
from pytest_torchprof.analysis.kernels import device_of
from pytest_torchprof.analysis.uncounted import reason_of
from pytest_torchprof.commands.inputs import extra_chips, load_steps, notes_of, used_devices
from pytest_torchprof.commands.tables import show
from pytest_torchprof.core.errors import ReportError, SettingsError
from pytest_torchprof.core.units import format_quantity, plural
from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.render.report import read_report
from pytest_torchprof.render.table import Rows, cell, fields_of
from pytest_torchprof.trace.read import is_trace
from pytest_torchprof.work.devices import chip_named

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_torchprof.api import Trace
    from pytest_torchprof.render.table import Row
    from pytest_torchprof.work.devices import Device

_WHAT: Final = (
    "a lower bound, no prediction: without the host, waits, copies to and from it, and caches"
)
_NEXT: Final = "name a trace, or a report of pytest --torchprof --torchprof-json=FILE"
#: How many fusions a table names.
_SOME: Final = 5


def run_bound(options: Namespace) -> int:
    """What a chip would at least have to do, operator by operator."""
    options.traces = [path for name in options.files for path in _traces(name)]
    extra = extra_chips(options)
    ranks = load_steps(options, options.traces)
    chips = _chips(options, next(iter(ranks.traces.values())), extra)

    def rows(trace: Trace) -> Rows[BoundRow]:
        found = [row for chip in chips for row in bound_rows(trace.events, chip)]
        fields = fields_of(BoundRow)
        if len(chips) > 1:  # their sum would mean nothing
            return Rows(found, fields, BoundRow.ADDS_UP)
        return Rows(found, fields[1:])

    notes = [_WHAT, *_peaks(chips)]
    notes += notes_of(ranks, _unknown)
    for rank, trace in ranks.traces.items():
        notes += [f"{ranks.mark(rank)}{line}" for line in _fusion_notes(trace, chips)]
    extra_rows = {"fusions": _fusion_rows(ranks.traces.values(), chips)}
    tables = {rank: rows(trace).table() for rank, trace in ranks.traces.items()}
    return show(options, ranks, tables, order="bound_ms", notes=notes, extra=extra_rows)


def _traces(name: str) -> list[str]:
    """The trace of this name, or the traces that a report names.

    Raises:
        ReportError: it is neither, or no test of the report has a trace.
    """
    path = Path(name)
    if path.is_dir() or (not path.is_fifo() and is_trace(path)):
        return [name]
    kept = [test.trace for test in read_report(path, _NEXT).tests if test.trace]
    if not kept:
        raise ReportError(
            f"{path}: none of its tests has a trace",
            "",
            "add --torchprof-traces=DIR --torchprof-traces-of=all",
        )
    # Relative to where pytest was started, which is often where its report is.
    return [one if os.path.exists(one) else str(path.parent / one) for one in kept]  # noqa: PTH110


def _chips(options: Namespace, trace: Trace, extra: Sequence[Device]) -> list[Device]:
    """The chips that are asked for; else the one of the test session, or that of the trace.

    Raises:
        SettingsError: an unknown chip, or none.
    """
    named = {chip.name: chip for chip in extra}
    if options.device:
        return [named.get(name) or chip_named(name) for name in dict.fromkeys(options.device)]
    if extra:
        return list(extra)
    if trace.events.facts.chip is not None:
        return [chip_named(trace.events.facts.chip)]
    used = {number: device_of(trace.events, number, ()) for number in used_devices(trace)}
    known = {chip.name: chip for chip in used.values() if chip is not None}
    if not known:
        raise SettingsError(
            "no chip to estimate for", "", "add --device CHIP, such as --device 'H100 SXM'"
        )
    return list(known.values())


def _peaks(chips: Iterable[Device]) -> list[str]:
    return [
        f"{chip.name}: {format_quantity(chip.bandwidth_bytes_per_s, 'B/s')}, "
        + ", ".join(
            f"{name} {format_quantity(peak, 'FLOP/s')}" for name, peak in chip.peaks.items()
        )
        for chip in chips
    ]


def _unknown(trace: Trace) -> str:
    """What the bound leaves out; empty if it is all there."""
    if not has_operands(trace.events):
        return f"only a kernel's least time for each operator: {because(*Why.NO_SHAPES).text}"
    parts = unknown_parts(trace.events)
    return f"left out: {reason_of(parts, 0, '1').text}" if parts else ""


def _fusion_rows(traces: Iterable[Trace], chips: Sequence[Device]) -> list[Row]:
    """Chains of elementwise operators, and what one kernel each would save on each chip."""
    rows = [row for trace in traces for row in trace.fusions().to_dicts()]
    for row in rows:
        less = row["bytes"] - row["fused_bytes"]
        row["saved_ms"] = {chip.name: _saved_ms(less, chip) for chip in chips}
    return rows


def _saved_ms(less: int, chip: Device) -> float:
    return less / chip.bandwidth_bytes_per_s * 1e3


def _fusion_notes(trace: Trace, chips: Sequence[Device]) -> Iterator[str]:
    """The chains that save most, a line each."""
    found = fusions(trace.events)
    if found:
        yield "fusing elementwise neighbors would save about:"
    for row in found[:_SOME]:
        less = row.bytes - row.fused_bytes
        saved = ", ".join(
            f"{format_quantity(_saved_ms(less, chip), 'ms')}"
            + (f" on {chip.name}" if len(chips) > 1 else "")
            for chip in chips
        )
        shape = "" if row.shape is None else f" on {list(row.shape)}"
        yield (
            f"  {' + '.join(row.operators)}{shape}, {plural(row.calls, 'time')}: {saved}; "
            f"{cell('bytes', row.bytes)} become {cell('bytes', row.fused_bytes)}, and "
            f"{plural(row.saved_launches, 'kernel')} fewer start"
        )
    if left := len(found[_SOME:]):
        yield f"  … and {plural(left, 'more chain')} (--format json has all)"
