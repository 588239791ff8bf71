"""`torchprof kernels`: kernels and copies against the chip's peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pytest_torchprof.analysis.kernel_groups import parse_grouping
from pytest_torchprof.analysis.kernel_rows import UNLINKED, unsized
from pytest_torchprof.analysis.roofline import REACHABLE, NoRoof, unroofed
from pytest_torchprof.commands.inputs import (
    device_time_note,
    extra_chips,
    masked_note,
    no_flops,
    peaks_used,
    uncounted_note,
    unlinked_note,
    unused_chips,
)
from pytest_torchprof.commands.merged import kernels_by, show_merged
from pytest_torchprof.commands.parts import ask, at_steps, part_of
from pytest_torchprof.commands.printing import show_tables, table_of
from pytest_torchprof.commands.several import merge_lines
from pytest_torchprof.core.units import plural
from pytest_torchprof.render.row_formats import cell

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Set as AbstractSet

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.inputs import Ranks
    from pytest_torchprof.commands.parts import Body
    from pytest_torchprof.work.devices.device import Device

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
    parts = ask(options, "commands.kernels:kernels_part", by=options.by, chips=chips)
    tables, unknown = parts.each("table"), {"operator": UNLINKED}
    if options.merge:
        how = kernels_by(options.by)
        return parts.status(
            show_merged(
                options, parts, how, tables, order="total_ms", notes=parts.notes, unknown=unknown
            )
        )
    return parts.status(
        show_tables(options, parts, tables, order="total_ms", notes=parts.notes, unknown=unknown)
    )


def kernels_part(trace: Trace, settings: Mapping[str, Any]) -> Body:
    """What is needed of one trace."""
    trace, by, chips = at_steps(trace, settings), settings["by"], settings["chips"]
    return part_of(
        trace,
        _lines(trace, chips, parse_grouping(by)),
        [unused_chips(trace, chips)],
        table=table_of(trace.kernels(by, chips)),
    )


def kernel_notes(ranks: Ranks, chips: Sequence[Device], words: AbstractSet[str]) -> list[str]:
    """What is to be known of the numbers, for rows by these words of a grouping."""
    lines = {rank: _lines(trace, chips, words) for rank, trace in ranks.items()}
    return merge_lines(ranks, lines)


def _lines(trace: Trace, chips: Sequence[Device], words: AbstractSet[str]) -> list[str]:
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
