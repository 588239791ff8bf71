"""`torchprof ranks` and `collectives`: the traces of a job's ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchprof.analysis.communication import (
    ROW_KEY,
    CollectiveRow,
    collective_rows,
    comm_sizes,
    waits_by_row,
)
from pytest_torchprof.analysis.missing import device_time_gap
from pytest_torchprof.analysis.rank_waits import rank_calls, waits_between
from pytest_torchprof.commands.inputs import device_time_note, part_of
from pytest_torchprof.commands.tables import (
    COLLECTIVES,
    ask,
    at_steps,
    show,
)
from pytest_torchprof.core.values import MissingValue
from pytest_torchprof.render.notes import (
    compared,
    imbalances,
    missing,
    sources,
    stragglers,
)
from pytest_torchprof.render.table import Rows, fields_of
from pytest_torchprof.trace.ranks import rank_of, rank_source_of
from pytest_torchprof.verdict.metrics import METRICS, measure
from pytest_torchprof.verdict.parts import RankRow, RankTable, rank_part, rank_table_of

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping

    from pytest_torchprof.analysis.rank_waits import RankCalls
    from pytest_torchprof.api import Trace
    from pytest_torchprof.commands.inputs import Body, Parts
    from pytest_torchprof.render.table import Row, Table
    from pytest_torchprof.trace.ranks import RankSource


# ---- `torchprof ranks`: each rank of a job, who waits for whom, and imbalance.


def run_ranks(options: Namespace) -> int:
    """Each rank of a job."""
    parts = ask(options, "commands.distributed:ranks_part")
    table = rank_table_of(parts.each("rank"), one_job=not parts.apart)
    # With its rank, even where there is no other.
    alone = len(parts) == 1 and not parts.are_for_machines
    fields = [field for field in fields_of(RankRow) if alone or field != "rank"]
    tables = {int(row.rank): Rows([row], fields).table() for row in table.rows}
    return show(options, parts, tables, notes=_notes(parts, table), extra=_extra(parts, table))


def ranks_part(trace: Trace, settings: Mapping[str, Any]) -> Body:
    """What is needed of one trace."""
    trace = at_steps(trace, settings)
    info = trace.events.metadata.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    return part_of(
        trace,
        [device_time_note(trace)],
        rank=rank_part(trace.events),
        own_rank=rank_of(trace.events.metadata),
        world_size=size if type(size) is int else 0,
    )


def _notes(parts: Parts, table: RankTable) -> Iterator[str]:
    if not parts.apart:
        yield sources(_sources(parts))
        if absent := missing([*parts], _world_size(parts)):
            yield absent
    yield from stragglers(table)
    if table.found is not None:
        yield from compared(table.found)
    elif len(parts) == 1:
        yield "wait is unknown: it takes the traces of several ranks"
    yield from imbalances(table)
    for rank, reason in table.unknown.items():
        yield f"{parts.label(rank)}: times are not measured: {reason.text}"
    yield from parts.notes
    if table.on_host:
        who = (
            ""
            if len(table.on_host) == len(parts)
            else f" of rank {', '.join(map(str, table.on_host))}"
        )
        yield f"times{who} are of the host, as there are no device events"


def _sources(parts: Parts) -> dict[int, RankSource]:
    """What tells each rank."""
    own = parts.each("own_rank")
    return {
        rank: rank_source_of(own[rank], Path(part.path.partition("::")[0]))
        for rank, part in parts.items()
    }


def _world_size(parts: Parts) -> int:
    """The number of ranks of the job, 0 if no trace tells."""
    return max(map(int, parts.each("world_size").values()))


def _extra(parts: Parts, table: RankTable) -> Row:
    """What JSON has beside the rows."""
    found = table.found
    extra: Row = {
        "waits": [{**vars(row)} for row in table.waits],  # up to a million of a thousand ranks
        "imbalance": [dataclasses.asdict(row) for row in table.imbalance],
        "collectives_compared": None if found is None else found.collectives,
    }
    if parts.apart:
        return extra
    return {
        **extra,
        "rank_from": {str(rank): source for rank, source in _sources(parts).items()},
        "missing_ranks": sorted({*range(_world_size(parts))} - {*parts}),
        "waited_for_ms": {str(rank): ms for rank, ms in table.waited_for_ms.items()}
        if found is not None and found.collectives
        else None,
        "clock_shift_ms": {
            str(rank): int(ns) / 1e6
            for rank, ns in zip(found.ranks, found.shift_ns.tolist(), strict=True)
        }
        if found is not None and found.collectives
        else None,
    }


# ---- `torchprof collectives`: calls that communicate with other ranks.


def run_collectives(options: Namespace) -> int:
    """Calls that communicate with other ranks."""
    parts = ask(options, "commands.distributed:collectives_part")
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
    return show(options, parts, tables, order="total_ms", how=COLLECTIVES, notes=notes)


def collectives_part(trace: Trace, settings: Mapping[str, Any]) -> Body:
    """What is needed of one trace: its rows, without waits, and the calls that tell these."""
    trace = at_steps(trace, settings)
    made = collective_rows(trace.events)
    unknown = [] if _bytes_gap(trace) is None else ["bytes"]
    unknown += ["total_ms"] if any(row.total_ms is None for row in made) else []
    return part_of(
        trace,
        [_nothing(trace), _sizes_note(trace), _times_note(trace), _groups_note(trace)],
        table=Rows(made, fields_of(CollectiveRow), unknown).table(),
        calls=rank_calls(trace.events),
    )


def _nothing(trace: Trace) -> str:
    """A note on a trace without any call that communicates."""
    value = measure(METRICS["collectives"], trace.events)
    if isinstance(value, MissingValue):
        return f"collectives are not measured: {value.reason.text}"
    return "" if value else "nothing communicates with other ranks in this trace"


def _bytes_gap(trace: Trace) -> str | None:
    value = measure(METRICS["comm_bytes"], trace.events)
    return value.reason.text if isinstance(value, MissingValue) else None


def _sizes_note(trace: Trace) -> str:
    gap = _bytes_gap(trace)
    return f"no total of bytes: {gap}" if gap else ""


def _times_note(trace: Trace) -> str:
    gap = trace.events.once(device_time_gap)
    if gap:
        return f"device times are of a part: {gap.text}"
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
