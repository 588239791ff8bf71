"""The plugin's part of pytest's summary: table, messages, errors, and one line of totals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_torchprof.render import escape
from pytest_torchprof.render.session_table import (
    lost_baselines,
    raised_rules,
    session_totals,
    summary_table,
    unchecked_rules,
)
from pytest_torchprof.rules.engine.registry import CODES

if TYPE_CHECKING:
    import pytest

    from pytest_torchprof.core.settings import Settings
    from pytest_torchprof.session.reporting.report_attachments import Results


def header(settings: Settings, where: str) -> str:
    """One line: what is measured here, how often a test runs, and with which seed if not 0."""
    s = settings
    seconds = s.min_time or s.gate_time_s
    timed = f"{s.rounds} timed" if not seconds else f"timed for {seconds:g} s"
    once = not (s.warmup or s.rounds or seconds)
    seed = "; not seeded" if s.seed is None or once else f"; seed {s.seed}" if s.seed else ""
    runs = f"{s.warmup} warm-up, {timed}, 1 profiled"
    return escape.line(f"torchprof: {where}; runs a test: {runs}{seed}")


def summarize(
    terminal: pytest.TerminalReporter,
    results: Results,
    settings: Settings,
    *,
    messages: Sequence[str],
    errors: Sequence[str],
    verbosity: int,
) -> None:
    """Write it to the terminal, in as much detail as pytest's ``verbosity`` asks for."""
    records = results.records

    def write(line: str, **markup: bool) -> None:
        terminal.write_line(escape.line(line), **markup)

    messages = [*lost_baselines(records), *messages]
    if errors or messages or (records and verbosity >= 0):
        terminal.write_sep("=", "torchprof")
    if records and verbosity >= 0:
        s = settings
        width = terminal._tw.fullwidth  # noqa: SLF001 - the only place that knows
        for line in summary_table(records, s.columns, s.sort, s.top, width):
            write(line)
        for line in unchecked_rules(records):
            write(line)
    for rule, line in raised_rules(records).items():
        if rule not in CODES:
            write(line, yellow=True)
    for line in messages:
        write(line)
    for line in errors:
        write(f"ERROR: {line}", red=True)
    if verbosity > -2:
        write(session_totals(records, results.runs))
