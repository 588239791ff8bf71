"""`torchprof ops`, `kernels`, `stacks` and `bound`: where the time goes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_torchprof import api
from pytest_torchprof.analysis.estimates import (
    BoundRow,
    bound_rows,
    has_operands,
    unknown_parts,
)
from pytest_torchprof.analysis.kernels import (
    REACHABLE,
    UNLINKED,
    NoRoof,
    device_of,
    parse_grouping,
    unroofed,
    unsized,
)
from pytest_torchprof.analysis.missing import cpu_time_gap, device_time_gap
from pytest_torchprof.analysis.operators import TREES
from pytest_torchprof.analysis.uncounted import reason_of
from pytest_torchprof.commands.inputs import (
    call_counts,
    calls_in_words,
    cpu_time_note,
    device_time_note,
    extra_chips,
    masked_note,
    no_flops,
    notes_of,
    only,
    part_of,
    peaks_used,
    steps_in_words,
    uncounted_note,
    ungrouped,
    unlinked_note,
    unused_chips,
    used_devices,
    warn,
)
from pytest_torchprof.commands.tables import (
    OPS,
    TEXTS,
    ask,
    at_steps,
    kernels_by,
    load,
    print_table,
    show,
    show_tree,
    tree_note,
    trees_of,
)
from pytest_torchprof.core.errors import ReportError, SettingsError
from pytest_torchprof.core.units import format_quantity, plural
from pytest_torchprof.core.unknown import Why, because
from pytest_torchprof.render.export import write_stacks
from pytest_torchprof.render.report import read_report
from pytest_torchprof.render.table import Rows, Table, cell, fields_of
from pytest_torchprof.trace.read import is_trace
from pytest_torchprof.work.devices import chip_named

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.inputs import Body
    from pytest_torchprof.work.devices import Device


# ---- `torchprof ops`, `kernels` and `stacks`: where the time goes.

# ---- `torchprof ops`: key averages of operators.


def run_ops(options: Namespace) -> int:
    """Key averages of operators; by module or stack, a tree."""
    is_tree = options.by in TREES
    if options.depth is not None and not is_tree:
        what = f"--depth {options.depth}: --by {options.by} is no tree"
        raise SettingsError(what, "", "use it with --by module or --by stack")
    parts = ask(options, "commands.ops:ops_part", by=options.by, depth=options.depth)
    calls = calls_in_words(list(parts.each("calls").values()))
    notes = [*parts.some_notes(0, 4), calls, *parts.some_notes(4, None)]
    extra = None
    if is_tree:
        trees = parts.each("tree")
        if not options.merge and (
            options.format in TEXTS or (options.format == "csv" and options.depth)
        ):
            show_tree(options, parts, trees, [note for note in notes if note])
            return parts.status(0)
        extra = {"tree": trees_of(options, parts, trees)}
    tables = parts.each("table")
    return show(options, parts, tables, order="share", how=OPS, notes=notes, extra=extra)


def ops_part(trace: Trace, settings: Mapping[str, Any]) -> Body:
    """What is needed of one trace."""
    trace, by = at_steps(trace, settings), settings["by"]
    is_tree = by in TREES
    return part_of(
        trace,
        [
            cpu_time_note(trace),
            device_time_note(trace),
            ungrouped(trace, by),
            no_flops(trace),
            tree_note(trace, by) if is_tree else "",
        ],
        calls=call_counts(trace),
        table=trace.ops(by).table(),
        tree=trace.tree(by, settings["depth"]).table() if is_tree else None,
    )


# ---- `torchprof kernels`: kernels and copies against the chip's peak.

#: Why events have no roofline, as it reads after their number.
_NO_ROOF: Final[Mapping[NoRoof, str]] = {
    NoRoof.COPY: "copied over a bus",
    NoRoof.REPLAYED: "replayed from a graph",
    NoRoof.UNLINKED: "without a runtime call",
    NoRoof.NO_OPERATOR: "launched outside of operators",
    NoRoof.HELPER: "that help the kernel with the work",
    NoRoof.NO_FLOPS: "with unknown FLOPs",
    NoRoof.NO_BYTES: "with unknown bytes",
    NoRoof.NO_WORK: "with unknown FLOPs and bytes",
    NoRoof.NO_PEAK: "without a peak of the device for the dtype",
}


def run_kernels(options: Namespace) -> int:
    """Kernels and copies against the chip's peak."""
    chips = tuple(replace(chip, peaks=dict(chip.peaks)) for chip in extra_chips(options))
    parts = ask(options, "commands.ops:kernels_part", by=options.by, chips=chips)
    return show(
        options,
        parts,
        parts.each("table"),
        order="total_ms",
        how=kernels_by(options.by),
        notes=parts.notes,
        unknown={"operator": UNLINKED},
    )


