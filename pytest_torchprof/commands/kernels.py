"""`torchprof kernels`: kernels and copies against the chip's peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.analysis.roofline import UNLINKED
from pytest_torchprof.commands.printing import table
from pytest_torchprof.commands.reading import (
    load,
    masked,
    no_flops,
    notes_of,
    peaks,
    peaks_used,
    uncounted,
    unlinked,
)

if TYPE_CHECKING:
    from argparse import Namespace


def kernels(options: Namespace) -> int:
    """Kernels and copies against the chip's peak."""
    chips = peaks(options)
    ranks = load(options.traces, options.rank)
    notes = notes_of(ranks, unlinked, uncounted, no_flops, masked)
    notes += notes_of(ranks, lambda trace: peaks_used(trace, chips))
    return table(
        options,
        ranks,
        lambda trace: trace.kernels(options.by, chips),
        unknown={"operator": UNLINKED},
        order="total_ms",
        notes=notes,
    )
