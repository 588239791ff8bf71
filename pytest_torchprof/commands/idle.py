"""`torchprof idle`: what the host did while the device was idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_torchprof.analysis.gaps import device_gap, device_time_gap
from pytest_torchprof.commands.merged import IDLE, show_merged
from pytest_torchprof.commands.parts import ask, at_steps, part_of
from pytest_torchprof.commands.printing import show_tables, table_of
from pytest_torchprof.render.reason_texts import in_words

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.parts import Body


def run_idle(options: Namespace) -> int:
    """What the host did while the device was idle."""
    parts = ask(options, "commands.idle:idle_part", by=options.by)
    tables = parts.each("table")
    if options.merge:
        return parts.status(
            show_merged(options, parts, IDLE, tables, order="time_ms", notes=parts.notes)
        )
    return parts.status(show_tables(options, parts, tables, order="time_ms", notes=parts.notes))


def idle_part(trace: Trace, settings: Mapping[str, Any]) -> Body:
    """What is needed of one trace."""
    trace = at_steps(trace, settings)
    return part_of(trace, [idle_gap(trace)], table=table_of(trace.idle(settings["by"])))


def idle_gap(trace: Trace) -> str:
    """Why there are no rows; empty if there are, or if no device was ever idle."""
    gap = trace.events.once(device_gap) or trace.events.once(device_time_gap)
    return f"idle time is not measured: {in_words(gap)}" if gap else ""
