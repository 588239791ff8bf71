"""`torchprof collectives`: calls that communicate with other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_torchprof.analysis.comm_rows import (
    ROW_KEY,
    CollectiveRow,
    collective_rows,
    waits_by_row,
)
from pytest_torchprof.analysis.comm_sizes import comm_sizes
from pytest_torchprof.analysis.gaps import device_time_gap
from pytest_torchprof.analysis.rank_calls import rank_calls
from pytest_torchprof.analysis.rank_waits import waits_between
from pytest_torchprof.commands.merged import COLLECTIVES, show_merged
from pytest_torchprof.commands.parts import ask, at_steps, part_of
from pytest_torchprof.commands.printing import show_tables, table_of
from pytest_torchprof.core.results import MissingValue
from pytest_torchprof.render.rank_texts import compared
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.render.rows import Rows, fields_of
from pytest_torchprof.verdict.metrics import METRICS, measure

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

    from pytest_torchprof.analysis.rank_calls import RankCalls
    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.parts import Body
    from pytest_torchprof.commands.printing import Table


def run_collectives(options: Namespace) -> int:
    """Calls that communicate with other ranks."""
    parts = ask(options, "commands.collectives:collectives_part")
    tables: dict[int, Table] = parts.each("table")
    calls: dict[int, RankCalls] = parts.each("calls")
    found = waits_between(calls) if len(parts) > 1 and not parts.apart else None
    notes = parts.notes
    if found is not None:
        for rank, table in tables.items():
            waits = waits_by_row(calls[rank], found.earliest_ns[rank])
            for row in table.rows:
                row["wait_ms"] = waits[tuple(row[field] for field in ROW_KEY)]
        notes += compared(found)
    if options.merge:
        return parts.status(
            show_merged(options, parts, COLLECTIVES, tables, order="total_ms", notes=notes)
        )
    return parts.status(show_tables(options, parts, tables, order="total_ms", notes=notes))


def collectives_part(trace: Trace, settings: Mapping[str, Any]) -> Body:
    """What is needed of one trace: its rows, without waits, and the calls that tell these."""
    trace = at_steps(trace, settings)
    made = collective_rows(trace.events)
    unknown = [] if _bytes_gap(trace) is None else ["bytes"]
    unknown += ["total_ms"] if any(row.total_ms is None for row in made) else []
    return part_of(
        trace,
        [_nothing(trace), _sizes_note(trace), _times_note(trace), _groups_note(trace)],
        table=table_of(Rows(made, fields_of(CollectiveRow), unknown)),
        calls=rank_calls(trace.events),
    )


def _nothing(trace: Trace) -> str:
    """A note on a trace without any call that communicates."""
    value = measure(METRICS["collectives"], trace.events)
    if isinstance(value, MissingValue):
        return f"collectives are not measured: {in_words(value.reason)}"
    return "" if value else "nothing communicates with other ranks in this trace"


def _bytes_gap(trace: Trace) -> str | None:
    value = measure(METRICS["comm_bytes"], trace.events)
    return in_words(value.reason) if isinstance(value, MissingValue) else None


def _sizes_note(trace: Trace) -> str:
    gap = _bytes_gap(trace)
    return f"no total of bytes: {gap}" if gap else ""


def _times_note(trace: Trace) -> str:
    gap = trace.events.once(device_time_gap)
    if gap:
        return f"device times are of a part: {in_words(gap)}"
    untimed = sum(row.calls for row in collective_rows(trace.events) if row.total_ms is None)
    if not untimed:
        return ""
    return f"no total of times: the trace does not say when all of {untimed} calls were done"


def _groups_note(trace: Trace) -> str:
    """How many ranks each group has, from which the bus bandwidth follows."""
    sizes = comm_sizes(trace.events)
    known = sorted({*zip(sizes.group, sizes.ranks.tolist(), strict=True)})
    told = [f"{group or 'an unnamed group'} of {count}" for group, count in known if count]
    unknown = sum(1 for _, count in known if not count)
    text = f"groups and their ranks: {', '.join(told)}" if told else ""
    if unknown:
        text += f"{'; ' if text else ''}no bus bandwidth where the number of ranks is unknown"
    return text
