"""`torchprof kernels`: kernels and copies against the chip's peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pytest_torchprof.analysis.kernel_groups import parse_grouping
from pytest_torchprof.analysis.kernel_rows import UNLINKED, unsized
from pytest_torchprof.analysis.roofline import REACHABLE, NoRoof, unroofed
from pytest_torchprof.commands.inputs import (
    device_time_note,
    extra_chips,
    load_steps,
    masked_note,
    no_flops,
    notes_of,
    peaks_used,
    uncounted_note,
    unlinked_note,
)
from pytest_torchprof.commands.printing import ranks_table
from pytest_torchprof.core.units import plural
from pytest_torchprof.render.row_formats import cell

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Set as AbstractSet

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.inputs import Ranks
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
    chips, words = extra_chips(options), parse_grouping(options.by)
    ranks = load_steps(options, options.traces)
    return ranks_table(
        options,
        ranks,
        lambda trace: trace.kernels(options.by, chips),
        unknown={"operator": UNLINKED},
        order="total_ms",
        notes=kernel_notes(ranks, chips, words),
    )


def kernel_notes(ranks: Ranks, chips: Sequence[Device], words: AbstractSet[str]) -> list[str]:
    """What is to be known of the numbers, for rows by these words of a grouping."""
    notes = notes_of(ranks, device_time_note, unlinked_note, uncounted_note, no_flops, masked_note)
    notes += notes_of(ranks, lambda trace: _no_bytes(trace, chips))
    notes += notes_of(ranks, lambda trace: peaks_used(trace, chips))
    if len(words) > 1:
        notes.append(f"gain: total - roofline / {REACHABLE:g}, if that is above 0")
        notes += notes_of(
            ranks,
            lambda trace: roofline_note(trace, chips),
            lambda trace: _without_shapes(trace, words),
        )
    return notes


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
