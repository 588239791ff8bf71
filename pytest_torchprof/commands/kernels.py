"""`torchprof kernels`: kernels and copies against the chip's peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.analysis.kernel_rows import UNLINKED
from pytest_torchprof.commands.inputs import (
    device_time_note,
    extra_chips,
    load_traces,
    masked_note,
    no_flops,
    notes_of,
    peaks_used,
    uncounted_note,
    unlinked_note,
)
from pytest_torchprof.commands.printing import ranks_table

if TYPE_CHECKING:
    from argparse import Namespace


def run_kernels(options: Namespace) -> int:
    """Kernels and copies against the chip's peak."""
    chips = extra_chips(options)
    ranks = load_traces(options.traces, options.rank)
    notes = notes_of(ranks, device_time_note, unlinked_note, uncounted_note, no_flops, masked_note)
    notes += notes_of(ranks, lambda trace: peaks_used(trace, chips))
    return ranks_table(
        options,
        ranks,
        lambda trace: trace.kernels(options.by, chips),
        unknown={"operator": UNLINKED},
        order="total_ms",
        notes=notes,
    )
