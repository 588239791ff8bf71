"""`torchprof idle`: what the host did while the device was idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.analysis.gaps import device_gap, device_time_gap
from pytest_torchprof.commands.inputs import load_steps, notes_of
from pytest_torchprof.commands.printing import ranks_table
from pytest_torchprof.render.reason_texts import in_words

if TYPE_CHECKING:
    from argparse import Namespace

    from pytest_torchprof.api import Trace


def run_idle(options: Namespace) -> int:
    """What the host did while the device was idle."""
    ranks = load_steps(options, options.traces)
    notes = notes_of(ranks, idle_gap)
    return ranks_table(
        options, ranks, lambda trace: trace.idle(options.by), order="time_ms", notes=notes
    )


def idle_gap(trace: Trace) -> str:
    """Why there are no rows; empty if there are, or if no device was ever idle."""
    gap = trace.events.once(device_gap) or trace.events.once(device_time_gap)
    return f"idle time is not measured: {in_words(gap)}" if gap else ""