def kernels_part(trace: Trace, settings: Mapping[str, Any]) -> Body:
    """What is needed of one trace."""
    trace, by, chips = at_steps(trace, settings), settings["by"], settings["chips"]
    return part_of(
        trace,
        kernel_lines(trace, chips, parse_grouping(by)),
        [unused_chips(trace, chips)],
        table=trace.kernels(by, chips).table(),
    )


def kernel_lines(trace: Trace, chips: Sequence[Device], words: AbstractSet[str]) -> list[str]:
    """What is to be known of the numbers, for rows by these words of a grouping; some are empty."""
    lines = [
        device_time_note(trace),
        unlinked_note(trace),
        uncounted_note(trace),
        no_flops(trace),
        masked_note(trace),
        _no_bytes(trace, chips),
        peaks_used(trace, chips),
    ]
    if len(words) > 1:
        lines += [
            f"gain: total - roofline / {REACHABLE:g}, if that is above 0",
            roofline_note(trace, chips),
            _without_shapes(trace, words),
        ]
    return lines


def _no_bytes(trace: Trace, chips: Sequence[Device]) -> str:
    """A note on why there is no sum of bytes; empty if there is one."""
    found = unsized(trace.events, chips)
    if not found.count:
        return ""
    known = f"at least {cell('bytes', found.known_bytes)}: " if found.known_bytes else ""
    of = f"{found.count:,} of {plural(found.every, 'device event')}"
    return f"no total of bytes: {known}those of {of} are unknown"


def roofline_note(trace: Trace, chips: Sequence[Device]) -> str:
    """A note on device events without a roofline time, and why; empty if there are none."""
    found = unroofed(trace.events, chips)
    if not found.count:
        return ""
    share = f" ({cell('share', found.ns / found.all_ns)} of the time)" if found.all_ns else ""
    parts = ", ".join(f"{n:,} {_NO_ROOF[why]}" for why, (n, _) in found.by_reason.items())
    every = plural(found.all_count, "device event")
    return f"no roofline for {found.count:,} of {every}{share}: {parts}"


def _without_shapes(trace: Trace, words: AbstractSet[str]) -> str:
    """A note if rows should be by shape, but the trace has none; otherwise empty."""
    if "shape" not in words or trace.events.records_shapes:
        return ""
    return "recorded without shapes (record_shapes=True records them)"


# ---- `torchprof stacks`: folded stacks for flame graphs.


def run_stacks(options: Namespace) -> int:
    """Folded stacks for flame graphs."""
    trace = only(load([options.trace], options.rank, options))
    lines = write_stacks(trace.events, Path(options.target), options.metric)
    row = {"file": options.target, "lines": lines, "metric": options.metric}
    gap = device_time_gap if options.metric == "self_cuda_ms" else cpu_time_gap
    lost = trace.events.once(gap)
    notes = [] if lost is None else [f"stacks of a part: {lost.text}"]
    notes += [steps] if (steps := steps_in_words(trace)) else []
    return print_table(options, Table([row], list(row)), notes=notes)


# ---- `torchprof augment`: the same trace with FLOPs, bytes and achieved % on its kernels.


def run_augment(options: Namespace) -> int:
    """Write the trace with FLOPs, bytes and achieved % on its kernels."""
    chips, path = extra_chips(options), Path(options.trace)
    if path.is_dir():
        path = only(load([options.trace], options.rank)).path
    done = api.augment(path, options.target, chips)
    for warning in done.warnings:
        warn(f"{options.trace}: {warning}")
    row = {"file": options.target, "events": done.events, "counters": done.counters}
    return print_table(options, Table([row], list(row)))


# ---- `torchprof bound`: what a chip would at least have to do for a trace's operators.

_WHAT: Final = (
    "a lower bound, no prediction: without the host, waits, copies to and from it, and caches"
)
_NEXT: Final = "name a trace, or a report of pytest --torchprof --torchprof-json=FILE"


def run_bound(options: Namespace) -> int:
    """What a chip would at least have to do, operator by operator."""
    options.traces = [path for name in options.files for path in _traces(name)]
    extra = extra_chips(options)
    ranks = load(options.traces, options.rank, options)
    chips = _chips(options, next(iter(ranks.traces.values())), extra)

    def rows(trace: Trace) -> Rows[BoundRow]:
        found = [row for chip in chips for row in bound_rows(trace.events, chip)]
        fields = fields_of(BoundRow)
        if len(chips) > 1:  # their sum would mean nothing
            return Rows(found, fields, BoundRow.ADDS_UP)
        return Rows(found, fields[1:])

    notes = [_WHAT, *_peaks(chips)]
    notes += notes_of(ranks, _unknown)
    tables = {rank: rows(trace).table() for rank, trace in ranks.traces.items()}
    return show(options, ranks, tables, order="bound_ms", notes=notes)


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
