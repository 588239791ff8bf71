"""`torchprof ops`: key averages of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.commands.inputs import (
    calls_of,
    cpu_time_note,
    device_time_note,
    load_traces,
    no_flops,
    notes_of,
    ungrouped,
)
from pytest_torchprof.commands.printing import ranks_table

if TYPE_CHECKING:
    from argparse import Namespace


def run_ops(options: Namespace) -> int:
    """Key averages of operators."""
    ranks = load_traces(options.traces, options.rank)
    return ranks_table(
        options,
        ranks,
        lambda trace: trace.ops(options.by),
        order="share",
        notes=[
            *notes_of(ranks, cpu_time_note, device_time_note),
            *notes_of(ranks, lambda trace: ungrouped(trace, options.by), no_flops),
            calls_of(ranks),
        ],
    )
