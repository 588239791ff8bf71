"""`torchprof collectives`: calls that communicate with other ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchprof.analysis.comm_rows import CollectiveRow, collective_rows
from pytest_torchprof.analysis.comm_sizes import comm_sizes
from pytest_torchprof.analysis.gaps import device_time_gap
from pytest_torchprof.analysis.rank_waits import rank_waits
from pytest_torchprof.commands.inputs import load_steps, notes_of
from pytest_torchprof.commands.printing import ranks_table
from pytest_torchprof.core.results import MissingValue
from pytest_torchprof.render.rank_texts import compared
from pytest_torchprof.render.reason_texts import in_words
from pytest_torchprof.render.rows import Rows, fields_of
from pytest_torchprof.verdict.metrics import METRICS, measure

if TYPE_CHECKING:
    from argparse import Namespace

    from pytest_torchprof.analysis.rank_waits import RankWaits
    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.inputs import Ranks


def run_collectives(options: Namespace) -> int:
    """Calls that communicate with other ranks."""
    ranks = load_steps(options, options.traces)
    found = waits_of(ranks)
    earliest = {} if found is None else found.earliest_ns
    by_trace = {id(trace): earliest.get(rank) for rank, trace in ranks.items()}

    def rows(trace: Trace) -> Rows[CollectiveRow]:
        unknown = [] if _bytes_gap(trace) is None else ["bytes"]
        made = collective_rows(trace.events, by_trace[id(trace)])
        unknown += ["total_ms"] if any(row.total_ms is None for row in made) else []
        return Rows(made, fields_of(CollectiveRow), unknown)

    notes = notes_of(ranks, _nothing, _sizes_note, _times_note, _groups_note)
    notes += [] if found is None else [*compared(found)]
    return ranks_table(options, ranks, rows, order="total_ms", notes=notes)


def waits_of(ranks: Ranks) -> RankWaits | None:
    """The waits of ranks for one another, if these are several ranks of one job."""
    if len(ranks) < 2 or ranks.apart:
        return None
    return rank_waits({rank: trace.events for rank, trace in ranks.items()})


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
